"""Peers at two jobs: W1, steps one after another, each durable before the next; W2, the same again
with all of them recorded. One peer and job in a process of its own; prints steps per second.

python steps.py PEER w1|w2 PLACE COUNT
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path


def timed(run: Callable[[], object], count: int) -> None:
    begun = time.perf_counter()
    run()
    print(count / (time.perf_counter() - begun))


def dbos(job: str, place: str, count: int) -> None:
    from dbos import DBOS, SetWorkflowID

    DBOS(config={"name": "bench", "system_database_url": place, "log_level": "ERROR", "run_admin_server": False,
                 "application_version": "1", "executor_id": "one"})  # fmt: skip

    @DBOS.step()
    def step(number: int) -> int:
        return number

    @DBOS.workflow()
    def workflow(count: int) -> None:
        begun = time.perf_counter()
        for number in range(count):
            step(number)
        if job == "w1":
            # Dies with every step recorded, so that the next process has something to resume.
            print(count / (time.perf_counter() - begun), flush=True)
            os._exit(0)

    begun = time.perf_counter()
    DBOS.launch()
    if job == "w1":
        with SetWorkflowID("one"):
            workflow(count)
    else:
        DBOS.retrieve_workflow("one").get_result()
        print(count / (time.perf_counter() - begun))
    DBOS.destroy()


def redun(job: str, place: str, count: int) -> None:
    import logging

    from redun import Scheduler, task
    from redun.config import Config

    logging.disable(logging.CRITICAL)

    @task(namespace="bench")  # type: ignore[untyped-decorator]
    def step(number: int) -> int:
        return number

    @task(namespace="bench")  # type: ignore[untyped-decorator]
    def main(count: int) -> list[int]:
        return [step(number) for number in range(count)]

    scheduler = Scheduler(config=Config({"backend": {"db_uri": f"sqlite:///{place}/redun.db"}}))
    scheduler.load()
    timed(lambda: scheduler.run(main(count)), count)


def prefect(job: str, place: str, count: int) -> None:
    os.environ |= {
        "PREFECT_HOME": place,
        "PREFECT_LOGGING_LEVEL": "CRITICAL",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "0",
    }
    from prefect import flow, task
    from prefect.cache_policies import INPUTS

    @task(persist_result=True, cache_policy=INPUTS)
    def step(number: int) -> int:
        return number

    @flow
    def main(first: int, count: int) -> None:
        for number in range(first, first + count):
            step(number)

    main(-5, 5)
    timed(lambda: main(0, count), count)


def joblib(job: str, place: str, count: int) -> None:
    from joblib import Memory

    def step(number: int) -> int:
        return number

    cached = Memory(place, verbose=0).cache(step)
    timed(lambda: [cached(number) for number in range(count)], count)


def diskcache(job: str, place: str, count: int) -> None:
    import diskcache as library

    cache = library.Cache(place)

    @cache.memoize()  # type: ignore[untyped-decorator]
    def step(number: int) -> int:
        return number

    timed(lambda: [step(number) for number in range(count)], count)


def onceward(job: str, place: str, count: int) -> None:
    """A build of no-op steps with a small output each. Its W1 dies before its last move, as
    DBOS's does."""
    folder, _, store = place.partition("|")
    from onceward import Plan
    from onceward.builds.run import BuildRun

    plan = Plan("bench", folder=folder, jobs=1)
    plan.stage(name="step", targets=[f"t{number:06d}" for number in range(count)], version="1")(
        lambda task: {"n": task.target}
    )
    words = {
        "workspace": f"{folder}/.onceward",
        "store": store or None,
        "quiet": True,
        "reuse": False,
    }
    if job == "w1":
        begun = time.perf_counter()

        def die(run: BuildRun) -> None:
            print(count / (time.perf_counter() - begun), flush=True)
            os._exit(0)

        BuildRun._conclude = die  # type: ignore[method-assign]
        plan.run(**words)  # type: ignore[arg-type]
    else:
        from onceward.builds.views import build_list
        from onceward.workspace import Workspace

        at = Workspace(Path(words["workspace"]), store_url=words["store"])  # type: ignore[arg-type]
        rows = at.store()
        (build,) = build_list(rows)
        rows.close()
        del words["reuse"]
        begun = time.perf_counter()
        result = plan.resume(build["build_id"], **words)  # type: ignore[arg-type]
        print(count / (time.perf_counter() - begun))
        assert result.steps["skipped"] == count, result.steps


if __name__ == "__main__":
    kind, job, place, count = sys.argv[1:]
    globals()[kind](job, place, int(count))
