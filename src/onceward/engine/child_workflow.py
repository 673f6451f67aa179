"""One child from its lease to its end: run it, watch it, say how it ended. The next turn records what it left."""

from __future__ import annotations

import inspect
import os
import time
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from onceward.engine import child_budget, child_dispatch
from onceward.engine.artifacts import Blob
from onceward.engine.child_dispatch import Closing
from onceward.engine.processes import FIRST_INHERITED, Ending, Order, Process, environment
from onceward.engine.redaction import Redactor, check_secret
from onceward.engine.reports import Reports
from onceward.engine.work import Command, Function, Running, Task
from onceward.errors import BudgetExceeded, ChildStartFailed, OncewardError
from onceward.kernel import faults
from onceward.kernel.records import Token
from onceward.lifecycles.budget import amounts
from onceward.lifecycles.child import Ended
from onceward.locks import Claim, TargetLocked
from onceward.locks.watch import watch
from onceward.store.tables.children import Tokens
from onceward.store.transaction import Transaction

if TYPE_CHECKING:
    from onceward.engine.children import Children

RETRYABLE = {75: "NETWORK_ERROR", 76: "TRANSFORM_RATE_LIMIT", 77: "NEED_MORE_CONTEXT"}
"""Exit statuses by which a command says that another attempt can help."""


def run(children: Children, token: Token) -> Closing:
    """Run a leased child to its end."""
    work = children.works[token.child_id]
    running = children.running[token.child_id]
    if isinstance(work, Function):
        return _run_function(children, token, work, running)
    assert isinstance(work, Command)
    return _Commanded(children, token, work, running).run()


def _run_function(children: Children, token: Token, work: Function, running: Running) -> Closing:
    began = time.monotonic()

    def spend(lanes: Mapping[str, Any], settled: bool) -> None:
        try:
            _spend(children, token, running, lanes, settled)
        except BudgetExceeded as refused:
            running.refuse(refused.context)
            raise

    task = Task(token, running, spend)
    value: Any = None
    logs: dict[str, Blob] = {}
    try:
        value = work.call(task)
        if inspect.isawaitable(value):
            value = children.run_async(value)
        ended = Ended("completed")
    except BudgetExceeded as error:
        ended = Ended("budget_exceeded", error.context)
    except OncewardError as error:
        ended = Ended("execution_failed", {"error": error.code, "message": error.message[:1000]}, error.retryable)
    except BaseException as error:
        logs["traceback"] = children.artifacts.keep(traceback.format_exc().encode("utf-8", "replace"))
        message = f"{type(error).__name__}: {str(error)[:1000]}".encode("utf-8", "replace").decode()
        ended = Ended("execution_failed", {"error": "EXECUTION_FAILED", "message": message})
    ended = _by_request(running, ended)
    micros = int((time.monotonic() - began) * 1_000_000)
    return _closing(children, token, ended, micros, logs, value)


def _by_request(running: Running, ended: Ended) -> Ended:
    """An end that we asked for is called by its cause, not by how the child took it."""
    if running.asked == "budget":
        return Ended("budget_exceeded", {**ended.detail, **running.refused})
    if running.asked == "timeout" and ended.reason != "completed":
        return Ended("timeout", ended.detail)
    if running.asked == "stop" and ended.reason != "completed":
        return Ended("terminated_on_restart", {**ended.detail, "stopped": True})
    return ended


def _spend(children: Children, token: Token, running: Running, lanes: Mapping[str, Any], settled: bool) -> None:
    """A debit, from whatever thread or process; BudgetExceeded where there is no room."""
    asked = amounts(dict(lanes))
    refusal = children.store.write(lambda tx: child_budget.debit(tx, token, asked, settled))
    faults.point("child.debited")
    if refusal is None or settled:
        running.count(asked)
    if refusal is not None:
        raise child_budget.exceeded(refusal)


def _closing(
    children: Children, token: Token, ended: Ended, micros: int | None, blobs: Mapping[str, Blob], value: Any = None
) -> Closing:
    work = children.works[token.child_id]
    running = children.running[token.child_id]
    if running.note:
        ended = Ended(ended.reason, {**ended.detail, "note": running.note[:1000]}, ended.retryable)

    def facts(tx: Transaction) -> None:
        for name, blob in blobs.items():
            children.artifacts.record(tx, token.child_id, name, "log", blob)
        if work.on_end is not None:
            work.on_end(tx, token, ended, value)

    return Closing(token, ended, micros, facts, work.attempts, dict(running.spent))


