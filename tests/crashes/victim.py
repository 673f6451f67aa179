"""A warm process that forks victims: each opens the store, works, writes down what was acknowledged, and is killed.

One JSON line in: {"store", "acks", "fault", "nth", "after_micros", "ids"}; one out: how the victim ended.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from onceward import catalogue as _catalogue  # noqa: F401
from onceward.builds import machine as rules
from onceward.core import faults
from onceward.core.records import Request
from onceward.core.sources import LiveSources
from onceward.kernel.tenure import acquire
from onceward.store.sqlite import SqliteDatabase
from onceward.store.store import Store

ONWARD = {
    "PENDING": ("ACTIVE", "build_started"),
    "ACTIVE": ("CRASHED", "crash_detected"),
    "CRASHED": ("ACTIVE", "operator_resume"),
}


def open_store(place: str) -> Store:
    sources = LiveSources()
    if place.startswith("postgresql://"):
        from onceward.store.postgres import PostgresDatabase

        return Store(PostgresDatabase(place, sources), sources, ["log"])
    return Store(SqliteDatabase(Path(place), sources), sources, ["log"])


def work_of(request_id: str):
    """What a request does: a new build, a move of the newest, or a note, by the last digit of its id."""

    def work(tx, resource_id):
        kind = int(request_id[-1]) % 3
        newest = tx.read("SELECT build_id FROM builds ORDER BY build_id DESC LIMIT 1")
        if kind == 0 or not newest:
            build_id = tx.sources.new_id("bld")
            tx.move(rules.create(build_id, request_id, "victim"))
            return {"build": build_id, "version": 1}
        if kind == 1:
            build = tx.builds.get(newest[0][0])
            tx.move(rules.move(build, *ONWARD[build.state], "victim"))
            return {"build": build.build_id, "version": build.version + 1}
        event = tx.append("workspace", "NOTED", "victim", {"id": request_id})
        return {"seq": event.seq}

    return work


def live(order: dict) -> None:
    store = open_store(order["store"])
    if order["fault"]:
        faults.arm(order["fault"], order["nth"])
    acks = os.open(order["acks"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    acquire(store, "victim")
    for request_id in order["ids"]:
        answer = store.answer(Request("work", request_id, {}, "victim"), work_of(request_id))
        os.write(acks, json.dumps([request_id, answer.value]).encode() + b"\n")


if __name__ == "__main__":
    from warm import serve

    serve(live)
