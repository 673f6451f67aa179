"""The version of a function: its source and that of what it closes over, so that a changed step is a new step (B-3)."""

from __future__ import annotations

import ast
import inspect
import sysconfig
import textwrap
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from onceward.errors import InvalidConfig
from onceward.kernel.canon import digest, sha256_hex

_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_CONSTANTS = (type(None), bool, int, float, complex, str, bytes)
_OWN = str(Path(__file__).resolve().parent.parent)


def version_of(call: Callable[..., Any]) -> str:
    """A digest of a function's source, of the functions, classes and modules of the user's own that it names, and of
    the constants it reads. Comments count; decorators, places and line numbers do not."""
    seen: dict[str, Any] = {}
    _take(call, seen)
    return digest(seen)


def _take(thing: Any, seen: dict[str, Any]) -> None:
    name = f"{thing.__module__}.{thing.__qualname__}" if thing.__module__ != "__main__" else thing.__qualname__
    name = name.rpartition("__onceward_plan__.")[2]
    if name in seen:
        return
    seen[name] = ""
    seen[name] = _source(thing)
    functions = [thing] if inspect.isfunction(thing) else [f for f in vars(thing).values() if inspect.isfunction(f)]
    for function in functions:
        found = {}
        for word, value in _named(function):
            said = _said(value, seen)
            if said is not None:
                found[word] = said
        seen[f"{name}()" if function is thing else f"{name}.{function.__name__}()"] = found


def _named(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function reads from around it: closure, globals and defaults."""
    for word, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield word, cell.cell_contents
        except ValueError:
            continue
    for word in sorted(_words(function.__code__)):
        if word in function.__globals__:
            yield word, function.__globals__[word]
    for number, value in enumerate(function.__defaults__ or ()):
        yield f"default {number}", value
    for word, value in sorted((function.__kwdefaults__ or {}).items()):
        yield f"default {word}", value


def _words(code: types.CodeType) -> set[str]:
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _words(constant)
    return found


def _said(value: Any, seen: dict[str, Any]) -> str | None:
    """What a name that a function reads stands for, as text; None for what has no bearing on its version."""
    if inspect.isfunction(value) or inspect.isclass(value):
        if _is_own(value):
            _take(value, seen)
        return f"{value.__module__}.{value.__qualname__}".rpartition("__onceward_plan__.")[2]
    if inspect.ismodule(value):
        file = getattr(value, "__file__", None)
        own = file is not None and _is_own_file(file)
        return f"{value.__name__} {_file_digest(file)}" if own and file else value.__name__
    return _constant(value)


def _constant(value: Any) -> str | None:
    if isinstance(value, _CONSTANTS):
        return repr(value)
    if isinstance(value, tuple | list):
        return repr([_constant(item) for item in value])
    if isinstance(value, set | frozenset):
        return repr(sorted(str(_constant(item)) for item in value))
    if isinstance(value, dict):
        return repr(sorted((str(_constant(k)), _constant(v)) for k, v in value.items()))
    return None


def _is_own(thing: Any) -> bool:
    try:
        return _is_own_file(inspect.getfile(thing))
    except (TypeError, OSError):
        return False


def _is_own_file(file: str) -> bool:
    """Whether a file is the user's: not of Python, not installed, not of Onceward."""
    return not file.startswith((*_INSTALLED, _OWN, "<"))


def _file_digest(file: str) -> str:
    return sha256_hex(Path(file).read_bytes())


def _source(thing: Any) -> str:
    try:
        text = textwrap.dedent(inspect.getsource(thing))
        node = ast.parse(text).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        raise InvalidConfig(
            f"the source of {thing.__qualname__} cannot be found, so nobody could tell when it changes;"
            ' say version="1" beside its targets, and count it up when it changes',
            context={"function": thing.__qualname__},
        ) from None
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        lines = text.splitlines()[node.lineno - 1 : node.end_lineno]
        return "\n".join(line.rstrip() for line in lines)
    return text
