"""The version of a function: its own code and all that it reaches of one's own, so that a
changed step is a new step; and beside it the environment: Python and the other packages that
this code imports (B-3)."""

from __future__ import annotations

import array
import builtins
import collections
import contextvars
import dataclasses
import enum
import functools
import inspect
import ipaddress
import operator
import os
import platform
import re
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, time, timedelta, tzinfo
from decimal import Decimal
from fractions import Fraction
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from pathlib import Path, PurePath
from typing import Any, Final
from uuid import UUID

import msgspec

from onceward.code import version_1 as code_version_1
from onceward.code.module_files import (
    Distribution,
    Import,
    SourceFile,
    described_code,
    distribution_of,
    facts_of,
    find_module,
    owner_of,
    parents_of,
    site_of,
    source_file,
    submodules_of,
    whole_name,
)
from onceward.core.canon import canonical, digest, sha256_hex
from onceward.errors import OncewardError

ALGORITHM: Final = 2
"""Which way of making versions this is. Digests begin with it; a checkpoint is judged by the one
that made it."""
_CONSTANTS = (type(None), bool, int, float, complex, bytes, type(Ellipsis), type(NotImplemented))
_WITH_A_VALUE = (str, bytes, int, float, list, set, frozenset, dict)
_VALUES = (
    Decimal,
    Fraction,
    date,
    time,
    timedelta,
    tzinfo,
    UUID,
    range,
    slice,
    bytearray,
    ipaddress._BaseAddress,
    ipaddress._BaseNetwork,
    operator.itemgetter,
    operator.attrgetter,
    operator.methodcaller,
)
_LOADED_AS = ("__main__", "__onceward_plan__")
_FIRST_SEEN = "__onceward_first_seen__"
"""The attribute in which a module keeps its changing names' first values."""
_WITHOUT_DATA = frozenset(
    {
        "logging",
        "threading",
        "_thread",
        "queue",
        "_queue",
        "asyncio",
        "concurrent",
        "_contextvars",
        "contextvars",
        "weakref",
        "_weakref",
        "io",
        "_io",
        "socket",
        "ssl",
        "typing",
        "types",
        "builtins",
        "functools",
        "abc",
        "_abc",
        "contextlib",
        "warnings",
    }
)
"""Modules of Python whose objects hold nothing that decides what a step makes."""
_ROOT_MARKS = ("pyproject.toml", "setup.py", "setup.cfg", ".git", "onceward.toml", ".onceward")
_MISSING: Final = object()


class CodeVersion(msgspec.Struct, frozen=True):
    """The version of a function: its code and environment, now and on this machine."""

    code: str
    """A digest of its own code and what it reaches; `2:` before it names the algorithm."""
    environment: tuple[str, ...]
    """Python, and the other packages that this code imports, each with its version."""
    unfollowed: tuple[str, ...]
    """Descriptions of what could change without being noticed."""

    @property
    def environment_hash(self) -> str:
        return environment_hash(self.environment)


def environment_hash(lines: Sequence[str]) -> str:
    """The digest of an environment, with the algorithm that made it."""
    return f"{ALGORITHM}:{digest(list(lines))}"


def code_version(call: Callable[..., Any], folder: Path | None = None) -> CodeVersion:
    """The version of a function of a plan in `folder`.

    One's own code is the package that holds the function and every module outside site-packages
    and the standard library. Comments in it count; decorators of stages, line numbers and the
    place of the tree do not."""
    reader = _Reader(call, folder)
    described = reader.describe(call)
    return CodeVersion(
        code=f"{ALGORITHM}:{digest([described, reader.things])}",
        environment=tuple(sorted(reader.environment)),
        unfollowed=tuple(sorted(reader.unfollowed)),
    )


def first_version(call: Callable[..., Any], folder: Path | None = None) -> str | None:
    """The version that the first algorithm gives a function, to judge what was recorded under
    it; None if it has none."""
    try:
        return code_version_1.version_of(call, folder)
    except (OncewardError, RecursionError, OSError):
        return None


