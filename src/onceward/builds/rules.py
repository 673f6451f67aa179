"""Rules of builds and plans: every refusal, from values alone. A rule returns nothing, or the value that it demands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from onceward.builds.choices import run_again
from onceward.core.limits import MAX_OUTPUT_FILES, MAX_OUTPUT_PATH
from onceward.core.money import to_usd
from onceward.core.records import Build, Permit
from onceward.core.steps import step_name
from onceward.dispatch.budget import Lane, Refusal, exhausted, judge, precheck
from onceward.dispatch.stage import Stage
from onceward.dispatch.stage_words import refuse
from onceward.errors import (
    IntegrityFault,
    InvalidConfig,
    InvalidResumeState,
    NotFound,
    OncewardError,
    PermitInvalid,
    Recovery,
)

_PROJECT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_CENT: Final = 10_000
_RESUMABLE: Final = ("CRASHED", "BUDGET_PAUSE")


class ResumeWords(msgspec.Struct, frozen=True):
    """What somebody asked for with a resume, for a refusal to repeat; the token itself is not repeated."""

    limits: Mapping[str, int] = {}
    rerun: Sequence[str] = ()
    """Steps in doubt that are to run again."""
    accept: Mapping[str, str] = {}
    """Steps in doubt that are done, each with the file of its result."""

    def decisions(self) -> list[str]:
        return [
            *(f"--rerun {shlex.quote(name)}" for name in self.rerun),
            *(f"--accept {shlex.quote(f'{name}={path}')}" for name, path in self.accept.items()),
        ]

    def all(self, paused: bool) -> list[str]:
        words = ["--token TOKEN"] if paused else []
        for lane, limit in self.limits.items():
            money = lane == "usd_micros"
            words.append(f"--budget usd={to_usd(limit)}" if money else f"--budget {lane}={limit}")
        return [*words, *self.decisions()]


# Plans.


def require_tree(tree: object) -> None:
    """The tree of a plan is a folder, where it names one."""
    if tree is not None and (not isinstance(tree, str) or not tree or "\0" in tree):
        raise refuse("tree", f"tree is a folder, not {tree!r}")


def require_reuse(reuse: object) -> None:
    if type(reuse) is not bool:
        raise refuse("reuse", f"reuse is true or false, not {reuse!r}")


def require_on_pause(on_pause: object) -> None:
    if on_pause not in ("finish", "stop"):
        raise refuse("on_pause", f'on_pause is "finish" or "stop", not {on_pause!r}')


def require_plan_name(words: Mapping[str, Any]) -> None:
    """A plan file says how the plan is called."""
    if "name" not in words:
        raise refuse("name", 'a plan has a name; write name = "catalogue" at its top')


def require_stage_tables(stages: object, file: str) -> list[Mapping[str, Any]]:
    """A plan file has its stages as [[stage]]."""
    if (
        not isinstance(stages, list)
        or not stages
        or not all(isinstance(stage, Mapping) for stage in stages)
    ):
        raise InvalidConfig(
            f"{file}: a plan has at least one stage; write [[stage]], with two brackets, above each",
            context={"file": file, "field": "stage"},
        )
    return stages


def require_stages(plan: str, stages: Collection[Stage]) -> None:
    """A plan has at least one stage."""
    if not stages:
        raise InvalidConfig(f"the plan {plan} has no stage", context={"field": "stage"})


def require_function(name: object, value: object) -> Callable[..., Any]:
    """What a stage names as its function is one."""
    if not callable(value):
        raise refuse("python", f"{name} is a {type(value).__name__}, not a function")
    return value


def require_named_function(call: object, name: str | None) -> str:
    """A stage is made of a function that has a name, or is given one."""
    if not callable(call):
        raise refuse("name", f"a stage is made of a function, not of {call!r}")
    if name is None:
        raise refuse("name", f"a {type(call).__name__} has no name of its own; say name=")
    return name


def require_new_stage(name: str, stages: Iterable[Stage]) -> None:
    """No two stages of a plan have one name."""
    if any(stage.name == name for stage in stages):
        raise refuse("name", f"there are two stages {name}")


def require_stage_of_plan(word: str, need: object, name: str | None) -> str:
    """What a stage needs is a stage of its plan; `name` is the name it has there."""
    if name is None:
        raise refuse(word, f"{getattr(need, '__name__', need)!r} is not a stage of this plan")
    return name


def require_config_for_targets(stage: Stage, targets: Sequence[str]) -> None:
    """Config for a target that is not there is a slip of the pen."""
    known = set(targets)
    for name in stage.target_config:
        if name not in known:
            raise refuse(
                f"target.{name}",
                f"there is config for {name!a}, but no such target; there is {targets[0]!a}",
            )


def require_no_secret_chosen(choices: str, redacted: str) -> None:
    """Config that somebody chose holds no secret; `redacted` is the same without any."""
    if redacted != choices:
        raise refuse(
            "--set", "a secret's value is not set as config, which is kept; name it under secrets"
        )


def require_variables(stage: Stage, known: Collection[str]) -> None:
    """Every variable that a stage asks for is set."""
    for name in (*stage.env, *stage.secrets):
        if name not in known:
            field = "secrets" if name in stage.secrets else "env"
            raise InvalidConfig(
                f"stage {stage.name} needs the environment variable {name}, which is not set",
                context={"stage": stage.name, "field": field},
            )


# Beginning and resuming a build.


def require_no_doubts(build_id: str, doubts: Sequence[str]) -> None:
    """A plan is not begun anew while steps of an earlier build of it may have had their effect (B-8)."""
    if doubts:
        raise InvalidResumeState(
            f"in build {build_id} of this plan a person has to decide about {', '.join(doubts[:5])}: what"
            " was done there may be paid for, or have had its effect, and running the plan anew might repeat it",
            context={"build_id": build_id, "in_doubt": list(doubts)},
            recovery=[
                Recovery("decide there", f"onceward resume {build_id}{decision_words(doubts)}"),
                Recovery(
                    "or give that build up, then run", f"onceward abandon {build_id}", "medium"
                ),
            ],
        )


def require_resumable(build: Build) -> None:
    """Only a crashed or paused build goes on (B-11); the refusal says what to do with any other."""
    if build.state in _RESUMABLE:
        return
    again = [
        Recovery(
            "run it again; what succeeded is reused", run_again(build.plan_file, build.choices)
        )
    ]
    made = [Recovery("look at what it made", f"onceward status {build.build_id}")]
    give_up = [Recovery("give it up", f"onceward abandon {build.build_id}", "medium")]
    ways = {"FAILED": again, "SUCCESS": made, "ABANDONED": again, "PENDING": [*give_up, *again]}
    raise InvalidResumeState(
        f"build {build.build_id} is {build.state}; only a CRASHED or BUDGET_PAUSE build is resumed",
        context={"build_id": build.build_id, "state": build.state},
        recovery=ways.get(build.state, []),
    )


def require_plan_file(build: Build, there: bool) -> None:
    """The file that the plan of a build was read from is still there."""
    if not build.plan_file or not there:
        raise InvalidResumeState(
            f"the plan of {build.build_id} is no longer at {build.plan_file or 'any file'}",
            context={"build_id": build.build_id, "file": build.plan_file},
            recovery=[Recovery("give its file", f"onceward resume {build.build_id} --plan FILE")],
        )


def require_choices_in_plan(build_id: str, error: OncewardError) -> None:
    """What was chosen of a plan when its build began is in it still; `error` is why the plan is refused now."""
    field = error.context.get("field")
    if field in ("--only", "--set"):
        anew = "or give the build up and run the plan anew"
        raise InvalidResumeState(
            f"what {build_id} chose by {field} is no longer in the plan: {error.message}",
            context={**error.context, "build_id": build_id, "changed": [error.message]},
            recovery=[
                Recovery("put the plan back as it was"),
                Recovery(anew, f"onceward abandon {build_id}", "low"),
            ],
        )


def require_same_plan(build_id: str, changed: Sequence[str], fork: bool) -> None:
    """A build goes on with the plan that it began with, or is forked (B-11); `changed` is what is different."""
    if changed and not fork:
        raise InvalidResumeState(
            f"the plan is not what it was when {build_id} began: {'; '.join(changed[:10])}",
            context={"build_id": build_id, "changed": list(changed[:100])},
            recovery=[Recovery("put it back as it was"), _fork(build_id)],
        )


def require_same_code(build_id: str, changed: Sequence[str], strict: bool) -> None:
    """Where somebody wants it, a build goes on with the code that it began with only (B-11)."""
    if strict and changed:
        keep = "keep what is done and run the rest with the new code"
        raise InvalidResumeState(
            f"the code of {build_id} is not what it was: {'; '.join(changed[:10])}",
            context={"build_id": build_id, "changed": list(changed[:100])},
            recovery=[
                Recovery("put it back as it was"),
                Recovery(keep, f"onceward resume {build_id}", "low"),
                _fork(build_id),
            ],
        )


def _fork(build_id: str) -> Recovery:
    return Recovery(
        "make a new build that reuses what still fits", f"onceward resume {build_id} --fork", "low"
    )


def require_file_to_accept(step: str, path: str, there: bool) -> None:
    """The result of a step is taken from a file that is there."""
    if not there:
        raise InvalidConfig(f"there is no file {path} to accept for {step}", context={"file": path})


def require_file_name(name: str) -> None:
    """A file that somebody brings has a plain name."""
    if "/" in name or name in ("", ".", ".."):
        raise InvalidConfig(f"{name[:60]!a} is no file's name", context={"field": "accept"})


def require_decided(build: Build, doubts: Collection[str], words: ResumeWords) -> None:
    """A person decides about every step in doubt, each in one way, and about no other (B-8)."""
    for name in (*words.rerun, *words.accept):
        if name not in doubts:
            others = f"; in doubt are {', '.join(doubts)}" if doubts else ""
            raise InvalidConfig(
                f"step {name[:80]!a} is not in doubt{others}", context={"step": name[:200]}
            )
        if name in words.rerun and name in words.accept:
            raise InvalidConfig(
                f"step {name} cannot be both rerun and accepted", context={"step": name}
            )
    undecided = [name for name in doubts if name not in words.rerun and name not in words.accept]
    if undecided:
        paused = build.state == "BUDGET_PAUSE"
        again = " ".join((f"onceward resume {build.build_id}", *words.all(paused)))
        rerun = " ".join(f"--rerun {shlex.quote(name)}" for name in undecided)
        accept = " ".join(f"--accept {shlex.quote(f'{name}=FILE')}" for name in undecided)
        many = len(undecided) > 1
        raise InvalidResumeState(
            f"a person has to decide about {', '.join(undecided)}: nobody can say whether"
            f" {'these steps' if many else 'this step'} had an effect before a crash, or what came of"
            f" {'them' if many else 'it'} could not be recorded",
            context={"build_id": build.build_id, "in_doubt": undecided},
            recovery=[
                Recovery("run again", f"{again} {rerun}", "medium"),
                Recovery("or take a result from a file", f"{again} {accept}", "low"),
            ],
        )


def require_room(
    build_id: str,
    lanes: Mapping[str, Lane],
    workspace: Mapping[str, Lane],
    pause: Mapping[str, Any],
    words: ResumeWords,
) -> None:
    """A build that was paused goes on only if there is something to go on with (B-10); `pause` is what it was paused
    for."""
    refusal = _no_room(lanes, workspace, pause)
    if refusal is None:
        return
    money = refusal.lane == "usd_micros"
    lane = "usd" if money else refusal.lane
    needed = max(refusal.observed + 1, refusal.observed + refusal.asked)
    amounts = (refusal.observed, refusal.limit, needed, refusal.asked)
    spent, limit, least, asked = (to_usd(n) if money else str(n) for n in amounts)
    estimate = f", and the next step wants {asked}" if refusal.asked else ""
    if refusal.scope:
        way = Recovery(f"raise {lane} under [budget] in onceward.toml above {least}, then resume")
    else:
        raised = ["--token TOKEN", f"--budget {lane}={least}", *words.decisions()]
        way = Recovery("raise it", " ".join((f"onceward resume {build_id}", *raised)))
    raise InvalidResumeState(
        f"{'the workspace has' if refusal.scope else 'this build has'} spent {spent} of its {lane} {limit}{estimate};"
        " the budget must be raised first, here and not in the plan (no token is used up)",
        context={"build_id": build_id, **refusal.detail()},
        recovery=[way, Recovery("if the token is lost", f"onceward confirm {build_id}")],
    )


def _no_room(
    lanes: Mapping[str, Lane], workspace: Mapping[str, Lane], pause: Mapping[str, Any]
) -> Refusal | None:
    empty = exhausted(lanes) or exhausted(workspace, "workspace")
    if empty is not None:
        if empty.lane != pause.get("lane"):
            return empty
        wanted = int(pause.get("estimate") or pause.get("asked") or 0)
        return msgspec.structs.replace(empty, asked=wanted)
    if "estimate" in pause:
        asked = {str(pause["lane"]): int(pause["estimate"])}
        return precheck(lanes, asked) or precheck(workspace, asked, "workspace")
    if pause.get("asked"):
        # Without more room than before the same debit would only be refused again.
        asked = {str(pause["lane"]): int(pause["asked"])}
        return judge(lanes, asked) or judge(workspace, asked, "workspace")
    return None


def require_confirmation(build_id: str, permit: Permit | None, objection: str) -> Permit:
    """A paused build goes on with its confirmation token (B-10); `objection` is why the one that was shown does not
    do, or empty."""
    if objection or permit is None:
        raise InvalidResumeState(
            f"build {build_id} is paused, and going on needs its confirmation token, which {objection}",
            context={"build_id": build_id, "token": objection},
            recovery=[Recovery("get a new token", f"onceward confirm {build_id}")],
        )
    return permit


# What is asked of a build.


def require_paused(build: Build) -> None:
    """Only a paused build needs a confirmation token."""
    if build.state != "BUDGET_PAUSE":
        raise InvalidResumeState(
            f"build {build.build_id} is {build.state}; only a paused one needs a confirmation token",
            context={"build_id": build.build_id, "state": build.state},
        )


def require_token_hash(token_hash: str) -> None:
    """A confirmation token is made known by its hash."""
    if len(token_hash) != 64:
        raise InvalidConfig("the hash of a token has 64 letters", context={"field": "token_hash"})


def require_running(build: Build, subject: str) -> None:
    """A build of which nothing runs is not cancelled; it is given up."""
    if build.state in _RESUMABLE:
        raise InvalidConfig(
            f"build {build.build_id} is {build.state}; nothing of it is running",
            context={"subject": subject},
            recovery=[Recovery("give it up", f"onceward abandon {build.build_id}", "medium")],
        )


def require_open(build: Build, step: str) -> None:
    """A build that is over waits for nobody."""
    if build.state not in ("ACTIVE", *_RESUMABLE):
        raise InvalidConfig(
            f"build {build.build_id} is {build.state}; nothing of it waits",
            context={"step": step[:200]},
        )


def require_waiting(build_id: str, step: str, waits: bool) -> None:
    """Only a step that waits for an approval is approved or refused (B-15)."""
    if not waits:
        raise InvalidConfig(
            f"step {step[:80]!a} of {build_id} does not wait for an approval",
            context={"step": step[:200]},
            recovery=[Recovery("see what waits", f"onceward status {build_id}")],
        )


def require_whole_digest(build_id: str, step: str, wanted: str, given: str) -> None:
    """A person approves exactly what flows into a step now, by its whole digest (B-15)."""
    if given != wanted:
        part = "; it must be given whole" if wanted.startswith(given) else ""
        raise PermitInvalid(
            f"the digest is not that of what flows into {step} now{part}",
            context={"step": step, "digest": wanted},
            recovery=[Recovery("look at it again", f"onceward status {build_id}")],
        )


def require_same_decision(
    step: str, decided: tuple[str, str | None], asked: tuple[str, str]
) -> None:
    """A decision and who made it stand; only the same is asked again (B-15)."""
    if decided != asked:
        decision, actor = decided
        raise PermitInvalid(
            f"step {step} was {decision} by {actor} already", context={"step": step}
        )


def require_believed(step: str, actor: str, doubt: str) -> None:
    """What stands as a person's decision about a step is what they signed (B-15)."""
    if doubt:
        raise IntegrityFault(
            f"what {actor} is said to have decided about {step} does not count: {doubt}",
            context={"rule": "approval", "step": step},
            recovery=[Recovery("see what was edited", "onceward verify")],
        )


