"""Python modules as files: found without being imported, read with their imports, and told apart by
who wrote them.

Nothing here looks at `sys.modules` and nothing runs a module, so that what is found is the same
before and after an import."""

from __future__ import annotations

import ast
import dis
import functools
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import site
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from onceward.code.parsing import compiled, parsed
from onceward.core.canon import canonical, sha256_hex

Owner = Literal["own", "python", "installed", "onceward"]
_SITE_NAMES: Final = ("site-packages", "dist-packages")
_COMPUTED: Final = frozenset(
    {
        "import_module",
        "__import__",
        "run_path",
        "run_module",
        "spec_from_file_location",
        "exec",
        "eval",
        "globals",
    }
)
"""Calls that bring in what no name in a file tells of."""
_BUILTIN: Final = ("exec", "eval", "globals")
"""Those of them whose names other objects use for methods."""
_IMPORTERS: Final = ("import_module", "__import__")
_CHANGING: Final = frozenset(
    {
        "append",
        "extend",
        "insert",
        "remove",
        "pop",
        "clear",
        "add",
        "discard",
        "update",
        "setdefault",
        "popitem",
        "appendleft",
        "extendleft",
        "popleft",
        "move_to_end",
    }
)
"""Methods that change what they are called on."""
_BEGINNINGS: Final = ("__init__", "__new__", "__post_init__", "__setstate__", "__attrs_post_init__")


def _folders(*names: str | None) -> tuple[str, ...]:
    known = {place for name in names if name for place in (name, os.path.realpath(name))}
    return tuple(sorted(f"{place.rstrip('/')}/" for place in known))


_ONCEWARD = _folders(str(Path(__file__).resolve().parent.parent))
_SITES = _folders(
    sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), site.getusersitepackages()
)
_PYTHON = _folders(sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))


class Import(NamedTuple):
    """One import statement: `from ..module import names` has level 2."""

    level: int
    module: str
    names: tuple[str, ...]


def owner_of(file: str) -> Owner:
    """Whose code a file is: of Python, of an installed package, of Onceward, or else one's own.
    What stands in no file (`<stdin>`, a notebook's cell) is one's own as well."""
    if file.startswith("<frozen "):
        return "python"
    if file.startswith("<") or not file:
        return "own"
    for place in (str(Path(file).absolute()), os.path.realpath(file)):
        if place.startswith(_ONCEWARD):
            return "onceward"
        if site_of(place):
            return "installed"
        if place.startswith(_PYTHON):
            return "python"
    return "own"


def site_of(file: str) -> str:
    """The site-packages folder that a file stands in; empty where it is in none."""
    for place in _SITES:
        if file.startswith(place):
            return place
    parts = file.split("/")
    for at in range(len(parts) - 2, 0, -1):
        if parts[at] in _SITE_NAMES:
            return "/".join(parts[: at + 1]) + "/"
    return ""


class Distribution(NamedTuple):
    """An installed package."""

    name: str
    version: str


def distribution_of(file: str) -> Distribution | None:
    """The installed package that a file belongs to, by the records of the folder it was
    installed into."""
    place = str(Path(file).absolute())
    folder = site_of(place)
    if not folder:
        place = os.path.realpath(file)
        folder = site_of(place)
    try:
        records = tuple(sorted(str(place) for place in Path(folder).glob("*-info")))
        changed = Path(folder).stat().st_mtime_ns
    except OSError:
        return None
    path = place[len(folder) :]
    top = path.partition("/")[0]
    found = _distributions(folder, records, changed).get(
        top.removesuffix(".py").partition(".")[0], ()
    )
    if len(found) > 1:
        # Several packages share a namespace: the one that lists this very file.
        found = [one for one in found if path in one[1]] or found
    return found[0][0] if found else None


@functools.lru_cache(maxsize=32)
def _distributions(
    folder: str, records: tuple[str, ...], changed: int
) -> Mapping[str, Sequence[tuple[Distribution, frozenset[str]]]]:
    """By the name of a top-level module: which packages it is of, and their files. `records` and
    `changed`, what is installed and when that last changed, are there so that an upgrade is
    seen."""
    found: dict[str, list[tuple[Distribution, frozenset[str]]]] = {}
    for installed in importlib.metadata.distributions(path=[folder]):
        name = installed.metadata["Name"]
        if not name:
            continue
        one = Distribution(name.lower().replace("_", "-"), installed.version)
        record = installed.read_text("RECORD")
        if record is not None:
            files = frozenset(line.split(",")[0].strip('"') for line in record.splitlines())
        else:
            files = frozenset(str(file) for file in installed.files or ())
        tops = {file.partition("/")[0].partition(".")[0] for file in files}
        tops |= set((installed.read_text("top_level.txt") or "").split())
        for top in sorted(tops or {name.replace("-", "_")}):
            found.setdefault(top, []).append((one, files))
    return found


