"""One durable no-op step after another in a peer; prints steps per second. Run in a process of
its own."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, TypedDict

WARM, STEPS = 40, 400


def timed(run: Callable[[int], None]) -> None:
    run(WARM)
    begun = time.perf_counter()
    run(STEPS)
    print(STEPS / (time.perf_counter() - begun))


def dbos(url: str) -> None:
    from dbos import DBOS

    DBOS(
        config={
            "name": "bench",
            "system_database_url": url,
            "log_level": "ERROR",
            "run_admin_server": False,
        }
    )

    @DBOS.step()
    def step(number: int) -> int:
        return number

    @DBOS.workflow()
    def workflow(count: int) -> None:
        for number in range(count):
            step(number)

    DBOS.launch()
    timed(workflow)
    DBOS.destroy()


class _State(TypedDict):
    n: int
    limit: int


def langgraph(url: str) -> None:
    from langgraph.graph import END, START, StateGraph

    graph: Any = StateGraph(_State)
    graph.add_node("step", lambda state: {"n": state["n"] + 1})
    graph.add_edge(START, "step")
    graph.add_conditional_edges(
        "step", lambda state: END if state["n"] >= state["limit"] else "step"
    )
    if url.startswith("postgresql"):
        from langgraph.checkpoint.postgres import PostgresSaver as Saver
    else:
        from langgraph.checkpoint.sqlite import SqliteSaver as Saver
    with Saver.from_conn_string(url) as saver:
        saver.setup()
        if not url.startswith("postgresql"):
            saver.conn.execute("PRAGMA synchronous = FULL")
        app = graph.compile(checkpointer=saver)

        def run(count: int) -> None:
            settings = {"configurable": {"thread_id": str(count)}, "recursion_limit": count + 5}
            app.invoke({"n": 0, "limit": count}, settings, durability="sync")

        timed(run)


if __name__ == "__main__":
    {"dbos": dbos, "langgraph": langgraph}[sys.argv[1]](sys.argv[2])
