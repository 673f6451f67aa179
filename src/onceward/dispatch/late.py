"""Late results: what a step made, and what it had spent, after the end of its child was recorded (B-8, C-30).

The thread of a function that was given up may end while its kernel lives, or after it is gone; and a kernel may lose its
lock, or its store, just as a step has ended. What can no longer be recorded is put into a file, durably, and the next
kernel of the workspace files it."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec

from onceward.artifacts.blobs import Artifacts, Blob
from onceward.artifacts.outputs import Kept
from onceward.core import faults
from onceward.core.durable import replace
from onceward.core.records import Token
from onceward.core.sources import Sources
from onceward.core.steps import Output, result_digest, step_name
from onceward.dispatch import debits
from onceward.dispatch.budget import Estimated
from onceward.dispatch.cut_off import done, step_of
from onceward.errors import CommitUnknown, LockLost, NotFound, OncewardError, StorageError
from onceward.store.store import Store
from onceward.store.tables.checkpoints import (
    Checkpoint,
    find_checkpoint,
    made_with,
    put_checkpoint,
    told_of,
)
from onceward.store.tables.children import Tokens
from onceward.store.tables.events import events_of
from onceward.store.transaction import Transaction


def record_result(
    tx: Transaction,
    artifacts: Artifacts,
    token: Token,
    kept: Sequence[Kept],
    actor: str,
    *,
    doubt: str = "",
    late_id: str = "",
) -> None:
    """A result of a child that has ended: it becomes the step's checkpoint if none succeeded meanwhile, else it is
    kept beside it. With `doubt` it cannot be taken as a result, and is kept for a person to look at."""
    step = step_of(token)
    if step is None:
        return
    for output, blob in kept:
        artifacts.record(tx, token.child_id, output.name, output.kind, blob)
    outputs = tuple(output for output, _ in kept)
    session = token.parent_session_id
    before = find_checkpoint(tx, session, step.stage, step.target)
    checkpoint = done(step, token, outputs, _spent_by_attempts(tx, token))
    if before is not None and _same_result(before, checkpoint):
        # Its kernel could not know that its last commit was made.
        return
    # Also by a result of another context: later steps, or the whole build, were made from that one.
    superseded = before is not None and before.status == "SUCCESS"
    detail: dict[str, Any] = {
        "step": step_name(step.stage, step.target),
        "child_id": token.child_id,
        "context_hash": step.context_hash,
        "outputs": result_digest(outputs),
        "taken": not superseded and not doubt,
    }
    detail |= {**made_with(step.code_version, step.environment_hash), **told_of(checkpoint)}
    if late_id:
        detail["late_id"] = late_id
    if doubt:
        detail["in_doubt"] = doubt
    elif not superseded:
        put_checkpoint(tx, checkpoint, tx.now)
    tx.append(f"session:{session}", "LATE_RESULT", actor, detail)


def _same_result(one: Checkpoint, other: Checkpoint) -> bool:
    said_of = attrgetter("status", "child_id", "outputs")
    return bool(said_of(one) == said_of(other))


def _spent_by_attempts(tx: Transaction, token: Token) -> Mapping[str, int]:
    """What an attempt and the failed ones before it cost, late debits included."""
    spent: Counter[str] = Counter(debits.spent(tx, token.child_id))
    while token.predecessor is not None:
        token = Tokens(tx).get(token.predecessor)
        if token.reason == "completed":
            break
        spent.update(debits.spent(tx, token.child_id))
    return spent


class _Part(msgspec.Struct):
    """One output, with its bytes where no file holds them."""

    output: Output
    data: str | None = None
    mark: str | None = None


class _Filed(msgspec.Struct):
    """A late result or a late debit that its kernel could not record any more."""

    child_id: str
    parts: list[_Part] | None = None
    doubt: str = ""
    amounts: dict[str, int] | None = None
    mistake: str = ""


class LateBox:
    """A folder in which late results and debits wait for the next kernel."""

    def __init__(self, folder: Path, actor: str, sources: Sources) -> None:
        self.folder, self.actor, self._sources = folder, actor, sources

    def record(
        self,
        store: Store,
        artifacts: Artifacts,
        token: Token,
        kept: Sequence[Kept],
        doubt: str = "",
    ) -> None:
        """Record a late result, or leave it here where this kernel may not write any more."""
        try:
            store.write(
                lambda tx: record_result(tx, artifacts, token, kept, self.actor, doubt=doubt)
            )
        except (LockLost, StorageError):
            self.put_result(token, kept, doubt)

    def settle(self, store: Store, token: Token, spent: Estimated) -> OncewardError | None:
        """Record a debit of money that is gone, likewise; answers why it was left here."""
        try:
            store.write(lambda tx: debits.settle(tx, token, spent, self.actor))
            return None
        except CommitUnknown as error:
            left: OncewardError = error
            why = (
                spent.mistake or "it may have been recorded: the outcome of its commit is not known"
            )
            self.put_debit(token, Estimated(spent.amounts, why))
        except (LockLost, StorageError) as error:
            left = error
            self.put_debit(token, spent)
        return left

    def put_result(self, token: Token, kept: Sequence[Kept], doubt: str = "") -> None:
        parts = [
            _Part(
                output=output,
                data=None if blob.data is None else base64.b64encode(blob.data).decode(),
                mark=blob.mark,
            )
            for output, blob in kept
        ]
        self._put(_Filed(token.child_id, parts=parts, doubt=doubt))

    def put_debit(self, token: Token, spent: Estimated) -> None:
        self._put(_Filed(token.child_id, amounts=dict(spent.amounts), mistake=spent.mistake))

    def _put(self, filed: _Filed) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Never two of one name, however many threads leave something at once.
        name = self._sources.new_id("debit" if filed.parts is None else "result")
        fresh, place = self.folder / f"{name}.new", self.folder / f"{name}.json"
        replace(place, msgspec.json.encode(filed), aside=fresh)

    def file_all(self, store: Store, artifacts: Artifacts) -> int:
        """Record everything that waits, debits before results; answers how much that was. Called by a kernel before it
        takes new work.

        A file goes away after its commit. A kernel killed between the two leaves it to the next, which finds the file's
        name in the event that was recorded for it."""
        count = 0
        for place in sorted(self.folder.glob("*.json")):
            try:
                filed = msgspec.json.decode(place.read_bytes(), type=_Filed)
                store.write(
                    partial(_file, artifacts=artifacts, filed=filed, place=place, actor=self.actor)
                )
            except (msgspec.MsgspecError, NotFound):
                place.rename(place.with_suffix(".unreadable"))
                continue
            faults.point("late.filed")
            place.unlink()
            count += 1
        return count


def _file(tx: Transaction, *, artifacts: Artifacts, filed: _Filed, place: Path, actor: str) -> None:
    token = Tokens(tx).get(filed.child_id)
    recorded = events_of(tx, token.parent_stream_id)
    if any(event.facts()["detail"].get("late_id") == place.stem for event in recorded):
        return
    if filed.amounts is not None:
        spent = Estimated(filed.amounts, filed.mistake)
        debits.settle(tx, token, spent, actor, late_id=place.stem)
    if filed.parts is not None:
        kept = [(part.output, _blob(part)) for part in filed.parts]
        record_result(tx, artifacts, token, kept, actor, doubt=filed.doubt, late_id=place.stem)


def _blob(part: _Part) -> Blob:
    data = None if part.data is None else base64.b64decode(part.data)
    return Blob(
        sha256=part.output.sha256,
        size=part.output.size,
        data=data,
        mark=part.mark,
        fileless=data is not None,
    )