class _Reader:
    """Describes values by content; each function, class, module and container once, in the order
    they are met."""

    def __init__(self, call: Any, folder: Path | None) -> None:
        self._folder = folder
        self._root = _root_of(folder) if folder is not None else None
        self._distribution = _distribution_of_call(call)
        self.things: list[Any] = []
        self.environment = {_python()}
        self.unfollowed: set[str] = set()
        self._numbers: dict[Any, int] = {}
        self._specs: dict[tuple[str, tuple[str, ...]], ModuleSpec | None] = {}
        self._owned: dict[str, bool] = {}
        """Specs and owners found already, so that each module is looked for once."""
        self._met: list[Any] = []
        """Keeps what was met alive: numbers are by identity."""

    def describe(self, value: Any, word: str = "") -> Any:
        """`word` is the name it was reached by."""
        if inspect.ismodule(value):
            # First of all: any other question would load a lazy one.
            return self._live_module(value)
        described = self._described(value, word)
        built_in = isinstance(value, _WITH_A_VALUE) and not isinstance(value, enum.Enum)
        if built_in and self._is_own_class(type(value)):
            # What it is besides the text, number or container that it is.
            held = sorted(_attributes(value), key=lambda pair: pair[0])
            more = [[name, self.describe(item, name)] for name, item in held]
            return ["subclass", self.describe(type(value)), described, more]
        return described

    def _described(self, value: Any, word: str) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, _CONSTANTS):
            return ["constant", ascii(value)]
        if isinstance(value, PurePath):
            return ["path", self._path(value)]
        if isinstance(value, re.Pattern):
            return ["pattern", ascii(value.pattern), value.flags]
        if isinstance(value, enum.Enum):
            return ["enum", self.describe(type(value)), str(value.name)]
        if isinstance(value, tuple):
            return [self._kind(value), [self.describe(item) for item in value]]
        if isinstance(value, list | collections.deque | array.array):
            return self._once(value, self._list)
        if isinstance(value, set | frozenset):
            return self._once(value, self._set)
        if isinstance(value, dict | types.MappingProxyType):
            return self._once(value, self._dict)
        return self._object(value, word)

    def _text(self, value: str) -> Any:
        """A text that is a place inside the tree counts as that place in it."""
        if self._root is not None and f"{value}/".startswith(f"{self._root}/"):
            return ["path", self._path(PurePath(value))]
        return ["constant", ascii(value)]

    def _path(self, path: PurePath) -> str:
        if self._root is not None and path.is_relative_to(self._root):
            return f"./{Path(os.path.relpath(path, self._folder)).as_posix()}"
        return ascii(path.as_posix())

    def _kind(self, value: Any) -> Any:
        kind = type(value)
        return self.describe(kind) if self._is_own_class(kind) else kind.__name__

    def _list(self, value: Iterable[Any]) -> Any:
        return [self._kind(value), [self.describe(item) for item in value]]

    def _set(self, value: Iterable[Any]) -> Any:
        # In an order that does not come from hashes, for what is met first gets the lower number.
        items = [self.describe(item) for item in sorted(value, key=_place_in_order)]
        return [self._kind(value), sorted(items, key=canonical)]

    def _dict(self, value: Mapping[Any, Any]) -> Any:
        pairs = [[self.describe(key), self.describe(item)] for key, item in value.items()]
        return [self._kind(value), sorted(pairs, key=canonical)]

    def _object(self, value: Any, word: str) -> Any:
        if isinstance(value, functools.partial):
            parts = (value.func, value.args, value.keywords)
            return ["partial", *(self.describe(part) for part in parts)]
        if inspect.ismethod(value):
            return ["method", self.describe(value.__func__), self.describe(value.__self__, word)]
        if inspect.isfunction(value):
            return self._any_function(value)
        if inspect.isclass(value):
            return self._once(value, self._class) if self._is_own_class(value) else self._of(value)
        if inspect.isbuiltin(value) or isinstance(value, types.MethodWrapperType):
            return self._builtin(value, word)
        if callable(value) and hasattr(value, "__wrapped__"):
            self._use_type(type(value))
            return ["wrapped", self.describe(value.__wrapped__)]
        if isinstance(value, contextvars.ContextVar):
            return ["variable", value.name, self.describe(_default_of(value), word)]
        if isinstance(value, _VALUES) and " at 0x" not in ascii(value):
            return ["value", type(value).__name__, ascii(value)]
        if isinstance(getattr(value, "__qualname__", None), str):
            return self._of(value)
        if (
            dataclasses.is_dataclass(value)
            or isinstance(value, types.SimpleNamespace)
            or self._is_own_class(type(value))
        ):
            return self._once(value, self._instance)
        return self._foreign(value, word)

    def _foreign(self, value: Any, word: str) -> Any:
        """An object of somebody else's class: what it holds is not looked into."""
        kind = type(value)
        module = str(kind.__module__)
        if module.partition(".")[0] not in _WITHOUT_DATA and _owner_of_type(kind) != "onceward":
            named = f"the value of {word}" if word else "a value"
            self.unfollowed.add(f"{named} is a {module}.{kind.__qualname__}: only its class counts")
        held = [
            [name, self.describe(item)]
            for name, item in sorted(_attributes(value), key=lambda pair: pair[0])
            if self._is_own_code(item)
        ]
        return ["instance", self._of(kind), held]

    def _is_own_code(self, value: Any) -> bool:
        """Whether a value is a function or class of one's own, however it was bound."""
        while isinstance(value, functools.partial) or inspect.ismethod(value):
            value = value.func if isinstance(value, functools.partial) else value.__func__
        if inspect.isfunction(value):
            return self._is_own(value.__code__.co_filename)
        return inspect.isclass(value) and self._is_own_class(value)

    def _builtin(self, value: Any, word: str) -> Any:
        owner = getattr(value, "__self__", None)
        if owner is None or inspect.ismodule(owner):
            return self._of(value)
        return ["bound", value.__name__, self.describe(owner, word)]

    def _of(self, value: Any) -> Any:
        """Somebody else's function or class, by its name; the package it comes from is part of
        the environment."""
        module = str(getattr(value, "__module__", None) or "builtins")
        self._use_module(module)
        return ["named", f"{module.partition('.')[0]}:{value.__qualname__}"]

    def _once(self, value: Any, describe: Callable[[Any], Any], key: Any = None) -> Any:
        key = id(value) if key is None else key
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.things)
            self._met.append(value)
            self.things.append(None)
            self.things[number] = describe(value)
        return ["thing", number]

    # Functions and classes.

    def _any_function(self, value: types.FunctionType) -> Any:
        if self._is_own(value.__code__.co_filename):
            return self._once(value, self._function)
        self._use_file(value.__code__.co_filename, str(value.__module__))
        # Somebody else's decorator around a function of one's own: that function counts, and
        # whatever else of one's own the decorator holds.
        cells = dict(zip(value.__code__.co_freevars, value.__closure__ or (), strict=True))
        held = [self.describe(item) for item in _contents(cells) if self._is_own_code(item)]
        registry = getattr(value, "registry", None)
        if isinstance(registry, types.MappingProxyType):
            held.append(self.describe(dict(registry)))
        if hasattr(value, "__wrapped__"):
            return ["wrapped", self.describe(value.__wrapped__), held]
        return ["named", f"{str(value.__module__).partition('.')[0]}:{value.__name__}", held]

    def _function(self, function: types.FunctionType) -> Any:
        inner = getattr(function, "__wrapped__", None)
        for name, item in vars(function).items():
            if isinstance(item, (*_WITH_A_VALUE, tuple)) and not name.startswith("__"):
                self.unfollowed.add(
                    f"{function.__qualname__}.{name} is an attribute of a function: a change of it is not noticed"
                )
        return [
            "function",
            _text_of(function),
            list(self._reads(function)),
            self.describe(inner) if inner is not None else None,
            self._decorators(function),
        ]

    def _decorators(self, function: types.FunctionType) -> list[Any]:
        """The decorators of a function, but for those that make it a stage: they say only when
        it runs."""
        source = source_file(function.__code__.co_filename) if _has_file(function) else None
        around = function.__globals__
        found: list[Any] = []
        for text, names in source.decorators_of(function.__code__) if source is not None else ():
            first = around.get(names[0], _MISSING) if names else _MISSING
            if first is _MISSING or _owner_of_type(type(first)) == "onceward":
                continue
            values = [self.describe(around[name], name) for name in names if name in around]
            found.append([text, values])
        return found

    def _class(self, kind: type) -> Any:
        bases = [self.describe(base) for base in kind.__bases__ if base is not object]
        if self._is_own_class(type(kind)):
            bases.append(self.describe(type(kind)))
        self._note_compiled(str(_file_of_class(kind)), str(kind.__module__))
        text = _text_of_class(kind)
        members: list[Any] = []
        for name, member in vars(kind).items():
            functions = [f for f in _functions_of(member) if self._is_own(f.__code__.co_filename)]
            if functions and _is_decorated(member):
                members.append([name, self.describe(_unbound(member))])
            elif functions:
                for function in functions:
                    if text is None or _has_file(function) or not name.startswith("__"):
                        members.append([name, self._method(function, kind, text)])
            elif _is_plain_member(name, member):
                members.append([name, self.describe(member, f"{kind.__qualname__}.{name}")])
        return ["class", kind.__qualname__ if text is None else text, bases, members]

    def _method(self, function: types.FunctionType, kind: type, text: str | None) -> Any:
        """What stands in the class is in its text; what it reads is not."""
        if _stands_in(function, kind, text):
            return list(self._reads(function))
        return self.describe(function)

    def _instance(self, value: Any) -> Any:
        held = {name: item for name, item in _attributes(value) if not _is_cached(value, name)}
        held.update(_first_attributes(value, held))
        described = [[name, self.describe(held[name], name)] for name in sorted(held)]
        return ["instance", self.describe(type(value)), described]

    def _reads(self, function: types.FunctionType) -> Iterator[list[Any]]:
        """What a function reads from around it: closure, globals, imports and defaults."""
        code, around = function.__code__, function.__globals__
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        for word in sorted(cells):
            try:
                yield [word, self.describe(cells[word].cell_contents, word)]
            except ValueError:
                continue
        facts = facts_of(code)
        changing = _changing_names(function)
        for word in sorted(facts.names):
            if word.startswith("__") and word.endswith("__"):
                continue
            value = _first_seen(around, word) if word in changing else around.get(word, _MISSING)
            if value is not _MISSING:
                yield [word, self.describe(value, word)]
                if inspect.ismodule(value):
                    yield from self._named_submodules(_spec_of(value), facts.names)
        for number, value in enumerate(function.__defaults__ or ()):
            yield [f"default {number}", self.describe(value, f"default {number}")]
        for word, value in sorted((function.__kwdefaults__ or {}).items()):
            yield [f"default {word}", self.describe(value, word)]
        package = str(around.get("__package__") or "")
        folders = self._folders(code.co_filename)
        for wanted in facts.imports:
            yield from self._follow(wanted, package, folders, facts.names, say=True)
        for call in facts.computed:
            self.unfollowed.add(
                f"{function.__qualname__} calls {call}: what it brings in is not known"
            )

    # Modules.

    def _live_module(self, module: types.ModuleType) -> Any:
        spec = _spec_of(module)
        if spec is None:
            # A script, or what somebody made by hand.
            held = types.ModuleType.__getattribute__(module, "__dict__")
            file, name = held.get("__file__"), str(held.get("__name__"))
            if file is None or not self._is_own(str(file)):
                return ["module", name]
            spec = ModuleSpec(name, None, origin=str(file))
        return self._module(spec)

    def _module(self, spec: ModuleSpec) -> Any:
        """A module, by the file it is in: whether it was imported does not matter."""
        places = list(spec.submodule_search_locations or ())
        file = spec.origin if spec.has_location or spec.loader is None else None
        if spec.origin in ("built-in", "frozen"):
            return ["module", spec.name]
        if not self._is_own(file or (f"{places[0]}/" if places else "<frozen >")):
            self._use_file(file or f"{places[0]}/", spec.name)
            return ["module", spec.name]
        if file is None:
            return ["namespace", spec.name]
        return self._once(spec, self._own_module, key=os.path.realpath(file))

    def _own_module(self, spec: ModuleSpec) -> Any:
        """All of a module's text, and of one's own modules that it imports anywhere in it."""
        file, name = str(spec.origin), "" if spec.name in _LOADED_AS else spec.name
        if self._note_compiled(file, spec.name):
            return ["extension", name]
        source = source_file(file) or _source_of_loader(spec)
        if source is None:
            self.unfollowed.add(f"module {spec.name} cannot be read: a change of it is not noticed")
            return ["unreadable", name]
        facts = facts_of(source.code)
        package = spec.name if spec.submodule_search_locations else spec.name.rpartition(".")[0]
        folders = self._folders(file)
        found: list[Any] = []
        for wanted in facts.imports:
            found += self._follow(wanted, package, folders, facts.names)
        for call in facts.computed:
            self.unfollowed.add(f"module {spec.name} calls {call}: what it brings in is not known")
        return ["module", name, _loaded_code(spec.name, file, source) or source.sha256, found]

    def _follow(
        self,
        wanted: Import,
        package: str,
        folders: Sequence[str],
        names: Iterable[str],
        *,
        say: bool = False,
    ) -> Iterator[list[Any]]:
        """The modules that an import statement names; `say` reports a module that is missing."""
        base = whole_name(wanted, package)
        spec = self._find(base, folders) if base else None
        if spec is None:
            top = self._find(base.partition(".")[0], folders) if base else None
            if top is None:
                self.environment.add(f"{base} is not there")
                if say:
                    self.unfollowed.add(f"module {base} is not found: what it does is not known")
                return
            # A module that another one makes when it is imported, as os.path.
            yield [f"import {base}", self._module(top)]
            return
        for parent in parents_of(base):
            above = self._find(parent, folders)
            if above is not None:
                yield [f"import {parent}", self._module(above)]
        yield [f"import {base}", self._module(spec)]
        inside = set(wanted.names) | (set() if wanted.names else set(names))
        yield from self._named_submodules(spec, inside, folders)

    def _named_submodules(
        self, spec: ModuleSpec | None, names: Iterable[str], folders: Sequence[str] = ()
    ) -> Iterator[list[Any]]:
        """Modules of one's own package that are reached as its attributes, as a lazy package
        offers them."""
        if spec is None or not spec.submodule_search_locations:
            return
        if not self._is_own(f"{next(iter(spec.submodule_search_locations), '<frozen >')}/"):
            return
        for name in sorted(submodules_of(spec) & set(names)):
            inner = self._find(f"{spec.name}.{name}", folders)
            if inner is not None:
                yield [f"import {spec.name}.{name}", self._module(inner)]
                yield from self._named_submodules(inner, names, folders)

    def _folders(self, file: str) -> list[str]:
        """Other folders to search for a module: beside the importing file, and beside the plan."""
        folders = [] if file.startswith("<") else [str(Path(file).parent)]
        if self._folder is not None:
            folders.append(str(self._folder))
        return folders

    # Whose code it is.

    def _find(self, name: str, folders: Sequence[str] = ()) -> ModuleSpec | None:
        key = (name, tuple(folders))
        if key not in self._specs:
            self._specs[key] = find_module(name, folders)
        return self._specs[key]

    def _is_own(self, file: str) -> bool:
        if file not in self._owned:
            self._owned[file] = self._look_whose(file)
        return self._owned[file]

    def _look_whose(self, file: str) -> bool:
        owner = owner_of(file)
        if owner == "installed" and self._distribution is not None:
            found = distribution_of(file)
            return found is not None and found.name == self._distribution.name
        return owner == "own"

    def _is_own_class(self, kind: type) -> bool:
        file = _file_of_class(kind)
        return file is not None and self._is_own(file)

    def _use_type(self, kind: type) -> None:
        self._use_module(str(kind.__module__))

    def _use_module(self, name: str) -> None:
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or top in _LOADED_AS:
            return
        spec = self._find(name) or self._find(top)
        if spec is not None:
            places = list(spec.submodule_search_locations or ())
            self._use_file(spec.origin or (f"{places[0]}/" if places else ""), name)

    def _note_compiled(self, file: str, module: str) -> bool:
        """Whether a file is compiled, which nobody can read: machines differ in it, so its bytes
        do not count."""
        compiled = file.endswith(tuple(EXTENSION_SUFFIXES))
        if compiled:
            self.unfollowed.add(f"module {module} is compiled: a change of it is not noticed")
        return compiled

    def _use_file(self, file: str, module: str) -> None:
        """A file of another package is used: its package and version are part of the
        environment."""
        if self._is_own(file):
            self._note_compiled(file, module)
            return
        if owner_of(file) != "installed":
            return
        found = distribution_of(file)
        if found is not None:
            self.environment.add(f"{found.name} {found.version}")
        elif Path(file).is_file():
            top = module.partition(".")[0]
            self.environment.add(f"{top} sha256:{sha256_hex(Path(file).read_bytes())}")


