"""What a plan comes to: stages in order, steps, what each depends on, and the hash of all that flows into one."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import pairwise
from typing import Any, Final

import msgspec

from onceward.core.canon import canonical_config, canonical_of_checked, sha256_hex
from onceward.core.limits import MAX_STEPS
from onceward.core.steps import check_target_name, step_name
from onceward.dispatch.stage import Stage
from onceward.errors import InvalidConfig, InvalidDependency

MAIN: Final = "main"
"""The target of a stage that has no other."""

BESIDE: Final = ("inputs_of", "unfollowed")
"""What is kept of a stage only to tell why: which step has which inputs, and what of its code cannot be followed."""


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Config, each layer over the one before; tables are merged, anything else is replaced."""
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            below = merged.get(key)
            merged[key] = (
                merge(below, value)
                if isinstance(below, dict) and isinstance(value, Mapping)
                else value
            )
    return merged


def ordered(stages: Sequence[Stage]) -> list[Stage]:
    """Stages after those they need; among those that could come next, the one that stands first in the plan."""
    names = {stage.name: stage for stage in stages}
    for stage in stages:
        for need in stage.dependencies:
            if need not in names:
                near = get_close_matches(need, names, 1)
                meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
                raise InvalidDependency(
                    f"stage {stage.name} depends on {need}, and there is no such stage; {meant}",
                    context={"stage": stage.name, "field": _word_of(stage, need)},
                )
            if stage.dependencies.count(need) > 1:
                raise InvalidDependency(
                    f"stage {stage.name} depends on {need} twice; name it under one of needs,"
                    " collect and after",
                    context={"stage": stage.name, "field": _word_of(stage, need)},
                )
    placed: dict[str, Stage] = {}
    while len(placed) < len(stages):
        free = next(
            (
                s
                for s in stages
                if s.name not in placed and all(n in placed for n in s.dependencies)
            ),
            None,
        )
        if free is None:
            left = [s.name for s in stages if s.name not in placed]
            raise InvalidDependency(
                f"these stages need each other in a circle: {', '.join(left[:10])}",
                context={"stage": left[0], "stages": left[:50]},
            )
        placed[free.name] = free
    return list(placed.values())


def _word_of(stage: Stage, need: str) -> str:
    """Under which word a stage names another."""
    return next(word for word in ("needs", "collect", "after") if need in getattr(stage, word))


