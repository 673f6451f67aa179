"""Planted bugs: each is one change to the source, in a copy of it, and must close the gate for its own reason (R-5)."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
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
    symbol: str
    """What is changed: a function, a method as `Class.method`, or a name that a module assigns; wherever it stands."""
    old: str
    """What is there, as `ast.unparse` writes it: however the source is laid out."""
    new: str
    also: tuple[str, ...] = ()


_IN_TWO = """session = token.parent_session_id
    with children.store.read() as rows:
        known = debits.lanes(rows, session)
        refusal = debits.judge(known, asked)

    def add(tx: Transaction) -> None:
        for lane, amount in sorted(asked.items()):
            if lane not in known:
                debits.set_limit(tx, session, lane, None, debits.MODE)
            debits.add_debit(tx, session, lane, token.child_id, amount, 0, 0, tx.now)
    if refusal is None:
        children.store.write(add)"""

MUTANTS = {
    "dispatch reordered": Mutant(
        metric=SCHEDULER,
        reason="records_disagree",
        where="queue_seq",
        symbol="Tokens.next_queued",
        old="ORDER BY t.queue_seq LIMIT 1",
        new="ORDER BY t.queue_seq DESC LIMIT 1",
    ),
    "dispatch number used again": Mutant(
        metric=SCHEDULER,
        reason="not_as_locked",
        where="dispatch_seq",
        symbol="Tokens.next_queued",
        old="max(high, seen or 0) + 1",
        new="min(8, max(high, seen or 0) + 1)",
    ),
    "begun before it is due": Mutant(
        metric=SCHEDULER,
        reason="not_as_locked",
        where="dispatch_seq",
        symbol="Tokens.next_queued",
        old="t.due_at <= ?",
        new="t.due_at <= 10000000 + ?",
    ),
    "cap raised": Mutant(
        metric=SCHEDULER,
        reason="not_as_locked",
        where="dispatch_seq",
        symbol="MAX_ACTIVE_CHILDREN",
        old="= 2",
        new="= 3",
    ),
    "hidden randomness": Mutant(
        metric=SCHEDULER,
        reason="runs_disagree",
        where="line 1",
        symbol="_again",
        old="tx.sources.fraction()",
        new='hash("a run of its own") % 9973 / 9973',
    ),
    "orphan dispatched again": Mutant(
        metric=ORPHAN,
        reason="not_as_locked",
        where="recovered",
        symbol="Tokens.left_behind",
        old="phase <> 'terminal'",
        new="phase = 'started'",
    ),
    "wrong code": Mutant(
        metric=ORPHAN,
        reason="not_as_locked",
        where="code",
        symbol="CODES",
        old="'URM_SCHEDULER_LEASE_ORPHANED'",
        new="'URM_CHILD_TERMINATED_ON_RESTART'",
    ),
    "no terminal event": Mutant(
        metric=ORPHAN,
        reason="not_as_locked",
        where="",
        symbol="_end",
        old="current.phase == 'terminal'",
        new="current.phase in ('terminal', 'leased')",
    ),
    "hidden clock": Mutant(
        metric=ORPHAN,
        reason="runs_disagree",
        where="detail.at",
        symbol="recover",
        old="return _end(",
        new="detail['at'] = __import__('time').time_ns() // 1000; return _end(",
    ),
    "torn line kept": Mutant(
        metric=ORPHAN,
        reason="not_as_locked",
        where="",
        symbol="Streams._end_of",
        old="if fragment:",
        new="if fragment and (not stream):",
    ),
    "check split from increment": Mutant(
        metric=BUDGET,
        reason="records_disagree",
        where="replay: debit ses_a tokens 3, total",
        symbol="spend_now",
        old="refusal = children.store.write(lambda tx: debits.debit(tx, token, asked))",
        new=_IN_TWO,
    ),
    "cancel after the end": Mutant(
        metric=BUDGET,
        reason="records_disagree",
        where="detail.reason",
        symbol="cancel",
        old="if token.phase == 'terminal':",
        new="if token.phase == 'never':",
    ),
    "lineage lost": Mutant(
        metric=BUDGET,
        reason="records_disagree",
        where="detail.cancel_request_id",
        symbol="finish",
        old="detail |= {'cancel_request_id': token.cancel_request_id, 'observed': reason}",
        new="detail['observed'] = reason",
    ),
    "settled money forgotten": Mutant(
        metric=BUDGET,
        reason="not_as_locked",
        where="",
        symbol="settle",
        old="_add(tx, token, amounts, LATE",
        new="judge(before, amounts) or _add(tx, token, amounts, LATE",
    ),
    "hidden hash seed": Mutant(
        metric=BUDGET,
        reason="runs_disagree",
        where="asked",
        symbol="judge",
        old="in asked.items()",
        new="in set(asked.items())",
    ),
}


def _assigns(node: ast.stmt, name: str) -> bool:
    """Whether a statement gives a module's name its value, or defines the function or class of that name."""
    if isinstance(node, ast.AnnAssign):
        return isinstance(node.target, ast.Name) and node.target.id == name
    return getattr(node, "name", "") == name


def _definitions(body: Sequence[ast.stmt], symbol: str) -> Iterator[ast.stmt]:
    first, _, rest = symbol.partition(".")
    for node in body:
        if _assigns(node, first):
            if rest:
                yield from _definitions(getattr(node, "body", ()), rest)
            else:
                yield node


def planted(folder: Path, symbol: str, old: str, new: str) -> Path:
    """A copy of the source with one change in one symbol; answers the folder to put before all others."""
    shutil.copytree(ROOT / "src" / "onceward", folder / "onceward")
    places = []
    for path in (folder / "onceward").rglob("*.py"):
        text = path.read_text("utf-8")
        for node in _definitions(ast.parse(text).body, symbol):
            if ast.unparse(node).count(old) == 1:
                places.append((path, text, node))
    assert len(places) == 1, f"{symbol} has {len(places)} places to plant this bug"
    path, text, node = places[0]
    lines = text.splitlines(keepends=True)
    # Decorators stand before the line of a definition, and `unparse` writes them again.
    first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
    changed = textwrap.indent(ast.unparse(node).replace(old, new), " " * node.col_offset) + "\n"
    lines[first - 1 : node.end_lineno] = [changed]
    path.write_text("".join(lines), "utf-8")
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
