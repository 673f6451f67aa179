"""A bundle: one file with everything that proves a build or session, in a form that any language
can check (E-2)."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import msgspec

from onceward.core.canon import canonical, parse
from onceward.core.chain import Event
from onceward.core.limits import MAX_PAYLOAD_BYTES
from onceward.core.records import ChildRecord
from onceward.core.sources import from_iso
from onceward.dispatch.budget import LATE, Debited
from onceward.errors import InvalidConfig
from onceward.evidence.lives import Life, debited
from onceward.evidence.members import BUNDLED, KINDS, file_of
from onceward.people.signing import Envelope, read_envelope
from onceward.store.port import Value
from onceward.store.schema import table_of
from onceward.store.table import Table
from onceward.store.tables.artifacts import RefRow
from onceward.store.tables.budgets import DebitRow
from onceward.store.tables.checkpoints import Checkpoint
from onceward.store.tables.keys import KeyRow, Signature

T = TypeVar("T")
FORMAT: Final = "onceward-bundle@1"
_BLOCK: Final = 512
_CHUNK: Final = 1 << 20
_LARGEST: Final = 512 << 20
_LONGEST: Final = 3 * MAX_PAYLOAD_BYTES
"""No line that we write is longer."""


class Member(msgspec.Struct, frozen=True):
    """A file of a bundle, as its first page lists it."""

    name: str
    sha256: str
    size: int


class BundlePage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The first page of a bundle."""

    artifacts: str
    """`whole` if their bytes are here, `digests` if only their names are."""
    files: list[Member]
    format: str
    kind: str
    subject: str
    workspace: str = ""
    """Whose keys signed what is here; without signatures it does not matter."""


def header(name: str, size: int) -> bytes:
    """The one tar header that a member of this name and size can have: no time, no owner, no
    choice."""
    tar_info = tarfile.TarInfo(name)
    tar_info.size = size
    return tar_info.tobuf(tarfile.USTAR_FORMAT if size < 8 << 30 else tarfile.GNU_FORMAT)


def padding(size: int) -> bytes:
    return bytes(-size % _BLOCK)


class BadBundle(InvalidConfig):
    """The file is not a bundle, or not the one it was; `context["rule"]` is `bundle`."""


