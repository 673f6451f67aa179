"""A warm process that forks victims: each becomes the kernel, recovers, runs children, and is killed somewhere.

One JSON line in: {"folder", "store", "acks", "witness", "fault", "nth", "round"}; one out: how the victim ended.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

from onceward.core import faults
from onceward.core.records import Request
from onceward.dispatch.work import Command, Function
from onceward.workspace import Workspace


def live(order: dict) -> None:
    workspace = Workspace(Path(order["folder"]), store_url=order["store"], principal="victim")
    if order["fault"]:
        faults.arm(order["fault"], order["nth"])
    acks = os.open(order["acks"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    kernel = workspace.kernel()
    kernel.processes.grace = 0.2
    children = kernel.open_session(f"ses_{order['round'] % 3}", 2, {"tokens": 1_000_000})

    def note(task):
        with Path(order["witness"]).open("a") as file:
            file.write(f"{task.child_id}\n")
        task.spend(tokens=3)

    text = (
        f'echo "$ONCEWARD_CHILD" >> {order["witness"]}; echo \'{{"spend":{{"tokens":2}}}}\' >&3; read a <&4;'
        f" (setsid sleep 1000.7 &); echo done"
    )
    works = [
        Function(call=note, name="note"),
        Command(argv=["sh", "-c", text], cwd=Path("/"), target="t"),
    ]
    works += [
        Function(call=note, name="note"),
        Command(argv=["sleep", "1000.7"], cwd=Path("/"), timeout=600),
    ]
    ids = children.spawn(works)
    stop = threading.Event()
    serving = threading.Thread(target=kernel.run, args=(stop,))
    serving.start()
    for child_id in ids[:3]:
        ended = children.wait(child_id)
        os.write(acks, json.dumps([child_id, ended.reason]).encode() + b"\n")
    payload = {"subject": ids[3], "cancel_request_id": f"c-{ids[3]}"}
    answer = kernel.ask(Request("children.cancel", f"r-{ids[3]}", payload, "victim"))
    os.write(
        acks,
        json.dumps([f"receipt {ids[3]}", answer.value["receipts"][0]["outcome"]]).encode() + b"\n",
    )
    ended = children.wait(ids[3])
    os.write(acks, json.dumps([ids[3], ended.reason]).encode() + b"\n")
    stop.set()
    serving.join()
    kernel.close()


if __name__ == "__main__":
    from warm import serve

    serve(live)