def _python() -> str:
    name = platform.python_implementation()
    return f"python {platform.python_version()}{'' if name == 'CPython' else f' {name}'}"


def _root_of(folder: Path) -> str:
    """The project that a folder is in, by what usually stands at the top of one; else the folder
    itself."""
    for place in (folder, *folder.parents):
        if any((place / mark).exists() for mark in _ROOT_MARKS):
            return str(place)
    return str(folder)


def _distribution_of_call(call: Any) -> Distribution | None:
    """The installed package that a stage's function is in: that one is its own code."""
    while isinstance(call, functools.partial) or inspect.ismethod(call):
        call = call.func if isinstance(call, functools.partial) else call.__func__
    call = inspect.unwrap(call)
    if inspect.isfunction(call):
        file: str | None = call.__code__.co_filename
    else:
        file = _file_of_class(call if inspect.isclass(call) else type(call))
    return distribution_of(file) if file and site_of(str(Path(file).absolute())) else None


def _spec_of(module: types.ModuleType) -> ModuleSpec | None:
    """The spec of a module; reading it must not load a lazy one."""
    spec = types.ModuleType.__getattribute__(module, "__dict__").get("__spec__")
    return spec if isinstance(spec, ModuleSpec) else None


def _source_of_loader(spec: ModuleSpec) -> SourceFile | None:
    """The text of a module that is in no file of its own, as in a zip file."""
    get_source = getattr(spec.loader, "get_source", None)
    if get_source is None:
        return None
    try:
        text = get_source(spec.name)
        return SourceFile(text.encode(), spec.name) if text is not None else None
    except (ImportError, OSError, SyntaxError, ValueError):
        return None


