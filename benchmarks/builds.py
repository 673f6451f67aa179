"""Builds against peers in one interleaved run: W1 and W2 (P-4, P-5), flat cost (P-9), memory
(P-10), bytes (P-11)."""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from run import postgres

HERE = Path(__file__).resolve().parent
PEERS = HERE.parent / ".venv" / "peers" / "bin" / "python"
"""Those that do not agree with the others about their dependencies."""
STEPS = {
    "onceward": 2000,
    "dbos": 1000,
    "prefect": 200,
    "redun": 300,
    "joblib": 1000,
    "diskcache": 2000,
}
Rates = dict[tuple[str, str, str], list[float]]


@contextmanager
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="onceward-bench-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def ask(peer: str, job: str, place: str, count: int) -> float:
    """One peer at one job in a process of its own; nan if it cannot."""
    python = str(PEERS) if peer in ("redun", "prefect", "joblib", "diskcache") else sys.executable
    if not Path(python).exists():
        return float("nan")
    words = [python, str(HERE / "steps.py"), peer, job, place, str(count)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode or not done.stdout.split():
        print(f"{peer} {job}: {done.stderr[-400:]}", file=sys.stderr)
        return float("nan")
    return float(done.stdout.split()[-1])


def one_round(number: int, url: str, found: Rates, bytes_: dict[str, float]) -> None:
    base, _, rest = url.partition("?")
    for peer, count in STEPS.items():
        with folder() as path:
            places = {"sqlite": str(path)}
            if peer == "onceward":
                places = {"sqlite": f"{path}|", "postgresql": f"{path}/pg|{url}&schema=w{number}"}
                (path / "pg").mkdir()
            elif peer == "dbos":
                places = {
                    "sqlite": f"sqlite:///{path}/d.db",
                    "postgresql": _database(base, rest, f"dbos{number}"),
                }
            for store, place in places.items():
                for job in ("w1", "w2"):
                    found.setdefault((job, store, peer), []).append(ask(peer, job, place, count))
            if peer in ("onceward", "dbos"):
                files = (
                    path.glob("d.db*")
                    if peer == "dbos"
                    else (path / ".onceward").glob("onceward.db*")
                )
                bytes_[peer] = sum(file.stat().st_size for file in files) / count
    for store in ("sqlite", "postgresql"):
        with folder() as path:
            place = f"{path}/l.db" if store == "sqlite" else url
            words = [sys.executable, str(HERE / "peers.py"), "langgraph", place]
            done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
            rate = float(done.stdout.split()[-1]) if done.returncode == 0 else float("nan")
            found.setdefault(("w1", store, "langgraph"), []).append(rate)


def _database(base: str, rest: str, name: str) -> str:
    """DBOS keeps to a database of its own."""
    import psycopg

    with psycopg.connect(f"{base}?{rest}", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"{base.rpartition('/')[0]}/{name}?{rest}"


GROWTH = """
import resource, sys, tracemalloc
sys.argv = ["steps.py"]
sys.path.insert(0, {here!r})
from onceward import Plan
def held():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmRSS")).split()[1]) / 1024
imported = held()
from onceward.builds.run import BuildRun
marks = []
say = BuildRun._say
def noted(self, step, status, *rest):
    if status == "SUCCESS" and self.counts["executed"] in (1000, {count}):
        marks.append(held())
    say(self, step, status, *rest)
BuildRun._say = noted
plan = Plan("bench", folder={place!r}, jobs=1)
plan.stage(name="step", targets=[f"t{{n:06d}}" for n in range({count})], version="1")(lambda task: {{"n": task.target}})
plan.run(workspace={place!r} + "/.onceward", quiet=True, reuse=False)
print(imported, marks[1] - marks[0])
"""


def memory(count: int) -> tuple[float, float]:
    """Megabytes after the import, and growth from the thousandth step to the last."""
    with folder() as path:
        text = GROWTH.format(here=str(HERE), count=count, place=str(path))
        done = subprocess.run(
            [sys.executable, "-c", text], capture_output=True, text=True, timeout=900, check=True
        )
    imported, grown = done.stdout.split()
    return float(imported), float(grown)


def flat(count: int) -> float:
    """The cost of a step in a store that holds many, against an empty one."""
    with folder() as path:
        first = ask("onceward", "w1", f"{path}|", 1000)
    with folder() as path:
        ask("onceward", "w1", f"{path}|", count)
        other = path / "more"
        other.mkdir()
        (other / ".onceward").symlink_to(path / ".onceward")
        return first / ask("onceward", "w1", f"{other}|", 1000)


def main() -> None:
    words = argparse.ArgumentParser()
    words.add_argument("--rounds", type=int, default=3)
    words.add_argument("--many", type=int, default=100_000)
    asked = words.parse_args()
    found: Rates = {}
    bytes_: dict[str, float] = {}
    with postgres() as url:
        for number in range(asked.rounds):
            one_round(number, url, found, bytes_)
    print(f"Steps per second, medians of {asked.rounds} interleaved rounds\n")
    for (job, store, peer), rates in sorted(found.items()):
        print(f"  {job}  {store:10s}  {peer:10s} {statistics.median(rates):10,.0f}")
    print()
    for store in ("sqlite", "postgresql"):
        _tell("P-4", f"W1 {store} / DBOS", _ratio(found, "w1", store, store), 4)
    with folder() as path:
        ask("onceward", "w1", f"{path}|", 20_000)
        rate = ask("onceward", "w2", f"{path}|", 20_000)
    _tell("P-5", "W2, 20,000 steps: steps/s", rate, 20_000)
    _tell("P-5", "W2 / DBOS (sqlite)", rate / statistics.median(found["w2", "sqlite", "dbos"]), 15)
    _tell(
        "P-9", f"cost of a step after {asked.many:,} / after none", flat(asked.many), 1.2, most=True
    )
    imported, grown = memory(20_000)
    _tell("P-10", "MB after import", imported, 40, most=True)
    _tell("P-10", "MB more over 20,000 steps", grown, 10, most=True)
    _tell(
        "P-11",
        f"bytes a step (DBOS {bytes_['dbos']:.0f})",
        bytes_["onceward"],
        bytes_["dbos"],
        most=True,
    )


def _ratio(found: Rates, job: str, ours: str, theirs: str) -> float:
    pairs = zip(found[job, ours, "onceward"], found[job, theirs, "dbos"], strict=True)
    return statistics.median(a / b for a, b in pairs)


def _tell(name: str, what: str, value: float, must: float, most: bool = False) -> None:
    met = value <= must if most else value >= must
    bound = f"must {'<=' if most else '>='} {must:,.2f}"
    print(f"  {name:5s} {what:44s} {value:12,.2f}   {bound:20s} {'met' if met else 'MISSED'}")


if __name__ == "__main__":
    main()
