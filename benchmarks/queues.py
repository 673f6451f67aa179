"""Drain a durable queue of no-op tasks in a peer; prints tasks per second. Run in a process of its
own.

queues.py dbos|huey|procrastinate URL WORKERS COUNT
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time


def dbos(url: str, workers: int, count: int) -> float:
    from dbos import DBOS

    DBOS(
        config={
            "name": "bench",
            "system_database_url": url,
            "log_level": "ERROR",
            "run_admin_server": False,
        },
    )

    @DBOS.workflow()
    def task(number: int) -> int:
        return number

    DBOS.launch()
    DBOS.register_queue("bench", worker_concurrency=workers, polling_interval_sec=0.01)
    queue = DBOS.retrieve_queue("bench")
    begun = time.perf_counter()
    handles = [queue.enqueue(task, number) for number in range(count)]
    for handle in handles:
        handle.get_result()
    elapsed = time.perf_counter() - begun
    DBOS.destroy()
    return count / elapsed


def huey(url: str, workers: int, count: int) -> float:
    from huey import SqliteHuey

    app = SqliteHuey(filename=url, fsync=True, journal_mode="wal")
    done = threading.Semaphore(0)

    @app.task()
    def task(number: int) -> None:
        done.release()

    consumer = app.create_consumer(
        workers=workers, periodic=False, initial_delay=0.001, max_delay=0.005
    )
    begun = time.perf_counter()
    consumer.start()
    for number in range(count):
        task(number)
    for _ in range(count):
        done.acquire()
    elapsed = time.perf_counter() - begun
    consumer.stop(graceful=True)
    return count / elapsed


def procrastinate(url: str, workers: int, count: int) -> float:
    from procrastinate import App, PsycopgConnector

    async def run() -> float:
        app = App(connector=PsycopgConnector(conninfo=url))
        async with app.open_async():
            # Another round may have put it there already.
            with contextlib.suppress(Exception):
                await app.schema_manager.apply_schema_async()

            @app.task(name="task")
            async def task(number: int) -> None:
                pass

            begun = time.perf_counter()
            for number in range(count):
                await task.defer_async(number=number)
            await app.run_worker_async(
                concurrency=workers, wait=False, install_signal_handlers=False
            )
            return count / (time.perf_counter() - begun)

    return asyncio.run(run())


if __name__ == "__main__":
    kind, url, workers, count = sys.argv[1:5]
    print(
        {"dbos": dbos, "huey": huey, "procrastinate": procrastinate}[kind](
            url, int(workers), int(count)
        )
    )
