"""Fixtures: the rows a play begins with, its script and the transcript it must come to, as written in their files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, get_args

import msgspec

from onceward.core import faults
from onceward.core.canon import parse
from onceward.core.lanes import LANES
from onceward.core.limits import MAX_INTEGER
from onceward.core.sources import Micros
from onceward.dispatch.machine import CHILD
from onceward.errors import InvalidConfig

SCHEMA: Final = "stop_gate.fixture@1"
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")
_CHILD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_REASONS: Final = frozenset(arrow.reason for arrow in CHILD.arrows if arrow.reason)


class _Op(
    msgspec.Struct,
    frozen=True,
    tag_field="op",
    tag=str.lower,
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """One line of a script. Children go by the names the script gives them; the next attempt of `a` is `a.2`."""


Whole = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]
Counted = Annotated[int, msgspec.Meta(ge=1, le=1000)]


class Open(_Op, frozen=True):
    """Open a session, once in every life of the kernel; a `cap` of null is the engine's default."""

    session: str = "ses_a"
    cap: Counted | None = 2
    limits: dict[str, Whole] = {}


class Spawn(_Op, frozen=True):
    """Queue children under these names; a function begins with its lease, a process with its `start`."""

    children: list[str]
    session: str = "ses_a"
    kind: str = "function"
    attempts: Counted = 1


class Lease(_Op, frozen=True):
    """A free slot looks for its next child."""

    slot: Counted
    session: str = "ses_a"


class Start(_Op, frozen=True):
    """The process of a leased child stands; its start becomes durable."""

    child: str


class Finish(_Op, frozen=True):
    """A child's end is observed; its slot takes the next one in the same commit."""

    child: str
    reason: str = "completed"
    micros: Whole = 0
    detail: dict[str, Any] = {}
    retryable: bool = False


class Debit(_Op, frozen=True):
    """A child that runs spends, as in {"tokens": 5, "usd": "0.01"}; `settled`: the money is gone already."""

    child: str
    spend: dict[str, Any]
    settled: bool = False


class Cancel(_Op, frozen=True):
    """Somebody asks a child to end, under a request's id."""

    child: str
    request: str


class Stop(_Op, frozen=True):
    """Dispatch nothing more."""

    session: str = "ses_a"


class Wait(_Op, frozen=True):
    """Time passes."""

    micros: Whole


class Crash(_Op, frozen=True):
    """The kernel is gone: now, or at a fault point `at` while it does what `during` says."""

    at: str = ""
    during: Op | None = None


class Recover(_Op, frozen=True):
    """The next kernel, after a restart of the machine, or on another one; it may die at it, too."""

    host: str = "stage"
    dies: str = ""


class Race(_Op, frozen=True):
    """Several lines at the same moment. `turns` says whose next visit to the store comes first, by their places from 0
    on, as often as it says; then each in turn."""

    ops: list[Op]
    turns: list[Whole] = []


class Tear(_Op, frozen=True):
    """A crash left part of a line at the end of a stream's file."""

    child: str
    text: str


class Project(_Op, frozen=True):
    """The stream files catch up with the rows."""


Op = (
    Open
    | Spawn
    | Lease
    | Start
    | Finish
    | Debit
    | Cancel
    | Stop
    | Wait
    | Crash
    | Recover
    | Race
    | Tear
    | Project
)


OPS: Final = tuple(kind.__name__.lower() for kind in get_args(Op))
"""The class names of lines are part of `spec/stop_gate.fixture@1.schema.json`: they stay."""


