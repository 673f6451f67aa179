"""A build subject's life through the store: moves, a refused move, a kill -9 in the middle of a commit, a reopen.

Run it with `make demo`. Everything happens in a folder that is removed at the end.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from onceward.engine.reading import stream_lines
from onceward.errors import IllegalTransition
from onceward.kernel import faults
from onceward.kernel.records import Request
from onceward.lifecycles import build as rules
from onceward.store.check import check
from onceward.wiring import Workspace

BOLD, DIM, RED, GREEN, OFF = (
    ("\033[1m", "\033[2m", "\033[31m", "\033[32m", "\033[0m") if sys.stdout.isatty() else ("",) * 5
)


def say(text: str = "", pause: float = 0.25) -> None:
    print(text, flush=True)
    if sys.stdout.isatty():
        time.sleep(pause)


def heading(text: str) -> None:
    say(f"\n{BOLD}{text}{OFF}", 0.6)


def move(kernel, build_id: str, target: str, reason: str) -> None:
    def work(tx):
        build = tx.builds.get(build_id)
        return tx.move(rules.move(build, target, reason, kernel.principal))

    event = kernel.store.write(work)
    facts = event.facts()
    say(f"  {facts['detail'].get('from', '')} -> {GREEN}{target}{OFF}  {DIM}{facts['event']}  #{event.seq}{OFF}")


def spend(kernel, build_id: str, number: int):
    """One paid call, asked for under an id: however often it is asked, it is recorded once."""
    request = Request("demo.pay", f"call-{number}", {"build": build_id, "usd": "0.01"}, kernel.principal)

    def pay(tx, resource_id):
        tx.append(f"session:{build_id}", "PAID", kernel.principal, {"call": number, "usd": "0.01"})
        return {"receipt": f"receipt-{number}"}

    return kernel.store.answer(request, pay)


def victim(folder: str, build_id: str) -> None:
    """The process that dies: it pays for ten calls and is killed inside the commit of the seventh."""
    kernel = Workspace(Path(folder)).kernel()
    move(kernel, build_id, "ACTIVE", "build_started")
    for number in range(1, 11):
        if number == 7:
            faults.arm("commit.before")
        answer = spend(kernel, build_id, number)
        say(f"  paid call {number}: {answer.value['receipt']}", 0.12)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="onceward-demo-") as folder:
        tell(Path(folder) / ".onceward")


def tell(folder: Path) -> None:
    workspace = Workspace(folder)
    heading("1. A workspace in a temporary folder: SQLite inside, every commit synced to disk")
    for thing in workspace.create():
        say(f"  made {Path(thing).name if '/' in thing else thing}")
    kernel = workspace.kernel()
    build_id = workspace.sources.new_id("bld")
    kernel.store.write(lambda tx: tx.move(rules.create(build_id, "demo", kernel.principal)))
    say(f"  a build is born: {build_id}")

    heading("2. A move the table does not have is refused, and nothing is written")
    try:
        move(kernel, build_id, "SUCCESS", "normal_completion")
    except IllegalTransition as refused:
        say(f"  {RED}{refused.code}{OFF}: {refused.message}")
    kernel.close()

    heading("3. Another process starts the build, pays for calls, and is killed with -9 inside a commit")
    child = subprocess.run([sys.executable, __file__, "victim", str(folder), build_id], check=False)
    assert child.returncode == -signal.SIGKILL, child.returncode
    say(f"  {RED}killed{OFF} (signal {-child.returncode}) while call 7 was being committed")

    heading("4. We open the workspace again: the dead kernel's lock is taken over, its build marked")
    kernel = workspace.kernel()
    with kernel.store.read() as rows:
        state = rows.read("SELECT state FROM builds")[0][0]
    say(f"  fence {kernel.fence}; the build is {RED}{state}{OFF} (orphaned_at_startup)")
    move(kernel, build_id, "ACTIVE", "operator_resume")

    heading("5. The same ten calls again: what was paid is answered from the record, only the rest is paid")
    for number in range(1, 11):
        answer = spend(kernel, build_id, number)
        how = f"{DIM}already paid, stored answer{OFF}" if answer.replayed else f"{GREEN}paid now{OFF}"
        say(f"  call {number:2d}: {how}", 0.1)
    move(kernel, build_id, "SUCCESS", "normal_completion")

    heading("6. The evidence: every event names the hash of the one before it")
    lines = [json.loads(line) for line in stream_lines(kernel.store, f"session:{build_id}")]
    for event in (*lines[:2], *lines[-2:]):
        say(f"  #{event['seq']:<2d} {event['event']:15s} {event['prev_hash'][:12]} -> {event['hash'][:12]}", 0.1)
    paid = [event["detail"]["call"] for event in lines if event["event"] == "PAID"]
    with kernel.store.read() as rows:
        found = check(rows)
    kernel.close()
    assert sorted(paid) == list(range(1, 11)), paid
    assert not found.faults, found.faults
    say(f"\n  {len(paid)} calls wanted, {len(paid)} paid, none twice; {found.events} events, every chain whole.")
    say("  Try it yourself: README.md, under 'Crash it yourself'.")


if __name__ == "__main__":
    if sys.argv[1:2] == ["victim"]:
        victim(*sys.argv[2:])
    else:
        main()
