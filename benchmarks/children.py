"""Children per second, queued, started and ended durably, against the queues of peers on the
same store (P-6, P-9)."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from run import postgres

from onceward.dispatch.children import Children
from onceward.dispatch.work import Command, Function
from onceward.workspace import Workspace

HERE = Path(__file__).resolve().parent
COUNT, ROUNDS = 600, 3


def session(folder: Path, store: str, jobs: int) -> tuple[object, Children]:
    workspace = Workspace(folder / ".onceward", store_url=store, principal="bench")
    workspace.create()
    kernel = workspace.kernel()
    return kernel, kernel.open_session("ses_bench", jobs)


def functions(children: Children, count: int = COUNT) -> tuple[float, list[float]]:
    """How many a second, and how long each waited in the queue once a slot could have been free."""
    waits: list[float] = []
    begun = time.perf_counter()
    ids = children.spawn([Function(call=lambda task: None, name="nothing") for _ in range(count)])
    for child_id in ids:
        children.wait(child_id)
    rate = count / (time.perf_counter() - begun)
    for _ in range(100):
        asked = time.perf_counter()
        (child_id,) = children.spawn(
            [Function(call=lambda task: waits.append(time.perf_counter()), name="now")]
        )
        children.wait(child_id)
        waits[-1] -= asked
    return rate, waits


def commands(children: Children, count: int = 200) -> float:
    begun = time.perf_counter()
    for child_id in children.spawn(
        [Command(argv=["/bin/true"], cwd=Path("/")) for _ in range(count)]
    ):
        children.wait(child_id)
    return count / (time.perf_counter() - begun)


def ours(store: str, jobs: int) -> tuple[float, float, list[float]]:
    folder = Path(tempfile.mkdtemp(prefix="onceward-bench-children-"))
    kernel, children = session(folder, store, jobs)
    try:
        rate, waits = functions(children)
        return rate, commands(children), waits
    finally:
        kernel.close()  # type: ignore[attr-defined]
        shutil.rmtree(folder, ignore_errors=True)


def peer(kind: str, url: str, jobs: int) -> float:
    done = subprocess.run(
        [
            sys.executable,
            str(HERE / "queues.py"),
            kind,
            url,
            str(jobs),
            "150" if kind == "dbos" else str(COUNT),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode:
        print(done.stderr[-600:], file=sys.stderr)
        return float("nan")
    return float(done.stdout.split()[-1])


def flat(count: int = 100_000) -> float:
    """The cost of a child with many tokens in the table, against an empty one."""
    folder = Path(tempfile.mkdtemp(prefix="onceward-bench-flat-"))
    kernel, children = session(folder, "sqlite", 2)
    first, _ = functions(children)
    for _ in range(count // 2000):
        functions(children, 2000)
    last, _ = functions(children)
    kernel.close()  # type: ignore[attr-defined]
    shutil.rmtree(folder, ignore_errors=True)
    return first / last


def main() -> None:
    found: dict[tuple[str, str, int], list[float]] = {}
    waits: dict[str, list[float]] = {}
    with postgres() as url:
        for number in range(ROUNDS):
            for jobs in (1, 2, 8):
                for store in ("sqlite", "postgresql"):
                    place = store if store == "sqlite" else f"{url}&schema=c{number}_{jobs}"
                    rate, spawned, waited = ours(place, jobs)
                    found.setdefault(("onceward function", store, jobs), []).append(rate)
                    found.setdefault(("onceward command", store, jobs), []).append(spawned)
                    waits.setdefault(store, []).extend(waited)
            for jobs in (2, 8):
                folder = Path(tempfile.mkdtemp(prefix="onceward-bench-peer-"))
                found.setdefault(("huey", "sqlite", jobs), []).append(
                    peer("huey", str(folder / "huey.db"), jobs)
                )
                dbos_url = f"sqlite:///{folder}/dbos.sqlite"
                found.setdefault(("dbos", "sqlite", jobs), []).append(peer("dbos", dbos_url, jobs))
                base = url.split("?")[0]
                found.setdefault(("procrastinate", "postgresql", jobs), []).append(
                    peer("procrastinate", url, jobs)
                )
                found.setdefault(("dbos", "postgresql", jobs), []).append(
                    peer("dbos", _named(base, url), jobs)
                )
                shutil.rmtree(folder, ignore_errors=True)
    print(
        f"Durable children and tasks per second, {COUNT} no-op each, medians of {ROUNDS} interleaved rounds\n"
    )
    for (name, store, jobs), rates in sorted(
        found.items(), key=lambda item: (item[0][1], item[0][2], item[0][0])
    ):
        print(f"  {store:10s} {jobs} at a time  {name:18s} {statistics.median(rates):8,.0f}")
    print()
    for store, spent in waits.items():
        ordered = sorted(spent)
        p99 = ordered[int(len(ordered) * 0.99)]
        print(
            f"  {store:10s} queue to start: p50 {ordered[len(ordered) // 2] * 1e3:5.2f} ms  p99 {p99 * 1e3:5.2f} ms"
        )
    print()
    for store, name, must in (
        ("sqlite", "dbos", 8),
        ("sqlite", "huey", 1),
        ("postgresql", "dbos", 8),
        ("postgresql", "procrastinate", 2),
    ):
        for jobs in (2, 8):
            pairs = zip(
                found["onceward function", store, jobs], found[name, store, jobs], strict=True
            )
            ratio = statistics.median(a / b for a, b in pairs)
            told = "met" if ratio >= must else "MISSED"
            print(
                f"  P-6  {store:10s} {jobs} at a time / {name:14s} {ratio:6.2f}   must {must}   {told}"
            )
    ratio = flat()
    told = "met" if ratio <= 1.2 else "MISSED"
    print(f"  P-9  cost of a child at 100,000 tokens / at none {ratio:5.2f}   must 1.2   {told}")


def _named(base: str, url: str) -> str:
    return url if "?" not in url else f"{base}?{url.split('?')[1]}"


if __name__ == "__main__":
    main()
