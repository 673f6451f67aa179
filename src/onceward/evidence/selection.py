"""The rows, events, keys and statements of one subject's bundle, and nobody else's (E-2)."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from onceward.core.canon import canonical
from onceward.core.chain import Event
from onceward.core.changes import (
    Affected,
    ChangeSet,
    Decision,
    Entry,
    HistoryRow,
    ManifestEnvelope,
    PairSignature,
    VerifyResult,
)
from onceward.core.grants import Grant
from onceward.core.merkle import inclusion_proof
from onceward.core.records import Build, ChildRecord
from onceward.core.sagas import Run, SagaStep
from onceward.core.vocabulary import Audit, Collection, Value
from onceward.evidence.bundle import in_order
from onceward.evidence.members import stream_of
from onceward.evidence.records import StoreRecords
from onceward.evidence.seal import heads_at
from onceward.people.signing import Envelope
from onceward.store.schema import bundled, table_of
from onceward.store.tables.approvals import Approval
from onceward.store.tables.artifacts import ArtifactRow, RefRow
from onceward.store.tables.budgets import DebitRow, LaneTotal
from onceward.store.tables.builds import PlanRow
from onceward.store.tables.changes import DependencyRow, UnitRow
from onceward.store.tables.checkpoints import Checkpoint
from onceward.store.tables.children import SessionRow
from onceward.store.tables.events import events_named, events_of, head_of
from onceward.store.tables.keys import (
    KeyRow,
    Signature,
    find_key,
    find_signature,
    newest_seal,
    signatures_about,
)
from onceward.store.tables.permits import PermitRow

_BATCH = 200


class Selection:
    """The records of a build, a saga's run or a session."""

    def __init__(self, rows: StoreRecords, subject: str) -> None:
        self.rows, self.subject = rows, subject
        session_id = subject
        self.builds = list(rows.of(Build, build_id=session_id))
        self.sessions = list(rows.of(SessionRow, session_id=session_id))
        self.children = list(rows.of(ChildRecord, parent_session_id=session_id))
        self.checkpoints = list(rows.of(Checkpoint, build_id=session_id))
        self.runs = list(rows.of(Run, saga_id=session_id))
        self.governed = self.belongings()
        self._signed: set[str] = set()

    @property
    def kind(self) -> str:
        if self.builds:
            return "build"
        return "saga" if self.runs else "session"

    @property
    def stream(self) -> str:
        """The one stream whose head stands for all of it."""
        return stream_of(self.kind, self.subject)

    def belongings(self) -> dict[Any, list[Any]]:
        """A saga's run with its steps, its grant, and the registry's records under its root."""
        if not self.runs:
            return {}
        (run,) = self.runs
        root = run.idempotency_root
        audits = list(self.rows.of(Audit, root=root))
        values = {value.vocab_id: value for value in self.rows.of(Value, root=root)}
        for audit in audits:
            for value in self.rows.of(Value, vocab_id=audit.subject):
                values[value.vocab_id] = value
        return {
            Run: self.runs,
            SagaStep: list(self.rows.of(SagaStep, saga_id=run.saga_id)),
            Grant: list(self.rows.of(Grant, grant_id=run.grant_id)) if run.grant_id else [],
            Collection: list(self.rows.of(Collection, root=root)),
            Value: [values[vocab_id] for vocab_id in sorted(values)],
            Audit: audits,
        }

    def streams(self) -> list[str]:
        """The streams of the subject itself, and of what it governs, by name."""
        ids = [grant.grant_id for grant in self.governed.get(Grant, ())]
        ids += [collection.collection_id for collection in self.governed.get(Collection, ())]
        ids += [value.vocab_id for value in self.governed.get(Value, ())]
        entries = sorted(f"entry:{entry_id}" for entry_id in ids)
        sagas = [f"saga:{run.saga_id}" for run in self.runs]
        return [*entries, *sagas, self.stream]

    def records(self) -> Iterator[tuple[str, Iterable[msgspec.Struct]]]:
        """Every file of records, and what stands in it."""
        session = self.subject
        plans = {build.plan_hash for build in self.builds}
        children = sorted(self.children, key=in_order)
        refs = self._refs()
        found: dict[Any, Iterable[msgspec.Struct]] = {
            Build: self.builds,
            SessionRow: self.sessions,
            ChildRecord: children,
            LaneTotal: self.rows.of(LaneTotal, parent_session_id=session),
            DebitRow: self.rows.of(DebitRow, parent_session_id=session),
            PlanRow: [
                plan
                for plan_hash in sorted(plans)
                for plan in self.rows.of(PlanRow, plan_hash=plan_hash)
            ],
            Checkpoint: self.checkpoints,
            Approval: self.rows.of(Approval, build_id=session),
            PermitRow: self.rows.of(PermitRow, build_id=session),
            RefRow: refs,
            ArtifactRow: self._artifacts(refs),
            KeyRow: self.keys,
            Signature: self.signatures,
        }
        found |= self.governed
        for table in bundled(self.kind):
            yield table.bundle, found.get(table.proven(), ())

    def owners(self) -> set[str]:
        """The owners of the artifact references that belong to it."""
        children = (*(c.child_id for c in self.children), *(c.child_id for c in self.checkpoints))
        return {self.subject, *filter(None, children)}

    def _refs(self) -> list[RefRow]:
        return [ref for owner in sorted(self.owners()) for ref in self.rows.of(RefRow, owner=owner)]

    def _artifacts(self, refs: list[RefRow]) -> list[ArtifactRow]:
        return [
            row
            for sha256 in sorted({r.sha256 for r in refs})
            for row in self.rows.of(ArtifactRow, sha256=sha256)
        ]

    def gather(self) -> None:
        """Which statements and keys the events speak of."""
        rows = self.rows.rows
        for stream in self.streams():
            for event in events_of(rows, stream):
                if b'"signed":"' in event.body:
                    self._signed.add(event.facts()["context"].get("signed", ""))
        signatures = {signature.statement_hash: signature for signature in self.vouched()}
        keys: dict[str, KeyRow] = {}
        self.seal = self._seal()
        signers = {signature.fingerprint for signature in signatures.values()}
        if self.seal:
            signers.add(self.seal[1])
        while self._signed or signers:
            # Who signed needs a key, a key comes and goes by an event, and somebody signed that
            # too.
            for hash_ in self._signed - signatures.keys():
                signature = find_signature(rows, hash_)
                if signature is not None:
                    signatures[hash_] = signature
            signers |= {signature.fingerprint for signature in signatures.values()}
            fresh = [find_key(rows, fingerprint) for fingerprint in signers - keys.keys()]
            new_keys = [key for key in fresh if key is not None]
            keys |= {key.fingerprint: key for key in new_keys}
            self._signed = {hash_ for key in new_keys for hash_ in self._signed_for(key)}
            signers = set()
        self.signatures = sorted(signatures.values(), key=lambda signature: signature.seq)
        self.keys = [keys[fingerprint] for fingerprint in sorted(keys)]

    def vouched(self) -> list[Signature]:
        """The signatures that no request asked for: those of its end."""
        return signatures_about(self.rows.rows, self.subject)

    def _signed_for(self, key: KeyRow) -> Iterator[str]:
        """The statements that asked for a key to come and to go."""
        for seq in (key.added_seq, key.revoked_seq):
            if seq is not None:
                event = next(events_of(self.rows.rows, "workspace", seq - 1))
                yield from filter(None, [event.facts()["context"].get("signed")])

    def _seal(self) -> tuple[bytes, str] | None:
        """The newest seal, if it knows the whole stream of the subject: with the proof that it
        does."""
        rows, stream = self.rows.rows, self.stream
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
        document = {
            "envelope": envelope.document(),
            "head": [head.stream, head.seq, head.hash],
            "proof": {"index": index, "path": path},
        }
        return canonical(document), signed.fingerprint

    def events(self) -> Iterator[Event]:
        """Own streams by name, then what the workspace's stream says of the keys and signatures
        that are here."""
        rows = self.rows.rows
        names = sorted(f"child:{child.child_id}" for child in self.children)
        for start in range(0, len(names), _BATCH):
            yield from events_named(rows, names[start : start + _BATCH])
        for stream in self.streams():
            yield from events_of(rows, stream)
        wanted = {signature.seq for signature in self.signatures}
        for key in self.keys:
            wanted.add(key.added_seq)
            if key.revoked_seq is not None:
                wanted.add(key.revoked_seq)
        for seq in sorted(wanted):
            yield next(events_of(rows, "workspace", seq - 1))


