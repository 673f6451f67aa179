"""Plans from files: TOML with the line of every mistake, or Python with one plan in it."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from onceward.builds import rules
from onceward.builds.choices import Choices
from onceward.builds.plans import Plan, Resolved
from onceward.code.python_file import imported, made_in, named_in, path_of
from onceward.code.toml_lines import Lines
from onceward.dispatch.stage_words import PLAN_WORDS, check_words
from onceward.errors import InvalidConfig, OncewardError

FindFunction = Callable[[object, Path], Callable[[Any], Any]]
"""Answers the function that a stage names, for a plan in a folder."""


def load(path: Path, choices: Choices | None = None) -> Resolved:
    """The plan in a file, resolved; INVALID_CONFIG or INVALID_DEPENDENCY with file and line where it is not one."""
    file = path.absolute()
    if not file.is_file():
        what = "is no file" if file.exists() else "is not there"
        raise InvalidConfig(f"the plan {path} {what}", context={"file": str(path)})
    if file.suffix == ".py":
        return named_in(file, lambda: Resolved(made_in(file, Plan, "plan"), choices))
    return _load_toml(file, path, choices, function_named)


def load_toml(path: Path, choices: Choices | None, find: FindFunction | None) -> Resolved:
    """The plan in a TOML file, with its functions from wherever they are found."""
    file = path.absolute()
    if not file.is_file():
        return load(path, choices)
    return _load_toml(file, path, choices, find or function_named)


def names_functions(path: Path) -> list[str]:
    """The functions that the stages of a plan in TOML name, each as `module:function`."""
    try:
        stages = tomllib.loads(path.read_text("utf-8-sig")).get("stage", [])
    except (OSError, ValueError, RecursionError):
        return []  # Whoever loads it says what is wrong.
    if not isinstance(stages, list):
        return []
    names = [stage.get("python") for stage in stages if isinstance(stage, Mapping)]
    return list(dict.fromkeys(name for name in names if isinstance(name, str) and name))


def _load_toml(file: Path, shown: Path, choices: Choices | None, find: FindFunction) -> Resolved:
    try:
        text = file.read_text("utf-8-sig")
        words = tomllib.loads(text)
    except RecursionError:
        raise InvalidConfig(
            f"{shown}: it is nested too deep to be a plan", context={"file": str(shown)}
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"cannot read {shown}: {error}", context={"file": str(shown)}) from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfig(f"{shown}: {error}", context={"file": str(shown)}) from None
    lines = Lines(text)
    plan = named_in(
        shown, lambda: _plan_of(words, file.parent), lambda error: lines.of(path_of(error))
    )
    for number, stage in enumerate(_stages(words, shown)):
        named_in(shown, partial(_add, plan, stage, find), partial(_line_of_stage, lines, number))
    plan.file = file

    def place(error: OncewardError) -> int:
        names = [stage.name for stage in plan.stages]
        stage = error.context.get("stage")
        return lines.of(
            ("stage", names.index(stage), *path_of(error)) if stage in names else path_of(error)
        )

    return named_in(shown, lambda: Resolved(plan, choices), place)


def _plan_of(words: Mapping[str, Any], folder: Path) -> Plan:
    check_words(words, PLAN_WORDS, "a plan")
    rules.require_plan_name(words)
    rest = {key: value for key, value in words.items() if key not in ("name", "stage")}
    return Plan(words["name"], folder=folder, **rest)


def _stages(words: Mapping[str, Any], shown: Path) -> list[Mapping[str, Any]]:
    return rules.require_stage_tables(words.get("stage", []), str(shown))


def _add(plan: Plan, words: Mapping[str, Any], find: FindFunction) -> None:
    call = find(words["python"], plan.folder) if words.get("python") else None
    plan.add(words, call)


def function_named(name: object, folder: Path) -> Callable[[Any], Any]:
    """The function that `module:function` means, the module looked for in a folder first."""
    return rules.require_function(name, imported(name, folder))


def _line_of_stage(lines: Lines, number: int, error: OncewardError) -> int:
    return lines.of(("stage", number, *path_of(error)))