class _Commanded:
    """A command: its lock, its pipes, its process, its end."""

    def __init__(self, children: Children, token: Token, work: Command, running: Running) -> None:
        self.children, self.token, self.work, self.running = children, token, work, running
        self.secrets = {name: check_secret(name, os.environ[name]) for name in work.secrets if name in os.environ}
        self.redactor = Redactor(self.secrets)
        self.claim: Claim | None = None

    def run(self) -> Closing:
        try:
            if self.work.target is not None:
                self.claim = self.children.locks.acquire(self.work.target)
        except (TargetLocked, OncewardError) as error:
            return self._never(error)
        reports = Reports(
            lambda lanes, settled: _spend(self.children, self.token, self.running, lanes, settled),
            lambda thousandths, note: self.running.tell(thousandths, self.redactor.text(note)),
            lambda error: self.running.refuse(error.context),
            lambda: self.running.ask("reports"),
        )
        try:
            process = self._start(reports)
        except OncewardError as error:
            reports.close()
            self._release()
            if error.code in ("LOCK_LOST", "STORAGE_ERROR_RETRY"):
                raise
            return self._never(error)
        try:
            return self._watch(process, reports)
        finally:
            reports.close()

    def _never(self, error: OncewardError) -> Closing:
        message = self.redactor.text(error.message)[:1000]
        ended = _by_request(self.running, Ended("start_failed", {"error": error.code, "message": message}))
        if ended.reason == "terminated_on_restart":
            ended = Ended("lease_orphaned", ended.detail)
        return _closing(self.children, self.token, ended, None, {})

    def _start(self, reports: Reports) -> Process:
        claim = self.claim
        given = {
            **self.secrets,
            **self.work.given,
            "ONCEWARD_SESSION": self.token.parent_session_id,
            "ONCEWARD_ATTEMPT": str(self.token.attempt),
            "ONCEWARD_REPORT_FD": str(FIRST_INHERITED),
            "ONCEWARD_ACK_FD": str(FIRST_INHERITED + 1),
            "ONCEWARD_REPORT_ID": reports.identity,
        }
        order = Order(
            *(self.token.child_id, self.work.argv, self.work.cwd, environment(self.work.env, given)),
            inherit=(reports.child_writes, reports.child_reads),
            lock=None if claim is None else claim.descriptor,
        )
        try:
            process = self.children.processes.stand(order)
        finally:
            reports.handed_over()
        try:
            if self.running.asked:
                raise ChildStartFailed(f"the child was asked to end before it began: {self.running.asked}")
            who = process.identity
            self.token = self.children.store.write(
                lambda tx: child_dispatch.start(
                    tx, Tokens(tx).get(self.token.child_id), self.children.actor, who.pid, who.process_start
                )
            )
            faults.point("process.committed")
            process.go()
        except BaseException:
            process.dismiss()
            raise
        return process

    def _watch(self, process: Process, reports: Reports) -> Closing:
        process.listen(reports.reader, reports.take)
        process.on_output = self._show
        self.running.attach(process)
        timeout, by_budget = self._allowance()
        watched = watch(process, timeout, self.children.processes.grace)
        if watched.pressed != "watching" and not self.running.asked:
            self.running.ask("budget" if by_budget else "timeout")
        if watched.retained or process.ending is None:
            # Nobody saw its end, so its target stays held, and the record says so.
            process.close()
            ended = _by_request(self.running, Ended("execution_failed", {"death_unconfirmed": True}))
            return _closing(self.children, self.token, ended, process.micros(), {})
        return self._ended(process.ending, reports)

    def _show(self, stream: str, data: bytes) -> None:
        if self.work.on_output is not None:
            self.work.on_output(self.token.child_id, stream, self.redactor.piece(stream, data))

    def _allowance(self) -> tuple[float | None, bool]:
        """How long it may run: its own timeout, or what its session's time budget leaves if that is less."""
        with self.children.store.read() as rows:
            lane = child_budget.lanes(rows, self.token.parent_session_id).get("duration_secs")
        room = None if lane is None else lane.room()
        if lane is None or room is None:
            return self.work.timeout, False
        left = max(0.0, room + 1 - lane.carried / 1_000_000 - 0.000_001)
        if self.work.timeout is not None and self.work.timeout <= left:
            return self.work.timeout, False
        self.running.refused = {"lane": lane.lane, "limit": lane.limit, "observed": lane.total}
        return left, True

    def _ended(self, ending: Ending, reports: Reports) -> Closing:
        for stream in ("out", "err"):
            if self.work.on_output is not None and (rest := self.redactor.rest(stream)):
                self.work.on_output(self.token.child_id, stream, rest)
        detail: dict[str, Any] = {"exit": ending.exit}
        for name in ("strays", "unsure"):
            if getattr(ending, name):
                detail[name] = getattr(ending, name)
        if reports.mistakes:
            detail["report_mistakes"] = reports.mistakes
        if ending.unrunnable:
            ended = Ended("start_failed", {**detail, "message": self.redactor.text(ending.unrunnable)})
        elif ending.exit == 0 and self.running.asked != "reports":
            ended = Ended("completed", detail)
        else:
            code = RETRYABLE.get(ending.exit, "EXECUTION_FAILED")
            ended = Ended("execution_failed", {**detail, "error": code}, ending.exit in RETRYABLE)
        self._release()
        blobs = {}
        for name, captured in (("stdout", ending.out), ("stderr", ending.err)):
            if captured.size:
                blobs[name] = self.children.artifacts.keep(self.redactor.clean(captured.kept()))
        ended = _by_request(self.running, ended)
        return _closing(self.children, self.token, ended, int(ending.seconds * 1_000_000), blobs, ending)

    def _release(self) -> None:
        if self.claim is not None:
            self.children.locks.release(self.claim)
