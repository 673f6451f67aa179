"""What a thing is, why it is in its state, what it waits for, what it cost, and what to type next (E-5)."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from onceward.builds import rules
from onceward.builds.plan_changes import Body
from onceward.builds.views import (
    BuildView,
    StepView,
    WantedApproval,
    build_view,
    dependencies,
    gathered,
    next_command,
)
from onceward.builds.why import about_code, why_it_ran
from onceward.core.records import Build
from onceward.core.steps import fill, step_name
from onceward.core.views import Explanation, View, cost_of
from onceward.people.principals import who_may
from onceward.store.port import Reads
from onceward.store.store import Store
from onceward.store.subject import Kind, story
from onceward.store.tables.approvals import find_approval
from onceward.store.tables.builds import Builds, plan_body
from onceward.store.tables.checkpoints import Checkpoint, find_checkpoint


def explain(store: Store, words: Sequence[str], kinds: Sequence[Kind]) -> Explanation:
    """Whatever an id, the beginning of one, or a name means; a step alone is of the newest build."""
    if len(words) == 2:
        return explain_step(store, build_of(store, words[0]), words[1])
    (name,) = words
    with store.read() as rows:
        newest = Builds(rows).newest(1)
        stages = Body(plan_body(rows, newest[0].plan_hash)).stages if newest else {}
        meant = _meant(rows, name, kinds)
    # A whole id first, then a step of the newest build, then the beginning of an id or a name.
    if newest and name.partition(":")[0] in stages and (meant is None or meant[1] != name):
        return explain_step(store, newest[0], name)
    if meant is not None:
        return meant[0].explain(store, meant[1])
    build = rules.require_newest(name, [kind.name for kind in kinds], next(iter(newest), None))
    return explain_step(store, build, name)


def _meant(rows: Reads, name: str, kinds: Sequence[Kind]) -> tuple[Kind, str] | None:
    for kind in kinds:
        found = kind.find(rows, name)
        if found is not None:
            return kind, found
    return None


def _find_build(rows: Reads, name: str) -> str | None:
    return (
        Builds(rows).named(name).build_id if name.startswith("bld_") or name == "latest" else None
    )


def build_of(store: Store, prefix: str | None) -> Build:
    """The build that is meant: by its id, or the newest."""
    with store.read() as rows:
        return Builds(rows).meant(prefix)


def _build(store: Store, name: str) -> Explanation:
    build = build_view(store, name)
    plan = f"a build of the plan {build.name}"
    what = [
        f"{plan} ({build.plan_file})" if build.plan_file else plan,
        f"begun {build.created_at[:19]} UTC, last moved {build.updated_at[:19]}",
    ]
    if build.parent_build_id:
        what.append(f"forked from {build.parent_build_id}, whose plan or inputs had changed")
    with store.read() as rows:
        moves = story(rows, f"session:{build.build_id}", "build")
        who = _who_may(rows, build)
    return Explanation(
        id=build.build_id,
        kind="build",
        what=what,
        state=build.state,
        why=_why_build(build),
        story=moves,
        waits_for=_awaited(build),
        who=who,
        cost=cost_of(build.lanes),
        made=[_counted(build.steps)],
        next=_next_of_build(build),
    )


def _who_may(rows: Reads, build: BuildView) -> list[str]:
    """Who may do something about it: what waits for an approval needs a reviewer, all else an operator."""
    if build.state in ("SUCCESS", "FAILED", "ABANDONED"):
        return []
    operators = who_may(rows, "operator")
    if not build.approvals:
        return operators
    # Who may do both is named once.
    return list(dict.fromkeys([*who_may(rows, "reviewer"), *operators]))


def _why_build(build: BuildView) -> list[str]:
    why = build.facts()
    if build.state == "ACTIVE":
        return (
            ["its kernel is gone, and nobody has gone on with it"]
            if build.orphaned
            else ["it runs"]
        )
    if build.state == "FAILED" and "step" in why:
        error = why.get("why", {})
        message = error.get("message") or error.get("reason") or "see its log"
        more = [f"{why['failed'] - 1} more failed"] if why.get("failed", 1) > 1 else []
        return [f"step {why['step']} failed: {message}", *more]
    if build.state == "BUDGET_PAUSE":
        return [rules.why_paused(why)]
    return [
        {
            "SUCCESS": "every step is done",
            "CRASHED": "the kernel that ran it stopped or died before it was done; what was finished is kept",
            "ABANDONED": "a person gave it up",
            "FAILED": "a person declined to give it more money",
        }.get(build.state, build.state)
    ]


def _awaited(build: BuildView) -> list[str]:
    awaited = [
        f"a person to say whether {name} had its effect before the crash"
        for name in _doubts(build)[:10]
    ]
    awaited += [f"a person to approve {one.step}: {one.text}" for one in build.approvals]
    if build.state == "BUDGET_PAUSE":
        where = "[budget] in onceward.toml" if build.facts().get("scope") else "the budget"
        awaited.append(
            f"a person to raise {where} and bring a confirmation token (confirm makes a new one)"
        )
    if (build.state == "CRASHED" or build.orphaned) and not awaited:
        awaited.append("somebody to resume it, or to abandon it")
    return awaited


def _approve(build: BuildView, wanted: WantedApproval) -> str:
    return f"onceward approve {build.build_id} {shlex.quote(wanted.step)} --digest {wanted.digest}"


def _next_of_build(build: BuildView) -> list[str]:
    following = [_approve(build, wanted) for wanted in build.approvals]
    if build.state == "BUDGET_PAUSE":
        following.append(f"onceward confirm {build.build_id}")
    if build.state == "SUCCESS":
        return [
            f"onceward output {build.build_id} --project NAME",
            f"onceward export {build.build_id}",
        ]
    doubts = _doubts(build)
    if doubts:
        again = " ".join(f"--rerun {shlex.quote(name)}" for name in doubts)
        accept = " ".join(f"--accept {shlex.quote(f'{name}=FILE')}" for name in doubts)
        resume = f"onceward resume {build.build_id}"
        if build.state == "BUDGET_PAUSE":
            resume = next_command(msgspec.structs.replace(build, in_doubt=())) or resume
        return [*following, f"{resume} {accept}", f"{resume} {again}"]
    return following + ([build.next] if build.next else [])


def _doubts(build: BuildView) -> list[str]:
    """Steps about which a person has still to say something."""
    if build.state not in ("CRASHED", "BUDGET_PAUSE", "ACTIVE"):
        return []
    return [step.name for step in build.steps if step.status == "IN_DOUBT"]


def _counted(steps: Sequence[StepView]) -> str:
    counts: dict[str, int] = {}
    for step in steps:
        counts[step.status] = counts.get(step.status, 0) + 1
    by_status = ", ".join(f"{count:,} {status}" for status, count in sorted(counts.items()))
    return f"{len(steps):,} step{'' if len(steps) == 1 else 's'}: {by_status}"


def explain_step(store: Store, build: Build, name: str) -> Explanation:
    """A step of a build: what it does, why it ran or has not, what flows into it."""
    view = build_view(store, build.build_id)
    step = _step_named(view, name)
    with store.read() as rows:
        stage = _stage_of(rows, build, step.stage)
        because, since = _why_step(rows, build, step, view.orphaned)
        reviewers = who_may(rows, "reviewer")
    wanted = [approval for approval in view.approvals if approval.step == step.name]
    waits = step.status in ("waiting", "BLOCKED")
    made = [
        f"{one.name}: {one.kind}, {one.size:,} bytes, {one.sha256[:12]}" for one in step.outputs()
    ]
    return Explanation(
        id=step.name,
        kind="step",
        what=[_what_step(stage, step.target), f"a step of build {build.build_id}, {build.name}"],
        state=step.status,
        why=[*because, *([f"since build {since}"] if since else [])],
        who=reviewers if wanted else [],
        waits_for=_needed(view, stage, step.target) if waits else [],
        cost=f"{step.cost_usd} usd, {step.tokens:,} tokens" if step.cost_usd is not None else "",
        made=made or _flows_in(view, stage, step.target, bool(wanted)),
        next=_next_of_step(view, step, stage, wanted),
    )


def _next_of_step(
    build: BuildView, step: StepView, stage: Mapping[str, Any], wanted: Sequence[WantedApproval]
) -> list[str]:
    name = shlex.quote(step.name)
    following = [_approve(build, approval) for approval in wanted]
    following += [f"onceward artifacts cat {one.sha256[:12]}" for one in step.outputs()[:3]]
    if step.child_id and stage["work"].get("run"):
        following.append(f"onceward logs {build.build_id} {name}")
    if step.name in _doubts(build):
        accept = shlex.quote(f"{step.name}=FILE")
        following.append(f"onceward resume {build.build_id} --accept {accept}")
        following.append(f"onceward resume {build.build_id} --rerun {name}")
    return following or ([build.next] if build.next else [])


class StepReasons(View, frozen=True):
    """Why a step ran, was not run, or did not have to."""

    step: str
    build_id: str
    status: str
    because: list[str]
    since: str | None = None
    """The build in which it was last done before."""


def why(store: Store, build: Build, name: str) -> StepReasons:
    """Why a step ran, was not run, or did not have to."""
    view = build_view(store, build.build_id)
    step = _step_named(view, name)
    with store.read() as rows:
        because, since = _why_step(rows, build, step, view.orphaned)
        stage = _stage_of(rows, build, step.stage)
        checkpoint = find_checkpoint(rows, build.build_id, step.stage, step.target)
        code = about_code(rows, build, checkpoint, step.stage)
    if step.status in ("waiting", "BLOCKED") and not because:
        because = [f"it waits for {what}" for what in _needed(view, stage, step.target)]
    return StepReasons(
        step=step.name,
        build_id=build.build_id,
        status=step.status,
        because=[*because, *code],
        since=since,
    )


def _step_named(build: BuildView, name: str) -> StepView:
    stage, colon, target = name.partition(":")
    fitting = [s for s in build.steps if s.stage == stage and (not colon or s.target == target)]
    matches = [step.name for step in fitting]
    rules.require_step(name, build.build_id, matches, [step.name for step in build.steps])
    return fitting[0]


def _stage_of(rows: Reads, build: Build, name: str) -> Mapping[str, Any]:
    return Body(plan_body(rows, build.plan_hash)).stages[name]


def _what_step(stage: Mapping[str, Any], target: str) -> str:
    work = stage["work"]
    if "run" in work:
        return f"runs {shlex.join(fill(word, target) for word in work['run'])}"
    if "approve" in work:
        return f"asks a person: {work['approve']}"
    return f"calls the function of stage {stage['name']}"


def _why_step(
    rows: Reads, build: Build, step: StepView, orphaned: bool
) -> tuple[list[str], str | None]:
    """The reasons, and the build in which it was last done before; `orphaned` where the build's kernel is gone."""
    if step.status == "REUSED":
        return ["nothing that flows into it changed: its result was taken over"], step.origin
    if step.status == "IN_DOUBT":
        return _why_in_doubt(step), None
    if step.status in ("running", "queued") and orphaned:
        return [
            "its kernel is gone: it runs no more, and runs again when the build is resumed"
        ], None
    checkpoint = find_checkpoint(rows, build.build_id, step.stage, step.target)
    done = step.status in ("SUCCESS", "SKIPPED") and checkpoint is not None
    if done and checkpoint is not None and checkpoint.how in ("approved", "accepted"):
        return [_who(rows, checkpoint)], None
    if not (done or step.error or step.status in ("running", "queued")):
        return [], None
    because, since = why_it_ran(rows, build, step.stage, step.target)
    if done and step.status == "SKIPPED":
        return ["done before this build was resumed", *because], since
    if done or step.status in ("running", "queued"):
        return because, since
    return [_failure(step), *(f"it ran: {why}" for why in because)], since