def find_module(name: str, folders: Sequence[str] = ()) -> ModuleSpec | None:
    """The spec of a module, by its whole name; `folders` are searched after Python's own path."""
    spec: ModuleSpec | None = None
    path: Sequence[str] | None = None
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        whole = ".".join(parts[:depth])
        spec = _find(whole, path)
        if spec is None and depth == 1:
            spec = importlib.machinery.PathFinder.find_spec(whole, list(folders))
        if spec is None:
            return None
        path = spec.submodule_search_locations
        if path is None and depth < len(parts):
            return None
    return spec


def _find(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        # Somebody's own finder may fail; an import would meet the same, and tell of it.
        with suppress(Exception):
            spec = finder.find_spec(name, path)
            if spec is not None:
                return spec
    return None


def parents_of(name: str) -> list[str]:
    """The packages that an import of a module runs first."""
    parts = name.split(".")
    return [".".join(parts[:depth]) for depth in range(1, len(parts))]


def submodules_of(spec: ModuleSpec) -> set[str]:
    """The names of what a package has inside, as far as its folders tell."""
    names: set[str] = set()
    for place in spec.submodule_search_locations or ():
        try:
            with os.scandir(place) as entries:
                names |= {
                    entry.name.partition(".")[0]
                    for entry in entries
                    if entry.name.endswith((".py", ".so")) or entry.is_dir()
                }
        except OSError:
            continue
    return names - {"__init__", "__pycache__"}


def whole_name(imported: Import, package: str) -> str:
    """The module that an import statement names, seen from the package it stands in."""
    if not imported.level:
        return imported.module
    parts = package.split(".") if package else []
    named = parts[: len(parts) - imported.level + 1]
    if imported.module:
        named.append(imported.module)
    return ".".join(named)


class CodeFacts(NamedTuple):
    """The names that a piece of code, and all code inside it, uses."""

    names: frozenset[str]
    imports: tuple[Import, ...]
    computed: tuple[str, ...]
    """Calls that bring in what no name tells of."""
    rebound: frozenset[str]
    """Globals that functions in it assign."""


@functools.lru_cache(maxsize=4096)
def facts_of(code: types.CodeType) -> CodeFacts:
    names, rebound = set(code.co_names), set()
    imports: list[Import] = []
    computed: set[str] = set()
    steps = [
        step
        for step in dis.get_instructions(code)
        if step.opname not in ("EXTENDED_ARG", "PUSH_NULL", "NOP", "PRECALL", "CACHE")
    ]
    for at, step in enumerate(steps):
        if step.opname == "IMPORT_NAME":
            level, wanted = steps[at - 2].argval, steps[at - 1].argval
            imports.append(Import(int(level or 0), str(step.argval), tuple(wanted or ())))
        elif step.opname == "STORE_GLOBAL":
            rebound.add(str(step.argval))
        elif step.opname.startswith("LOAD_") and step.argval in _COMPUTED:
            text = _plain_argument(steps[at + 1 : at + 4])
            if step.argval in _IMPORTERS and text is not None:
                bare = text.lstrip(".")
                imports.append(Import(len(text) - len(bare), bare, ()))
            elif step.argval not in _BUILTIN or step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                computed.add(str(step.argval))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = facts_of(constant)
            names |= inner.names
            imports += inner.imports
            computed |= set(inner.computed)
            rebound |= inner.rebound
    unique = tuple(dict.fromkeys(imports))
    return CodeFacts(frozenset(names), unique, tuple(sorted(computed)), frozenset(rebound))


def _plain_argument(steps: Sequence[dis.Instruction]) -> str | None:
    """The text that a call is made with, if it is nothing but a text; a package may be named
    after it."""
    names = [step.opname for step in steps]
    if len(steps) < 3 or names[0] != "LOAD_CONST" or not isinstance(steps[0].argval, str):
        return None
    package = names[1] in ("LOAD_CONST", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST")
    called = names[1].startswith("CALL") or (package and names[2].startswith(("CALL", "KW_NAMES")))
    return steps[0].argval if called else None


@functools.lru_cache(maxsize=4096)
def described_code(code: types.CodeType) -> str:
    """A digest of what code does, the same in every process of one version of Python: no place,
    no line."""
    return sha256_hex(canonical(_code(code)))


def _code(code: types.CodeType) -> list[Any]:
    return [
        code.co_name,
        [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags],
        code.co_code.hex(),
        code.co_exceptiontable.hex(),
        [_constant(value) for value in code.co_consts],
        list(code.co_names),
        list(code.co_varnames),
        list(code.co_freevars),
        list(code.co_cellvars),
    ]


def _constant(value: Any) -> Any:
    if isinstance(value, types.CodeType):
        return ["code", described_code(value)]
    if isinstance(value, tuple):
        return ["tuple", [_constant(item) for item in value]]
    if isinstance(value, frozenset):
        return ["set", sorted((_constant(item) for item in value), key=canonical)]
    return [type(value).__name__, ascii(value)]


class Decorator(NamedTuple):
    """A decorator: its text, and the names in it; the first is the decorator's or its owner's."""

    text: str
    names: tuple[str, ...]


class SourceFile:
    """A file of Python text: what is defined where in it."""

    def __init__(self, data: bytes, name: str) -> None:
        """Raises SyntaxError or ValueError where it is no Python."""
        self.sha256 = sha256_hex(data)
        text = importlib.util.decode_source(data)
        self.lines = text.split("\n")
        self.tree = parsed(text)
        self.code: types.CodeType = compiled(self.tree, name)
        self._codes: dict[str, list[types.CodeType]] = {}
        for code in _inner(self.code):
            self._codes.setdefault(code.co_qualname, []).append(code)
        self._nodes: dict[tuple[str, int], ast.AST] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        self._lambdas: dict[int, list[ast.Lambda]] = {}
        self._note(self.tree, "")

    def _note(self, node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = prefix
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{prefix}{child.name}"
                first = min([child.lineno, *(d.lineno for d in child.decorator_list)])
                inner = f"{name}." if isinstance(child, ast.ClassDef) else f"{name}.<locals>."
                if isinstance(child, ast.ClassDef):
                    self.classes[name] = child
                else:
                    self._nodes[name, first] = child
            elif isinstance(child, ast.Lambda):
                self._lambdas.setdefault(child.lineno, []).append(child)
                inner = f"{prefix}<lambda>.<locals>."
            self._note(child, inner)

    def _nearest(self, code: types.CodeType) -> types.CodeType | None:
        """The same code in this file: it may stand there twice, and lines may have moved since
        it was loaded."""
        what = described_code(code)
        fitting = [c for c in self._codes.get(code.co_qualname, ()) if described_code(c) == what]
        if not fitting:
            return None
        return min(fitting, key=lambda c: abs(c.co_firstlineno - code.co_firstlineno))

    def decorators_of(self, code: types.CodeType) -> list[Decorator]:
        near = self._nearest(code)
        node = self._nodes.get((near.co_qualname, near.co_firstlineno)) if near else None
        found = []
        for expression in getattr(node, "decorator_list", ()):
            names = [n.id for n in ast.walk(expression) if isinstance(n, ast.Name)]
            found.append(Decorator(ast.unparse(expression), tuple(dict.fromkeys(names))))
        return found

    def text_of(self, code: types.CodeType) -> Any:
        """A function's text from its `def` on; None where the file does not hold this code, or
        not any more."""
        near = self._nearest(code)
        if near is None:
            return None
        if code.co_name == "<lambda>":
            return self._lambda(near)
        node = self._nodes.get((near.co_qualname, near.co_firstlineno))
        return None if node is None else self.text(node)

    def _lambda(self, code: types.CodeType) -> Any:
        nodes = self._lambdas.get(code.co_firstlineno, [])
        texts = [self.text(node) for node in nodes]
        if len(nodes) < 2:
            return texts[0] if texts else None
        # Several stand in one line: what they do tells them apart.
        return [texts, described_code(code)]

    def text(self, node: Any) -> str:
        """The text of the lines, moved to the left margin."""
        lines = self.lines[node.lineno - 1 : node.end_lineno]
        if isinstance(node, ast.Lambda):
            return ast.get_source_segment("\n".join(self.lines), node) or ""
        indent = node.col_offset
        blank = " " * indent
        return "\n".join(
            line[indent:] if line[:indent].replace("\t", " ") == blank else line for line in lines
        )

    @functools.cached_property
    def changing(self) -> frozenset[str]:
        """Names of the module that its functions assign or change: state, and no constants."""
        found: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                declared = {
                    name
                    for inner in ast.walk(node)
                    if isinstance(inner, ast.Global)
                    for name in inner.names
                }
                found |= declared | (_changed_names(node) - (_local_names(node) - declared))
        return frozenset(found)

    def changing_attributes(self, name: str) -> frozenset[str]:
        """Attributes that methods of a class assign or change after an object of it was made."""
        found: set[str] = set()
        node = self.classes.get(name)
        for method in node.body if node is not None else ():
            if (
                isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
                and method.name not in _BEGINNINGS
                and method.args.args
            ):
                found |= _changed_attributes(method, method.args.args[0].arg)
        return frozenset(found)


def _inner(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _inner(constant)


def _local_names(function: ast.AST) -> set[str]:
    stored = {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    return stored | {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}


def _changed_places(function: ast.AST) -> Iterator[ast.AST]:
    """The names that a function assigns into, deletes from, or calls a changing method on."""
    for node in ast.walk(function):
        if isinstance(node, ast.Subscript | ast.Attribute) and not isinstance(node.ctx, ast.Load):
            yield node
            yield node.value
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _CHANGING
        ):
            yield node.func.value


def _changed_names(function: ast.AST) -> set[str]:
    return {place.id for place in _changed_places(function) if isinstance(place, ast.Name)}


def _changed_attributes(function: ast.AST, of: str) -> set[str]:
    return {
        place.attr
        for place in _changed_places(function)
        if isinstance(place, ast.Attribute)
        and isinstance(place.value, ast.Name)
        and place.value.id == of
    }


def source_file(file: str) -> SourceFile | None:
    """A file as it is now; None where it cannot be read, or is no Python text."""
    try:
        # By its bytes: a file may change within one tick of the clock that its times come from.
        return _source_file(file, Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


@functools.lru_cache(maxsize=256)
def _source_file(file: str, data: bytes) -> SourceFile:
    return SourceFile(data, file)