def _loaded_code(name: str, file: str, source: SourceFile) -> Any:
    """The loaded code of a module whose file changed since its import; None where it did not."""
    module = sys.modules.get(name)
    if module is None:
        return None
    held = types.ModuleType.__getattribute__(module, "__dict__")
    loaded: dict[str, types.CodeType] = {}
    for value in list(held.values()):
        if inspect.ismodule(value):
            continue
        members = list(vars(value).values()) if inspect.isclass(value) else [value]
        for member in members:
            for function in _functions_of(member):
                if function.__code__.co_filename == file:
                    loaded[function.__qualname__] = function.__code__
    if all(source.text_of(code) is not None for code in loaded.values()):
        return None
    return [[word, described_code(code)] for word, code in sorted(loaded.items())]


def _text_of(function: types.FunctionType) -> Any:
    """A function's text; its code where there is no text, or where the file says something else
    by now."""
    code = function.__code__
    source = source_file(code.co_filename) if _has_file(function) else None
    text = source.text_of(code) if source is not None else None
    return ["code", described_code(code)] if text is None else text


def _has_file(function: types.FunctionType) -> bool:
    return not function.__code__.co_filename.startswith("<")


def _text_of_class(kind: type) -> str | None:
    """A class's text; None where there is none, or where its methods are not what the file says
    by now."""
    file = _file_of_class(kind)
    source = source_file(file) if file and not file.startswith("<") else None
    node = source.classes.get(kind.__qualname__) if source is not None else None
    if source is None or node is None:
        return None
    for member in vars(kind).values():
        for function in _functions_of(member):
            code = function.__code__
            if code.co_filename == file and source.text_of(code) is None:
                return None
    return source.text(node)


