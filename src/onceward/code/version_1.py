"""The first algorithm for the version of a function, kept as it was: checkpoints that it wrote are
judged by it (B-3).

It must not be changed: every difference would make results stale that were paid for.
`code_version` is the one in use."""

from __future__ import annotations

import ast
import dataclasses
import dis
import enum
import functools
import importlib.util
import inspect
import re
import sys
import sysconfig
import textwrap
import types
from collections.abc import Callable, Iterator
from datetime import date, time, timedelta, tzinfo
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any
from uuid import UUID

from onceward.code.parsing import parsed, undisturbed
from onceward.core.canon import canonical, digest, sha256_hex
from onceward.errors import InvalidConfig

_INSTALLED = tuple(
    f"{sysconfig.get_path(name)}/"
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
    if sysconfig.get_path(name)
)
_OWN = f"{Path(__file__).resolve().parent.parent}/"
_CONSTANTS = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))
_LOADED_AS = ("__main__", "__onceward_plan__")
_VALUES = (Decimal, Fraction, date, time, timedelta, tzinfo, UUID, range, slice, bytearray)


def version_of(call: Callable[..., Any], folder: Path | None = None) -> str:
    """A digest of a function's source, of the functions, classes and modules of the user's own
    that it reads, and of the constants it reads. Comments in them count; decorators, line
    numbers and the place of the folder do not. Of any other object only its class counts."""
    if inspect.isfunction(call):
        _source(call)
    reader = _Reader(folder)
    said = reader.say(call)
    return digest([said, reader.things])


class _Reader:
    """Describes values by content, each own function, class and module once, in the order they
    are met."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self.things: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._met: list[Any] = []
        """Keeps what was met alive: numbers are by identity."""

    def say(self, value: Any) -> Any:
        if isinstance(value, _CONSTANTS):
            return ["constant", repr(value)]
        if isinstance(value, Path):
            return ["path", self._path(value)]
        if isinstance(value, re.Pattern):
            return ["pattern", repr(value.pattern), value.flags]
        if isinstance(value, list | tuple):
            return [type(value).__name__, [self.say(item) for item in value]]
        if isinstance(value, set | frozenset):
            return ["set", sorted((self.say(item) for item in value), key=canonical)]
        if isinstance(value, dict):
            return [
                "dict",
                sorted(([self.say(k), self.say(v)] for k, v in value.items()), key=canonical),
            ]
        return self._thing(value)

    def _thing(self, value: Any) -> Any:
        if isinstance(value, functools.partial):
            return ["partial", self.say(value.func), self.say(value.args), self.say(value.keywords)]
        if inspect.ismethod(value):
            return ["method", self.say(value.__func__), self.say(value.__self__)]
        if isinstance(value, enum.Enum):
            return ["enum", self.say(type(value)), value.name]
        if inspect.isfunction(value) and (_is_own(value) or not hasattr(value, "__wrapped__")):
            return self._once(value, self._function) if _is_own(value) else _named(value)
        if inspect.isclass(value):
            return self._once(value, self._class) if _is_own(value) else _named(value)
        if inspect.ismodule(value):
            return self._module(value)
        if callable(value) and hasattr(value, "__wrapped__"):
            return ["wrapped", self.say(value.__wrapped__)]
        if dataclasses.is_dataclass(value):
            fields = {
                field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)
            }
            return ["instance", self.say(type(value)), self.say(fields)]
        if hasattr(value, "__qualname__"):
            return _named(value)
        if isinstance(value, _VALUES):
            return ["value", type(value).__name__, repr(value)]
        if isinstance(value, types.SimpleNamespace) or _is_own(type(value)):
            return self._once(value, self._instance)
        return ["instance", self.say(type(value))]

    def _instance(self, value: Any) -> Any:
        return ["instance", self.say(type(value)), self.say(dict(getattr(value, "__dict__", {})))]

    def _once(self, value: Any, describe: Callable[[Any], Any]) -> Any:
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self.things)
            self._met.append(value)
            self.things.append(None)
            self.things[number] = describe(value)
        return ["thing", number]

    def _function(self, function: types.FunctionType) -> Any:
        inner = getattr(function, "__wrapped__", None)
        return [
            "function",
            # A decorator's function goes by the name of what it wraps; its own text counts all the
            # same.
            _source(function),
            [[word, self.say(value)] for word, value in self._reads(function)],
            self.say(inner) if inner is not None else None,
        ]

    def _class(self, kind: type) -> Any:
        bases = [self.say(base) for base in kind.__bases__ if base is not object]
        reads = []
        for name, member in vars(kind).items():
            for function in _functions_of(member):
                if _is_own(function):
                    reads.append(
                        [name, [[word, self.say(value)] for word, value in self._reads(function)]]
                    )
        return ["class", _source(kind), bases, reads]

    def _reads(self, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
        """What a function reads from around it: closure, globals, imports and defaults."""
        for word, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            try:
                yield word, cell.cell_contents
            except ValueError:
                continue
        names, imports = _words(function.__code__)
        for word in sorted(names):
            if word in function.__globals__ and not (word.startswith("__") and word.endswith("__")):
                yield word, function.__globals__[word]
        for word in sorted(imports):
            yield f"import {word}", _imported(word)
        for number, value in enumerate(function.__defaults__ or ()):
            yield f"default {number}", value
        for word, value in sorted((function.__kwdefaults__ or {}).items()):
            yield f"default {word}", value

    def _module(self, module: types.ModuleType) -> Any:
        file = getattr(module, "__file__", None)
        if file is None or not _is_own_file(file):
            return ["module", module.__name__]
        return self._once(module, self._own_module)

    def _own_module(self, module: types.ModuleType) -> Any:
        """All of a module's text, and of the user's own modules that it uses."""
        used: dict[str, types.ModuleType] = {}
        for value in vars(module).values():
            near = (
                value
                if inspect.ismodule(value)
                else sys.modules.get(getattr(value, "__module__", None) or "")
            )
            if (
                near is not None
                and near is not module
                and _is_own_file(getattr(near, "__file__", None) or "<")
            ):
                used[near.__name__] = near
        text = sha256_hex(Path(str(module.__file__)).read_bytes())
        return [
            "module",
            _stripped(module.__name__),
            text,
            [self._module(used[name]) for name in sorted(used)],
        ]

    def _path(self, path: Path) -> str:
        if self._folder is not None and path.is_relative_to(self._folder):
            return f"./{path.relative_to(self._folder).as_posix()}"
        return path.as_posix()


def _functions_of(member: Any) -> list[types.FunctionType]:
    """The functions behind a member of a class."""
    if isinstance(member, staticmethod | classmethod):
        member = member.__func__
    if isinstance(member, property):
        return [f for f in (member.fget, member.fset, member.fdel) if inspect.isfunction(f)]
    if isinstance(member, functools.cached_property):
        member = member.func
    member = inspect.unwrap(member) if callable(member) else member
    return [member] if inspect.isfunction(member) else []


def _words(code: types.CodeType) -> tuple[set[str], set[str]]:
    """The names a piece of code uses, and the modules it imports."""
    names = set(code.co_names)
    imports = {
        str(step.argval) for step in dis.get_instructions(code) if step.opname == "IMPORT_NAME"
    }
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner_names, inner_imports = _words(constant)
            names |= inner_names
            imports |= inner_imports
    return names, imports


def _imported(name: str) -> Any:
    """A module that a function imports itself: as it is, or, not imported yet, as its file is."""
    if name in sys.modules:
        return sys.modules[name]
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return name
    if (
        spec is None
        or spec.origin is None
        or not _is_own_file(spec.origin)
        or not Path(spec.origin).is_file()
    ):
        return name
    return sha256_hex(Path(spec.origin).read_bytes())


def _named(value: Any) -> Any:
    return ["named", f"{getattr(value, '__module__', '')}.{value.__qualname__}"]


def _stripped(name: str) -> str:
    """A plan's own file has another name when it runs by itself than when it is loaded."""
    return "" if name in _LOADED_AS else name