# What is seen of a build.


def require_step(name: str, build_id: str, matches: Sequence[str], steps: Sequence[str]) -> None:
    """A name means one step of a build."""
    if len(matches) == 1:
        return
    likely = matches or steps
    names = ", ".join(likely[:5]) + (" ..." if likely[5:] else "")
    problem = "more than one step is meant by" if matches else "there is no step"
    elsewhere = Recovery("name another build before the step", "onceward list")
    raise InvalidConfig(
        f"{problem} {name[:80]!a} in {build_id}; there is {names}",
        context={"step": name[:200], "build_id": build_id},
        recovery=[] if matches else [elsewhere],
    )


def require_newest(name: str, kinds: Iterable[str], newest: Build | None) -> Build:
    """The newest build, in which a name that means nothing else is a step."""
    if newest is None:
        raise NotFound(
            f"there is no {', '.join(kinds)} or step {name[:80]!a}",
            recovery=[Recovery("see which there are", "onceward status")],
        )
    return newest


def require_results(
    build_id: str, stage: str, target: str | None, statuses: Collection[str]
) -> None:
    """Steps whose values are asked for have all succeeded."""
    if not statuses or any(status != "SUCCESS" for status in statuses):
        raise NotFound(
            f"build {build_id} has no result of {step_name(stage, target or '*')}",
            context={"stage": stage},
            recovery=[Recovery(f"name a target, or ask for all: result.values({stage!r})")],
        )