def _file_of_class(kind: type) -> str | None:
    """The file that a class is defined in, `<class>` if it has none; None for what is built into
    Python."""
    module = sys.modules.get(str(kind.__module__))
    file = getattr(module, "__file__", None) if module is not None else None
    if file is not None:
        return str(file)
    if kind.__module__ == "builtins":
        return None if getattr(builtins, kind.__name__, None) is kind else _heap_place(kind)
    spec = _spec_of(module) if isinstance(module, types.ModuleType) else None
    if spec is not None and spec.origin in ("built-in", "frozen"):
        return None
    return _heap_place(kind)


def _heap_place(kind: type) -> str | None:
    made_by_python = bool(kind.__flags__ & (1 << 9)) and "__dict__" in dir(type(kind))
    has_functions = any(_functions_of(member) for member in vars(kind).values())
    return "<class>" if made_by_python and (has_functions or "__module__" in vars(kind)) else None


def _owner_of_type(kind: type) -> str:
    file = _file_of_class(kind)
    return owner_of(file) if file is not None else "python"


def _functions_of(member: Any) -> list[types.FunctionType]:
    """The functions behind a member of a class."""
    if isinstance(member, staticmethod | classmethod):
        member = member.__func__
    if isinstance(member, property):
        return [f for f in (member.fget, member.fset, member.fdel) if inspect.isfunction(f)]
    if isinstance(member, functools.cached_property):
        member = member.func
    if inspect.isfunction(member) or hasattr(member, "__wrapped__"):
        member = inspect.unwrap(member) if callable(member) else member
    return [member] if inspect.isfunction(member) else []


