"""What becomes of the children that a dead kernel left: proof of death first, then one terminal event each (C-20)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from onceward.artifacts.blobs import Artifacts
from onceward.core import faults
from onceward.core.canon import canonical
from onceward.core.limits import STOP_GRACE_SECONDS
from onceward.core.records import Token
from onceward.dispatch import debits, rules
from onceward.dispatch.budget import MODE
from onceward.dispatch.cut_off import earlier_of, note_cut_off
from onceward.dispatch.machine import plain
from onceward.dispatch.machine import recover as terminal_move
from onceward.locks import TargetLock
from onceward.locks.identity import Identity, judge
from onceward.processes import tree
from onceward.processes.cgroup import groups_of
from onceward.processes.spool import Spool
from onceward.store.port import Reads
from onceward.store.store import Store
from onceward.store.tables.children import (
    Tokens,
    checked_position,
    ended_after,
    last_event_of,
    note_recovery,
    pronounce,
)
from onceward.store.tables.events import last_position
from onceward.store.transaction import Transaction

_BATCH = 200
Progress = Callable[[int, int], None]
"""Told how many children have been brought to their end, of how many."""


class ChildFiles(msgspec.Struct, frozen=True):
    """Where the children of a workspace leave files: logs, output as it came, witnesses, claims on targets."""

    artifacts: Artifacts
    spool: Spool
    locks: TargetLock


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
    files: ChildFiles | None = None,
    *,
    grace: float = STOP_GRACE_SECONDS,
    progress: Progress = lambda done, total: None,
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
        checked = _require_terminal_events(rows)
        position = last_position(rows)
    progress(0, len(left))
    faults.point("child.recovering")
    _pronounce(store, [token for token in left if token.death is None], here, files, grace)
    faults.point("child.pronounced")
    unconfirmed = 0
    for done, token in enumerate(left, 1):
        unconfirmed += _end_one(store, token, actor, files)
        progress(done, len(left))
    recovered = Recovered(len(left), unconfirmed)
    if left or checked:
        store.write(lambda tx: _note(tx, fence, recovered, position, actor))
    return recovered


def end_session(store: Store, session_id: str, actor: str) -> None:
    """Bring what is left of a session of this kernel to its end, whose own threads have ended by an error."""
    with store.read() as rows:
        left = list(Tokens(rows).open_in(session_id))
    for token in left:
        if token.kind == "function" or token.phase == "queued":
            store.write(lambda tx, token=token: _end(tx, token, actor))  # type: ignore[misc]


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


def _pronounce(
    store: Store,
    tokens: Sequence[Token],
    here: Identity,
    files: ChildFiles | None,
    grace: float,
) -> None:
    """End what is left of children, and keep for each whether that is certain."""
    if not tokens:
        return
    doubts = _doubts(tokens, here, files, grace)
    for start in range(0, len(tokens), _BATCH):
        batch = tokens[start : start + _BATCH]
        store.write(lambda tx, batch=batch: _keep_verdicts(tx, batch, doubts))  # type: ignore[misc]


def _keep_verdicts(tx: Transaction, tokens: Sequence[Token], doubts: Mapping[str, str]) -> None:
    for token in tokens:
        pronounce(tx, token.child_id, _said(doubts.get(token.child_id, "")))


def _doubts(
    tokens: Sequence[Token], here: Identity, files: ChildFiles | None, grace: float
) -> dict[str, str]:
    """End what is left of children; why it is not certain that one is gone, by its id.

    A function has no process of its own: it is gone with its kernel, and with the code hosts that its kernel's
    supervisor had. All processes are looked for together."""
    doubts: dict[str, str] = {}
    gone: dict[Identity, bool] = {}
    commands: list[tuple[Token, Facts]] = []
    functions: list[tuple[Token, Facts]] = []
    for token in tokens:
        facts = facts_of(token, here)
        if token.phase == "queued":
            continue
        if not facts.owner.on_machine_of(here):
            doubts[token.child_id] = f"it ran on another machine, {facts.owner.hostname}"
            continue
        if facts.owner not in gone:
            gone[facts.owner] = judge(facts.owner, here).liveness == "dead"
        if token.kind != "function":
            if facts.owner.boot_id == here.boot_id:
                commands.append((token, facts))
        elif not gone[facts.owner]:
            doubts[token.child_id] = "its kernel could not be proved gone"
        elif facts.owner.boot_id == here.boot_id:
            functions.append((token, facts))
    return doubts | _end_processes(commands, functions, gone, files, grace)


def _end_processes(
    commands: Sequence[tuple[Token, Facts]],
    functions: Sequence[tuple[Token, Facts]],
    gone: Mapping[Identity, bool],
    files: ChildFiles | None,
    grace: float,
) -> dict[str, str]:
    """End the processes of commands, and the control groups and supervisors of dead kernels with their code hosts."""
    kernels = {facts.owner for _, facts in (*commands, *functions) if gone[facts.owner]}
    full = {
        kernel for kernel in kernels if not all(group.kill(grace) for group in groups_of(kernel))
    }
    trees = [_tree_of(token, facts, gone[facts.owner], files) for token, facts in commands]
    remains = tree.end_all([*trees, *map(tree.supervisors_of, kernels)], grace)
    doubts = {}
    for token, facts in (*commands, *functions):
        supervisors = remains.get(tree.kernel_mark(facts.owner), tree.Remains())
        left = remains.get(token.child_id) or supervisors
        if left:
            doubts[token.child_id] = left.described()
        elif facts.owner in full:
            doubts[token.child_id] = "the control group of its kernel could not be emptied"
    return doubts


def _tree_of(token: Token, facts: Facts, gone: bool, files: ChildFiles | None) -> tree.ProcessTree:
    """What is known of the processes of a command.

    A kernel that may live has its claims open itself, so they tell something of its children only once it is gone."""
    witnesses = []
    if files is not None:
        witnesses.append(files.spool.witness(token.child_id))
        if token.target is not None and gone:
            witnesses += files.locks.claim_files(token.target, facts.owner)
    return tree.ProcessTree(
        name=token.child_id,
        leader=facts.leader,
        witnesses=tuple(witnesses),
        spared=0 if gone else facts.owner.pid,
    )


def _said(doubt: str = "") -> str:
    return canonical({"death_unconfirmed": doubt} if doubt else {}).decode()


def _require_atomic(rows: Reads, token: Token) -> None:
    """A token and its stream are one truth; two truths stop everything (C-4)."""
    last_event = last_event_of(rows, token.child_id)
    rules.require_phase_of_stream(token.child_id, token.phase, last_event)


def _require_terminal_events(rows: Reads) -> int:
    """Every child that ended since the last completed recovery has its terminal event; answers how many did."""
    checked = 0
    for child_id, body in ended_after(rows, checked_position(rows)):
        rules.require_terminal_event(child_id, body)
        checked += 1
    return checked


def _end_one(store: Store, token: Token, actor: str, files: ChildFiles | None) -> bool:
    if files is None or token.kind != "process":
        return store.write(lambda tx: _end(tx, token, actor))
    artifacts, spool = files.artifacts, files.spool
    blobs = {name: artifacts.keep_log(said) for name, said in spool.left(token.child_id).items()}

    def work(tx: Transaction) -> bool:
        for name, blob in blobs.items():
            artifacts.record(tx, token.child_id, name, "log", blob)
        return _end(tx, token, actor)

    unconfirmed = store.write(work)
    if not unconfirmed:
        # A witness that is still held is left for a person: `clear` removes it when it is free.
        spool.forget(token.child_id)
    return unconfirmed


def _end(tx: Transaction, token: Token, actor: str) -> bool:
    """One terminal event, its time charged as far as it is known; whether its death was not confirmed."""
    current = Tokens(tx).get(token.child_id)
    if current.phase == "terminal":
        return False
    if current.started_at is not None:
        lane = debits.lane_of(Tokens(tx).closing(current.child_id).lane)
        if lane is None or lane.mode == MODE:
            # A lane of another mode is not written to, and keeps no child from its end.
            debits.charge_time(
                tx, current, lane, (current.last_seen or current.started_at) - current.started_at
            )
    move = terminal_move(current, actor)
    spent, debits_told = debits.told(tx, current.child_id)
    facts = {**({"spent": plain(spent)} if spent else {}), **debits_told, **earlier_of(tx, current)}
    tx.move(msgspec.structs.replace(move, detail={**move.detail, **facts}))
    note_cut_off(tx, current, move.reason or "", spent, actor)
    return bool(current.death) and "death_unconfirmed" in str(current.death)


def _note(tx: Transaction, fence: int, recovered: Recovered, position: int, actor: str) -> None:
    note_recovery(
        tx,
        fence,
        tx.now,
        recovered=recovered.recovered,
        unconfirmed=recovered.unconfirmed,
        position=position,
    )
    if not recovered.recovered:
        return
    detail = {"recovered": recovered.recovered, "unconfirmed": recovered.unconfirmed}
    tx.append("workspace", "RECOVERY_DONE", actor, detail)
