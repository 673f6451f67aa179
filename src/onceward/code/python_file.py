"""Code of the user's: what a Python file makes, and what `module:name` means."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from onceward.errors import InvalidConfig, InvalidDependency, OncewardError

LOADED_AS = "__onceward_plan__"
"""The name of a plan's module while it is loaded from its file."""


T = TypeVar("T")

Made = TypeVar("Made", bound="FromFile")


class FromFile(Protocol):
    """An object that a Python file defines; it remembers the file."""

    file: Path | None


def _unusable(message: str) -> InvalidConfig:
    return InvalidConfig(message, context={"field": "python"})


def imported(name: object, folder: Path) -> Any:
    """The object that `module:name` names; the user's folder is searched first."""
    module, colon, attribute = str(name).partition(":")
    if not isinstance(name, str) or not colon or not module or not attribute:
        raise _unusable(f'python names a function as "module:function", not {str(name)[:60]!a}')
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:
        raise _unusable(f"{name} cannot be imported: {type(error).__name__}: {error}") from None
    return found


def made_in(file: Path, kind: type[Made], word: str) -> Made:
    """The one plan or saga that a Python file makes; the file runs under another name than
    `__main__`."""
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location(LOADED_AS, file)
    if spec is None or spec.loader is None:
        raise InvalidConfig(f"{file.name} is no Python file", context={"file": str(file)})
    module = importlib.util.module_from_spec(spec)
    sys.modules[LOADED_AS] = module
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


def path_of(error: OncewardError) -> tuple[str, ...]:
    field = str(error.context.get("field", "needs" if isinstance(error, InvalidDependency) else ""))
    return tuple(part for part in re.split(r"[.\[\]]+", field) if part)


def named_in(
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
