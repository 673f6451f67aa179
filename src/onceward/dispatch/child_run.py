"""One child from its lease to its end: run it, watch it, say how it ended. The next turn records what it left."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from onceward.artifacts.blobs import Blob
from onceward.artifacts.redaction import Redactor, check_secret
from onceward.core import faults
from onceward.core.records import Token
from onceward.core.text import described, place_of, traceback_of
from onceward.dispatch import debits, queue, rules
from onceward.dispatch.budget import asked_by_child, best_reading
from onceward.dispatch.machine import Ended, Order
from onceward.dispatch.queue import Closing
from onceward.dispatch.work import ChildTask, Command, Function, FunctionFailed, Running, Work
from onceward.errors import (
    BudgetExceeded,
    LockLost,
    MalformedOutput,
    OncewardError,
    StorageError,
)
from onceward.locks import Claim
from onceward.locks.identity import Identity
from onceward.locks.watch import watch
from onceward.people.credentials import VARIABLE
from onceward.processes import launcher
from onceward.processes.launcher import FIRST_INHERITED, Process, ProcessEnd, environment
from onceward.processes.reports import Reports
from onceward.store.tables.children import Tokens
from onceward.store.transaction import Transaction

if TYPE_CHECKING:
    from onceward.dispatch.children import Children

RETRYABLE = {75: "NETWORK_ERROR", 76: "TRANSFORM_RATE_LIMIT", 77: "NEED_MORE_CONTEXT"}
"""Exit statuses by which a command says that another attempt can help."""


def run(children: Children, token: Token) -> Closing | None:
    """Run a leased child to its end; None where somebody else has recorded that meanwhile."""
    work = children.works[token.child_id]
    running = children.running[token.child_id]
    if isinstance(work, Function):
        return _run_function(children, token, work, running)
    return _Commanded(children, token, work, running).run()


def run_contained(children: Children, token: Token) -> Closing | None:
    """Run a leased child to its end. An error of our own on the way is that child's end, not everybody's."""
    try:
        return run(children, token)
    except (LockLost, StorageError):
        raise
    except Exception as error:
        running = children.running[token.child_id]
        if not running.end():
            return None
        running.note = ""
        message = f"an error of Onceward's own: {described(error)}{place_of(error)}"
        ended = Ended("execution_failed", {"error": "EXECUTION_FAILED", "message": message})
        micros = int((time.monotonic() - running.begun) * 1_000_000)
        return closing_of(children, token, ended, micros, {})


def _run_function(
    children: Children, token: Token, work: Function, running: Running
) -> Closing | None:
    """Run a function on this thread. None where its slot was given up meanwhile: whoever did so recorded its end, and
    what it made after that is kept as a late result."""
    began = time.monotonic()
    own = {name: os.environ[name] for name in work.secrets if name in os.environ}
    redactor = children.redactor.also(own)
    running.limit = work.timeout or 0.0
    running.deadline = None if work.timeout is None else began + work.timeout

    def spend(lanes: Mapping[str, Any], settled: bool) -> None:
        try:
            spend_now(children, token, running, lanes, settled)
        except BudgetExceeded as refused:
            running.refuse(refused.context)
            raise
        except (LockLost, StorageError) as failed:
            running.store_failed = failed
            raise

    kept: Any = None
    returned = False
    logs: dict[str, Blob] = {}
    issuer = children.issuer
    if issuer is not None:
        running.credential = lambda: issuer.of(token.child_id)
    try:
        with running.interruptible():
            value = work.call(ChildTask(token, running, spend))
        if inspect.isawaitable(value):
            value = children.run_async(value, running)
        returned = True
        kept, ended = _collected(work, token, value, Ended("completed"), redactor)
    except BudgetExceeded as error:
        # Only the ledger's own word counts; one that a step made up is an error like others.
        said = {"error": error.code, "message": redactor.text(error.message)[:1000]}
        ended = (
            Ended("budget_exceeded", running.refused)
            if running.refused
            else Ended("execution_failed", said)
        )
    except (LockLost, StorageError) as error:
        if returned or error is running.store_failed:
            raise
        # Its own code raised it: an error of the step, which is tried again like others.
        said = {"error": error.code, "message": redactor.text(error.message)[:1000]}
        ended = Ended("execution_failed", said, error.retryable)
    except FunctionFailed as error:
        if error.trace:
            logs["traceback"] = children.artifacts.keep_log(redactor.clean(_bytes(error.trace)))
        said = {"error": error.code, "message": redactor.text(error.message)[:1000]}
        ended = (
            Ended("budget_exceeded", running.refused)
            if running.refused
            else Ended("execution_failed", said, error.retryable)
        )
    except (ConnectionError, TimeoutError) as error:
        logs["traceback"] = children.artifacts.keep_log(redactor.clean(_bytes(traceback_of(error))))
        said = {"error": "NETWORK_ERROR", "message": redactor.text(described(error))}
        ended = Ended("execution_failed", said, retryable=True)
    except OncewardError as error:
        said = {"error": error.code, "message": redactor.text(error.message)[:1000]}
        ended = Ended("execution_failed", said, error.retryable)
    except BaseException as error:
        logs["traceback"] = children.artifacts.keep_log(redactor.clean(_bytes(traceback_of(error))))
        message = redactor.text(f"{described(error)}{place_of(error)}")
        ended = Ended("execution_failed", {"error": "EXECUTION_FAILED", "message": message})
    if not running.end():
        if ended.reason == "completed" and work.step is not None:
            work.step.late(token, kept)
        children.thread_ended(token.child_id)
        return None
    running.note = redactor.text(running.note)
    if running.refused or ended.reason != "completed":
        ended = _by_request(running, ended)
    if running.mistakes:
        detail = {"report_mistakes": running.mistakes, "report_mistake": running.mistake}
        ended = msgspec.structs.replace(ended, detail={**ended.detail, **detail})
    micros = int((time.monotonic() - began) * 1_000_000)
    return closing_of(children, token, ended, micros, logs, value=kept)


def given_up(children: Children, token: Token, running: Running) -> Closing:
    """The end of a function whose time is over and whose thread goes on: its slot is for others."""
    message = f"timed out after {running.limit:g} s, and its thread does not end"
    ended = Ended("timeout", {"message": message, "given_up": True})
    micros = int((time.monotonic() - running.begun) * 1_000_000)
    return closing_of(children, token, ended, micros, {})


def _collected(
    work: Work, token: Token, value: Any, ended: Ended, redactor: Redactor
) -> tuple[Any, Ended]:
    """What a step that ended well left, made durable. What cannot be taken as its result is kept for a person to decide
    about: it may have been paid for."""
    if work.step is None:
        return None, ended
    try:
        return work.step.collect(token, value), ended
    except (LockLost, StorageError):
        raise
    except BaseException as error:
        # Also SystemExit: whatever a value of somebody's own class raises while it is looked at.
        why = error if isinstance(error, OncewardError) else MalformedOutput(described(error))
        why.message = redactor.text(why.message)
        kept = work.step.doubt(value, why)
        if kept is not None:
            return kept, ended
        said = {"error": why.code, "message": why.message[:1000]}
        return None, Ended("execution_failed", {**ended.detail, **said})


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _by_request(running: Running, ended: Ended) -> Ended:
    """An end that we asked for is called by its cause, not by how the child took it."""
    if running.asked == "budget" or running.refused:
        why = running.refused or running.out_of_time
        return Ended("budget_exceeded", {**ended.detail, **why})
    if running.asked == "timeout":
        return Ended("timeout", {**ended.detail, "message": f"timed out after {running.limit:g} s"})
    if running.asked == "stop":
        return Ended("terminated_on_restart", {**ended.detail, "stopped": True})
    return ended


def spend_now(
    children: Children, token: Token, running: Running, lanes: Mapping[str, Any], settled: bool
) -> None:
    """A debit, from whatever thread or process; BudgetExceeded where one that is asked has no room."""
    work = children.works.get(token.child_id)
    if settled or (work is not None and work.excused):
        step = work.step if work is not None else None
        spent = best_reading(dict(lanes), step.estimate if step is not None else {})
        running.spending = True
        children.settle(token, spent)
        faults.point("child.debited")
        if spent.mistake:
            running.mistakes, running.mistake = running.mistakes + 1, spent.mistake[:200]
        children.debited(token.child_id, spent.amounts)
        return
    asked = asked_by_child(dict(lanes))
    running.spending = True
    refusal = children.store.write(lambda tx: debits.debit(tx, token, asked))
    faults.point("child.debited")
    rules.require_budget(refusal)
    children.debited(token.child_id, asked)


def closing_of(
    children: Children,
    token: Token,
    ended: Ended,
    micros: int | None,
    blobs: Mapping[str, Blob],
    *,
    value: Any = None,
) -> Closing:
    work = children.works[token.child_id]
    running = children.running[token.child_id]
    if running.note:
        ended = Ended(ended.reason, {**ended.detail, "note": running.note[:1000]}, ended.retryable)

    if blobs:
        logs = {name: blob.sha256 for name, blob in blobs.items()}
        ended = msgspec.structs.replace(ended, detail={**ended.detail, "logs": logs})
    step = work.step.close(token, ended, value) if work.step is not None else None
    if step is not None:
        ended = msgspec.structs.replace(ended, detail={**ended.detail, **step.detail})

    def facts(
        tx: Transaction, ended: Ended, spent: Mapping[str, int], state: str
    ) -> Sequence[Order]:
        for name, blob in blobs.items():
            children.artifacts.record(tx, token.child_id, name, "log", blob)
        return step.record(tx, ended, spent, state) if step is not None else ()

    closing = Closing(
        token=token,
        ended=ended,
        micros=micros,
        facts=facts,
        attempts=work.attempts,
        spending=lambda: running.spending,
    )
    if step is None:
        return closing
    return msgspec.structs.replace(closing, about=step.about, step=step, bare=step.record)


def _last_line(data: bytes) -> str:
    """The last thing a program complained about, usually the cause."""
    lines = [line for line in data[-4000:].decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1].strip()[:200] if lines else ""


class _Commanded:
    """A command: its lock, its pipes, its process, its end."""

    def __init__(self, children: Children, token: Token, work: Command, running: Running) -> None:
        self.children, self.token, self.work, self.running = children, token, work, running
        self.secrets = {
            name: check_secret(name, value) for name, value in work.secrets_now().items()
        }
        issuer = children.issuer
        self.credential = issuer.of(token.child_id) if issuer is not None else None
        hidden = {VARIABLE: self.credential.secret} if self.credential is not None else {}
        self.redactor = children.redactor.also({**self.secrets, **hidden})
        self.claim: Claim | None = None
        self.process: Process | None = None
        self.pressed = False
        """Whether it had to be asked to end."""
        self.shown = True

    def run(self) -> Closing:
        """From the lock to the end; whatever goes wrong on the way is the child's end, and leaves nothing behind."""
        try:
            return self._run()
        except (LockLost, StorageError):
            raise
        except Exception as error:
            return self._failed(error)
        finally:
            if self.children.issuer is not None:
                self.children.issuer.end(self.token.child_id)

    def _failed(self, error: Exception) -> Closing:
        gone = self.process is None or self.process.ending is not None or self.process.dismiss()
        if gone:
            self._release()
        else:
            self.children.targets.retain(self.token.child_id)
        if self.token.phase == "leased":
            return self._never(error)
        said: dict[str, Any] = {
            "error": "EXECUTION_FAILED",
            "message": self.redactor.text(described(error)),
        }
        ended = Ended("execution_failed", said if gone else {**said, "death_unconfirmed": True})
        micros = self.process.micros() if self.process else 0
        return closing_of(self.children, self.token, _by_request(self.running, ended), micros, {})

    def _run(self) -> Closing:
        if self.work.target is not None:
            # Claimed before it was leased, as a rule: then this is the claim that it has.
            self.claim = self.children.targets.claim(self.work.target, self.token.child_id)
        if self.work.step is not None:
            self.work.step.prepare(self.token)
        reports = Reports(
            lambda lanes, settled: spend_now(
                self.children, self.token, self.running, lanes, settled
            ),
            lambda thousandths, note: self.running.tell(thousandths, self.redactor.text(note)),
            lambda error: self.running.refuse(error.context),
            lambda: self.running.ask("reports"),
        )
        try:
            self.process = self._start(reports)
            return self._watch(self.process, reports)
        finally:
            reports.close()

    def _never(self, error: Exception) -> Closing:
        """It did not begin."""
        code, why = "EXECUTION_FAILED", described(error)
        if isinstance(error, OncewardError):
            code, why = error.code, error.message
        said = {"error": code, "message": self.redactor.text(why)[:1000]}
        ended = _by_request(self.running, Ended("start_failed", said))
        if ended.reason == "terminated_on_restart":
            ended = Ended("lease_orphaned", ended.detail)
        return closing_of(self.children, self.token, ended, None, {})

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
        if self.credential is not None:
            given[VARIABLE] = self.credential.text()
        order = launcher.ProcessOrder(
            self.token.child_id,
            self.work.argv,
            self.work.cwd,
            environment(self.work.env, given),
            inherit=(reports.child_writes, reports.child_reads),
            lock=None if claim is None else claim.descriptor,
            witness=self.children.spool.witness(self.token.child_id),
        )

        def commit_started(who: Identity) -> None:
            rules.require_wanted(self.running.asked)
            self.token = self.children.store.write(
                lambda tx: queue.start(
                    tx,
                    Tokens(tx).get(self.token.child_id),
                    self.children.actor,
                    who.pid,
                    who.process_start,
                )
            )

        try:
            return self.children.processes.start(order, commit_started)
        finally:
            reports.handed_over()

    def _watch(self, process: Process, reports: Reports) -> Closing:
        process.listen(reports.reader, reports.take)
        process.on_output = lambda stream, data: self._show(
            stream, self.redactor.piece(stream, data)
        )
        self.running.attach(process)
        self.running.limit = self.work.timeout or 0.0
        watched = watch(process, self.work.timeout, self.children.processes.grace)
        self.pressed = watched.pressed != "watching"
        if self.pressed and not self.running.asked:
            self.running.ask("timeout")
        if watched.retained or process.ending is None:
            # Nobody saw its end, so its target stays held, and the record says so.
            self.children.targets.retain(self.token.child_id)
            process.close()
            ended = _by_request(
                self.running, Ended("execution_failed", {"death_unconfirmed": True})
            )
            return closing_of(self.children, self.token, ended, process.micros(), {})
        return self._ended(process.ending, reports)

    def _show(self, stream: str, data: bytes) -> None:
        """Set it aside for the case that we die, and show it to whoever looks on; what goes wrong with that is not the
        child's business."""
        self.children.spool.add(self.token.child_id, stream, data)
        if self.work.on_output is not None and self.shown and data:
            try:
                self.work.on_output(self.token.child_id, stream, data)
            except Exception:
                self.shown = False

    def _ended(self, ending: ProcessEnd, reports: Reports) -> Closing:
        for stream in ("out", "err"):
            self._show(stream, self.redactor.rest(stream))
        detail: dict[str, Any] = {"exit": ending.exit}
        for name in ("strays", "unsure"):
            if getattr(ending, name):
                detail[name] = getattr(ending, name)
        mistakes = reports.mistakes + self.running.mistakes
        if mistakes:
            detail["report_mistakes"] = mistakes
            last = reports.last_mistake or self.running.mistake
            detail["report_mistake"] = self.redactor.text(last)[:200]
        if ending.unrunnable:
            ended = Ended(
                "start_failed", {**detail, "message": self.redactor.text(ending.unrunnable)}
            )
        elif ending.exit == 0 and self.running.asked != "reports":
            ended = Ended("completed", detail)
        else:
            code = RETRYABLE.get(ending.exit, "EXECUTION_FAILED")
            said = (
                {"message": f"it was ended: {detail['report_mistake']}"}
                if self.running.asked == "reports"
                else {}
            )
            last = _last_line(ending.err.kept(self.redactor))
            said |= {"last_line": last} if last else {}
            ended = Ended(
                "execution_failed", {**detail, "error": code, **said}, ending.exit in RETRYABLE
            )
        blobs = {}
        for name, captured in (("stdout", ending.out), ("stderr", ending.err)):
            if captured.size:
                blobs[name] = self.children.artifacts.keep_log(captured.kept(self.redactor))
        # What ended well by itself is kept, also if somebody asked it to end a moment later.
        if self.pressed or self.running.refused or ended.reason != "completed":
            ended = _by_request(self.running, ended)
        kept = None
        if self.work.step is not None and ended.reason == "completed":
            kept, ended = _collected(self.work, self.token, None, ended, self.redactor)
        micros = int(ending.seconds * 1_000_000)
        return closing_of(self.children, self.token, ended, micros, blobs, value=kept)

    def _release(self) -> None:
        self.children.targets.release(self.token.child_id)
