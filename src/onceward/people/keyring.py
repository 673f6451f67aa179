"""Key files: one a key, mode 0600, in the workspace's folder and never in its store (E-4)."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from onceward.core import faults
from onceward.core.durable import sync_folder, write_aside
from onceward.core.steps import step_name
from onceward.errors import InvalidConfig, PermissionDenied, Recovery
from onceward.people.key_agent import agent_key, locked, passphrase_on_terminal
from onceward.people.signing import KeyHandle, SigningKey, is_locked
from onceward.processes.ancestry import own_ancestry
from onceward.processes.prints import step_here
from onceward.store.port import Reads
from onceward.store.tables.builds import Builds
from onceward.store.tables.keys import KeyRow, keys_of, workspace_id

_HEADER = "Onceward key of "
_FOOTER = "-----END"


class Signer:
    """A principal with a key at hand."""

    def __init__(self, principal: str, workspace: str, key: KeyHandle) -> None:
        self.principal, self.workspace, self.key = principal, workspace, key

    def proof(self) -> bytes:
        return self.key.proof(self.workspace, self.principal)

    def offer(self) -> str:
        """What an admin needs to make this key known: the public key, and the proof that its
        owner has it."""
        return f"ed25519:{self.key.public.hex()}:{self.proof().hex()}"


def inside_child(principal: str, inside: str) -> PermissionDenied:
    return PermissionDenied(
        f"{inside} signs for nobody, and so not for {principal}",
        context={"principal": principal, "inside": inside},
        recovery=[
            Recovery(
                "leave what it made as its result, and have a person act on that outside of the build"
            )
        ],
    )


class Keyring:
    """The keys that this machine has for a workspace."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def signer(self, rows: Reads, principal: str) -> Signer:
        """The principal's newest key that is in force and here; for nobody inside a child
        (K-14)."""
        inside = self.child_around(rows)
        if inside:
            raise inside_child(principal, inside)
        known = keys_of(rows, principal)
        active = [key for key in known if key.revoked_seq is None]
        for key in reversed(active):
            held = agent_key(self.folder.parent, key.fingerprint)
            if held is not None:
                return Signer(principal, workspace_id(rows), held)
            if self.has(key.fingerprint):
                return Signer(principal, workspace_id(rows), self._read(key.fingerprint, principal))
        raise self._without(principal, known, active)

    def secrets(self) -> dict[str, str]:
        """The secrets in the key files here: every line of their contents, by the key's name."""
        found: dict[str, str] = {}
        for path in sorted(self.folder.glob("*.pem")) if self.folder.is_dir() else ():
            with suppress(OSError, UnicodeDecodeError):
                lines = path.read_text("utf-8").splitlines()
                body = [line for line in lines[1:] if line and not line.startswith("-----")]
                found[f"KEY_{path.stem[:16]}"] = "\n".join(body)
        return found

    def child_around(self, rows: Reads) -> str:
        """The step whose thread this is, or the running child that this process is in; empty
        outside of both."""
        task = step_here()
        if task is not None and Builds(rows).find(task.build_id) is not None:
            return f"the step {step_name(task.stage, task.target)}"
        child = own_ancestry().child_of(rows, self.folder.parent)
        return f"the child {child}" if child else ""

    def make(self, principal: str, workspace: str, *, another: bool = False) -> Signer:
        """A new key for a principal, or the one that was made and not told of."""
        waiting = None if another else self._waiting(principal)
        key = self._read(waiting, principal) if waiting else SigningKey.generate()
        if not waiting:
            self._write(key, principal)
        return Signer(principal, workspace, key)

    def has(self, fingerprint: str) -> bool:
        return self.path_of(fingerprint).is_file()

    def path_of(self, fingerprint: str) -> Path:
        return self.folder / f"{fingerprint}.pem"

    def _waiting(self, principal: str) -> str | None:
        """A key of a principal that never had one told of: it was made, and then something went
        wrong."""
        if self.folder.is_dir():
            for path in sorted(self.folder.glob("*.pem")):
                with suppress(OSError, UnicodeDecodeError):
                    text = path.read_text("utf-8")
                    # One that ends half-way was never used: a full disk cut it off.
                    if text.partition("\n")[0] == _HEADER + principal and _FOOTER in text:
                        return path.stem
        return None

    def unlock(self, fingerprint: str, passphrase: str) -> SigningKey:
        """The key in a file that has a passphrase."""
        return self._key_in(fingerprint, self._data(fingerprint), passphrase)

    def is_locked(self, fingerprint: str) -> bool:
        return is_locked(self._data(fingerprint))

    def lock(self, key: SigningKey, principal: str, passphrase: str) -> None:
        """Write a key's file anew, with this passphrase or, empty, with none."""
        self._write(key, principal, passphrase)

    def _read(self, fingerprint: str, principal: str) -> SigningKey:
        data = self._data(fingerprint)
        passphrase = ""
        if is_locked(data):
            typed = passphrase_on_terminal(f"Passphrase of {principal}'s key {fingerprint[:16]}: ")
            if typed is None:
                raise locked(principal, fingerprint)
            passphrase = typed
        return self._key_in(fingerprint, data, passphrase)

    def _data(self, fingerprint: str) -> bytes:
        path = self.path_of(fingerprint)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as file:
                status = os.fstat(descriptor)
                data = file.read(10_000)
        except OSError as error:
            raise InvalidConfig(f"cannot read the key file {path}: {error.strerror}") from error
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise InvalidConfig(
                f"others may read the key file {path}; it is used only while they may not",
                context={"file": str(path)},
                recovery=[Recovery("take their rights away", f"chmod 600 '{path}'")],
            )
        return data

    def _key_in(self, fingerprint: str, data: bytes, passphrase: str) -> SigningKey:
        path = self.path_of(fingerprint)
        try:
            key = SigningKey.read(data[data.find(b"-----BEGIN") :], passphrase)
        except InvalidConfig as error:
            raise InvalidConfig(f"{path}: {error.message}", context={"file": str(path)}) from None
        if key.fingerprint != fingerprint:
            raise InvalidConfig(f"the key file {path} holds another key than its name says")
        return key

    def _write(self, key: SigningKey, principal: str, passphrase: str | None = None) -> None:
        """A new file; or, with a passphrase that may be empty, another in its place."""
        path = self.path_of(key.fingerprint)
        # Written aside and linked into place: a key file is there whole or not at all.
        fresh = path.with_suffix(".new")
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # What somebody who was killed left half-written.
            fresh.unlink(missing_ok=True)
            try:
                pem = key.pem(passphrase or "")
                write_aside(fresh, f"{_HEADER}{principal}\n".encode() + pem)
                faults.point("key.written")
                if passphrase is None:
                    path.hardlink_to(fresh)
                else:
                    fresh.replace(path)
            finally:
                fresh.unlink(missing_ok=True)
            sync_folder(self.folder)
        except OSError as error:
            raise InvalidConfig(
                f"cannot write a key file in {self.folder}: {error.strerror}"
            ) from error

    def _without(
        self, principal: str, known: list[KeyRow], active: list[KeyRow]
    ) -> PermissionDenied:
        if not known:
            what = f"{principal} has no key here yet, and an admin takes one when it is made known"
        elif not active:
            what = f"every key of {principal} was revoked"
        else:
            what = f"{principal} acts with the key {active[-1].fingerprint[:16]}, which is not in {self.folder}"
        return PermissionDenied(
            what,
            context={"principal": principal, "keys": [key.fingerprint for key in active]},
            recovery=[
                Recovery("act as somebody whose key is here, or bring the key file"),
                Recovery(
                    "or make another and have an admin accept it",
                    f"onceward --as {principal} keys new",
                ),
            ],
        )
