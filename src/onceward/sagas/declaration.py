"""A saga as its author declares it: actions in order, each with what checks it and what undoes it (S-1, S-8)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from onceward.code.version import code_version
from onceward.core.canon import bounded, digest
from onceward.core.grants import Scope
from onceward.core.records import check_name
from onceward.core.sagas import Side
from onceward.dispatch.stage import Stage
from onceward.dispatch.stage_words import limits_of, stage_of
from onceward.dispatch.task import Task
from onceward.sagas import rules
from onceward.sagas.machine import SagaState, Shape
from onceward.store.port import Reads

Call = TypeVar("Call", bound=Callable[..., Any])
Undo = Callable[..., Any] | Sequence[str] | None
_WORDS = {"timeout", "attempts", "env", "secrets", "operation", "effect"}


class ActionTask(Task):
    """One attempt at an action or a compensation. `inputs[action]` is what an action before it left."""

    root: str
    """The run's own: the same for ever."""
    input: Any
    """What the run was given."""
    result: Any = None
    """In a compensation: what its action left, if it was done."""
    site: Any = None
    """The run itself, for the sagas that are shipped."""


class Seen(msgspec.Struct, frozen=True):
    """What a check or a guard looks at, inside the transaction that acts on its word."""

    root: str
    input: Any
    inputs: Mapping[str, Any]
    """What the actions before left."""
    result: Any
    """What the action left; None for a guard."""
    rows: Reads
    """The workspace's own rows, as of this very transaction."""


Judge = Callable[[Seen], Any]


class Action(msgspec.Struct, frozen=True):
    """A step forward, what must hold before and after it, and the step back."""

    do: Stage
    undo: Stage | None = None
    check: Judge | None = None
    guard: Judge | None = None
    write: Callable[[Any, Any], None] | None = None
    """For the sagas that are shipped: what is written in the very transaction that goes on."""

    def side(self, side: Side) -> Stage:
        if side == "action":
            return self.do
        assert self.undo is not None
        return self.undo


class Saga:
    """Work that must reach several places: it ends DONE, or stops at a named place with its compensations done.

    saga = Saga("order")

    @saga.action(compensate=release, check=lambda seen: seen.result["held"])
    def reserve(task):
        return {"held": True}
    """

    def __init__(
        self,
        name: str,
        *,
        budget: Mapping[str, Any] | None = None,
        granted: bool = False,
        folder: Path | str | None = None,
    ) -> None:
        self.name = check_name(name, "name")
        self.limits = limits_of(budget or {})
        self.granted = granted
        """Whether it runs only under a grant for exactly what it is given."""
        self.file: Path | None = None
        if folder is None:
            caller = sys._getframe(1).f_globals.get("__file__")
            self.file = Path(caller).absolute() if caller else None
            folder = self.file.parent if self.file else Path.cwd()
        self.folder = Path(folder).absolute()
        self.actions: dict[str, Action] = {}

    def action(
        self,
        *bare: Any,
        name: str | None = None,
        compensate: Undo = None,
        check: Judge | None = None,
        guard: Judge | None = None,
        **words: Any,
    ) -> Any:
        """Make a function an action. It may be called again after a crash, and must then do the same.

        `compensate` undoes it, also where it did only part; `check` and `guard` are told what is there and answer
        False, or raise, where it must not go on. Words: timeout, attempts, secrets."""

        def add(call: Call) -> Call:
            rules.require_function(call)
            self._add(
                name or call.__name__,
                {},
                call=call,
                compensate=compensate,
                check=check,
                guard=guard,
                words=words,
            )
            return call

        return add(*bare) if bare else add

    def command(
        self,
        name: str,
        run: Sequence[str],
        *,
        compensate: Undo = None,
        check: Judge | None = None,
        guard: Judge | None = None,
        **words: Any,
    ) -> str:
        """An action that runs a program, no shell; answers its name."""
        self._add(
            name,
            {"run": run if isinstance(run, str) else list(run)},
            call=None,
            compensate=compensate,
            check=check,
            guard=guard,
            words=words,
        )
        return name

    role = "operator"
    """Who may run it."""
    reserves = False
    """Whether an action of its own takes its lease and uses up its grant; else both come with the run."""

    def lease(self, root: str) -> str:
        """The name of the lease that a run works under."""
        return f"run:{root}"

    @property
    def shape(self) -> Shape:
        """Its states: every action is one, with a stop of its own."""
        places = []
        for name in self.actions:
            before = list(self.actions)[: list(self.actions).index(name) + 1]
            undo = tuple(one for one in reversed(before) if self.actions[one].undo is not None)
            places.append(SagaState(name, f"COMP_{name.upper()}", undo))
        return rules.require_shape(Shape(self.name, tuple(places)))

    def scope(self, given: Any, environment: str, executor: str) -> Scope:
        """The scope that a grant for a run must have: its input, commands and code."""
        named = (self.name, 1, digest(given), digest(self.work()), environment, executor)
        return Scope(*named, tuple(self.actions)).check()

    def about(self, given: Any) -> dict[str, Any]:
        """What such a grant is for, for people to read; its digests are those of the scope."""
        return {"kind": "saga", "input": given, "work": self.work()}

    def work(self) -> dict[str, Any]:
        """What the saga does: states and stops, and each command or the version of each function."""
        return {
            "shape": msgspec.to_builtins(self.shape),
            "actions": {name: self._said(action) for name, action in self.actions.items()},
        }

    def _said(self, action: Action) -> dict[str, Any]:
        said: dict[str, Any] = {}
        for word, stage in (("do", action.do), ("undo", action.undo)):
            if stage is not None:
                said[word] = (
                    {"run": list(stage.run)}
                    if stage.run
                    else {"function": _version(stage.call, self.folder)}
                )
                said[word] |= {"env": list(stage.env), "secrets": list(stage.secrets)}
        judges = {
            "check": _version(action.check, self.folder),
            "guard": _version(action.guard, self.folder),
        }
        return {
            **said,
            **{word: version for word, version in judges.items() if version is not None},
        }

    def _add(
        self,
        name: str,
        what: Mapping[str, Any],
        *,
        call: Callable[..., Any] | None,
        compensate: Undo,
        check: Judge | None,
        guard: Judge | None,
        words: Mapping[str, Any],
    ) -> None:
        rules.require_known_words(words, _WORDS)
        rules.require_new_action(name, self.actions)
        for judge in (check, guard):
            rules.require_judge(judge)
        rules.require_command(name, what.get("run"))
        do = stage_of({"name": name, **what, **words}, call)
        self.actions[name] = Action(do, _undo(name, compensate, words), check, guard)


def _undo(name: str, compensate: Undo, words: Mapping[str, Any]) -> Stage | None:
    words = {word: value for word, value in words.items() if word not in ("operation", "effect")}
    if compensate is None:
        return None
    rules.require_compensation(name, compensate)
    if callable(compensate):
        return stage_of({"name": name, **words}, compensate)
    return stage_of({"name": name, "run": list(compensate), **words})


def _version(call: Callable[..., Any] | None, folder: Path) -> str | None:
    return None if call is None else code_version(call, folder).code


def given_text(given: Any) -> str:
    """The input of a run as stored text."""
    return bounded(given, "the input of a saga").decode()
