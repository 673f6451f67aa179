"""A build while it runs: finds what is done already, dispatches the rest in plan order, and comes to an end."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import Any

import msgspec

from onceward.artifacts.outputs import read_back
from onceward.builds import machine
from onceward.builds.admission import Admission, Admissions, Pause
from onceward.builds.attempt import Attempt, Ending, Unlaunchable
from onceward.builds.finished_steps import FinishedSteps
from onceward.builds.flow import Flow
from onceward.builds.plans import Resolved
from onceward.builds.ready_queue import At, ReadyQueue
from onceward.core.canon import digest
from onceward.core.sources import Micros
from onceward.core.steps import Output, lock_target, step_name
from onceward.dispatch import queue
from onceward.dispatch.cut_off import step_of
from onceward.dispatch.held_targets import retry_delay
from onceward.dispatch.machine import Ended, Order, backoff
from onceward.errors import OncewardError
from onceward.kernel import attest
from onceward.kernel.foreground import serving
from onceward.kernel.kernel import Kernel, PlanRun
from onceward.locks import TargetLocked
from onceward.people.actor import Actor
from onceward.processes.prints import overheard
from onceward.store.tables.builds import Builds
from onceward.store.tables.checkpoints import Checkpoint, find_checkpoint
from onceward.store.tables.rates import note_start, rate_starts
from onceward.store.transaction import Transaction

_SHORTEST_WAIT_SECONDS = 10.0
Told = Callable[[Mapping[str, Any]], None]


class BuildRun:
    """Carries one ACTIVE build to its end, a pause or a stop. Slots call in from their own threads."""

    def __init__(
        self,
        kernel: Kernel,
        actor: Actor,
        build_id: str,
        resolved: Resolved,
        *,
        jobs: int,
        limits: Mapping[str, int],
        keep_going: bool,
        reuse: bool,
        rerun: Set[int] = frozenset(),
        told: Told,
    ) -> None:
        self.kernel, self.store, self.artifacts = kernel, kernel.store, kernel.artifacts
        self.actor = actor
        self.build_id, self.resolved, self.steps = build_id, resolved, resolved.steps
        self.keep_going, self.told = keep_going, told
        self.jobs = jobs
        self.children = kernel.open_session(
            build_id,
            jobs,
            limits,
            actor=actor,
            on_pause=resolved.plan.on_pause,
            decides_starts=True,
        )
        self.children.heeded = self.heed
        self.children.on_debit = kernel.estimates.reduce
        self.children.on_overdue = self._tell_overdue
        self.mutex = threading.RLock()
        self._changed = threading.Condition(self.mutex)
        self.before: dict[int, Checkpoint] = {}
        """What earlier attempts left of steps that are not done."""
        self.attempts: dict[int, int] = {}
        """How often a step was tried by us."""
        self._asked: dict[int, str] = {}
        """Steps that wait for a person, and for which content."""
        self._in_flight = 0
        self._plan_run = PlanRun()
        self._target_waits: dict[int, tuple[Micros, int]] = {}
        """Steps whose target somebody else holds: since when, and how often it was tried."""
        self._freed_targets: deque[int] = deque()
        """Steps whose target was given back: told by threads of other builds, which must not wait for our mutex."""
        self._waits_for_budget = False
        """Whether the next step would fit into the budget only if less were in flight."""
        self.halted = ""
        self.pausing: Pause | None = None
        self.counts = dict.fromkeys(("executed", "skipped", "reused", "failed"), 0)
        self.saved = 0
        """What the steps that need not run cost when they did, in micro-dollars."""
        self.doubts: list[str] = []
        """Steps that ended well and left what cannot be taken as their result."""
        self.failures: list[tuple[str, Mapping[str, Any]]] = []
        self.unread: dict[str, str] = {}
        """Steps of whose reports something could not be read, and what."""
        with self.store.read() as rows:
            scopes = {
                k: stage.rate for k, stage in enumerate(self.steps.stages) if stage.rate is not None
            }
            now = self.store.sources.now()
            # A clock that was set back must not keep a stage waiting for times that have not come.
            starts = {k: rate_starts(rows, self._scope(k), r.count) for k, r in scopes.items()}
            self.ready = ReadyQueue(
                self.steps, {k: [min(at, now) for at in some] for k, some in starts.items()}
            )
        self.flow = Flow(resolved)
        self.admissions = Admissions(
            store=self.store,
            build_id=build_id,
            resolved=resolved,
            actor=actor,
            estimates=kernel.estimates,
            children=self.children,
            confirmation_seconds=kernel.confirmation_seconds,
        )
        self.finished = FinishedSteps(self, reuse, rerun)

    def run(self) -> None:
        """Until all is done, or something stops it."""
        with self.kernel.running_plan(self.resolved.plan.name) as self._plan_run:
            self._run()

    def _run(self) -> None:
        with self.mutex:
            self._sort_out(self.ready.roots())
        while True:
            self.dispatch()
            with self._changed:
                if self.children.failed is not None:
                    raise self.children.failed
                if self._is_over() or self.children.quiet or self.children.overdue:
                    break
                self._changed.wait(self._patience())
        self.children.heeded = None
        if (
            self.children.failed is not None
        ):  # It may fail after we looked, and what fails falls quiet too.
            raise self.children.failed
        if self._is_over() if not self.halted else self.halted == "failed":
            self._conclude()

    def stop(self) -> None:
        """Somebody asked the whole kernel to stop: begin nothing more."""
        self._halt("stopped")
        waiting = [work.step.name for work, _ in self.children.at_work() if work.step is not None]
        if waiting:
            self.told({"step": "", "status": "STOPPING", "spent": {}, "waiting": waiting})

    def wait_for_threads(self, stop: threading.Event) -> None:
        """Before this process ends: wait for the threads of steps that were given up, for as long again as
        their time limits were, and not too shortly. What they return is kept, and would be lost with the process."""
        with self.children.changed:
            left = dict(self.children.left_running)
        if not left or stop.is_set():
            return
        seconds = max(_SHORTEST_WAIT_SECONDS, *(child.limit for child in left.values()))
        steps = [step_of(child.token) for child in left.values() if child.token is not None]
        names = [step_name(step.stage, step.target) for step in steps if step is not None]
        self.told({"step": "", "status": "LATE", "waiting": names, "limit": seconds, "spent": {}})
        until = time.monotonic() + seconds
        while self.children.left_running and time.monotonic() < until and not stop.wait(0.1):
            pass

    def heed(self) -> None:
        """Something was asked of this kernel: maybe this build was abandoned, or a step of it approved."""
        with self.store.read() as rows:
            state = Builds(rows).get(self.build_id).state
        if state == "ABANDONED":
            self._halt("abandoned")
            return
        with self.mutex:
            asked = bool(self._asked)
            self._sort_out(self._answers())
        if asked:
            self.dispatch()
            self._notify()

    def dispatch(self) -> None:
        """Queue steps for the slots that are free."""
        with self.mutex:
            try:
                chosen = self._take(self.jobs - self._in_flight)
            except Unlaunchable as error:
                self._fail_unrun(error)
                self._notify()
                return
        if not chosen:
            return
        admission = self.store.write(lambda tx: self._queue_first(tx, chosen))
        with self.mutex:
            self._settle(chosen[: admission.count], chosen[admission.count :], admission.pause)
            self._waits_for_budget = admission.waits
        self._forget(chosen[admission.count :])
        if admission.count:
            self.children.rouse()
        self._notify()

    # What an attempt asks while it ends.

    def choose(self, attempt: Attempt, done: bool, outputs: tuple[Output, ...]) -> list[Attempt]:
        """Whom the slot of an attempt that ends is for: the next that is ready, or one that only waited for this to be
        done."""
        with self.mutex:
            try:
                # What it was expected to spend is free again: who waited for that may fit now.
                self._waits_for_budget = False
                chosen = self._take(1)
                if not chosen and done and not self.halted:
                    self.flow.keep(attempt.number, outputs)
                    chosen = self._take_early(attempt.number)
            except (OncewardError, Unlaunchable):
                # Whatever is wrong with the next step must not touch the end of this one: it comes up again by itself.
                return []
            return chosen

    def settle_ending(
        self, ending: Ending, spawned: Sequence[Attempt], dropped: Sequence[Attempt]
    ) -> None:
        """The end of an attempt is durable."""
        with self.mutex:
            self._settle(spawned, dropped, ending.paused)
            self._waits_for_budget = ending.waits_for_budget
            self.ended(
                ending.attempt,
                ending.final,
                ending.outputs,
                ending.checkpoint,
                in_doubt=ending.doubt is not None,
            )
            idle = self._in_flight < self.jobs
            over = self._is_over()
        self._forget(dropped)
        if spawned and idle:
            self.children.rouse()
        if idle and not over:
            self.dispatch()
        if over or self.ready.next_time() is not None:
            self._notify()

    def ended(
        self,
        attempt: Attempt,
        ended: Ended,
        outputs: tuple[Output, ...],
        checkpoint: Checkpoint | None = None,
        *,
        in_doubt: bool = False,
    ) -> None:
        step = attempt.number
        with self.mutex:
            self._in_flight -= 1
            self.admissions.in_flight.drop(attempt.child_id)
            self.attempts[step] = attempt.try_
            spent = ended.detail.get("spent", {})
            if ended.detail.get("report_mistake"):
                self.unread[attempt.name] = str(ended.detail["report_mistake"])
            if ended.reason == "completed" and in_doubt:
                self.doubts.append(attempt.name)
                self.ready.doubt(step)
                self.admissions.note(attempt.k, spent)
                self._say(attempt.name, "IN_DOUBT", attempt.child_id, spent, ended)
                return
            if ended.reason == "completed":
                self.attempts.pop(step, None)
                self.before.pop(step, None)
                self.counts["executed"] += 1
                self.admissions.note(attempt.k, spent)
                self._say(
                    attempt.name,
                    "SUCCESS",
                    attempt.child_id,
                    spent,
                    mistakes=ended.detail.get("report_mistakes", 0),
                    mistake=ended.detail.get("report_mistake", ""),
                )
                self.flow.keep(step, outputs)
                self._sort_out(self.ready.finish(step))
                return
            if checkpoint is not None:
                self.before[step] = checkpoint
            if self.again(attempt, ended):
                due = self.store.sources.now() + backoff(
                    attempt.try_, self.store.sources.fraction()
                )
                self.ready.put_later(step, due)
                self._say(attempt.name, "RETRY", attempt.child_id, spent, ended)
            elif ended.reason == "budget_exceeded" or ended.detail.get("stopped"):
                self.ready.put_back(step)
                self._say(attempt.name, "STOPPED", attempt.child_id, spent, ended)
            else:
                self._failed(step, ended, attempt.child_id)

    def goes_on_after(self, attempt: Attempt, ended: Ended) -> bool:
        """Whether others are still dispatched after an attempt that did not succeed."""
        return self.keep_going or self.again(attempt, ended)

    def queue(self, tx: Transaction, chosen: Sequence[Attempt]) -> list[Order]:
        """In a transaction: note the starts of stages that have a rate; answers what to queue."""
        for attempt in chosen:
            rate = attempt.stage.rate
            if rate is not None:
                at = attempt.taken_at
                note_start(
                    tx, self._scope(attempt.k), attempt.child_id, at, at - rate.seconds * 1_000_000
                )
        return [attempt.order for attempt in chosen]

    # The ready queue.

    def _take(self, free: int) -> list[Attempt]:
        chosen: list[Attempt] = []
        while self._freed_targets:
            self.ready.hurry(self._freed_targets.popleft())
        if self._waits_for_budget and self._in_flight:
            return chosen
        while len(chosen) < free and not self.halted:
            now = self.store.sources.now()
            step = self.ready.take(now)
            if step is None:
                break
            try:
                attempt = self._launch(step, now, early=False)
                if attempt is None:
                    self.ready.wait_again(step)
                    self._sort_out([step])
                else:
                    chosen.append(attempt)
            except TargetLocked as locked:
                self._wait_for_target(step, locked, now, last=not chosen)
            except OncewardError as error:
                self.ready.put_back(step)
                if chosen:
                    break
                raise Unlaunchable(step, error) from error
        return chosen

    def _done_by_another_build(self, step: int) -> bool:
        """Whether another build of the same plan has done a step since it was sorted out."""
        beside = step in self._target_waits or self._plan_run.met_another
        return beside and not self.finished.must_execute(step)

    def _take_early(self, finishing: int) -> list[Attempt]:
        """A step that waits only for the one that is being finished, if it has to be executed."""
        now = self.store.sources.now()
        for step in self.ready.would_free(finishing):
            if self.ready.free(step, now) and self.finished.must_execute(step):
                attempt = self._launch(step, now, early=True)
                if attempt is not None:
                    self.ready.start(step, now)
                    return [attempt]
        return []

    def _launch(self, step: int, now: Micros, early: bool) -> Attempt | None:
        """Claim a step's target and expect its child. None where another build has done the step: that is asked while
        we hold the target, because its holder records the result before it gives the target back."""
        attempt = Attempt(self, step, self.flow.context_hash(step), now, early)
        if attempt.work.target is not None:
            self.kernel.targets.claim(attempt.work.target, attempt.child_id)
        else:
            self.kernel.targets.hold(attempt.lock_target, attempt.child_id)
        if self._done_by_another_build(step):
            self.kernel.targets.release(attempt.child_id)
            return None
        self._target_waits.pop(step, None)
        self._in_flight += 1
        self.admissions.in_flight.add(attempt.child_id, self.build_id, attempt.estimate)
        self.children.expect({attempt.child_id: attempt.work})
        return attempt

    def _wait_for_target(self, step: int, locked: TargetLocked, now: Micros, *, last: bool) -> None:
        """Somebody else holds a step's target: it takes no slot and holds up no other step. After too long a wait it
        has failed, if nothing else was chosen with it (`last`)."""
        since, tries = self._target_waits.get(step, (now, 0))
        if now - since >= self.kernel.target_wait * 1_000_000 and last:
            self.ready.put_back(step)
            raise Unlaunchable(step, locked)
        if not tries:
            name = self.steps.name(step)
            self.told({"step": name, "status": "HELD", "message": locked.message, "spent": {}})
        self._target_waits[step] = (since, tries + 1)
        self.ready.hold(step, now + int(retry_delay(tries) * 1_000_000))
        k, target = self.steps.place(step)
        held = lock_target(self.resolved.plan.name, self.steps.stages[k].name, target)
        self.kernel.targets.wake_when_free(held, partial(self._freed_targets.append, step))

    def _queue_first(self, tx: Transaction, chosen: Sequence[Attempt]) -> Admission:
        """Queue steps outside of another's end."""
        if tx.builds.get(self.build_id).state != "ACTIVE":
            return Admission(0)
        admission = self.admissions.before(tx, chosen)
        orders = self.queue(tx, chosen[: admission.count])
        queue.spawn(tx, orders, self.children.owner, self.children.actor)
        return admission

    def _settle(
        self, spawned: Sequence[Attempt], dropped: Sequence[Attempt], paused: Pause | None
    ) -> None:
        for attempt in spawned:
            self._say(attempt.name, "running", attempt.child_id)
        for attempt in dropped:
            self._in_flight -= 1
            self.admissions.in_flight.drop(attempt.child_id)
            if attempt.early:
                self.ready.wait_again(attempt.number)
            else:
                self.ready.put_back(attempt.number)
        if paused is not None and self.pausing is None:
            self.pausing = paused
            self._halt("paused")
            if self.resolved.plan.on_pause == "stop":
                self.children.stop_running()

    def _forget(self, dropped: Sequence[Attempt]) -> None:
        """Attempts that were not queued after all give their targets back; not under our mutex, for that wakes others."""
        self.children.forget([attempt.child_id for attempt in dropped])

    def _sort_out(self, ready: Sequence[int]) -> None:
        """Find out of steps that wait for nothing more whether they are done already, wave after wave."""
        waiting = [step for step in ready if self.ready.at[step] == At.WAITING]
        while waiting:
            result = self.finished.look(waiting)
            self.saved += result.saved
            waiting = []
            for step, status, outputs in result.done:
                self.counts["skipped" if status == "SKIPPED" else "reused"] += 1
                self.flow.keep(step, outputs)
                self._say(self.steps.name(step), status)
                waiting += self.ready.finish(step)
            for step, wanted in result.asked.items():
                self.ready.ask(step)
                self._asked[step] = wanted
            for step, error in result.refused:
                self._failed(step, Ended(error.get("reason", "refused"), error))
            for step in result.execute:
                self.ready.put(step)
            if result.asked:
                # Somebody may have answered before we were ready to hear it.
                waiting += self._answers()

    def _answers(self) -> list[int]:
        """What people have said about steps that wait for them; answers those that may go on because of it. Where
        something else flows in by now, they are asked again."""
        freed: list[int] = []
        for step, wanted in sorted(self._asked.items()):
            now = self.flow.context_hash(step)
            if now != wanted:
                self.finished.ask_again(step, now)
                self._asked[step] = now
            k, target = self.steps.place(step)
            with self.store.read() as rows:
                checkpoint = find_checkpoint(rows, self.build_id, self.steps.stages[k].name, target)
            if checkpoint is not None and checkpoint.context_hash == now:
                self.finished.require_believed(step, now)
                freed += self._decided(step, checkpoint)
        return freed

    def _decided(self, step: int, checkpoint: Checkpoint) -> list[int]:
        """A person approved or refused a step; answers those that it lets go on."""
        self._asked.pop(step, None)
        if checkpoint.status != "SUCCESS":
            self._failed(step, Ended("refused", msgspec.json.decode(checkpoint.error or "{}")))
            return []
        self.counts["executed"] += 1
        self._say(self.steps.name(step), "SUCCESS")
        self.flow.keep(step, read_back(checkpoint.outputs))
        return self.ready.finish(step)

    def _failed(self, step: int, ended: Ended, child_id: str = "") -> None:
        name = self.steps.name(step)
        self.counts["failed"] += 1
        if len(self.failures) < 100:
            self.failures.append((name, {"reason": ended.reason, **ended.detail}))
        self._say(
            name, "CANCELLED" if ended.reason == "cancelled" else "FAILED", child_id, {}, ended
        )
        for other in self.ready.fail(step):
            self._say(self.steps.name(other), "BLOCKED")
        if not self.keep_going:
            self._halt("failed")

    def _fail_unrun(self, unlaunchable: Unlaunchable) -> None:
        """A step that cannot even be begun has failed, and its record says why."""
        step, error = unlaunchable.step, unlaunchable.error
        detail = {"error": error.code, "message": error.message[:1000]}
        self.ready.take_back(step)
        self.finished.record_unrun(step, detail)
        self._failed(step, Ended("start_failed", detail))

    def again(self, attempt: Attempt, ended: Ended) -> bool:
        """Whether an attempt that failed is tried once more."""
        return (
            ended.retryable
            and ended.reason == "execution_failed"
            and attempt.try_ < attempt.stage.attempts
        )

    def _halt(self, why: str) -> None:
        with self.mutex:
            self.halted = self.halted or why
        self._notify()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _is_over(self) -> bool:
        if self._in_flight:
            return False
        counts = self.ready.counts
        return bool(self.halted) or not (counts[At.READY] or counts[At.LATER] or counts[At.ASKED])

    def _patience(self) -> float:
        """How long the main thread may sleep: until something that waits for time alone is due."""
        due = self.ready.next_time() if self._in_flight < self.jobs else None
        left = 0.5 if due is None else max(0.001, (due - self.store.sources.now()) / 1_000_000)
        return min(0.5, left)

    def _conclude(self) -> None:
        """The last move of a build that ran to its end."""

        def conclude(tx: Transaction) -> str:
            build = tx.builds.get(self.build_id)
            if build.state != "ACTIVE":
                return build.state
            failed: dict[str, Any] = {}
            if self.counts["failed"]:
                name, error = self.failures[0]
                why = {key: error[key] for key in ("reason", "error", "message") if key in error}
                failed = {"step": name, "failed": self.counts["failed"], "why": why}
            if self.doubts:
                # A person has to decide; the resume with that decision goes on from here, also with what failed.
                detail = {"in_doubt": self.doubts[:100], **failed}
                tx.move(machine.crash(build, self.actor.principal, detail))
                return "CRASHED"
            if failed:
                move = machine.move(
                    build, "FAILED", "unhandled_error", self.actor.principal, failed
                )
            else:
                made = self.finished.output_digest(tx)
                move = machine.move(
                    build, "SUCCESS", "normal_completion", self.actor.principal, {"outputs": made}
                )
            attest.end(tx, move, build.plan_hash, self.actor.signer)
            return move.target

        self.store.write(conclude)

    def _tell_overdue(self, child_id: str, limit: float) -> None:
        work = self.children.works.get(child_id)
        if work is not None and work.step is not None:
            self.told({"step": work.step.name, "status": "OVERDUE", "limit": limit, "spent": {}})

    def _scope(self, k: int) -> str:
        return digest([self.resolved.plan.name, self.steps.stages[k].name])

    def _say(
        self,
        step: str,
        status: str,
        child_id: str = "",
        spent: Mapping[str, int] | None = None,
        ended: Ended | None = None,
        mistakes: int = 0,
        mistake: str = "",
    ) -> None:
        news = {
            "step": step,
            "status": status,
            "child_id": child_id,
            "spent": spent or {},
            "ended": ended,
        }
        self.told({**news, "mistakes": mistakes, "mistake": mistake})


def run_build(
    kernel: Kernel, build: BuildRun, stop: threading.Event, leaving: bool = False
) -> None:
    """Run a build until it has come to its end, or to a pause. `leaving` says that the process ends after this."""

    def on_stop() -> None:
        build.stop()
        build.children.stop()

    kernel.streams.look_over()
    with overheard(), serving(kernel, stop, on_stop):
        build.run()
        if leaving:
            build.wait_for_threads(stop)
