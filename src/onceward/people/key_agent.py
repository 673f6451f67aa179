"""The key agent: a process that holds unlocked keys in memory and signs with them for whoever may
ask (K-14).

It listens on a socket that only its own user can reach. It signs for no process that stands
inside a running child of the workspace, whatever that did to its environment. A note in the
workspace says where the socket is."""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from onceward.errors import InvalidConfig, PermissionDenied, Recovery
from onceward.people.peer_socket import PeerSocket, ask
from onceward.people.signing import Envelope, SigningKey

NOTE: Final = "agent.json"


class _Note(msgspec.Struct, frozen=True):
    socket: str


class _Held(msgspec.Struct, frozen=True):
    keys: dict[str, str]


class _Signed(msgspec.Struct, frozen=True):
    signature: str


class _Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    op: str
    """`list`, or `sign`."""
    fingerprint: str = ""
    statement: str = ""


class AgentKey:
    """A key that the agent holds: it signs there."""

    def __init__(self, place: str, fingerprint: str, public: bytes) -> None:
        self._place, self.fingerprint, self.public = place, fingerprint, public

    def sign(self, payload: bytes) -> Envelope:
        asked = {
            "op": "sign",
            "fingerprint": self.fingerprint,
            "statement": base64.b64encode(payload).decode(),
        }
        said = msgspec.convert(ask(self._place, asked), _Signed)
        return Envelope(payload, self.fingerprint, base64.b64decode(said.signature))

    def proof(self, workspace: str, principal: str) -> bytes:
        from onceward.people.signing import possession

        return self.sign(possession(workspace, principal, self.public)).signature


def agent_key(folder: Path, fingerprint: str) -> AgentKey | None:
    """A key that the agent of a workspace holds; None where no agent runs, or it holds another
    one."""
    try:
        place = msgspec.json.decode((folder / NOTE).read_bytes(), type=_Note).socket
        held = msgspec.convert(ask(place, {"op": "list"}), _Held).keys
        public = bytes.fromhex(held[fingerprint])
    except (OSError, msgspec.MsgspecError, PermissionDenied, KeyError, ValueError):
        # No agent, not ours, or none that holds this key.
        return None
    return AgentKey(place, fingerprint, public)


class KeyAgent:
    """Holds keys until it is stopped. `inside` answers which running child a process is in, or
    an empty text."""

    def __init__(
        self, folder: Path, keys: Mapping[str, SigningKey], inside: Callable[[int], str]
    ) -> None:
        self._note, self._keys = folder / NOTE, dict(keys)
        self._socket = PeerSocket(inside, self._answer)
        self.told: Callable[[str], None] = lambda text: None
        """Called with a description of what is signed."""

    def serve(self, stop: threading.Event, ready: Callable[[], None] = lambda: None) -> None:
        """Sign until stopped."""
        place = str(self._socket.place)
        fresh = self._note.with_suffix(".new")
        fresh.write_bytes(msgspec.json.encode(_Note(place)))
        fresh.replace(self._note)
        ready()
        try:
            self._socket.serve(stop)
        finally:
            with suppress(OSError, msgspec.MsgspecError):
                if msgspec.json.decode(self._note.read_bytes(), type=_Note).socket == place:
                    self._note.unlink()

    def _answer(self, pid: int, data: bytes) -> dict[str, Any]:
        asked = msgspec.json.decode(data, type=_Asked)
        if asked.op == "list":
            return {"keys": {name: key.public.hex() for name, key in self._keys.items()}}
        key = self._keys.get(asked.fingerprint)
        if asked.op != "sign" or key is None:
            raise PermissionDenied("the agent has no such key")
        statement = base64.b64decode(asked.statement, validate=True)
        envelope = key.sign(statement)
        self.told(f"signed {_about(statement)} for process {pid} with {key.fingerprint[:16]}")
        return {"signature": base64.b64encode(envelope.signature).decode()}


def _about(statement: bytes) -> str:
    """A short description of a statement."""
    try:
        said = msgspec.json.decode(statement)
        predicate = said["predicate"]
        act = predicate.get("act") or said["predicateType"]
        payload = predicate.get("payload")
        named = [payload[name] for name in ("entry", "build", "grant") if name in (payload or {})]
        return " ".join([str(act), *map(str, named)])
    except (msgspec.MsgspecError, KeyError, TypeError, AttributeError):
        return "something"


def locked(principal: str, fingerprint: str) -> PermissionDenied:
    return PermissionDenied(
        f"the key {fingerprint[:16]} of {principal} has a passphrase, there is no terminal to ask for it, and no"
        " agent holds it",
        context={"principal": principal, "key": fingerprint},
        recovery=[
            Recovery(
                "on the machine where the key file is, hold it in an agent",
                f"onceward --as {principal} keys agent",
            )
        ],
    )


def passphrase_on_terminal(prompt: str) -> str | None:
    """Text typed at the terminal; None where there is no terminal."""
    import getpass

    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return None
    try:
        return getpass.getpass(prompt)
    except (EOFError, KeyboardInterrupt):
        raise InvalidConfig("no passphrase was given") from None
