"""kill -9 at every named point of a transaction and at random moments, hundreds of rounds, on both stores."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path

import pytest

from crashes.victim import open_store, work_of
from helpers import count
from onceward.core import faults
from onceward.core.records import Request
from onceward.evidence.verify import verify_rows
from onceward.kernel.tenure import acquire, release
from onceward.store import migrate
from onceward.store.tables.requests import Requests

ROUNDS = int(os.environ.get("ONCEWARD_CRASH_ROUNDS", "36"))
VICTIM = "victim.py"
SEED = int(os.environ.get("ONCEWARD_SEED", "1"))
POINTS = [
    n
    for n in faults.POINTS
    if n.startswith(("write.", "move.", "commit.", "lock.", "request.worked"))
]


def acknowledged(file: Path) -> dict[str, object]:
    """What the victim was told had been done; a torn last line was never told."""
    text = file.read_text() if file.exists() else ""
    return dict(json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n"))


@pytest.mark.rule("K-4", "K-8", "K-9", "L-21", "L-23")
@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G2")
@pytest.mark.timeout(1800)
def test_nothing_acknowledged_is_lost_and_nothing_is_half_there(store_url, tmp_path, executioner):
    place = store_url if store_url != "sqlite" else str(tmp_path / "onceward.db")
    store = open_store(place)
    migrate.migrate(store.database, store.sources)
    store.close()
    dice = random.Random(SEED)
    told: dict[str, object] = {}
    killed = 0
    waiting: list[str] = []
    for number in range(ROUNDS):
        ids = [*waiting, *(f"r{number}-{n}" for n in range(8))]
        timed = number % 4 == 3
        words = {
            "fault": None if timed else POINTS[number % len(POINTS)],
            "nth": dice.randint(1, 6),
            "after_micros": dice.randint(500, 40_000) if timed else 0,
        }
        acks = tmp_path / f"acks-{number}"
        ending = executioner(store=place, acks=str(acks), ids=ids, **words)
        assert ending in (0, -signal.SIGKILL), words
        killed += ending != 0
        told |= acknowledged(acks)
        waiting = [request_id for request_id in ids if request_id not in told]
        examine(place, told, ids)
    assert killed > ROUNDS / 3


def examine(place: str, told: dict[str, object], ids: list[str]) -> None:
    """A new kernel takes over and finds every acknowledged answer, no half of anything, and whole chains."""
    store = open_store(place)
    try:
        acquire(store, "examiner")
        with store.read() as rows:
            found = verify_rows(rows)
            ledger = Requests(rows)
            stored = {
                i: ledger.find(Request("work", i, {}, "victim")) for i in (*list(told)[-40:], *ids)
            }
            ((notes,),) = rows.read(
                'SELECT count(*) FROM events WHERE body LIKE \'%"event":"NOTED"%\''
            )
            answered = [
                i
                for (i,) in rows.read(
                    "SELECT request_id FROM requests WHERE answer LIKE '{\"seq\"%'"
                )
            ]
        assert found.faults == []
        for request_id, row in stored.items():
            if request_id in told:
                assert row is not None, f"{request_id} was acknowledged and is gone"
                assert row.value() == told[request_id]
            if row is not None:
                assert row.answered_at is not None, f"{request_id} is half there"
        assert notes == len(answered) == len(set(answered))
        assert count(store, "events") == count(store, "event_outbox")
        release(store, "examiner")
    finally:
        store.close()


@pytest.mark.guarantee("G5")
def test_asking_again_after_a_kill_returns_the_first_answer(store_url, tmp_path, executioner):
    place = store_url if store_url != "sqlite" else str(tmp_path / "onceward.db")
    store = open_store(place)
    migrate.migrate(store.database, store.sources)
    store.close()
    # The first arrival is the commit that takes the lock, the second that of the request.
    words = {"fault": "commit.after", "nth": 2, "after_micros": 0}
    assert (
        executioner(store=place, acks=str(tmp_path / "acks"), ids=["r-2"], **words)
        == -signal.SIGKILL
    )
    assert not (tmp_path / "acks").read_text()
    heir = open_store(place)
    acquire(heir, "heir")
    assert heir.answer(Request("work", "r-2", {}, "victim"), work_of("r-2")).replayed
    release(heir, "heir")
    heir.close()
