"""What a thing is, why it is in its state, what it waits for, what it cost, and what to type next (E-5)."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from onceward.core.records import Build
from onceward.engine.build_reading import (
    build_status,
    dependencies,
    gathered,
    next_command,
    why_paused,
)
from onceward.engine.explanation import Explanation, Kind, cost_of, story, who_may
from onceward.engine.why import about_code, why_it_ran
from onceward.errors import InvalidConfig, NotFound, Recovery
from onceward.lifecycles.plan import fill, step_name
from onceward.lifecycles.plan_changes import Body
from onceward.store.port import Reads
from onceward.store.store import Store
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
    if newest:
        return explain_step(store, newest[0], name)
    raise NotFound(
        f"there is no {', '.join(kind.name for kind in kinds)} or step {name[:80]!a}",
        recovery=[Recovery("see which there are", "onceward status")],
    )


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
    found = build_status(store, name)
    what = [
        f"a build of the plan {found['name']}"
        + (f" ({found['plan_file']})" if found.get("plan_file") else "")
    ]
    what.append(f"begun {found['created_at'][:19]} UTC, last moved {found['updated_at'][:19]}")
    if found.get("parent_build_id"):
        what.append(f"forked from {found['parent_build_id']}, whose plan or inputs had changed")
    with store.read() as rows:
        moves = story(rows, f"session:{found['build_id']}", "build")
        who = _who_may(rows, found)
    return Explanation(
        *(found["build_id"], "build", what, found["state"]),
        why=_why_build(found),
        story=moves,
        waits_for=_awaited(found),
        who=who,
        cost=cost_of(found["lanes"]),
        made=[_counted(found["steps"])],
        next=_next_of_build(found),
    )


def _who_may(rows: Reads, found: Mapping[str, Any]) -> list[str]:
    """Who may do something about it: what waits for an approval needs a reviewer, all else an operator."""
    if found["state"] in ("SUCCESS", "FAILED", "ABANDONED"):
        return []
    said = who_may(rows, "operator")
    if not found.get("approvals"):
        return said
    # Who may do both is named once.
    return list(dict.fromkeys([*who_may(rows, "reviewer"), *said]))


def _why_build(found: Mapping[str, Any]) -> list[str]:
    state, why = found["state"], found.get("why", {})
    if state == "ACTIVE":
        return (
            ["its kernel is gone, and nobody has gone on with it"]
            if found.get("orphaned")
            else ["it runs"]
        )
    if state == "FAILED" and "step" in why:
        told = why.get("why", {})
        said = [
            f"step {why['step']} failed: {told.get('message') or told.get('reason') or 'see its log'}"
        ]
        return said + ([f"{why['failed'] - 1} more failed"] if why.get("failed", 1) > 1 else [])
    if state == "BUDGET_PAUSE":
        return [why_paused(why)]
    return [
        {
            "SUCCESS": "every step is done",
            "CRASHED": "the kernel that ran it stopped or died before it was done; what was finished is kept",
            "ABANDONED": "a person gave it up",
            "FAILED": "a person declined to give it more money",
        }.get(state, state)
    ]


def _awaited(found: Mapping[str, Any]) -> list[str]:
    said = [
        f"a person to say whether {name} had its effect before the crash"
        for name in _doubts(found)[:10]
    ]
    said += [f"a person to approve {a['step']}: {a['text']}" for a in found.get("approvals", ())]
    if found["state"] == "BUDGET_PAUSE":
        where = "[budget] in onceward.toml" if found.get("why", {}).get("scope") else "the budget"
        said.append(
            f"a person to raise {where} and bring a confirmation token (confirm makes a new one)"
        )
    if (found["state"] == "CRASHED" or found.get("orphaned")) and not said:
        said.append("somebody to resume it, or to abandon it")
    return said


def _next_of_build(found: Mapping[str, Any]) -> list[str]:
    build_id = found["build_id"]
    said = [
        f"onceward approve {build_id} {shlex.quote(a['step'])} --digest {a['digest']}"
        for a in found.get("approvals", ())
    ]
    if found["state"] == "BUDGET_PAUSE":
        said.append(f"onceward confirm {build_id}")
    if found["state"] == "SUCCESS":
        said += [f"onceward output {build_id} --project NAME", f"onceward export {build_id}"]
    doubts = _doubts(found)
    if doubts:
        again = " ".join(f"--rerun {shlex.quote(name)}" for name in doubts)
        accept = " ".join(f"--accept {shlex.quote(f'{name}=FILE')}" for name in doubts)
        resume = f"onceward resume {build_id}"
        if found["state"] == "BUDGET_PAUSE":
            resume = next_command({**found, "in_doubt": []}) or resume
        return [*said, f"{resume} {accept}", f"{resume} {again}"]
    return said + ([found["next"]] if found.get("next") else [])


def _doubts(found: Mapping[str, Any]) -> list[str]:
    """Steps about which a person has still to say something."""
    if found["state"] not in ("CRASHED", "BUDGET_PAUSE", "ACTIVE"):
        return []
    return [step_name(s["stage"], s["target"]) for s in found["steps"] if s["status"] == "IN_DOUBT"]


def _counted(steps: Sequence[Mapping[str, Any]]) -> str:
    counts: dict[str, int] = {}
    for step in steps:
        counts[step["status"]] = counts.get(step["status"], 0) + 1
    told = ", ".join(f"{count:,} {status}" for status, count in sorted(counts.items()))
    return f"{len(steps):,} step{'' if len(steps) == 1 else 's'}: {told}"


def explain_step(store: Store, build: Build, name: str) -> Explanation:
    """A step of a build: what it does, why it ran or has not, what flows into it."""
    found = build_status(store, build.build_id)
    step = _step_named(found, name)
    place, here = (step["stage"], step["target"]), step_name(step["stage"], step["target"])
    with store.read() as rows:
        stage = _stage_of(rows, build, place[0])
        because, since = _why_step(rows, build, step, bool(found.get("orphaned")))
        reviewers = who_may(rows, "reviewer")
    logs = f"onceward logs {build.build_id} {shlex.quote(here)}"
    wanted = [a for a in found.get("approvals", ()) if a["step"] == here]
    following = [
        f"onceward approve {build.build_id} {shlex.quote(here)} --digest {a['digest']}"
        for a in wanted
    ]
    following += [
        f"onceward artifacts cat {a['sha256'][:12]}" for a in step.get("artifacts", ())[:3]
    ]
    following += [logs] if step.get("child_id") and stage["work"].get("run") else []
    if here in _doubts(found):
        following.append(f"onceward resume {build.build_id} --accept {shlex.quote(f'{here}=FILE')}")
        following.append(f"onceward resume {build.build_id} --rerun {shlex.quote(here)}")
    return Explanation(
        *(
            here,
            "step",
            [_what_step(stage, step["target"]), f"a step of build {build.build_id}, {build.name}"],
        ),
        step["status"],
        why=[*because, *([f"since build {since}"] if since else [])],
        who=reviewers if wanted else [],
        waits_for=_needed(found, stage, place[1])
        if step["status"] in ("waiting", "BLOCKED")
        else [],
        cost=f"{step['cost_usd']} usd, {step['tokens']:,} tokens" if "cost_usd" in step else "",
        made=[
            f"{a['name']}: {a['kind']}, {a['size']:,} bytes, {a['sha256'][:12]}"
            for a in step.get("artifacts", ())
        ]
        or _flows_in(found, stage, place[1], bool(wanted)),
        next=following or ([found["next"]] if found.get("next") else []),
    )


def why(store: Store, build: Build, name: str) -> dict[str, Any]:
    """Why a step ran, was not run, or did not have to."""
    found = build_status(store, build.build_id)
    step = _step_named(found, name)
    with store.read() as rows:
        because, since = _why_step(rows, build, step, bool(found.get("orphaned")))
        stage = _stage_of(rows, build, step["stage"])
        checkpoint = find_checkpoint(rows, build.build_id, step["stage"], step["target"])
        code = about_code(rows, build, checkpoint, step["stage"])
    if step["status"] in ("waiting", "BLOCKED") and not because:
        because = [f"it waits for {what}" for what in _needed(found, stage, step["target"])]
    said = {
        "step": step_name(step["stage"], step["target"]),
        "build_id": build.build_id,
        "status": step["status"],
        "because": [*because, *code],
    }
    return {**said, "since": since} if since else said


def _step_named(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    stage, colon, target = name.partition(":")
    fitting = [
        s for s in found["steps"] if s["stage"] == stage and (not colon or s["target"] == target)
    ]
    if len(fitting) == 1:
        return dict(fitting[0])
    likely = fitting or found["steps"]
    some = ", ".join(step_name(s["stage"], s["target"]) for s in likely[:5]) + (
        " ..." if likely[5:] else ""
    )
    raise InvalidConfig(
        f"{'more than one step is meant by' if fitting else 'there is no step'} {name[:80]!a} in {found['build_id']};"
        f" there is {some}",
        context={"step": name[:200], "build_id": found["build_id"]},
        recovery=[]
        if fitting
        else [Recovery("name another build before the step", "onceward list")],
    )


def _stage_of(rows: Reads, build: Build, name: str) -> dict[str, Any]:
    return dict(Body(plan_body(rows, build.plan_hash)).stages[name])


def _what_step(stage: Mapping[str, Any], target: str) -> str:
    work = stage["work"]
    if "run" in work:
        return f"runs {shlex.join(fill(word, target) for word in work['run'])}"
    return (
        f"asks a person: {work['approve']}"
        if "approve" in work
        else f"calls the function of stage {stage['name']}"
    )


def _why_step(
    rows: Reads, build: Build, step: Mapping[str, Any], orphaned: bool
) -> tuple[list[str], str | None]:
    """The reasons, and the build in which it was last done before; `orphaned` where the build's kernel is gone."""
    status, error = step["status"], step.get("error") or {}
    checkpoint = find_checkpoint(rows, build.build_id, step["stage"], step["target"])
    if status == "REUSED":
        return ["nothing that flows into it changed: its result was taken over"], step["origin"]
    if status == "IN_DOUBT":
        if error.get("reason") == "in_doubt":
            return [
                f"it ended well, but {error.get('message', 'its result cannot be recorded')}",
                f"what it left is kept: onceward artifacts list {step.get('child_id')}",
                "accept that, or what you make of it, as its result before you run it again: it may be paid for",
            ], None
        return [
            "a crash cut it off, and its stage says that a person must decide (on_crash = ask)"
        ], None
    if status in ("SUCCESS", "SKIPPED") and checkpoint is not None:
        if checkpoint.how in ("approved", "accepted"):
            return [_who(rows, checkpoint)], None
        because, since = why_it_ran(rows, build, step["stage"], step["target"])
        return (
            ["done before this build was resumed", *because] if status == "SKIPPED" else because
        ), since
    if status in ("running", "queued"):
        if orphaned:
            return [
                "its kernel is gone: it runs no more, and runs again when the build is resumed"
            ], None
        return why_it_ran(rows, build, step["stage"], step["target"])
    if error:
        exit_ = f", exit {error['exit']}" if error.get("exit") is not None else ""
        said_ = error.get("message") or error.get("last_line") or error.get("reason") or "it failed"
        because, since = why_it_ran(rows, build, step["stage"], step["target"])
        return [
            f"attempt {step.get('attempts', 1)}: {said_}{exit_}",
            *(f"it ran: {why}" for why in because),
        ], since
    return [], None