class Reader:
    """The members of a bundle, each where it should be and what it should be."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO = path.open("rb")
        self._size = path.stat().st_size
        self._places: dict[str, tuple[int, int]] = {}
        try:
            self.page = self._first()
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        self._file.close()

    def _first(self) -> BundlePage:
        try:
            name, size = self._header(0)
        except BadBundle:
            name, size = "", 0
        if name != "bundle.json" or size > _LARGEST:
            raise BadBundle(
                f"{self.path.name} is not a bundle: its first page is missing",
                context={"rule": "bundle"},
            )
        self._places[name] = (_BLOCK, size)
        data = b"".join(self.pieces(name))
        try:
            found = parse(data)
            page = msgspec.convert(found, BundlePage)
            if canonical(found) != data or canonical(msgspec.to_builtins(page)) != data:
                raise InvalidConfig("not in canonical form")
            if (
                page.format != FORMAT
                or page.kind not in KINDS
                or page.artifacts not in ("whole", "digests")
            ):
                raise InvalidConfig("of no known kind")
        except (msgspec.ValidationError, InvalidConfig) as error:
            why = f"the first page of {self.path.name} cannot be read: {error}"
            raise BadBundle(why, context={"rule": "bundle"}) from None
        return page

    def check_members(self) -> Iterator[str]:
        """How the file differs from its first page. Every byte is read."""
        at = _BLOCK + self._places["bundle.json"][1]
        at += len(padding(at))
        if self._rest(_BLOCK + self._places["bundle.json"][1], at).strip(b"\0"):
            yield "there is something between bundle.json and what follows"
        for member in self.page.files:
            try:
                name, size = self._header(at)
            except InvalidConfig as error:
                yield f"{member.name}: {error.message}"
                return
            if (name, size) != (member.name, member.size) or at + _BLOCK + size > self._size:
                yield f"{member.name} is not where it should be"
                return
            self._places[name] = (at + _BLOCK, size)
            made = hashlib.sha256()
            for piece in self.pieces(name):
                made.update(piece)
            if made.hexdigest() != member.sha256:
                yield f"{name} is not what its digest says"
            end = at + _BLOCK + size
            at = end + len(padding(size))
            if self._rest(end, at).strip(b"\0"):
                yield f"there is something after {name}"
        self._file.seek(at)
        if self._file.read(3 * _BLOCK) != bytes(2 * _BLOCK):
            yield "the file does not end where it should"

    def pieces(self, name: str) -> Iterator[bytes]:
        at, size = self._places[name]
        left = size
        while left > 0:
            self._file.seek(at + size - left)
            piece = self._file.read(min(_CHUNK, left))
            if not piece:
                return
            left -= len(piece)
            yield piece

    def lines(self, name: str) -> Iterator[bytes]:
        """The lines of a member, without their ends; nothing where there is no such member."""
        if name not in self._places:
            return
        rest = b""
        for piece in self.pieces(name):
            *whole, rest = (rest + piece).split(b"\n")
            yield from whole
            if len(rest) > _LONGEST:
                raise BadBundle(
                    f"a line of {name} is longer than any record", context={"rule": "bundle"}
                )
        if rest:
            raise BadBundle(f"the last line of {name} has no end", context={"rule": "bundle"})

    def has(self, name: str) -> bool:
        return name in self._places

    def _header(self, at: int) -> tuple[str, int]:
        self._file.seek(at)
        block = self._file.read(_BLOCK)
        try:
            tar_info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
            if header(tar_info.name, tar_info.size) != block:
                raise ValueError
        except (tarfile.TarError, ValueError, UnicodeError):
            raise BadBundle(
                "its header is not the one it should have", context={"rule": "bundle"}
            ) from None
        return tar_info.name, tar_info.size

    def _rest(self, at: int, end: int) -> bytes:
        self._file.seek(at)
        found = self._file.read(end - at)
        return found if len(found) == end - at else b"cut"


def in_order(child: ChildRecord) -> tuple[bool, int, int]:
    """By dispatch, then those that were never dispatched, by their place in the queue (K-1)."""
    return (child.dispatch_seq is None, child.dispatch_seq or 0, child.queue_seq)


def line_of(record: msgspec.Struct) -> bytes:
    """A record as a line: what is absent is left out, bytes are hex, a signature is its DSSE
    envelope."""
    if isinstance(record, Signature):
        envelope = Envelope(record.statement.encode(), record.fingerprint, record.signature)
        return canonical({"envelope": envelope.document(), "seq": record.seq}) + b"\n"
    fields = {
        name: value.hex() if isinstance(value, bytes) else value
        for name, value in msgspec.structs.asdict(record).items()
        if value is not None
    }
    if isinstance(record, ChildRecord):
        fields["schema"] = "scheduler_dispatch_token@1"
        if record.worker_run_id is not None:
            fields["lease_id"] = record.worker_run_id
    return canonical(fields) + b"\n"


def record_of(kind: type[T], line: bytes) -> T:
    """The record of a line; refused if it says anything that we would not have written."""
    try:
        said: dict[str, Any] = parse(line)
        if kind is Signature:
            envelope = read_envelope(said["envelope"])
            text = envelope.statement.decode()
            found: Any = Signature(
                statement_hash=envelope.statement_hash,
                statement=text,
                fingerprint=envelope.fingerprint,
                signature=envelope.signature,
                seq=said["seq"],
            )
        else:
            fields = kind.__struct_fields__  # type: ignore[attr-defined]
            values = {name: said.get(name) for name in fields}
            if kind is KeyRow:
                values["public_key"] = bytes.fromhex(said["public_key"])
                values["proof"] = bytes.fromhex(said["proof"])
            found = msgspec.convert(values, kind)
        if line_of(found) != line + b"\n":
            raise ValueError
    except (
        msgspec.ValidationError,
        InvalidConfig,
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
    ):
        raise BadBundle(
            f"a line is no record of {file_of(kind)}: {line[:60]!a}", context={"rule": "bundle"}
        ) from None
    return found  # type: ignore[no-any-return]


def event_of(line: bytes) -> Event:
    """The event of a line, byte for byte."""
    try:
        fields = parse(line)
        body = canonical({name: fields[name] for name in ("context", "detail", "event")})
        event = Event(
            stream=fields["stream_id"],
            seq=fields["seq"],
            at=from_iso(fields["ts"]),
            source=fields["source"],
            body=body,
            prev_hash=bytes.fromhex(fields["prev_hash"]),
            hash=bytes.fromhex(fields["hash"]),
        )
        if event.line() != line:
            raise ValueError
    except (InvalidConfig, KeyError, TypeError, ValueError, AttributeError):
        raise BadBundle(f"a line is no event: {line[:60]!a}", context={"rule": "chain"}) from None
    return event


class BundleRecords:
    """A bundle's records, in the shape that `verify` takes."""

    whole = False

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._ends: dict[str, bytes] = {}
        self._hashes: dict[tuple[str, int], bytes] = {}
        self.heads: dict[str, tuple[int, bytes]] = {}
        for event in self.events():
            self.heads[event.stream] = (event.seq, event.hash)
            if event.source == "child" and event.stream.startswith("child:"):
                self._ends[event.stream[6:]] = event.body
            elif event.source in ("build", "saga", "change", "entry"):
                self._hashes[event.stream, event.seq] = event.hash
        self._refs: dict[str, set[tuple[str, str, str, str]]] = {}
        for ref in self.all(RefRow):
            self._refs.setdefault(ref.owner, set()).add((ref.owner, ref.name, ref.kind, ref.sha256))
        self._places = {(c.build_id, c.stage, c.target) for c in self.all(Checkpoint)}
        self._known: dict[str, Life] | None = None
        self._debits: dict[str, list[Debited]] | None = None

    def workspace(self) -> str:
        return self._reader.page.workspace

    def events(self) -> Iterator[Event]:
        before = ("", 0)
        for line in self._reader.lines("events.ndjson"):
            event = event_of(line)
            if (event.stream, event.seq) <= before:
                raise BadBundle(
                    f"{event.stream}#{event.seq} is not where it belongs", context={"rule": "gap"}
                )
            before = (event.stream, event.seq)
            yield event

    def all(self, kind: type[T]) -> Iterator[T]:
        if kind not in BUNDLED:
            return iter(())
        found = self._in_order(kind)
        if kind is ChildRecord:
            # A file has them by dispatch; whoever reads streams along wants them by id.
            by_id: Any = attrgetter("child_id")
            return iter(sorted(found, key=by_id))
        return found

    def _in_order(self, kind: type[T]) -> Iterator[T]:
        """The records of a file, each once and where it belongs."""
        key = table_of(kind).in_order
        before: Any = None
        for line in self._reader.lines(file_of(kind)):
            record = record_of(kind, line)
            place = (
                in_order(record)
                if isinstance(record, ChildRecord)
                else tuple(getattr(record, name) for name in key)
            )
            if before is not None and place <= before:
                raise BadBundle(
                    f"{file_of(kind)} is not in order: {line[:60]!a}", context={"rule": "bundle"}
                )
            before = place
            yield record

    def of(self, kind: type[T], **fixed: Value) -> Iterator[T]:
        return (
            row
            for row in self.all(kind)
            if all(getattr(row, name) == value for name, value in fixed.items())
        )

    def positions(self, table: Table[Any]) -> Iterator[tuple[str, int]]:
        return iter(())

    def stream(self, name: str) -> Iterator[Event]:
        return (event for event in self.events() if event.stream == name)

    def lives(self, children: Sequence[str]) -> dict[str, Life]:
        if self._known is None:
            self._known = {child.child_id: Life(child, [], []) for child in self.all(ChildRecord)}
            for event in self.events():
                life = self._known.get(event.stream.removeprefix("child:"))
                if life is not None:
                    life.events.append(event)
            for debit in self.all(DebitRow):
                if debit.child_id in self._known and debit.settled != LATE:
                    self._known[debit.child_id].debits.append(debited(debit))
        return {child: self._known[child] for child in children if child in self._known}

    def debits_of(self, children: Sequence[str]) -> dict[str, list[Debited]]:
        if self._debits is None:
            self._debits = {}
            for debit in self.all(DebitRow):
                self._debits.setdefault(debit.child_id, []).append(debited(debit))
        return {child: self._debits[child] for child in children if child in self._debits}

    def told(self) -> int:
        return sum(event.stream.startswith(("session:", "child:")) for event in self.events())

    def dispatched(self, session: str) -> Iterator[ChildRecord]:
        return (
            child for child in self._in_order(ChildRecord) if child.parent_session_id == session
        )

    def hash_at(self, stream: str, seq: int) -> bytes | None:
        return self._hashes.get((stream, seq))

    def ends_of(self, children: Sequence[str]) -> dict[str, bytes]:
        return {child: self._ends[child] for child in children if child in self._ends}

    def places(self, places: Sequence[tuple[str, str, str]]) -> set[tuple[str, str, str]]:
        return self._places.intersection(places)

    def refs_of(self, owners: Sequence[str]) -> set[tuple[str, str, str, str]]:
        return set().union(*(self._refs.get(owner, set()) for owner in owners))

    def asked(self, verb: str, request_id: str) -> str | None:
        return None

    def first_key(self) -> int | None:
        return 0 if self._reader.page.workspace else None

    def last_move(self, stream: str) -> int:
        """The seq of a build's last move in its stream."""
        return max((seq for name, seq in self._hashes if name == stream), default=0)