class EntrySelection(Selection):
    """The records of a change: history, proposals, decisions, cuts, results and signatures."""

    @property
    def kind(self) -> str:
        return "entry"

    def belongings(self) -> dict[Any, list[Any]]:
        of, entry_id = self.rows.of, self.subject
        envelopes = list(of(ManifestEnvelope, entry_id=entry_id))
        sets = list(of(ChangeSet, entry_id=entry_id))
        found: dict[Any, list[Any]] = {
            Entry: list(of(Entry, entry_id=entry_id)),
            HistoryRow: list(of(HistoryRow, entry_id=entry_id)),
            DependencyRow: list(of(DependencyRow, entry_id=entry_id)),
            ManifestEnvelope: envelopes,
            UnitRow: [
                unit for one in envelopes for unit in of(UnitRow, manifest_id=one.manifest_id)
            ],
            Decision: list(of(Decision, entry_id=entry_id)),
            ChangeSet: sets,
            Affected: [
                row for one in sets for row in of(Affected, change_set_id=one.change_set_id)
            ],
            VerifyResult: [
                row for one in sets for row in of(VerifyResult, change_set_id=one.change_set_id)
            ],
            PairSignature: list(of(PairSignature, entry_id=entry_id)),
        }
        return {
            kind: sorted(rows, key=functools.partial(_place, kind)) for kind, rows in found.items()
        }

    def streams(self) -> list[str]:
        sets = sorted(f"entry:{row.change_set_id}" for row in self.governed[ChangeSet])
        return [*sets, self.stream]

    def owners(self) -> set[str]:
        manifests = {row.manifest_id for row in self.governed[ManifestEnvelope]}
        return manifests | {row.change_set_id for row in self.governed[ChangeSet]}

    def vouched(self) -> list[Signature]:
        found = [
            find_signature(self.rows.rows, row.statement_hash)
            for row in self.governed[PairSignature]
        ]
        return [signature for signature in found if signature is not None]


def _place(kind: Any, row: Any) -> tuple[Any, ...]:
    return tuple(getattr(row, name) for name in table_of(kind).in_order)


def selected(rows: StoreRecords, subject: str) -> Selection:
    """The selection for a subject of any kind."""
    kind = EntrySelection if subject.startswith("ent_") else Selection
    selection = kind(rows, subject)
    selection.gather()
    return selection
