"""What those who only listen cost those who work: a server's builds with 500 readers of events,
against none.

python benchmarks/serving.py [--readers 500] [--rounds 5] [--steps 1500]

Rounds with and without readers take turns in one server. Two builds are timed by their own records:
steps that are functions, which do nothing but be recorded, and steps that are programs. Every
reader counts what it hears: none may miss or repeat an event. The server's memory is read before
and after.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from onceward.client import Client

PLAN = """
from onceward import Plan

plan = Plan("listened")

@plan.stage(targets=[f"t{n}" for n in range(STEPS)])
def nothing(task):
    return task.target
"""
PROGRAMS = """
name = "programs"
[[stage]]
name = "true"
targets = [TARGETS]
run = ["true"]
"""


def listen(host: str, port: int, token: str, count: int, after: int) -> None:
    """Readers in a process of their own; on TERM it tells what each heard."""
    chosen = selectors.DefaultSelector()
    lines = []
    for _ in range(count):
        line = socket.create_connection((host, port))
        asked = f"GET /api/v1/events?after={after} HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {token}\r\n\r\n"
        line.sendall(asked.encode())
        line.setblocking(False)
        chosen.register(line, selectors.EVENT_READ, len(lines))
        lines.append([0, 0, b""])
    print("listening", flush=True)
    over = [False]
    signal.signal(signal.SIGTERM, lambda *_: over.__setitem__(0, True))
    while not over[0]:
        for key, _ in chosen.select(0.2):
            data = key.fileobj.recv(1 << 18)  # type: ignore[union-attr]
            if not data:
                chosen.unregister(key.fileobj)
                continue
            found = lines[key.data]
            # One in a hundred looks at every id; the others only count.
            if key.data % 100:
                found[0] += data.count(b"id: ")
                continue
            *whole, found[2] = (found[2] + data).split(b"\n")
            for told in whole:
                if told.startswith(b"id: "):
                    found[1] += int(told[4:]) != found[0] + 1 and found[0] > 0
                    found[0] = int(told[4:])
    print(
        json.dumps(
            {
                "gaps": sum(line[1] for line in lines[::100]),
                "heard": [line[0] for line in lines[::100]],
            }
        )
    )


def seconds(client: Client, plan: str) -> float:
    """How long the work of a build took, from its first step's start to its end, by the record."""
    begun = client.run_build(plan=plan, force=True, reuse=False)["build_id"]
    while client.list_builds(limit=1)[0]["state"] == "ACTIVE":
        time.sleep(0.2)
    found = client.show_build(begun)
    assert found["state"] == "SUCCESS", found["state"]
    stamp = [
        time.mktime(time.strptime(found[k][:19], "%Y-%m-%dT%H:%M:%S")) + float(found[k][19:26])
        for k in TIMES
    ]
    return stamp[1] - stamp[0]


TIMES = ("created_at", "updated_at")


def memory(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--readers", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--listen", nargs=4, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.listen:
        host, port = asked.listen[0].split(":")
        listen(host, int(port), asked.listen[1], int(asked.listen[2]), int(asked.listen[3]))
        return
    with tempfile.TemporaryDirectory() as place:
        run(Path(place), asked)


def run(folder: Path, asked: Any) -> None:
    (folder / "plan.py").write_text(PLAN.replace("STEPS", str(asked.steps)))
    (folder / "programs.toml").write_text(
        PROGRAMS.replace("TARGETS", ", ".join(f'"t{n}"' for n in range(400)))
    )
    own = Path(sys.executable).parent / "onceward"
    subprocess.run([own, "init"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    server = subprocess.Popen(
        [own, "serve", "--port", "0", "--json"], cwd=folder, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    said = json.loads(server.stdout.readline())
    client = Client.here(folder / ".onceward", patience=120)
    token = Client.here(folder / ".onceward").token
    took: dict[tuple[str, bool], list[float]] = {}
    held, gaps = [], 0
    try:
        for plan in ("plan.py", "programs.toml"):
            seconds(client, plan)
        for number in range(asked.rounds):
            for listened in (False, True) if number % 2 else (True, False):
                readers = None
                if listened:
                    last = sum(stream["events"] for stream in client.list_streams())
                    words = [
                        said["url"].removeprefix("http://"),
                        token,
                        str(asked.readers),
                        str(last),
                    ]
                    readers = subprocess.Popen(
                        [sys.executable, __file__, "--listen", *words],
                        stdout=subprocess.PIPE,
                        text=True,
                    )
                    assert readers.stdout is not None and readers.stdout.readline() == "listening\n"
                    time.sleep(3)
                for plan in ("plan.py", "programs.toml"):
                    took.setdefault((plan, listened), []).append(seconds(client, plan))
                held.append(memory(server.pid))
                if readers is not None:
                    time.sleep(1)
                    readers.terminate()
                    gaps += json.loads(readers.communicate()[0])["gaps"]
        for plan in ("plan.py", "programs.toml"):
            alone, with_them = (
                statistics.median(took[plan, listened]) for listened in (False, True)
            )
            print(
                f"{plan}: {asked.readers} readers {with_them:.2f} s, none {alone:.2f} s:"
                f" throughput x {alone / with_them:.3f}"
            )
        print(f"gaps or repeats: {gaps}; the server held {' '.join(f'{mb:.0f}' for mb in held)} MB")
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()


if __name__ == "__main__":
    main()
