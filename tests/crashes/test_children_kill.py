"""kill -9 of a kernel at every point of a child's life and of recovery itself, on both stores."""

from __future__ import annotations

import json
import os
import random
import signal
from collections import Counter
from pathlib import Path

import pytest

from helpers import assert_sound
from onceward.core import faults
from onceward.dispatch.machine import CODES
from onceward.store.tables.children import Tokens
from onceward.store.tables.events import events_by_name, streams
from onceward.workspace import Workspace

VICTIM = "children_victim.py"
SEED = int(os.environ.get("ONCEWARD_SEED", "1"))
POINTS = [
    name
    for name in faults.POINTS
    if name.startswith(
        ("child.", "process.", "stream.", "move.", "commit.", "write.", "request.worked")
    )
    and name not in ("child.launched", "move.outbox")
]
ROUNDS = int(os.environ.get("ONCEWARD_CRASH_ROUNDS", str(len(POINTS))))


@pytest.mark.rule("C-4", "C-7", "C-20", "C-30", "C-40")
@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G8")
@pytest.mark.guarantee("G9")
@pytest.mark.guarantee("G10")
@pytest.mark.guarantee("G11")
@pytest.mark.guarantee("G13")
@pytest.mark.timeout(3600)
@pytest.mark.one_in(2)
def test_every_child_has_one_truthful_end_wherever_its_kernel_is_killed(
    store_url, tmp_path, executioner
):
    folder = tmp_path / ".onceward"
    workspace = Workspace(folder, store_url=store_url, principal="examiner")
    workspace.create()
    dice = random.Random(SEED)
    points = POINTS.copy()
    dice.shuffle(points)
    acks, witness = tmp_path / "acks", tmp_path / "witness"
    witness.touch()
    killed = Counter()
    for number in range(ROUNDS):
        fault = points[number % len(points)]
        often = fault.startswith(("move.", "commit.", "write."))
        words = {"fault": fault, "nth": dice.randint(1, 30 if often else 3)}
        ending = executioner(
            folder=str(folder),
            store=store_url,
            acks=str(acks),
            witness=str(witness),
            round=number,
            **words,
        )
        assert ending in (0, -signal.SIGKILL), words
        killed[fault] += ending != 0
        if dice.random() < 0.5:
            # Sometimes the next victim inherits, and is killed inside its own recovery.
            examine(workspace, acks, witness)
    examine(workspace, acks, witness)
    assert sum(killed.values()) > ROUNDS / 2


def examine(workspace: Workspace, acks: Path, witness: Path) -> None:
    kernel = workspace.kernel()
    kernel.streams.project()
    with kernel.store.read() as rows:
        assert_sound(rows)
        tokens = {t.child_id: t for n in range(3) for t in Tokens(rows).of_session(f"ses_{n}")}
        told = {}
        for event in events_by_name(rows):
            facts = event.facts()
            if event.stream.startswith("child:"):
                told.setdefault(event.stream[6:], []).append((facts["event"], facts["detail"]))
        names = [stream for stream, _ in streams(rows)]
    for child_id, token in tokens.items():
        assert token.phase == "terminal", f"{child_id} was left behind"
        events = told[child_id]
        ends = [detail for name, detail in events if name != "WORKER_START"]
        assert len(ends) == 1
        assert ends[0]["reason"] == token.reason
        assert ends[0].get("code") == CODES.get(token.reason)
        began = [name for name, _ in events[:-1]] == ["WORKER_START"]
        assert began == (ends[0]["from"] == "started")
        if token.reason == "terminated_on_restart":
            assert began
        if token.reason == "lease_orphaned":
            assert not began
        assert "death_unconfirmed" not in ends[0]
    for session in {token.parent_session_id for token in tokens.values()}:
        dispatched = [
            t
            for t in tokens.values()
            if t.parent_session_id == session and t.dispatch_seq is not None
        ]
        dispatched.sort(key=lambda token: token.dispatch_seq)
        places = [token.queue_seq for token in dispatched]
        assert places == sorted(set(places)), "dispatched in another order than queued"
    for child_id in witness.read_text().split():
        assert told[child_id][0][0] == "WORKER_START", f"{child_id} ran without a durable start"
    lines = acks.read_text().splitlines() if acks.exists() else []
    for said, outcome in (json.loads(line) for line in lines):
        if said.startswith("receipt "):
            last = told[said[8:]][-1][1]
            assert outcome == "already_terminal" or last["cancel_request_id"] == f"c-{said[8:]}"
        else:
            assert tokens[said].reason == outcome, f"{said} was acknowledged as {outcome}"
    for name in names:
        assert kernel.streams.compare(name) is None, name
    kernel.locks.release(kernel.locks.acquire("t"))
    kernel.close()