# The output of a build (B-13).


def require_project_name(project: str) -> None:
    if not _PROJECT.fullmatch(project) or ".." in project:
        raise InvalidConfig(
            f"{project[:60]!a} is no name for a project: 1 to 64 letters, digits, . _ or -, no sign first",
            context={"field": "project"},
        )


def require_new_folder(folder: str, exists: bool, has_parent: bool) -> None:
    """An output is written as a new folder in one that is there."""
    if exists or not has_parent:
        why = "is there already" if exists else "has no folder to be in"
        raise InvalidConfig(f"{folder} {why}; nothing was written", context={"folder": folder})


def require_real_folder(folder: str, real: str, plain: bool) -> None:
    """No link is on the way to a folder; `real` is where it leads, `plain` whether that is the folder itself."""
    if not plain:
        raise InvalidConfig(
            f"there is a link on the way to {folder}; nothing was written",
            context={"folder": folder},
            recovery=[Recovery(f"name the real folder: {real}")],
        )


def require_outside_workspace(folder: str, inside: bool) -> None:
    """An output is not written among the workspace's own files."""
    if inside:
        raise InvalidConfig(
            f"{folder} is the workspace's own; nothing was written", context={"folder": folder}
        )


def require_folder(folder: str, usable: bool) -> None:
    """A folder that an output is written into is no link and no file."""
    if not usable:
        raise InvalidConfig(
            f"{folder} is a link or a file, not a folder; nothing was written",
            context={"folder": folder},
            recovery=[Recovery("move it away, or choose another place with --to")],
        )


