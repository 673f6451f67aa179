"""Keys: the files somebody acts with, and which of them a workspace knows."""

from __future__ import annotations

import shlex
import sys
import threading
from typing import TYPE_CHECKING, Any

import click

from onceward.errors import InvalidConfig, NotFound
from onceward.ui.cli import render
from onceward.ui.cli.asking import ask, tell
from onceward.ui.cli.main import CliCommand, CliGroup, Globals, asking_options, pass_globals

if TYPE_CHECKING:
    from onceward.people.keyring import Keyring
    from onceward.people.views import KeyView
    from onceward.workspace import Workspace


@click.group(cls=CliGroup)
def keys() -> None:
    """Manage signing keys.

    Principals sign what they do with their key. Key files stay on this machine.
    """


@keys.command(cls=CliCommand)
@asking_options
@pass_globals
def new(given: Globals) -> int:
    """Create a key for yourself, or for the principal of --as.

    The old key stays valid until it is revoked.
    """
    from onceward.people.views import standing_of

    workspace = given.workspace()
    with workspace.reading() as store:
        standing = standing_of(store, workspace.keyring, workspace.principal)
        signer = workspace.keyring.make(
            workspace.principal, standing.workspace, another=standing.known
        )
    said: dict[str, Any] = {
        "key": signer.key.fingerprint,
        "principal": workspace.principal,
        "offer": signer.offer(),
    }
    if standing.able:
        return tell(given, ask(given, "keys.add", {"key": signer.offer()}), _say_new)
    if given.json:
        render.document({**said, "status": "offered"})
        return 3
    role = "" if standing.known else " --role ROLE"
    render.say(
        f"created the key {said['key'][:16]} of {render.plain(said['principal'])}. An admin must add it before it is valid:"
    )
    render.say(
        f"  onceward principals add {shlex.quote(said['principal'])}{role} --key {said['offer']}"
    )
    return 3


def _say_new(value: dict[str, Any]) -> None:
    render.say(f"{render.plain(value['principal'])} now signs with the key {value['key'][:16]}.")


@keys.command("list", cls=CliCommand)
@pass_globals
def list_(given: Globals) -> None:
    """List all keys, revoked ones included, and their files here."""
    from onceward.people.views import key_list

    workspace = given.workspace()
    with workspace.reading() as store:
        found = key_list(store, workspace.keyring)
    if given.json:
        render.document(found)
        return
    rows = [
        (
            key.key[:16],
            key.principal,
            "in force" if key.in_force else "revoked",
            _file(key, workspace.keyring),
        )
        for key in found
    ]
    render.table(("key", "of", "", "file"), rows)


def _file(key: KeyView, keyring: Keyring) -> str:
    if not key.here:
        return ""
    return "here, with a passphrase" if keyring.is_locked(key.key) else "here"


@keys.command(cls=CliCommand)
@click.argument("key", required=False)
@pass_globals
def show(given: Globals, key: str | None) -> None:
    """Show the public part of KEY, or of your own key.

    Others need it to check signatures.
    """
    from onceward.people.views import key_shown

    workspace = given.workspace()
    with workspace.reading() as store:
        found = key_shown(store, workspace.keyring, workspace.principal, key)
    if given.json:
        render.document(found)
        return
    for name in ("key", "principal", "state", "public", "offer", "file"):
        value = getattr(found, name)
        if value is not None:
            click.echo(f"{name:10s} {render.plain(value)}")


_LONGEST = 1000
_STDIN = click.option(
    "--passphrase-stdin", is_flag=True, help="Read passphrases from standard input, one per line."
)


