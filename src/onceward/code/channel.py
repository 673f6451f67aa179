"""Messages between a kernel and a code host, over one socket: each is a length and that many bytes of MessagePack.

The kernel asks a host to load a file and to run its functions; the host tells how that went. A function may ask back
while it runs: for room to spend, or for what flows into it."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import msgspec

_LENGTH = struct.Struct(">I")
_READ = 1 << 18
_LONGEST = 2 << 30
"""No message is longer: whoever announces more does not speak this language."""


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What one side tells the other."""


class Load(Message, frozen=True, kw_only=True):
    """The first message to a host: what it is for."""

    kind: str
    """`plan`, `functions`, `saga`, or `name` for something that a module defines."""
    place: str
    """The file, or a name."""
    names: tuple[str, ...] = ()
    """For `functions`: each as `module:function`."""
    folder: str = ""
    """For `functions` and `name`: where modules are looked for first."""
    seconds: float
    memory: int


class Loaded(Message, frozen=True, kw_only=True):
    """What was loaded, as the loader describes it, and the files that it consists of, with their digests."""

    description: Any = None
    files: dict[str, str] = {}


class Refused(Message, frozen=True, kw_only=True):
    """Why it was not loaded."""

    error: dict[str, Any] = {}
    out_of_memory: bool = False


class HostValue(msgspec.Struct, frozen=True, kw_only=True):
    """A value that a step is given or leaves: JSON, text or bytes, a file, or several of these by name."""

    kind: str
    """`none`, `json`, `text`, `bytes`, `path` or `parts`."""
    data: bytes = b""
    parts: dict[str, HostValue] = {}


class RunFunction(Message, frozen=True, kw_only=True):
    """Run a function as a step's attempt."""

    call: int
    function: str
    child_id: str
    attempt: int
    build_id: str
    stage: str
    target: str
    idempotency_key: str
    config: bytes
    folder: str
    """The plan's own."""
    place: str
    """Where this attempt leaves what it makes."""
    upstream: dict[str, list[str]]
    """By stage that flows in, its targets."""
    collected: list[str]
    credential: str = ""
    """What it shows to ask in its own name; empty where nobody would believe it."""


class Ask(Message, frozen=True, kw_only=True):
    """Ask a function to end."""

    call: int
    why: str


class Interrupt(Message, frozen=True, kw_only=True):
    """Raise in the thread of a function that was asked to end and goes on."""

    call: int


class FunctionAsks(Message, frozen=True, kw_only=True):
    """A function asks: to spend, or for what a step before left."""

    call: int
    number: int
    lanes: dict[str, Any] | None = None
    settled: bool = False
    stage: str = ""
    target: str = ""


class FunctionAnswer(Message, frozen=True, kw_only=True):
    """What was asked for, or why not."""

    call: int
    number: int
    error: dict[str, Any] | None = None
    value: HostValue | None = None


class Said(Message, frozen=True, kw_only=True):
    """A line for the step's log, or how far the function is."""

    call: int
    line: str | None = None
    thousandths: float | None = None
    note: str = ""


class FunctionEnded(Message, frozen=True, kw_only=True):
    """How a function ended."""

    call: int
    value: HostValue | None = None
    """What it returned; None where it raised."""
    left: bool = False
    """Whether it asked for its folder, where files are outputs."""
    undecodable: str = ""
    """Why what it returned cannot be recorded; `value` has what of it can be kept."""
    shown: bytes = b""
    """How such a value shows itself."""
    error: dict[str, Any] | None = None
    """Where it raised: `code`, `message`, `retryable`, `cancelled`, `refused`."""
    traceback: str = ""


Either = (
    Load
    | Loaded
    | Refused
    | RunFunction
    | Ask
    | Interrupt
    | FunctionAsks
    | FunctionAnswer
    | Said
    | FunctionEnded
)


class Channel:
    """One end. Any thread may send; one thread reads."""

    def __init__(self, line: socket.socket) -> None:
        self.line = line
        self._sending = threading.Lock()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Either)
        self._buffer = bytearray()

    def send(self, message: Message) -> bool:
        """Whether the other side may still hear it."""
        body = self._encoder.encode(message)
        try:
            with self._sending:
                self.line.sendall(_LENGTH.pack(len(body)) + body)
        except OSError:
            return False
        return True

    def messages(self) -> Iterator[Message]:
        """Every message until the other side is gone."""
        while data := self._receive():
            yield from self.taken(data)

    def taken(self, data: bytes) -> Iterator[Message]:
        """The messages that are whole now."""
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > _LONGEST:
                raise ValueError(f"a message of {length} bytes")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            yield self._decoder.decode(body)

    def _receive(self) -> bytes:
        try:
            return self.line.recv(_READ)
        except OSError:
            return b""

    def close(self) -> None:
        self.line.close()