class Steps:
    """Every step of a plan, numbered in plan order: stage after stage, targets by code point."""

    def __init__(self, stages: Sequence[Stage], targets: Mapping[str, Sequence[str]]) -> None:
        """`targets` has the targets of every stage that names its own."""
        self.stages = ordered(stages)
        self.number = {stage.name: k for k, stage in enumerate(self.stages)}
        self.targets: list[tuple[str, ...]] = []
        for stage in self.stages:
            own = targets.get(stage.name)
            try:
                self.targets.append(self._from_needs(stage) if own is None else _sorted(own))
            except InvalidConfig as error:
                why = f"stage {stage.name}: {error.message}"
                raise InvalidConfig(why, context={**error.context, "stage": stage.name}) from None
        self.first = [0]
        for some in self.targets:
            self.first.append(self.first[-1] + len(some))
        if len(self) > MAX_STEPS:
            raise InvalidConfig(
                f"this plan has {len(self)} steps; {MAX_STEPS} is the most",
                context={"steps": len(self)},
            )
        self.needed_by: list[list[int]] = [[] for _ in self.stages]
        """By stage, those that need its same-named targets."""
        self.awaited_by: list[list[int]] = [[] for _ in self.stages]
        """By stage, those that wait until all of it is done."""
        for k, stage in enumerate(self.stages):
            for need in stage.needs:
                self._require_same_targets(k, need)
                self.needed_by[self.number[need]].append(k)
            for need in (*stage.collect, *stage.after):
                self.awaited_by[self.number[need]].append(k)

    def feeds(self, k: int) -> bool:
        """Whether what a stage makes flows into another."""
        name = self.stages[k].name
        return bool(self.needed_by[k]) or any(
            name in self.stages[m].collect for m in self.awaited_by[k]
        )

    def _from_needs(self, stage: Stage) -> tuple[str, ...]:
        """The targets of the needed stages, which must be the same; `main` where nothing is needed."""
        needed = {self.targets[self.number[need]] for need in stage.needs}
        if len(needed) > 1:
            raise InvalidDependency(
                f"stage {stage.name}: the stages that it needs ({', '.join(stage.needs)}) do not"
                " have the same targets; name its own targets, or gather some with collect",
                context={"stage": stage.name, "field": "needs"},
            )
        return needed.pop() if needed else (MAIN,)

    def _require_same_targets(self, k: int, need: str) -> None:
        """Every target of a needing stage is there in the needed one (B-2)."""
        stage, m = self.stages[k], self.number[need]
        if self.targets[k] is self.targets[m]:
            return
        known = set(self.targets[m])
        missing = next((target for target in self.targets[k] if target not in known), None)
        if missing is not None:
            raise InvalidDependency(
                f"stage {stage.name} has the target {missing!a}, and {need}, which it needs, has"
                f' none of that name; write collect = ["{need}"] to get all of its targets as a'
                f" mapping, or give {stage.name} targets of {need}",
                context={"stage": stage.name, "field": "needs", "target": missing},
            )

    def __len__(self) -> int:
        return self.first[-1]

    def place(self, step: int) -> tuple[int, str]:
        """The stage's number and the target of a step."""
        k = bisect_right(self.first, step) - 1
        return k, self.targets[k][step - self.first[k]]

    def name(self, step: int) -> str:
        k, target = self.place(step)
        return step_name(self.stages[k].name, target)

    def find(self, k: int, target: str) -> int | None:
        """The step of a stage and target, if there is one."""
        targets = self.targets[k]
        at = bisect_left(targets, target)
        return self.first[k] + at if at < len(targets) and targets[at] == target else None

    def named(self, name: str) -> int:
        """The step called `stage:target`; of a stage with one target the stage's name is enough."""
        stage, colon, target = name.partition(":")
        k = self.number.get(stage)
        if k is not None:
            step = self.find(k, target) if colon else None
            if not colon and len(self.targets[k]) == 1:
                step = self.first[k]
            if step is not None:
                return step
        raise InvalidConfig(
            f"there is no step {name[:80]!a}; a step is named stage:target, as in {self.name(0)}",
            context={"step": name[:200]},
        )

    def of(self, k: int) -> range:
        return range(self.first[k], self.first[k + 1])

    def needs(self, step: int) -> list[tuple[int, int | None]]:
        """What flows into a step: of each needed stage its same-named step, of each collected one None, for all."""
        k, target = self.place(step)
        stage = self.stages[k]
        single = [(self.number[n], self.find(self.number[n], target)) for n in stage.needs]
        return [*single, *((self.number[name], None) for name in stage.collect)]

    def waits_for(self, k: int) -> int:
        """How many things each step of a stage waits for: a stage that has no step is done already."""
        stage = self.stages[k]
        whole = sum(bool(self.targets[self.number[n]]) for n in (*stage.collect, *stage.after))
        return len(stage.needs) + whole

    def freed_by(self, step: int) -> Iterator[int]:
        """The steps that depend on this one alone of its stage."""
        k, target = self.place(step)
        for m in self.needed_by[k]:
            dependent = self.find(m, target)
            if dependent is not None:
                yield dependent

    def freed_by_stage(self, k: int) -> Iterator[int]:
        """The steps that depend on all of a stage."""
        for m in self.awaited_by[k]:
            yield from self.of(m)


