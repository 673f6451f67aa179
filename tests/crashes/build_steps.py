"""The steps of the build that is killed: each says what it is about to do, pays, and says that it has."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

WITNESS = Path(__file__).with_name("witness")


def say(word: str, task) -> None:
    line = f"{word} {task.build_id} {task.stage}:{task.target} {task.child_id}\n"
    descriptor = os.open(task.config["witness"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, line.encode())
    os.close(descriptor)


def fetch(task):
    say("asking", task)
    task.spend(usd="0.01", tokens=3)
    say("paid", task)
    return {"of": task.target, "words": [task.target] * 3}


async def pack(task):
    say("asking", task)
    await asyncio.sleep(0)
    task.spend(usd="0.02")
    say("paid", task)
    return task.inputs["shape"]["out.txt"].read_bytes() * 2000


async def bind(task):
    say("asking", task)
    await asyncio.sleep(0)
    task.spend(usd="0.02")
    say("paid", task)
    found = task.inputs["shape"]
    return b"".join(found[name]["out.txt"].read_bytes() for name in sorted(found))
