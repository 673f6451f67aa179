"""How a command has something done: by this process as the kernel, or by the kernel that lives (K-13)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from onceward.core.records import Answer, Request
from onceward.errors import CommitUnknown
from onceward.kernel.answers import Pending, RequestHandler
from onceward.kernel.asker import Asker
from onceward.kernel.kernel import Kernel
from onceward.kernel.outbox import Delivery
from onceward.ui.cli import render
from onceward.ui.cli.main import Globals


class RequestOutcome:
    """What came of asking: an answer, or a request that still waits."""

    def __init__(
        self, request_id: str, answer: Answer | Pending, deliveries: list[Delivery] | None
    ) -> None:
        self.request_id = request_id
        self.deliveries = deliveries
        self.pending = isinstance(answer, Pending)
        self.value: dict[str, Any] = {}
        if isinstance(answer, Answer):
            self.value = (
                {**answer.value, "idempotent_replay": True} if answer.replayed else answer.value
            )


def ask(given: Globals, verb: str, payload: Any, *, deliver: bool = False) -> RequestOutcome:
    """Carry out `verb` once. As the kernel, what others asked before comes first, and what they ask meanwhile last."""
    workspace = given.workspace()
    request = Request(verb, given.new_request_id(), payload, workspace.principal)
    request.check()
    engine = workspace.engine()
    deliveries = None
    try:
        if isinstance(engine, Kernel):
            _answer_others(engine)
        elif isinstance(engine, Asker):
            request = _expiring(engine, request, given.expires)
        answer = _ask(engine, request, given.wait)
        if isinstance(engine, Kernel):
            deliveries = engine.deliver() if deliver else None
            _answer_others(engine)
    except KeyboardInterrupt:
        if isinstance(engine, Kernel):
            engine.interrupted.set()
        raise
    finally:
        engine.close()
    return RequestOutcome(request.request_id, answer, deliveries)


def _expiring(engine: Asker, request: Request, seconds: float | None) -> Request:
    """A request that is refused after so long, by the store's clock: the kernel that takes it may be elsewhere."""
    if seconds is None:
        return request
    with engine.store.read() as rows:
        expires_at = rows.now() + int(seconds * 1_000_000)
    return msgspec.structs.replace(request, expires_at=expires_at)


def pending(given: Globals, asked: RequestOutcome) -> int:
    """Exit 3, and the id under which the answer will be found."""
    if given.json:
        render.document({"request_id": asked.request_id, "status": "asked"})
    else:
        render.say(
            f"The kernel has not answered yet. The request is stored as {asked.request_id};"
            " repeat the command with --request-id to get its answer."
        )
    return 3


def tell(given: Globals, asked: RequestOutcome, say: Callable[[dict[str, Any]], None]) -> int:
    """Give the answer: as JSON, in words, or, where there is none yet, the id to ask again with."""
    if asked.pending:
        return pending(given, asked)
    if given.json:
        render.document(asked.value)
    else:
        say(asked.value)
    return 0


def _answer_others(kernel: Kernel) -> None:
    while kernel.carry_out():
        pass


def _ask(engine: RequestHandler, request: Request, wait: float) -> Answer | Pending:
    try:
        return engine.ask(request, wait)
    except CommitUnknown as unknown:
        unknown.context["request_id"] = request.request_id
        raise
    except KeyboardInterrupt:
        if not isinstance(engine, Kernel):
            render.problem(
                "EXECUTION_FAILED",
                f"The request is stored as {request.request_id} and may still be carried out.",
                as_json=False,
            )
        raise