@keys.command(cls=CliCommand)
@click.option("--remove", is_flag=True, help="Remove the passphrase.")
@_STDIN
@pass_globals
def passphrase(given: Globals, remove: bool, passphrase_stdin: bool) -> None:
    """Encrypt your key file, or that of --as, with a passphrase.

    A program that runs as you then cannot use the key by reading its file. Run the command again to change the
    passphrase.
    """
    workspace = given.workspace()
    keyring = workspace.keyring
    # All is asked before anything is written.
    asked = []
    for fingerprint in _own_keys(workspace):
        old = ""
        if keyring.is_locked(fingerprint):
            old = _passphrase(f"Passphrase of {fingerprint[:16]} now: ", passphrase_stdin)
        key = keyring.unlock(fingerprint, old)
        asked.append((key, "" if remove else _new_passphrase(fingerprint, passphrase_stdin)))
    how = "has no passphrase now" if remove else "has a passphrase now"
    for key, fresh in asked:
        keyring.lock(key, workspace.principal, fresh)
        render.say(f"the key {key.fingerprint[:16]} of {render.plain(workspace.principal)} {how}")


@keys.command(cls=CliCommand)
@_STDIN
@pass_globals
def agent(given: Globals, passphrase_stdin: bool) -> None:
    """Hold an unlocked key in memory and sign for your commands.

    The key is yours, or that of --as. The agent runs until Ctrl-C and refuses processes inside a running child, whatever their environment.
    """
    from onceward.people.key_agent import KeyAgent
    from onceward.processes.ancestry import child_of_process
    from onceward.running import heard

    workspace = given.workspace()
    held = {}
    for fingerprint in _own_keys(workspace):
        locked = workspace.keyring.is_locked(fingerprint)
        prompt = f"Passphrase of {fingerprint[:16]}: "
        given_one = _passphrase(prompt, passphrase_stdin) if locked else ""
        held[fingerprint] = workspace.keyring.unlock(fingerprint, given_one)
    with workspace.reading() as store:
        keeper = KeyAgent(workspace.folder, held, child_of_process(store, workspace.folder))
        keeper.told = lambda text: click.echo(render.plain(text), err=True)
        names = ", ".join(fingerprint[:16] for fingerprint in held)
        stop = threading.Event()
        with heard(stop, True, threading.Event()):
            keeper.serve(
                stop,
                lambda: render.say(
                    f"holding {names} of {render.plain(workspace.principal)}; press Ctrl-C to stop"
                ),
            )


def _own_keys(workspace: Workspace) -> list[str]:
    """The keys in force of whoever acts whose files are here."""
    from onceward.people.views import own_key_files

    with workspace.reading() as store:
        found = own_key_files(store, workspace.keyring, workspace.principal)
    if not found:
        raise NotFound(f"{workspace.principal} has no key file here")
    return found


def _passphrase(prompt: str, from_stdin: bool) -> str:
    from onceward.people.key_agent import passphrase_on_terminal

    typed = sys.stdin.readline().rstrip("\n") if from_stdin else passphrase_on_terminal(prompt)
    try:
        size = len((typed or "").encode("utf-8"))
    except UnicodeEncodeError:
        size = _LONGEST + 1
    if size > _LONGEST:
        raise InvalidConfig(
            f"a passphrase must be text of at most {_LONGEST} bytes",
            context={"field": "passphrase"},
        )
    if not typed:
        raise InvalidConfig(
            "no passphrase given: type it at a terminal, or use --passphrase-stdin",
            context={"field": "passphrase"},
        )
    return typed


def _new_passphrase(fingerprint: str, from_stdin: bool) -> str:
    fresh = _passphrase(f"New passphrase of {fingerprint[:16]}: ", from_stdin)
    if not from_stdin and _passphrase("Repeat the passphrase: ", from_stdin) != fresh:
        raise InvalidConfig("the two passphrases differ", context={"field": "passphrase"})
    return fresh


@keys.command(cls=CliCommand)
@click.argument("key")
@click.option("--reason", default="", help="The reason, for the record.")
@asking_options
@pass_globals
def revoke(given: Globals, key: str, reason: str) -> int:
    """Revoke KEY from now on. Earlier signatures stay valid."""
    asked = ask(given, "keys.revoke", {"key": key.lower(), "reason": reason})
    return tell(
        given,
        asked,
        lambda value: render.say(f"revoked {value['key'][:16]} of {value['principal']}"),
    )