def _who(rows: Reads, checkpoint: Checkpoint) -> str:
    found = find_approval(
        rows, checkpoint.build_id, checkpoint.stage, checkpoint.target, checkpoint.context_hash
    )
    return f"{found.actor} approved it" if found is not None else f"a person {checkpoint.how} it"


def _needed(found: Mapping[str, Any], stage: Mapping[str, Any], target: str) -> list[str]:
    """What a step waits for: those it needs that are not done, a person, or its turn."""
    done = ("SUCCESS", "SKIPPED", "REUSED")
    here = step_name(stage["name"], target)
    said = [
        f"a person to approve it: {a['text']}"
        for a in found.get("approvals", ())
        if a["step"] == here
    ]
    for need in dependencies(stage):
        open_ = [s for s in _steps_of(found, stage, need, target) if s["status"] not in done]
        said += [f"{step_name(s['stage'], s['target'])}, which is {s['status']}" for s in open_[:5]]
        said += [f"and {len(open_) - 5:,} more of {need}"] if len(open_) > 5 else []
    return said or [
        "its turn" if found["state"] == "ACTIVE" else f"the build, which is {found['state']}"
    ]


def _steps_of(
    found: Mapping[str, Any], stage: Mapping[str, Any], need: str, target: str
) -> list[Mapping[str, Any]]:
    """Of a needed stage the same-named step, of one that is gathered or waited for all."""
    steps = [step for step in found["steps"] if step["stage"] == need]
    return [step for step in steps if need in gathered(stage) or step["target"] == target]


def _flows_in(
    found: Mapping[str, Any], stage: Mapping[str, Any], target: str, wanted: bool
) -> list[str]:
    """What a person is asked to approve: everything that flows into the step."""
    said = []
    flowing = [*stage["needs"], *stage.get("collect", ())]
    for need in flowing if wanted else ():
        for step in _steps_of(found, stage, need, target):
            for artifact in step.get("artifacts", ()):
                where = f"{step_name(step['stage'], step['target'])} {artifact['name']}"
                said.append(
                    f"to be approved: {where}: onceward artifacts cat {artifact['sha256'][:12]}"
                )
    return said[:20]


KINDS = (Kind("build", _find_build, _build),)
