"""`export`: the records of one build or session, and of nobody else, as a bundle. Same rows, same bytes (E-2)."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from onceward.errors import IntegrityFault, InvalidConfig, NotFound, Recovery
from onceward.evidence.bundle import FILES, FORMAT, SAGA_FILES, Member, Page, header, in_order, line_of, padding
from onceward.evidence.records import (
    ArtifactRow,
    BuildRow,
    Child,
    Debit,
    PermitRow,
    PlanRow,
    RefRow,
    Rows,
    SessionRow,
    Total,
)
from onceward.evidence.seal import heads_at
from onceward.evidence.signing import Envelope
from onceward.kernel.canon import canonical
from onceward.kernel.chain import Event
from onceward.kernel.grants import Grant
from onceward.kernel.merkle import inclusion_proof
from onceward.kernel.sagas import Run, Step
from onceward.kernel.vocabulary import Audit, Collection, Value
from onceward.lifecycles.plan import manifest_line
from onceward.store.tables.approvals import Approval
from onceward.store.tables.checkpoints import Checkpoint
from onceward.store.tables.events import events_named, events_of, head_of
from onceward.store.tables.keys import Key, Signature, find_key, find_signature, newest_seal, signatures_about

_README: Final = Path(__file__).parent / "BUNDLE.md"
_BATCH = 200
_CHUNK = 1 << 20
_SPOOLED = 1 << 22


class Selection:
    """What belongs to one subject."""

    def __init__(self, rows: Rows, session_id: str) -> None:
        self.rows, self.session_id = rows, session_id
        self.builds = list(rows.of(BuildRow, build_id=session_id))
        self.sessions = list(rows.of(SessionRow, session_id=session_id))
        self.children = list(rows.of(Child, parent_session_id=session_id))
        self.checkpoints = list(rows.of(Checkpoint, build_id=session_id))
        self.runs = list(rows.of(Run, saga_id=session_id))
        self.governed = self._governed()
        self._signed: set[str] = set()

    @property
    def kind(self) -> str:
        return "build" if self.builds else "saga" if self.runs else "session"

    def _governed(self) -> dict[Any, list[Any]]:
        """What a saga's run did, under which authority, and what of the registry is of its root."""
        if not self.runs:
            return {}
        (run,) = self.runs
        root = run.idempotency_root
        audits = list(self.rows.of(Audit, root=root))
        values = {v.vocab_id: v for v in self.rows.of(Value, root=root)}
        values |= {v.vocab_id: v for audit in audits for v in self.rows.of(Value, vocab_id=audit.subject)}
        return {
            Run: self.runs,
            Step: list(self.rows.of(Step, saga_id=run.saga_id)),
            Grant: list(self.rows.of(Grant, grant_id=run.grant_id)) if run.grant_id else [],
            Collection: list(self.rows.of(Collection, root=root)),
            Value: [values[vocab_id] for vocab_id in sorted(values)],
            Audit: audits,
        }

    def _streams(self) -> list[str]:
        """The streams of the subject itself, and of what it governs, by name."""
        ids = [g.grant_id for g in self.governed.get(Grant, ())]
        ids += [c.collection_id for c in self.governed.get(Collection, ())]
        ids += [v.vocab_id for v in self.governed.get(Value, ())]
        sagas = [f"saga:{run.saga_id}" for run in self.runs]
        return [*sorted(f"entry:{one}" for one in ids), *sagas, f"session:{self.session_id}"]

    def records(self) -> Iterator[tuple[str, Iterable[msgspec.Struct]]]:
        """Every file of records, and what stands in it."""
        session = self.session_id
        plans = {build.plan_hash for build in self.builds}
        children = sorted(self.children, key=in_order)
        refs = self._refs()
        found: dict[Any, Iterable[msgspec.Struct]] = {
            BuildRow: self.builds,
            SessionRow: self.sessions,
            Child: children,
            Total: self.rows.of(Total, parent_session_id=session),
            Debit: self.rows.of(Debit, parent_session_id=session),
            PlanRow: [plan for plan_hash in sorted(plans) for plan in self.rows.of(PlanRow, plan_hash=plan_hash)],
            Checkpoint: self.checkpoints,
            Approval: self.rows.of(Approval, build_id=session),
            PermitRow: self.rows.of(PermitRow, build_id=session),
            RefRow: refs,
            ArtifactRow: self._artifacts(refs),
            Key: self.keys,
            Signature: self.signatures,
        }
        for kind, name in FILES.items():
            yield name, found[kind]
        for kind, some in self.governed.items():
            yield SAGA_FILES[kind], some

    def _refs(self) -> list[RefRow]:
        owners = {self.session_id, *(c.child_id for c in self.children), *(c.child_id for c in self.checkpoints)}
        return [ref for owner in sorted(filter(None, owners)) for ref in self.rows.of(RefRow, owner=owner)]

    def _artifacts(self, refs: list[RefRow]) -> list[ArtifactRow]:
        return [row for sha256 in sorted({r.sha256 for r in refs}) for row in self.rows.of(ArtifactRow, sha256=sha256)]

    def gather(self) -> None:
        """Which statements and keys the events speak of."""
        rows = self.rows.rows
        for stream in self._streams():
            for event in events_of(rows, stream):
                if b'"signed":"' in event.body:
                    self._signed.add(event.facts()["context"].get("signed", ""))
        signatures = {signature.statement_hash: signature for signature in signatures_about(rows, self.session_id)}
        keys: dict[str, Key] = {}
        self.seal = self._seal()
        wanted = {signature.fingerprint for signature in signatures.values()} | ({self.seal[1]} if self.seal else set())
        while self._signed or wanted:
            # Who signed needs a key, a key comes and goes by an event, and somebody signed that too.
            found = [find_signature(rows, signed) for signed in self._signed if signed not in signatures]
            signatures |= {signature.statement_hash: signature for signature in found if signature is not None}
            wanted |= {signature.fingerprint for signature in signatures.values()}
            fresh = [find_key(rows, fingerprint) for fingerprint in wanted if fingerprint not in keys]
            keys |= {key.fingerprint: key for key in fresh if key is not None}
            self._signed = {signed for key in fresh if key is not None for signed in self._signed_for(key)}
            wanted = set()
        self.signatures = sorted(signatures.values(), key=lambda signature: signature.seq)
        self.keys = [keys[fingerprint] for fingerprint in sorted(keys)]

    def _signed_for(self, key: Key) -> Iterator[str]:
        """The statements that asked for a key to come and to go."""
        for seq in (key.added_seq, key.revoked_seq):
            if seq is not None:
                event = next(events_of(self.rows.rows, "workspace", seq - 1))
                yield from filter(None, [event.facts()["context"].get("signed")])

    def _seal(self) -> tuple[bytes, str] | None:
        """The newest seal, if it knows the whole stream of the subject: with the proof that it does."""
        rows, stream = self.rows.rows, f"session:{self.session_id}"
        newest = newest_seal(rows)
        signed = find_signature(rows, newest.statement_hash) if newest is not None else None
        if newest is None or signed is None:
            return None
        heads = list(heads_at(rows, newest.position))
        index = next((n for n, head in enumerate(heads) if head.stream == stream), None)
        if index is None or head_of(rows, stream)[0] != heads[index].seq:
            return None
        path = [step.hex() for step in inclusion_proof([head.leaf() for head in heads], index)]
        envelope = Envelope(signed.statement.encode(), signed.fingerprint, signed.signature)
        head = heads[index]
        said = {
            "envelope": envelope.document(),
            "head": [head.stream, head.seq, head.hash],
            "proof": {"index": index, "path": path},
        }
        return canonical(said), signed.fingerprint

    def events(self) -> Iterator[Event]:
        """Own streams by name, then what the workspace's stream says of the keys and signatures that are here."""
        rows = self.rows.rows
        names = sorted(f"child:{child.child_id}" for child in self.children)
        for start in range(0, len(names), _BATCH):
            yield from events_named(rows, names[start : start + _BATCH])
        for stream in self._streams():
            yield from events_of(rows, stream)
        wanted = {signature.seq for signature in self.signatures}
        for key in self.keys:
            wanted |= {key.added_seq} | ({key.revoked_seq} if key.revoked_seq is not None else set())
        for seq in sorted(wanted):
            yield next(events_of(rows, "workspace", seq - 1))


