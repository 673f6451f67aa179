"""Planted bugs: each is one change to the source, in a copy of it, and must close the gate for its own reason (R-5)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import forked

ROOT = Path(__file__).parents[1]
MANIFEST = ROOT / "fixtures" / "gate" / "manifest.json"
SCHEDULER = "scheduler_dispatch_replay_determinism_pct"
ORPHAN = "orphan_lease_recovery_determinism_pct"
BUDGET = "concurrent_budget_cancel_stability_pct"


class Mutant(NamedTuple):
    metric: str
    reason: str
    """What the gate must say of at least one fixture, and of none anything else but `also`."""
    where: str
    """What the first difference must speak of."""
    file: str
    old: str
    new: str
    also: tuple[str, ...] = ()


_SPLIT = """    refusal = children.store.write(lambda tx: child_budget.debit(tx, token, asked))
"""
_IN_TWO = """    session = token.parent_session_id
    with children.store.read() as rows:
        known = child_budget.lanes(rows, session)
        refusal = child_budget.judge(known, asked)

    def add(tx: Transaction) -> None:
        for lane, amount in sorted(asked.items()):
            if lane not in known:
                child_budget.set_limit(tx, session, lane, None, child_budget.MODE)
            child_budget.add_debit(tx, session, lane, token.child_id, amount, 0, 0, tx.now)

    if refusal is None:
        children.store.write(add)
"""
_ASKED = '    if token.cancel_request_id is not None:\n        detail["cancel_request_id"] = token.cancel_request_id\n'
_RECOVERED = _ASKED + '    return _end(\n        token,\n        "terminated_on_restart"'
_JUDGED = "for name, amount in {}:\n        lane = lanes.get(name)\n        if lane is not None and lane.limit"
_LEFT = 'phase {} AND owner_fence < ?"\n            " ORDER'

MUTANTS = {
    "dispatch reordered": Mutant(
        *(SCHEDULER, "records_disagree", "queue_seq", "store/tables/children.py"),
        *("ORDER BY t.queue_seq LIMIT 1", "ORDER BY t.queue_seq DESC LIMIT 1"),
    ),
    "dispatch number used again": Mutant(
        *(SCHEDULER, "not_as_locked", "dispatch_seq", "store/tables/children.py"),
        *("max(high, seen or 0) + 1\n", "min(8, max(high, seen or 0) + 1)\n"),
    ),
    "begun before it is due": Mutant(
        *(SCHEDULER, "not_as_locked", "dispatch_seq", "store/tables/children.py"),
        *("t.due_at <= ?", "t.due_at <= 10000000 + ?"),
    ),
    "cap raised": Mutant(
        metric=SCHEDULER,
        reason="not_as_locked",
        where="dispatch_seq",
        file="core/limits.py",
        old="MAX_ACTIVE_CHILDREN: Final = 2\n",
        new="MAX_ACTIVE_CHILDREN: Final = 3\n",
    ),
    "cap not held": Mutant(
        metric=SCHEDULER,
        reason="records_disagree",
        where="children that run",
        file="store/tables/children.py",
        old="AND s.max_active_children >= ?",
        new="AND 1 + s.max_active_children >= ?",
    ),
    "hidden randomness": Mutant(
        *(SCHEDULER, "runs_disagree", "line 1", "engine/child_dispatch.py"),
        *("tx.sources.fraction()", 'hash("a run of its own") % 9973 / 9973'),
    ),
    "orphan dispatched again": Mutant(
        *(ORPHAN, "not_as_locked", "recovered", "store/tables/children.py"),
        *(_LEFT.format("<> 'terminal'"), _LEFT.format("= 'started'")),
    ),
    "wrong code": Mutant(
        *(ORPHAN, "not_as_locked", "code", "lifecycles/child.py"),
        *('"URM_SCHEDULER_LEASE_ORPHANED"', '"URM_CHILD_TERMINATED_ON_RESTART"'),
    ),
    "no terminal event": Mutant(
        *(ORPHAN, "not_as_locked", "", "engine/child_recovery.py"),
        *('if current.phase == "terminal":', 'if current.phase in ("terminal", "leased"):'),
    ),
    "hidden clock": Mutant(
        *(ORPHAN, "runs_disagree", "detail.at", "lifecycles/child.py"),
        *(_RECOVERED, '    detail["at"] = __import__("time").time_ns() // 1000\n' + _RECOVERED),
    ),
    "torn line kept": Mutant(
        *(ORPHAN, "not_as_locked", "", "artifacts/streams.py"),
        *("        if fragment:\n", "        if fragment and not stream:\n"),
    ),
    "check split from increment": Mutant(
        *(
            BUDGET,
            "records_disagree",
            "replay: debit ses_a tokens 3, total",
            "engine/child_workflow.py",
            _SPLIT,
            _IN_TWO,
        ),
    ),
    "cancel after the end": Mutant(
        *(BUDGET, "records_disagree", "detail.reason", "engine/child_dispatch.py"),
        *('if token.phase == "terminal":\n', 'if token.phase == "never":\n'),
    ),
    "lineage lost": Mutant(
        *(BUDGET, "records_disagree", "detail.cancel_request_id", "lifecycles/child.py"),
        *(
            'detail |= {"cancel_request_id": token.cancel_request_id, "observed": reason}',
            'detail["observed"] = reason',
        ),
    ),
    "settled money forgotten": Mutant(
        *(BUDGET, "not_as_locked", "", "engine/child_budget.py"),
        *(
            "    _add(tx, token, amounts, LATE",
            "    judge(before, amounts) or _add(tx, token, amounts, LATE",
        ),
    ),
    "hidden hash seed": Mutant(
        *(BUDGET, "runs_disagree", "asked", "lifecycles/budget.py"),
        *(_JUDGED.format("asked.items()"), _JUDGED.format("set(asked.items())")),
    ),
}


def planted(folder: Path, file: str, old: str, new: str) -> Path:
    """A copy of the source with one change; answers the folder to put before all others."""
    shutil.copytree(ROOT / "src" / "onceward", folder / "onceward")
    path = folder / "onceward" / file
    text = path.read_text("utf-8")
    assert text.count(old) == 1, f"{file} has {text.count(old)} places to plant this bug"
    path.write_text(text.replace(old, new), "utf-8")
    return folder


def python(
    source: Path | None, *words: object, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Our Python, with a copy of the source or our own."""
    environ = {**os.environ, **({"PYTHONPATH": str(source)} if source is not None else {})}
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def onceward(
    source: Path | None, *words: object, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    if source is None:
        return forked.run(words, cwd=cwd or Path.cwd(), env=dict(os.environ))
    return python(source, "-m", "onceward", *words, cwd=cwd)
