"""What changed of a build's code and environment while it stood still: named when it goes on (B-4, B-11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from onceward.builds.plan_changes import Body, environment_changes
from onceward.builds.plans import Resolved
from onceward.core.records import Build
from onceward.dispatch.stage import Stage
from onceward.store.port import Reads
from onceward.store.tables.builds import plan_body
from onceward.store.tables.checkpoints import Finished, finished_by_code
from onceward.store.tables.events import details_of

UNKNOWN_ENVIRONMENT = "Python or a package has another version"


class CodeChanges(msgspec.Struct, frozen=True):
    """How the code of a build is not what it was."""

    code: Sequence[str] = ()
    """Stages whose code changed, in words: what is kept, and what runs the new code."""
    environment: Sequence[str] = ()
    """Stages that are finished in part, in another environment, in words."""
    versions: Mapping[str, str] = {}
    """Of the stages whose code changed: the version that what is left will run."""
    environments: Mapping[str, Sequence[str]] = {}
    """By their hash, those that what is left will run in."""

    def detail(self) -> dict[str, object]:
        """What the event of a resume says of it."""
        named = [*self.code, *self.environment]
        changed: dict[str, object] = {"changed": named} if named else {}
        code: dict[str, object] = {"code_versions": dict(self.versions)} if self.versions else {}
        return {**changed, **code, **environment_detail(self.environments)}


def environments_of(resolved: Resolved) -> dict[str, Sequence[str]]:
    """The environments of a plan's functions, by their hash."""
    stages = resolved.steps.stages
    return {s.environment_hash: list(s.environment) for s in stages if s.environment_hash}


def environment_detail(environments: Mapping[str, Sequence[str]]) -> dict[str, object]:
    """What the event says with which a build begins or goes on; so that a difference can be named later."""
    return {"environments": dict(environments)} if environments else {}


def code_changes(rows: Reads, build: Build, resolved: Resolved) -> CodeChanges:
    """What of the code of `build` is not what it was when the build was begun, and when its finished steps ran."""
    body = Body(plan_body(rows, build.plan_hash))
    finished = finished_by_code(rows, build.build_id)
    recorded = recorded_environments(rows, build.build_id)
    code, environment, versions = [], [], {}
    for k, stage in enumerate(resolved.steps.stages):
        kept = body.stages.get(stage.name)
        begun = kept["work"].get("function") if kept is not None else None
        if stage.call is None or kept is None or begun is None:
            continue
        done = [group for group in finished if group.stage == stage.name]
        other = sum(
            group.count
            for group in done
            if not _same_code(resolved, k, group.code_version or begun)
        )
        left = len(resolved.steps.of(k)) - sum(group.count for group in done)
        if other or (left and not _same_code(resolved, k, begun)):
            code.append(f"{stage.name}: its code changed; {_told(other, left)}")
            versions[stage.name] = stage.version
        environment += _environments(stage, done, recorded)
    return CodeChanges(code, environment, versions, environments_of(resolved))


def _same_code(resolved: Resolved, k: int, version: str) -> bool:
    """Whether a stage's function is still the one of a version, by the algorithm that made that."""
    return version in (resolved.steps.stages[k].version, resolved.first_version(k))


def _told(kept: int, left: int) -> str:
    parts = []
    if kept:
        parts.append(f"{_steps(kept)} done before {'is' if kept == 1 else 'are'} kept")
    if left:
        parts.append(f"{_steps(left)} still to run {'uses' if left == 1 else 'use'} the new code")
    return ", ".join(parts)


def _steps(count: int) -> str:
    return f"{count:,} step{'' if count == 1 else 's'}"


def _environments(
    stage: Stage, done: Sequence[Finished], recorded: Mapping[str, Sequence[str]]
) -> list[str]:
    other: dict[str, int] = {}
    for group in done:
        if group.environment_hash and group.environment_hash != stage.environment_hash:
            changes = difference(recorded.get(group.environment_hash), stage.environment)
            other[changes] = other.get(changes, 0) + group.count
    return [f"{stage.name}: {changes}; {_told(count, 0)}" for changes, count in other.items()]


def difference(then: Sequence[str] | None, now: Sequence[str] | None) -> str:
    """What is different between two environments, in words; None is one that is not recorded."""
    if then is None or now is None:
        return UNKNOWN_ENVIRONMENT
    return ", ".join(environment_changes(then, now)) or UNKNOWN_ENVIRONMENT


def recorded_environments(rows: Reads, build_id: str) -> dict[str, Sequence[str]]:
    """The environments that a build was begun and resumed in, by their hash."""
    found: dict[str, Sequence[str]] = {}
    for event in ("BUILD_STARTED", "BUILD_RESUMED"):
        for detail in details_of(rows, f"session:{build_id}", event):
            found.update(detail.get("environments", {}))
    return found


def resumed_code(rows: Reads, build_id: str) -> dict[str, str]:
    """The versions of code that resumes of a build brought, by stage: the newest of each."""
    found: dict[str, str] = {}
    for detail in details_of(rows, f"session:{build_id}", "BUILD_RESUMED"):
        found.update(detail.get("code_versions", {}))
    return found
