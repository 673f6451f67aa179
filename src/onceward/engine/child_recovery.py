"""What becomes of the children that a dead kernel left: proof of death first, then one terminal event each (C-20)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from onceward.engine import child_budget, tree
from onceward.engine.artifacts import Artifacts
from onceward.engine.cgroup import groups_of
from onceward.engine.cut_off import note_cut_off
from onceward.engine.spool import Spool
from onceward.errors import AtomicityViolation
from onceward.kernel import faults
from onceward.kernel.canon import canonical
from onceward.kernel.limits import STOP_GRACE_SECONDS
from onceward.kernel.records import Token
from onceward.lifecycles.child import plain
from onceward.lifecycles.child import recover as terminal_move
from onceward.locks.identity import Identity, judge
from onceward.store.port import Reads
from onceward.store.store import Store
from onceward.store.tables.children import Tokens, last_event_of, note_recovery, pronounce
from onceward.store.transaction import Transaction

_BATCH = 200


class Facts(msgspec.Struct, frozen=True):
    """What a token tells about processes: its owner, and its own first process if it had one."""

    owner: Identity
    leader: Identity | None


class Recovered(msgspec.Struct, frozen=True):
    """How many children were brought to their end, and of how many nobody can say that they are dead."""

    recovered: int = 0
    unconfirmed: int = 0


def recover(
    store: Store,
    actor: str,
    here: Identity,
    logs: tuple[Artifacts, Spool] | None = None,
    grace: float = STOP_GRACE_SECONDS,
) -> Recovered:
    """Bring every child of an older fence to its end, session after session in the order of dispatch. What it had
    printed is kept with it.

    Safe to be killed anywhere and run again: a verdict is kept before it is used, and each end is one transaction."""
    assert store.tenure is not None
    fence = store.tenure.fence
    with store.read() as rows:
        left = list(Tokens(rows).left_behind(fence))
        for token in left:
            _require_atomic(rows, token)
    faults.point("child.recovering")
    for start in range(0, len(left), _BATCH):
        _pronounce(store, left[start : start + _BATCH], here, grace)
    faults.point("child.pronounced")
    unconfirmed = sum(_end_one(store, token, actor, logs) for token in left)
    found = Recovered(len(left), unconfirmed)
    if left:
        store.write(lambda tx: _note(tx, fence, found, actor))
    return found


def facts_of(token: Token, here: Identity) -> Facts:
    """The processes of a token, as far as they are known; the one place that reads them."""
    machine = here.machine_id if token.owner_host == here.hostname else ""
    owner = Identity(
        token.owner_host, machine, token.owner_boot, token.owner_pid, token.owner_start
    )
    if token.child_pid is None:
        return Facts(owner, None)
    return Facts(
        owner,
        Identity(owner.hostname, machine, owner.boot_id, token.child_pid, token.child_start or ""),
    )


def _pronounce(store: Store, tokens: Sequence[Token], here: Identity, grace: float) -> None:
    verdicts = {
        token.child_id: _verdict(token, here, grace) for token in tokens if token.death is None
    }

    def keep(tx: Transaction) -> None:
        for child_id, verdict in verdicts.items():
            pronounce(tx, child_id, verdict)

    if verdicts:
        store.write(keep)


def _verdict(token: Token, here: Identity, grace: float) -> str:
    """End what is left of a child and say whether that is certain."""
    facts = facts_of(token, here)
    if token.phase == "queued":
        return _said()
    if not facts.owner.on_machine_of(here):
        return _said(f"it ran on another machine, {facts.owner.hostname}")
    if facts.owner.boot_id == here.boot_id:
        nobody = Identity(here.hostname, here.machine_id, here.boot_id, 0, "")
        survivors = tree.end(token.child_id, facts.leader or nobody, grace)
        gone = judge(facts.owner, here).liveness == "dead"
        groups = groups_of(facts.owner) if gone else []
        survivors += tree.end_supervisors(facts.owner, grace) if gone else []
        if survivors or not all(group.kill(grace) for group in groups):
            return _said(f"processes {survivors} could not be ended")
    if token.kind == "function" and judge(facts.owner, here).liveness != "dead":
        return _said("its kernel could not be proved gone")
    return _said()


def _said(doubt: str = "") -> str:
    return canonical({"death_unconfirmed": doubt} if doubt else {}).decode()


def _require_atomic(rows: Reads, token: Token) -> None:
    """A token and its stream are one truth; two truths stop everything (C-4)."""
    said = last_event_of(rows, token.child_id)
    if said != ("WORKER_START" if token.phase == "started" else None):
        raise AtomicityViolation(
            f"child {token.child_id} is {token.phase}, but its stream ends with {said or 'nothing'}",
            context={"child_id": token.child_id, "phase": token.phase},
        )


def _end_one(store: Store, token: Token, actor: str, logs: tuple[Artifacts, Spool] | None) -> bool:
    if logs is None or token.kind != "process":
        return store.write(lambda tx: _end(tx, token, actor))
    artifacts, spool = logs
    blobs = {name: artifacts.keep_log(said) for name, said in spool.left(token.child_id).items()}

    def work(tx: Transaction) -> bool:
        for name, blob in blobs.items():
            artifacts.record(tx, token.child_id, name, "log", blob)
        return _end(tx, token, actor)

    unconfirmed = store.write(work)
    spool.forget(token.child_id)
    return unconfirmed


def _end(tx: Transaction, token: Token, actor: str) -> bool:
    """One terminal event, its time charged as far as it is known; whether its death was not confirmed."""
    current = Tokens(tx).get(token.child_id)
    if current.phase == "terminal":
        return False
    if current.started_at is not None:
        lane = child_budget.lane_of(Tokens(tx).closing(current.child_id).lane)
        child_budget.charge_time(
            tx, current, lane, (current.last_seen or current.started_at) - current.started_at
        )
    move = terminal_move(current, actor)
    spent = child_budget.spent(tx, current.child_id)
    if spent:
        move = msgspec.structs.replace(move, detail={**move.detail, "spent": plain(spent)})
    tx.move(move)
    note_cut_off(tx, current, move.reason or "", spent, actor)
    return bool(current.death) and "death_unconfirmed" in str(current.death)


def _note(tx: Transaction, fence: int, found: Recovered, actor: str) -> None:
    note_recovery(tx, fence, tx.now, found.recovered, found.unconfirmed)
    detail = {"recovered": found.recovered, "unconfirmed": found.unconfirmed}
    tx.append("workspace", "RECOVERY_DONE", actor, detail)
