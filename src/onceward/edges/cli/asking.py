"""How a command has something done: by this process as the kernel, or by the kernel that lives (K-13)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onceward.edges.cli import render
from onceward.edges.cli.main import Globals
from onceward.engine.kernel import Engine, Kernel, Pending
from onceward.errors import CommitUnknown
from onceward.kernel.records import Answer, Request


def ask(
    given: Globals,
    verb: str,
    payload: Any,
    wait: float | None,
    show: Callable[[Globals, dict[str, Any]], None],
) -> int:
    """Carry out `verb` once and show the answer; 3 and the request id when the kernel did not answer in time."""
    workspace = given.workspace()
    request = Request(verb, given.new_request_id(), payload, workspace.principal)
    engine = workspace.engine()
    try:
        answer = _ask(engine, request, given.wait if wait is None else wait)
        if isinstance(answer, Pending):
            return _pending(given, answer)
        value = answer.value
        if isinstance(engine, Kernel) and verb == "outbox.flush":
            done = engine.deliver()
            value = {
                **value,
                "delivered": sum(d.delivered for d in done),
                "failed": sum(d.failed for d in done),
            }
    finally:
        engine.close()
    show(given, {**value, "idempotent_replay": True} if answer.replayed else value)
    return 0


def _ask(engine: Engine, request: Request, wait: float) -> Answer | Pending:
    try:
        return engine.ask(request, wait)
    except CommitUnknown as unknown:
        unknown.context["request_id"] = request.request_id
        raise


def _pending(given: Globals, answer: Pending) -> int:
    if given.json:
        render.document({"request_id": answer.request_id, "status": "asked"})
    else:
        render.say(
            f"The kernel has not answered yet. The request is filed as {answer.request_id};"
            " ask again with --request-id to get its answer."
        )
    return 3
