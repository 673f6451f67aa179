"""What somebody chose of a plan for one build: some of its steps, other config, and what to do in any case."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import msgspec

from onceward.builds.plan import Steps
from onceward.core.steps import step_name
from onceward.dispatch.stage import Stage
from onceward.dispatch.stage_words import config_of
from onceward.errors import InvalidConfig


class Choices(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Kept with the build, so that resuming it means the same."""

    only: tuple[str, ...] = ()
    """`stage` or `stage:target`: these, and what they need."""
    force: bool = False
    """What is chosen runs even if its result is there already."""
    config: Mapping[str, str] = {}
    """By dotted key: another value wherever the plan sets it."""

    def text(self) -> str:
        return msgspec.json.encode(self, order="sorted").decode()


def choices_of(text: str) -> Choices:
    return msgspec.json.decode(text, type=Choices)


def run_again(plan_file: str, choices: str) -> str:
    """The command that carries the same out once more, as far as it was chosen; what succeeded is reused."""
    given = choices_of(choices)
    words = ["onceward", "run", plan_file or "PLAN"]
    for name in given.only:
        words += ["--only", name]
    for key, value in given.config.items():
        words += ["--set", f"{key}={value}"]
    return shlex.join(words)


def assignments(texts: Sequence[str]) -> dict[str, str]:
    """`key=value` words."""
    values: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InvalidConfig(
                f"--set takes KEY=VALUE, not {text[:60]!a}", context={"field": "--set"}
            )
        if key in values:
            raise InvalidConfig(f"--set names {key[:60]!a} twice", context={"field": "--set"})
        values[key] = value
    return values


def with_config(
    config: Mapping[str, Any], stages: Sequence[Stage], given: Mapping[str, str]
) -> tuple[Mapping[str, Any], list[Stage]]:
    """A plan's config and stages with other values wherever the plan sets a key; one that it nowhere sets is a slip."""
    for key, text in given.items():
        # A key may hold a dot itself.
        path = [key] if any(key in some for some in _all(config, stages)) else key.split(".")
        if not any(_holds(path, some) for some in _all(config, stages)):
            raise _unknown(key, config, stages)
        config = _replaced(config, path, text)
        stages = [
            msgspec.structs.replace(
                stage,
                config=_replaced(stage.config, path, text),
                target_config={
                    name: _replaced(own, path, text) for name, own in stage.target_config.items()
                },
            )
            for stage in stages
        ]
    return config, list(stages)


def is_chosen(choices: Choices, stage: str, target: str) -> bool:
    """Whether a step is one of those that were named, not one that they need."""
    return not choices.only or stage in choices.only or step_name(stage, target) in choices.only


def chosen(steps: Steps, only: Sequence[str]) -> set[int]:
    """The steps that are named; all where none is."""
    if not only:
        return set(range(len(steps)))
    numbers: set[int] = set()
    for name in only:
        stage, colon, _ = name.partition(":")
        k = steps.number.get(stage)
        if k is not None and not colon:
            numbers |= set(steps.of(k))
        elif k is None:
            near = get_close_matches(stage, steps.number, 1)
            meant = (
                f"did you mean {near[0]}?"
                if near
                else f"there are {', '.join(list(steps.number)[:10])}"
            )
            raise InvalidConfig(
                f"there is no stage {stage[:60]!a}; {meant}", context={"field": "--only"}
            )
        else:
            numbers.add(steps.named(name))
    return numbers


def with_needs(steps: Steps, wanted: set[int]) -> Steps:
    """Only these steps and what they need, directly or through others: with the same context hashes as among all."""
    kept, frontier = set(wanted), list(wanted)
    while frontier:
        step = frontier.pop()
        before = [(steps.number[name], None) for name in steps.stages[steps.place(step)[0]].after]
        for m, single in [*steps.needs(step), *before]:
            for step in steps.of(m) if single is None else (single,):
                if step not in kept:
                    kept.add(step)
                    frontier.append(step)
    targets: dict[str, list[str]] = {}
    for step in sorted(kept):
        k, target = steps.place(step)
        targets.setdefault(steps.stages[k].name, []).append(target)
    return Steps([stage for stage in steps.stages if stage.name in targets], targets)


def _replaced(config: Mapping[str, Any], path: Sequence[str], text: str) -> Mapping[str, Any]:
    key, *rest = path
    if key not in config:
        return config
    if rest:
        inner = config[key]
        return (
            {**config, key: _replaced(inner, rest, text)} if isinstance(inner, Mapping) else config
        )
    return config_of("--set", {**config, key: _value(key, text, config[key])})


def _value(key: str, text: str, before: Any) -> Any:
    """What stands for text stays text; anything else is read as a plan file would, and must be of the same kind."""
    if isinstance(before, str):
        return text
    try:
        read = tomllib.loads(f"value = {text.lower() if isinstance(before, bool) else text}")
        value = read["value"] if len(read) == 1 else None
    except (tomllib.TOMLDecodeError, RecursionError):
        value = None
    if isinstance(before, float) and type(value) is int:
        value = float(value)
    if type(value) is not type(before):
        kinds = {bool: "true or false", int: "a whole number", float: "a number", list: "a list"}
        kind = kinds.get(type(before), "a table")
        raise InvalidConfig(
            f"{key} is {kind} in the plan, and {text[:60]!a} is none",
            context={"field": "--set", "key": key},
        )
    return value


def _all(config: Mapping[str, Any], stages: Sequence[Stage]) -> list[Mapping[str, Any]]:
    return [
        config,
        *(s.config for s in stages),
        *(own for s in stages for own in s.target_config.values()),
    ]


def _holds(path: Sequence[str], config: Any) -> bool:
    for key in path:
        if not isinstance(config, Mapping) or key not in config:
            return False
        config = config[key]
    return True


def _unknown(key: str, config: Mapping[str, Any], stages: Sequence[Stage]) -> InvalidConfig:
    known = sorted({name for some in _all(config, stages) for name in _names(some)})
    near = get_close_matches(key, known, 1)
    meant = f"it sets {', '.join(known[:10])}" if known else "it has no config"
    if near:
        meant = f"did you mean {near[0]}?"
    return InvalidConfig(
        f"the plan sets no {key[:60]!a} in its config; {meant}", context={"field": "--set"}
    )


def _names(config: Mapping[str, Any], before: str = "") -> list[str]:
    names = []
    for key, value in config.items():
        names.append(f"{before}{key}")
        if isinstance(value, Mapping):
            names += _names(value, f"{before}{key}.")
    return names
