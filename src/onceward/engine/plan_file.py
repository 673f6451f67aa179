"""Plans from files: TOML with the line of every mistake, or Python with one plan in it."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from onceward.engine.plans import LOADED_AS, Plan, Resolved
from onceward.engine.sagas import Saga
from onceward.errors import InvalidConfig, InvalidDependency, OncewardError
from onceward.lifecycles.choices import Choices
from onceward.lifecycles.plan_words import PLAN_WORDS, check_words, refuse

T = TypeVar("T")
Made = TypeVar("Made", Plan, Saga)
_MODULE = LOADED_AS
_KEY = re.compile(
    r"""\s*((?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*="""
)
_PART = re.compile(r"""[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*'""")


def load(path: Path, choices: Choices | None = None) -> Resolved:
    """The plan in a file, resolved; INVALID_CONFIG or INVALID_DEPENDENCY with file and line where it is not one."""
    file = path.absolute()
    if not file.is_file():
        what = "is no file" if file.exists() else "is not there"
        raise InvalidConfig(f"the plan {path} {what}", context={"file": str(path)})
    if file.suffix == ".py":
        return _named(file, lambda: Resolved(_from_python(file, Plan, "plan"), choices))
    return _load_toml(file, path, choices)


def runs_code(path: Path) -> bool:
    """Whether loading a plan runs somebody's Python: its own, or functions that its stages name."""
    if path.suffix == ".py":
        return path.is_file()
    try:
        stages = tomllib.loads(path.read_text("utf-8-sig")).get("stage", [])
    except (OSError, ValueError, RecursionError):
        return False  # Whoever loads it says what is wrong.
    return isinstance(stages, list) and any("python" in stage for stage in stages)


def _load_toml(file: Path, shown: Path, choices: Choices | None) -> Resolved:
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
    plan = _named(shown, lambda: _plan_of(words, file.parent), lambda error: lines.of(_path(error)))
    for number, stage in enumerate(_stages(words, shown)):
        _named(shown, partial(_add, plan, stage), partial(_line_of_stage, lines, number))
    plan.file = file

    def place(error: OncewardError) -> int:
        names = [stage.name for stage in plan.stages]
        stage = error.context.get("stage")
        return lines.of(
            ("stage", names.index(stage), *_path(error)) if stage in names else _path(error)
        )

    return _named(shown, lambda: Resolved(plan, choices), place)


def _plan_of(words: Mapping[str, Any], folder: Path) -> Plan:
    check_words(words, PLAN_WORDS, "a plan")
    if "name" not in words:
        raise refuse("name", 'a plan has a name; write name = "catalogue" at its top')
    rest = {key: value for key, value in words.items() if key not in ("name", "stage")}
    return Plan(words["name"], folder=folder, **rest)


def _stages(words: Mapping[str, Any], shown: Path) -> list[Mapping[str, Any]]:
    stages = words.get("stage", [])
    if (
        not isinstance(stages, list)
        or not stages
        or not all(isinstance(stage, Mapping) for stage in stages)
    ):
        raise InvalidConfig(
            f"{shown}: a plan has at least one stage; write [[stage]], with two brackets, above each",
            context={"file": str(shown), "field": "stage"},
        )
    return stages


def _add(plan: Plan, words: Mapping[str, Any]) -> None:
    call = _function(words["python"], plan.folder) if words.get("python") else None
    plan.add(words, call)


def _function(name: object, folder: Path) -> Callable[[Any], Any]:
    found = imported(name, folder)
    if not callable(found):
        raise refuse("python", f"{name} is a {type(found).__name__}, not a function")
    call: Callable[[Any], Any] = found
    return call


def imported(name: object, folder: Path) -> Any:
    """What `module:name` means, the module looked for in a folder of the user's first."""
    module, colon, attribute = str(name).partition(":")
    if not isinstance(name, str) or not colon or not module or not attribute:
        raise refuse(
            "python", f'python names a function as "module:function", not {str(name)[:60]!a}'
        )
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:
        raise refuse(
            "python", f"{name} cannot be imported: {type(error).__name__}: {error}"
        ) from None
    return found


def saga_in(path: Path) -> Saga:
    """The saga that a Python file makes."""
    file = path.absolute()
    if not file.is_file() or file.suffix != ".py":
        what = "is no Python file" if file.exists() else "is not there"
        raise InvalidConfig(f"the saga {path} {what}", context={"file": str(path)})
    saga = _from_python(file, Saga, "saga")
    _named(file, lambda: saga.shape)
    return saga


def _from_python(file: Path, kind: type[Made], word: str) -> Made:
    """The one plan or saga that a Python file makes; the file runs under another name than `__main__`."""
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location(_MODULE, file)
    if spec is None or spec.loader is None:
        raise InvalidConfig(f"{file.name} is no Python file", context={"file": str(file)})
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        line = _line_in(error, file)
        where = f"{file.name}, line {line}" if line else file.name
        what = (
            error.message
            if isinstance(error, OncewardError)
            else f"{type(error).__name__}: {error}"
        )
        raise InvalidConfig(f"{where}: {what}", context={"file": str(file), "line": line}) from None
    # By its type: isinstance would load a lazy module that stands beside it.
    made: dict[int, Made] = {
        id(value): value for value in vars(module).values() if issubclass(type(value), kind)
    }
    if len(made) != 1:
        raise InvalidConfig(
            f"{file.name} makes {len(made)} {word}s; it must make one, as in"
            f" {word} = {word.capitalize()}({file.stem!r})",
            context={"file": str(file)},
        )
    (one,) = made.values()
    one.file = file
    return one


def _line_in(error: BaseException, file: Path) -> int:
    """The last line of a file that an error came through."""
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return error.lineno or 0
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(file):
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _line_of_stage(lines: Lines, number: int, error: OncewardError) -> int:
    return lines.of(("stage", number, *_path(error)))


def _path(error: OncewardError) -> tuple[str, ...]:
    field = str(error.context.get("field", "needs" if isinstance(error, InvalidDependency) else ""))
    return tuple(part for part in re.split(r"[.\[\]]+", field) if part)


def _named(
    file: Path, act: Callable[[], T], place: Callable[[OncewardError], int] = lambda error: 0
) -> T:
    """Do it; a refusal says in which file, and in which line as far as that is known."""
    try:
        return act()
    except (InvalidConfig, InvalidDependency) as error:
        if "line" in error.context:
            raise
        line = place(error)
        where = f"{file}, line {line}" if line else str(file)
        context = {**error.context, "file": str(file), **({"line": line} if line else {})}
        raise type(error)(
            f"{where}: {error.message}", context=context, recovery=error.recovery
        ) from None


class Lines:
    """Where things stand in a TOML text that was read without complaint: tables and keys by their path."""

    def __init__(self, text: str) -> None:
        self._lines: dict[tuple[str | int, ...], int] = {}
        table: tuple[str | int, ...] = ()
        counts: dict[tuple[str | int, ...], int] = {}
        number = 0
        lines = text.split("\n")
        while number < len(lines):
            line, start = lines[number], number + 1
            number += 1
            bare = line.strip()
            if bare.startswith("["):
                table = self._table(bare, counts)
                self._lines.setdefault(table, start)
            elif found := _KEY.match(line):
                self._lines.setdefault((*table, *_parts(found[1])), start)
                number += _rest(line[found.end() :], lines[number:])

    def of(self, path: tuple[str | int, ...]) -> int:
        """The line of the nearest thing on this path; 0 if none is known."""
        while path:
            if path in self._lines:
                return self._lines[path]
            path = path[:-1]
        return 0

    def _table(
        self, header: str, counts: dict[tuple[str | int, ...], int]
    ) -> tuple[str | int, ...]:
        parts = _parts(header.split("]", 1)[0].strip("["))
        path: tuple[str | int, ...] = ()
        for part in parts[:-1]:
            path = (*path, part)
            if path in counts:
                path = (*path, counts[path])
        path = (*path, *parts[-1:])
        if header.startswith("[["):
            counts[path] = counts.get(path, -1) + 1
            path = (*path, counts[path])
        return path


def _parts(key: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in _PART.findall(key))


def _rest(value: str, following: list[str]) -> int:
    """How many of the following lines still belong to a value: long strings, lists and tables."""
    used = 0
    while True:
        mark = next((m for m in ('"""', "'''") if value.count(m) % 2), None)
        open_ = _brackets(value) if mark is None else 1
        if open_ <= 0 or used >= len(following):
            return used
        value += "\n" + following[used]
        used += 1


def _brackets(value: str) -> int:
    """Brackets that are open at the end of a text, those in strings and comments left out."""
    bare = re.sub(
        r'"""(?:.|\n)*?"""|\'\'\'(?:.|\n)*?\'\'\'|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|#[^\n]*',
        "",
        value,
    )
    return sum(bare.count(c) for c in "[{") - sum(bare.count(c) for c in "]}")