def _sorted(targets: Sequence[str]) -> tuple[str, ...]:
    names = tuple(sorted(check_target_name(target) for target in targets))
    for a, b in pairwise(names):
        if a == b:
            raise InvalidConfig(f"target {a!a} stands there twice", context={"field": "targets"})
    known = set(names)
    for name in names:
        parts = name.split("/")
        for n in range(1, len(parts)):
            if "/".join(parts[:n]) in known:
                raise InvalidConfig(
                    f"target {name!a} would lie inside target {'/'.join(parts[:n])!a}",
                    context={"field": "targets"},
                )
    return names


class Context:
    """Makes the context hashes of a stage's steps (B-3): nothing random, no place, no time goes in."""

    def __init__(self, stage: Stage, config: Mapping[str, Any]) -> None:
        self._stage = stage
        self._config = merge(config, stage.config)
        self._encoded = canonical_config(self._config)
        self._work = stage.work()

    def config(self, target: str) -> dict[str, Any]:
        """Global, then stage, then target: the merged config of a step."""
        own = self._stage.target_config.get(target)
        return merge(self._config, own) if own else dict(self._config)

    def hash(
        self,
        target: str,
        inputs: Sequence[tuple[str, str]],
        upstream: Sequence[tuple[str, str, str]],
        version: str | None = None,
    ) -> str:
        """`inputs` as (name, sha256), `upstream` as (stage, target or empty for all, digest of what they made);
        `version` is another version of the function than the one it has now."""
        own = target in self._stage.target_config
        config = canonical_config(self.config(target)) if own else self._encoded
        work = self._work if version is None else {**self._work, "function": version}
        said = {
            "of": "onceward.step/1",
            "stage": self._stage.name,
            "work": work,
            "target": target,
            "config": msgspec.Raw(config),
            "inputs": inputs,
            "upstream": upstream,
        }
        # Names and config were checked when the plan was read; the rest are digests.
        return sha256_hex(canonical_of_checked(said))


def body_of(
    name: str,
    config: Mapping[str, Any],
    steps: Steps,
    inputs: Mapping[str, Sequence[tuple[str, str]]],
    own: Mapping[str, Mapping[str, Sequence[str]] | str],
    clean: Callable[[str], str] = str,
) -> str:
    """Everything about a plan that can change what its steps make, as canonical text: what strict resume compares.
    `own`, no part of what is compared (as nothing of `BESIDE` is), has the input files by target where they differ, or
    `target` where each is its own; `clean` takes secrets out of what people wrote."""
    stages = [
        {
            "name": stage.name,
            "needs": list(stage.needs),
            "collect": list(stage.collect),
            "after": list(stage.after),
            "targets": list(steps.targets[k]),
            "work": _cleaned(stage.work(), clean),
            "config": _cleaned(stage.config, clean),
            "target_config": {
                target: _cleaned(own, clean) for target, own in stage.target_config.items()
            },
            "inputs": [list(pair) for pair in inputs[stage.name]],
            "on_crash": stage.on_crash,
            **({"inputs_of": own[stage.name]} if stage.name in own else {}),
            **({"unfollowed": list(stage.unfollowed)} if stage.unfollowed else {}),
        }
        for k, stage in enumerate(steps.stages)
    ]
    body = {"name": name, "config": _cleaned(config, clean), "stages": stages}
    return canonical_config(body).decode()


def hash_of_body(body: str) -> str:
    """The hash of a plan: of its body, but for what only tells why."""
    if not any(f'"{word}":' in body for word in BESIDE):
        return sha256_hex(body.encode())
    said = msgspec.json.decode(body)
    for stage in said["stages"]:
        for word in BESIDE:
            stage.pop(word, None)
    return sha256_hex(canonical_config(said))


def _cleaned(value: Any, clean: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {key: _cleaned(inner, clean) for key, inner in value.items()}
    return [_cleaned(inner, clean) for inner in value] if isinstance(value, list | tuple) else value