def _unbound(member: Any) -> Any:
    return member.__func__ if isinstance(member, staticmethod | classmethod) else member


def _is_decorated(member: Any) -> bool:
    return callable(_unbound(member)) and hasattr(_unbound(member), "__wrapped__")


def _stands_in(function: types.FunctionType, kind: type, text: str | None) -> bool:
    """Whether a method was written in the text of its class, and not put into it from elsewhere."""
    inside = function.__code__.co_qualname.startswith(f"{kind.__qualname__}.")
    return text is not None and inside and function.__code__.co_filename == _file_of_class(kind)


def _contents(cells: Mapping[str, types.CellType]) -> Iterator[Any]:
    for word in sorted(cells):
        try:
            yield cells[word].cell_contents
        except ValueError:
            continue


def _is_plain_member(name: str, member: Any) -> bool:
    """Whether a member of a class is a value that somebody gave it."""
    if name.startswith("_") and name.endswith("_"):
        return False
    if isinstance(
        member,
        types.MemberDescriptorType
        | types.GetSetDescriptorType
        | types.MethodDescriptorType
        | types.WrapperDescriptorType
        | types.ClassMethodDescriptorType
        | types.BuiltinFunctionType
        | property
        | staticmethod
        | classmethod,
    ):
        return False
    return name != "_abc_impl" and not isinstance(member, functools.cached_property)