def _is_own(thing: Any) -> bool:
    try:
        return _is_own_file(inspect.getfile(thing))
    except (TypeError, OSError):
        # Without a file it cannot be installed either.
        return inspect.isfunction(thing)


def _is_own_file(file: str) -> bool:
    """Whether a file is the user's: not of Python, not installed, not of Onceward."""
    return not file.startswith((*_INSTALLED, _OWN, "<"))


def _source(thing: Any) -> Any:
    """A function's or class's text from its `def` or `class` on."""
    try:
        written = thing.__code__ if inspect.isfunction(thing) else thing
        text = textwrap.dedent(undisturbed(lambda: inspect.getsource(written)))
    except (OSError, TypeError):
        raise InvalidConfig(
            f"the source of {thing.__qualname__} cannot be found, so nobody could tell when it changes;"
            ' say version="1" beside its targets, and count it up when it changes',
            context={"field": "version", "function": thing.__qualname__},
        ) from None
    lines = text.split("\n")
    try:
        node = parsed(text).body[0]
    except (SyntaxError, IndexError):
        node = None
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        lines = lines[node.lineno - 1 : node.end_lineno]
    said = "\n".join(line.rstrip() for line in lines).strip("\n")
    if inspect.isfunction(thing) and thing.__name__ == "<lambda>":
        # Several may stand in one statement: what it uses tells them apart.
        code = thing.__code__
        plain = [
            repr(c) for c in code.co_consts if not isinstance(c, types.CodeType) and c is not None
        ]
        return [said, plain, list(code.co_names), list(code.co_varnames)]
    return said