def require_output(build: Build, files: int) -> None:
    """There is output where a build made some, or is done."""
    if not files and build.state != "SUCCESS":
        raise InvalidConfig(
            f"build {build.build_id} has no output yet", context={"build_id": build.build_id}
        )


def require_output_size(paths: Sequence[str]) -> None:
    """An output has not too many files, and none with too long a path."""
    longest = max((len(path.encode()) for path in paths), default=0)
    if len(paths) > MAX_OUTPUT_FILES or longest > MAX_OUTPUT_PATH:
        raise InvalidConfig(
            f"an output has at most {MAX_OUTPUT_FILES} files with paths of {MAX_OUTPUT_PATH} bytes; this one has"
            f" {len(paths)}, the longest path with {longest}",
            context={"files": len(paths), "path": longest},
        )


def require_written(folder: str, wrong: Sequence[str], complete: bool) -> None:
    """What was written is read back as it was listed; `complete` says that exactly those files are there."""
    if wrong or not complete:
        which = ", ".join(wrong[:5]) or "files are missing or too many"
        raise IntegrityFault(
            f"{folder} is not what was written: {which}",
            context={"folder": folder},
            recovery=[Recovery("move that folder away and write it again")],
        )


# Words of a pause and of what comes next.


def next_command(
    build_id: str,
    state: str,
    why: Mapping[str, Any],
    *,
    enough: str | None,
    doubts: Sequence[str],
    plan_file: str,
    choices: str,
) -> str | None:
    """What a person would type next; `why` is what its last move says, `enough` a budget that would do."""
    decide = decision_words(doubts)
    if state == "BUDGET_PAUSE":
        lane = why.get("lane", "usd")
        raised = "usd" if lane == "usd_micros" else lane
        if why.get("scope"):
            first = f"raise {raised} under [budget] in onceward.toml, then "
            return f"{first}onceward resume {build_id} --token TOKEN{decide}"
        more = f"--budget {raised}={enough or 'MORE'}"
        return f"onceward resume {build_id} --token TOKEN {more}{decide}"
    return {
        "CRASHED": f"onceward resume {build_id}{decide}",
        "ACTIVE": f"onceward resume {build_id}",
        "FAILED": run_again(plan_file, choices),
        "SUCCESS": f"onceward output {build_id}",
    }.get(state)