def _default_of(variable: contextvars.ContextVar[Any]) -> Any:
    """The default of a context variable."""
    try:
        return contextvars.Context().run(variable.get)
    except LookupError:
        return None


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of an object: in its `__dict__`, in its slots, or as fields."""
    held = getattr(value, "__dict__", None)
    if isinstance(held, dict):
        yield from list(held.items())
    for kind in type(value).__mro__:
        for name, member in vars(kind).items():
            if isinstance(member, types.MemberDescriptorType) and not name.startswith("__"):
                try:
                    yield name, member.__get__(value, type(value))
                except AttributeError:
                    continue


def _is_cached(value: Any, name: str) -> bool:
    """Whether an attribute only remembers what a property computed."""
    return isinstance(inspect.getattr_static(type(value), name, None), functools.cached_property)


def _place_in_order(item: Any) -> tuple[str, str]:
    """An order for things in a set that is the same in every process, as far as there is one."""
    name = getattr(item, "__qualname__", None) or getattr(item, "name", None)
    text = str(name) if isinstance(name, str) else ascii(item)
    return type(item).__name__, "" if " at 0x" in text else text


# What changes while steps run: caches, clients that are made late, counters. It is no constant, and
# a second run in the same process would find another version because of it. What it held when it
# was first read counts.


def _changing_names(function: types.FunctionType) -> frozenset[str]:
    """Names that functions beside this one assign or change."""
    code = function.__code__
    source = source_file(code.co_filename) if _has_file(function) else None
    if source is not None:
        return source.changing
    # Without a file, as in a notebook, a name may be given another value on purpose: that must not
    # be missed.
    return frozenset()


def _first_seen(around: dict[str, Any], word: str) -> Any:
    kept: tuple[Any, dict[str, Any]] | None = around.get(_FIRST_SEEN)
    if kept is None or kept[0] is not around.get("__spec__"):
        # Not read yet, or loaded anew since.
        kept = around[_FIRST_SEEN] = (around.get("__spec__"), {})
    if word not in kept[1]:
        kept[1][word] = _copy_of(around.get(word, _MISSING))
    return kept[1][word]


def _copy_of(value: Any) -> Any:
    """A copy of a container; anything else as it is."""
    if type(value) in (list, dict, set, collections.deque, collections.OrderedDict):
        return value.copy()
    if isinstance(value, collections.defaultdict | collections.Counter):
        return dict(value)
    return value


_held_first: dict[int, tuple[weakref.ref[Any], dict[str, Any]]] = {}
"""By the identity of an object that lives: what its changing attributes held when they were
first read."""


def _first_attributes(value: Any, held: Mapping[str, Any]) -> dict[str, Any]:
    changing: set[str] = set()
    for kind in type(value).__mro__:
        file = _file_of_class(kind)
        source = source_file(file) if file and owner_of(file) != "python" else None
        if source is not None:
            changing |= source.changing_attributes(kind.__qualname__)
    now = {name: held[name] for name in held if name in changing}
    if not now:
        return {}
    known = _held_first.get(id(value))
    if known is not None and known[0]() is value:
        return known[1]
    number = id(value)
    try:
        reference = weakref.ref(value, lambda _: _held_first.pop(number, None))
    except TypeError:
        return {}
    first = {name: _copy_of(item) for name, item in now.items()}
    _held_first[number] = (reference, first)
    return first