def export(rows: Rows, session_id: str, path: Path, pieces: Callable[[str], Iterator[bytes]], whole: bool) -> Page:
    """Write the bundle of a session, which every build has, into a new file; `pieces` reads an artifact."""
    if path.exists():
        raise InvalidConfig(
            f"{path} is already there; an export never overwrites",
            recovery=[Recovery("choose another name with --out")],
        )
    if not path.parent.is_dir():
        raise InvalidConfig(f"{path.parent} is not a folder", context={"field": "out"})
    selection = Selection(rows, session_id)
    selection.gather()
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as out:  # noqa: PTH123
            page = _write(selection, out, pieces, whole)
            out.flush()
            os.fsync(out.fileno())
        publish(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return page


def _write(selection: Selection, out: IO[bytes], pieces: Callable[[str], Iterator[bytes]], whole: bool) -> Page:
    members: list[tuple[Member, IO[bytes]]] = []
    artifacts: list[ArtifactRow] = []

    def add(name: str, data: Iterable[bytes]) -> None:
        file = tempfile.SpooledTemporaryFile(max_size=_SPOOLED)  # noqa: SIM115
        made, size = hashlib.sha256(), 0
        for piece in data:
            file.write(piece)
            made.update(piece)
            size += len(piece)
        members.append((Member(name, made.hexdigest(), size), file))

    add("README.md", [_README.read_bytes()])
    add("events.ndjson", (event.line() + b"\n" for event in selection.events()))
    for name, records in selection.records():
        if name == FILES[ArtifactRow]:
            artifacts = list(records)  # type: ignore[arg-type]
        add(name, (line_of(record) for record in records))
    if selection.builds and selection.builds[0].state == "SUCCESS":
        add("manifest.ndjson", (manifest_line(c.stage, c.target, c.outputs) for c in selection.checkpoints))
    if selection.seal:
        add("seal.json", [selection.seal[0]])
    listed = [member for member, _ in members]
    if whole:
        listed += [Member(f"artifacts/{row.sha256}", row.sha256, row.size) for row in artifacts]
    signed = selection.rows.workspace() if selection.keys else ""
    subject = selection.session_id
    page = Page("whole" if whole else "digests", listed, FORMAT, selection.kind, subject, signed)
    _put(out, "bundle.json", canonical(msgspec.to_builtins(page)))
    for member, file in members:
        file.seek(0)
        out.write(header(member.name, member.size))
        while piece := file.read(_CHUNK):
            out.write(piece)
        out.write(padding(member.size))
        file.close()
    for row in artifacts if whole else ():
        _put_artifact(out, row, pieces)
    out.write(bytes(1024))
    return page


def _put(out: IO[bytes], name: str, data: bytes) -> None:
    out.write(header(name, len(data)) + data + padding(len(data)))


def _put_artifact(out: IO[bytes], row: ArtifactRow, pieces: Callable[[str], Iterator[bytes]]) -> None:
    """Its bytes, which the reader of artifacts verifies; a bundle that lies is not made."""
    out.write(header(f"artifacts/{row.sha256}", row.size))
    try:
        written = sum(out.write(piece) for piece in pieces(row.sha256))
    except (NotFound, IntegrityFault) as error:
        error.recovery = (*error.recovery, Recovery("export the digests without the bytes", "--digests"))
        raise
    if written != row.size:
        raise IntegrityFault(f"artifact {row.sha256[:16]} has {written:,} bytes, not {row.size:,}")
    out.write(padding(row.size))


def publish(partial: Path, path: Path) -> None:
    """Give a finished file its name, unless something took the name meanwhile."""
    try:
        os.link(partial, path)
    except FileExistsError:
        raise InvalidConfig(f"{path} appeared meanwhile; nothing is overwritten") from None
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
