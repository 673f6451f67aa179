"""Proving it: verify, seal and export."""

from __future__ import annotations

import hashlib
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from onceward.errors import NotFound, Recovery
from onceward.evidence.findings import Findings
from onceward.ui.cli import render
from onceward.ui.cli.asking import ask, tell
from onceward.ui.cli.main import (
    CliCommand,
    Globals,
    asking_options,
    complete_build,
    file_argument,
    pass_globals,
)

_SHOWN = 20


@click.command(cls=CliCommand)
@click.argument("file", required=False)
@click.option(
    "--against",
    "seals",
    multiple=True,
    metavar="SEAL",
    help="A seal that you stored elsewhere. May be repeated.",
)
@click.option(
    "--key",
    "trusted",
    multiple=True,
    metavar="KEY",
    help="For a bundle: accept signatures of this key only. May be repeated.",
)
@pass_globals
def verify(
    given: Globals, file: str | None, seals: tuple[str, ...], trusted: tuple[str, ...]
) -> int:
    """Check all records of the workspace, or a bundle or seal FILE.

    Works offline; a FILE needs no workspace. Every fault is printed with its rule and its place. Exit status: 5 if
    there is a fault.
    """
    with progress_bar(given) as progress:
        if file is not None:
            found = _verify_file(
                file_argument(file), [file_argument(seal) for seal in seals], trusted, progress
            )
        else:
            if trusted:
                raise click.UsageError(
                    "--key is for a bundle; a workspace has its own list of keys"
                )
            found = given.workspace().verify([file_argument(seal) for seal in seals], progress)
    if given.json:
        render.document(found.document())
        return 0 if found.ok else 5
    _say(found)
    return 0 if found.ok else 5


def _say(found: Findings) -> None:
    looked = ", ".join(f"{count:,} {_word(what, count)}" for what, count in found.checked.items())
    for note in found.notes:
        render.say(render.plain(note))
    if found.ok:
        render.say(f"{click.style('sound', fg='green')}: {looked}")
        return
    for fault in found.faults[:_SHOWN]:
        rule = click.style(f"{fault.rule:10s}", fg="red")
        render.say(f"{rule} {render.plain(fault.subject)}: {render.plain(fault.detail)}")
    left = len(found.faults) + found.more - _SHOWN
    if left > 0:
        render.say(f"... and {left:,} more (--json lists all)")
    render.say(f"{render.counted(len(found.faults) + found.more, 'fault')} in {looked}")


def _word(what: str, count: int) -> str:
    return what if count != 1 else {"children": "child"}.get(what, what.removesuffix("s"))


def _verify_file(
    path: Path, seals: list[Path], trusted: tuple[str, ...], progress: Any
) -> Findings:
    from onceward import catalogue as _catalogue  # noqa: F401
    from onceward.evidence.bundle_check import verify_bundle
    from onceward.evidence.seal import follows, read_receipt

    if not path.is_file():
        raise NotFound(
            f"there is no file {path}",
            recovery=[Recovery("verify the workspace itself", "onceward verify")],
        )
    with path.open("rb") as file:
        is_seal = file.read(1) == b"{"
    if not is_seal:
        return verify_bundle(path, seals=seals, trusted=trusted, progress=progress)
    findings = Findings()
    newer = read_receipt(path.read_bytes(), path.name)
    findings.notes.append(
        f"signed by {newer.said['principal']} with the key {newer.envelope.fingerprint}"
    )
    if trusted and not newer.envelope.fingerprint.startswith(
        tuple(key.strip().lower() for key in trusted)
    ):
        findings.fault("signature", path.name, "not signed by a trusted key")
    findings.count("seals")
    findings.count("heads", len(newer.heads))
    for older in seals:
        findings.count("seals")
        if not follows(read_receipt(older.read_bytes(), older.name), newer):
            findings.fault("seal", path.name, f"nothing in it proves that it follows {older.name}")
    return findings


@contextmanager
def progress_bar(given: Globals) -> Iterator[Callable[[str, int, int], None] | None]:
    """A bar, for a person who waits."""
    if given.json or not sys.stderr.isatty():
        yield None
        return
    bars: dict[str, Any] = {}

    def finish() -> None:
        for bar in bars.values():
            bar.update(bar.length - bar.pos)
            bar.render_finish()

    def tell_of(what: str, seen: int, total: int) -> None:
        if what not in bars:
            finish()
            bars[what] = click.progressbar(length=max(total, 1), label=what, file=sys.stderr)
        bar = bars[what]
        bar.update(min(seen, total) - bar.pos)

    try:
        yield tell_of
    finally:
        finish()


@click.command(cls=CliCommand)
@click.option(
    "--out",
    metavar="FILE",
    help="Also write the seal to FILE, best on another machine; replaces an older seal.",
)
@asking_options
@pass_globals
def seal(given: Globals, out: str | None) -> int:
    """Sign the current end of every stream.

    With a seal stored elsewhere, `verify --against` finds a history that was cut or rewritten.
    """
    from onceward.evidence import sealing

    workspace = given.workspace()
    path = file_argument(out).absolute() if out else None
    receipt = workspace.prepare_seal(path)
    asked = ask(given, "seals.add", {"envelope": receipt.envelope.document()})
    if not asked.pending and path is not None:
        sealing.write(path, receipt)
    if given.json and not asked.pending:
        render.document({**asked.value, "receipt": receipt.document()})
        return 0
    where = (
        f", written to {render.plain(path)}" if path else "; store one elsewhere with --out FILE"
    )
    return tell(
        given,
        asked,
        lambda value: render.say(
            f"sealed {value['position']:,} events in {render.counted(value['streams'], 'stream')}"
            f" with the key {value['key'][:16]}{where}\nroot {value['root']}"
        ),
    )


@click.command(cls=CliCommand)
@click.argument("subject", metavar="BUILD|SESSION", shell_complete=complete_build)
@click.option("--out", metavar="FILE", help="The file to write [default: ID.bundle.tar].")
@click.option("--digests", is_flag=True, help="Leave out the artifacts' bytes; keep their digests.")
@pass_globals
def export(given: Globals, subject: str, out: str | None, digests: bool) -> None:
    """Export the evidence of a build or session to one file.

    The file can be verified with nothing else: onceward verify FILE
    """
    path, page = given.workspace().export(
        subject, file_argument(out).absolute() if out else None, not digests
    )
    if given.json:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        render.document(
            {"file": str(path), "kind": page.kind, "subject": page.subject, "sha256": sha256}
        )
        return
    render.say(f"{render.plain(path)}: {path.stat().st_size:,} bytes")
    if not page.workspace:
        render.say("It contains no signature. Run onceward seal, then export again.")
    render.say(f"Verify it with: onceward verify {shlex.quote(path.name)}")
