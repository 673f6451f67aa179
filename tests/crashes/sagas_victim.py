"""A warm process that forks victims: each begins a saga's run or goes on with it, and is killed somewhere.

One JSON line in: {"folder", "store", "root", "fail", "stick", "grant", "plan", "counted", "fault", "nth"}.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import msgspec

from onceward import saga_running
from onceward.core import faults
from onceward.sagas.declaration import Saga
from onceward.workspace import Workspace

NAMES = ("a", "b", "c")


def world(folder: Path, order: dict) -> Saga:
    """Each action makes a file and says so; each compensation removes it. One is a command."""
    saga = Saga("world", folder=folder)
    place = folder / order["root"]
    place.mkdir(exist_ok=True)

    def say(word: str) -> None:
        with (folder / "witness").open("a") as file:
            file.write(f"{order['root']} {word}\n")

    def act(name: str):
        def run(task):
            say(name)
            (place / name).write_text(task.idempotency_key)
            if order["fail"] == name:
                raise ValueError("told to fail")
            return {"made": name}

        return run

    def undo(name: str):
        def run(task):
            say(f"-{name}")
            once = place / f"stuck-{name}"
            if order["stick"] == name and not once.exists():
                once.touch()
                raise ValueError("told to stick")
            (place / name).unlink(missing_ok=True)

        return run

    for name in NAMES:
        if name == "b" and order["fail"] != "b":
            script = f'echo "{order["root"]} b" >> witness; printf x > "{order["root"]}/b"; echo made > "$ONCEWARD_OUT/b"'
            saga.command(name, ["sh", "-c", script], compensate=undo(name))
        else:
            saga.action(
                act(name),
                name=name,
                compensate=undo(name),
                check=lambda seen: seen.result is not None,
            )
    return saga


def assembly(workspace: Workspace, order: dict) -> Saga:
    make = saga_running.to_apply if "value" in order["plan"] else saga_running.to_roll_back
    saga = make(order["plan"], workspace.settings.grants.environment)
    if order["fail"]:
        action = saga.actions[order["fail"]]

        def late(task):
            action.do.call(task)
            raise ValueError("told to fail")

        saga.actions[order["fail"]] = msgspec.structs.replace(
            action, do=msgspec.structs.replace(action.do, call=late)
        )
    return saga


def live(order: dict) -> None:
    workspace = Workspace(Path(order["folder"]), store_url=order["store"], principal="victim")
    folder = workspace.folder.parent
    counts: Counter = Counter()
    if order["counted"]:
        faults._armed = lambda name: counts.update([name])
    elif order["fault"]:
        faults.arm(order["fault"], order["nth"])
    if order["plan"]:
        saga = assembly(workspace, order)
        outcome, _ = saga_running.run(
            workspace,
            saga,
            root=order["root"],
            given=saga.given(),
            grant=order["grant"],
            leaving=False,
        )
    else:
        saga = world(folder, order)
        outcome, _ = saga_running.run(workspace, saga, root=order["root"], given={"x": 1})
    if outcome.standing == "stuck":
        outcome, _ = saga_running.resume(workspace, order["root"], saga=saga, retry=True)
    (folder / "outcome").write_text(json.dumps([outcome.state, outcome.standing]))
    if order["counted"]:
        (folder / "counts").write_text(json.dumps(counts))


if __name__ == "__main__":
    from warm import serve

    sys.setrecursionlimit(5000)
    serve(live, failed=1)