class Rows(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rows of one table; bytes are written as {"hex": …}."""

    table: str
    columns: list[str]
    rows: list[list[Any]]


class Fixture(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A play: what there is before it, what happens, and every line it must come to."""

    schema: str
    name: str
    about: str
    script: list[Op]
    expected: list[str] = []
    start: Micros = 1_700_000_000_000_000
    seed: str = ""
    rows: list[Rows] = []
    names: dict[str, str] = {}
    """By which names the script calls the children among the rows."""


def read_fixture(data: bytes, what: str) -> Fixture:
    """A fixture as its file has it; anything it should not have is refused with its place."""
    try:
        found = msgspec.convert(parse(data), Fixture)
    except (msgspec.ValidationError, InvalidConfig) as error:
        why = getattr(error, "message", "") or _from_one(str(error))
        raise InvalidConfig(f"{what} is no fixture: {why}", context={"field": what}) from None
    if found.schema != SCHEMA:
        raise InvalidConfig(
            f"{what} is no {SCHEMA} but {found.schema[:60]!a}", context={"field": "schema"}
        )
    if not _NAME.fullmatch(found.name) or found.name == "manifest":
        raise InvalidConfig(
            f"{what}: {found.name[:60]!a} is no name for a fixture; one has lower-case letters, digits, . and -",
            context={"field": "name"},
        )
    if not found.script:
        raise InvalidConfig(f"{what}: its script is empty", context={"field": "script"})
    for number, op in enumerate(found.script, 1):
        _check(op, f"{what}, line {number} of the script")
    for table in found.rows:
        _check_rows(table, what)
    return found


def _from_one(why: str) -> str:
    """A place in a script, counted as everywhere else, and the words there are where one is wrong."""
    why = re.sub(
        r"`\$\.script\[(\d+)\]",
        lambda found: f"line {int(found.group(1)) + 1} of the script `",
        why,
    )
    return (
        f"{why}; lines are {', '.join(OPS)}"
        if why.startswith("Invalid value") and "`.op`" in why
        else why
    )


def written(fixture: Fixture) -> bytes:
    """A fixture as text that a person can read and compare: one line of script a line."""
    fields: Mapping[str, Any] = msgspec.to_builtins(fixture)
    parts = []
    for key, value in fields.items():
        if isinstance(value, list) and value:
            inner = ",\n  ".join(msgspec.json.encode(item).decode() for item in value)
            parts.append(f" {msgspec.json.encode(key).decode()}: [\n  {inner}\n ]")
        else:
            parts.append(
                f" {msgspec.json.encode(key).decode()}: {msgspec.json.encode(value).decode()}"
            )
    return ("{\n" + ",\n".join(parts) + "\n}\n").encode()


def _check_rows(table: Rows, what: str) -> None:
    for row in table.rows:
        fits = len(row) == len(table.columns) > 0
        if not fits or not all(_is_value(value) for value in row):
            raise InvalidConfig(
                f"{what}: a row of {table.table[:40]!a} cannot be read", context={"field": "rows"}
            )


def _is_value(value: Any) -> bool:
    """Whether a value of a row is plain, or bytes as {"hex": ...}."""
    if isinstance(value, str | int | None):
        return True
    if not isinstance(value, dict) or set(value) != {"hex"}:
        return False
    text = value["hex"]
    return isinstance(text, str) and re.fullmatch(r"([0-9a-f]{2})*", text) is not None


def _check(op: Op, where: str) -> None:
    odd = (
        [name for name in op.children if not _CHILD.fullmatch(name)]
        if isinstance(op, Spawn)
        else []
    )
    if odd or (isinstance(op, Spawn) and len(set(op.children)) != len(op.children)):
        raise InvalidConfig(f"{where}: children need names of letters and digits, each its own")
    if isinstance(op, Spawn) and op.kind not in ("function", "process"):
        raise InvalidConfig(f"{where}: a child is a function or a process, not {op.kind[:40]!a}")
    lanes = [lane for lane in op.limits if lane not in LANES] if isinstance(op, Open) else []
    if lanes:
        raise InvalidConfig(
            f"{where}: there is no lane {lanes[0][:40]!a}; there are {', '.join(LANES)}"
        )
    if isinstance(op, Finish) and op.reason not in _REASONS:
        reasons = ", ".join(sorted(_REASONS))
        raise InvalidConfig(
            f"{where}: no child ends with {op.reason[:40]!a}; one of {reasons}",
            context={"field": "reason"},
        )
    if isinstance(op, Race) and any(turn >= len(op.ops) for turn in op.turns):
        raise InvalidConfig(
            f"{where}: a turn is the place of one of its lines, from 0 on",
            context={"field": "turns"},
        )
    point = _fault_point(op)
    if point and point not in faults.POINTS:
        raise InvalidConfig(
            f"{where}: there is no fault point {point[:40]!a}; there are {', '.join(faults.POINTS)}",
            context={"field": "at"},
        )
    if isinstance(op, Crash) and (op.during is None) != (not op.at):
        raise InvalidConfig(
            f"{where}: a crash has both `at` and `during`, or neither", context={"field": "at"}
        )
    for inner in _inner_lines(op):
        if isinstance(inner, Race | Crash | Recover):
            raise InvalidConfig(
                f"{where}: this cannot happen inside another line", context={"field": "op"}
            )
        _check(inner, where)


def _fault_point(op: Op) -> str:
    if isinstance(op, Crash):
        return op.at
    return op.dies if isinstance(op, Recover) else ""


def _inner_lines(op: Op) -> list[Op]:
    if isinstance(op, Race):
        return op.ops
    return [op.during] if isinstance(op, Crash) and op.during else []