def _why_in_doubt(step: StepView) -> list[str]:
    error = step.failure()
    if error.get("reason") != "in_doubt":
        return ["a crash cut it off, and its stage says that a person must decide (on_crash = ask)"]
    return [
        f"it ended well, but {error.get('message', 'its result cannot be recorded')}",
        f"what it left is kept: onceward artifacts list {step.child_id}",
        "accept that, or what you make of it, as its result before you run it again: it may be paid for",
    ]


def _failure(step: StepView) -> str:
    error = step.failure()
    exit_ = f", exit {error['exit']}" if error.get("exit") is not None else ""
    message = error.get("message") or error.get("last_line") or error.get("reason") or "it failed"
    return f"attempt {step.attempts or 1}: {message}{exit_}"


def _who(rows: Reads, checkpoint: Checkpoint) -> str:
    found = find_approval(
        rows, checkpoint.build_id, checkpoint.stage, checkpoint.target, checkpoint.context_hash
    )
    return f"{found.actor} approved it" if found is not None else f"a person {checkpoint.how} it"


def _needed(build: BuildView, stage: Mapping[str, Any], target: str) -> list[str]:
    """What a step waits for: those it needs that are not done, a person, or its turn."""
    done = ("SUCCESS", "SKIPPED", "REUSED")
    here = step_name(stage["name"], target)
    needed = [f"a person to approve it: {a.text}" for a in build.approvals if a.step == here]
    for need in dependencies(stage):
        waiting = [s for s in _steps_of(build, stage, need, target) if s.status not in done]
        needed += [f"{step.name}, which is {step.status}" for step in waiting[:5]]
        if len(waiting) > 5:
            needed.append(f"and {len(waiting) - 5:,} more of {need}")
    if needed:
        return needed
    return ["its turn" if build.state == "ACTIVE" else f"the build, which is {build.state}"]


def _steps_of(build: BuildView, stage: Mapping[str, Any], need: str, target: str) -> list[StepView]:
    """The steps of a stage that a step needs: that of its own target, or all."""
    steps = [step for step in build.steps if step.stage == need]
    return [step for step in steps if need in gathered(stage) or step.target == target]


def _flows_in(build: BuildView, stage: Mapping[str, Any], target: str, wanted: bool) -> list[str]:
    """What a person is asked to approve: everything that flows into the step."""
    if not wanted:
        return []
    flowing = [
        f"to be approved: {step.name} {one.name}: onceward artifacts cat {one.sha256[:12]}"
        for need in (*stage["needs"], *stage.get("collect", ()))
        for step in _steps_of(build, stage, need, target)
        for one in step.outputs()
    ]
    return flowing[:20]


KINDS = (Kind("build", _find_build, _build),)