def decision_words(steps: Sequence[str]) -> str:
    """The words of a resume that decide about steps in doubt."""
    if not steps:
        return ""
    accept = " ".join(f"--accept {shlex.quote(f'{step}=FILE')}" for step in steps)
    return f" {accept}   (or --rerun STEP)"


def with_total(detail: Mapping[str, Any], lanes: Mapping[str, Lane]) -> Mapping[str, Any]:
    """A pause, with what was spent since by steps that were in flight."""
    lane = lanes.get(str(detail.get("lane")))
    if lane is None or detail.get("scope"):
        return detail
    return {**detail, "observed": max(int(detail["observed"]), lane.total)}


def least_budget(detail: Mapping[str, Any], lanes: Mapping[str, Lane]) -> str | None:
    """A budget with which a paused build can go on: room for what it wanted, or a little where that is not known."""
    lane = lanes.get(str(detail.get("lane")))
    if lane is None or detail.get("scope"):
        return None
    wanted = int(detail.get("estimate") or detail.get("asked") or 0)
    if lane.lane != "usd_micros":
        return str(lane.total + (wanted or 1))
    return to_usd(lane.total + wanted if wanted else (lane.total // _CENT + 1) * _CENT)


def why_paused(detail: Mapping[str, Any]) -> str:
    """A pause in words."""
    if "lane" not in detail:
        return "the budget has no room"
    lane = str(detail["lane"])
    name, money = ("usd", True) if lane == "usd_micros" else (lane, False)

    def amount(key: str) -> str:
        return to_usd(int(detail[key])) if money else str(detail[key])

    whose = "the workspace's " if detail.get("scope") else ""
    where = f"{whose}{name} is at {amount('observed')} of {amount('limit')}"
    if "estimate" in detail:
        return f"{where}, and {detail.get('step')} is estimated at {amount('estimate')}"
    if detail.get("asked"):
        return f"{where}, and {amount('asked')} more was asked by {detail.get('step')}"
    return where
