"""A plan: stages of work over targets, from Python or from a TOML file, and what it comes to on this machine."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

import msgspec

from onceward.artifacts.files import Files
from onceward.artifacts.redaction import Redactor
from onceward.builds import rules
from onceward.builds.choices import Choices, chosen, with_config, with_needs
from onceward.builds.plan import Context, Steps, body_of, hash_of_body
from onceward.code.version import CodeVersion, code_version, first_version
from onceward.core.records import check_name
from onceward.core.steps import fill
from onceward.dispatch.stage import Stage
from onceward.dispatch.stage_words import config_of, limits_of, stage_of, whole
from onceward.errors import InvalidConfig

Call = TypeVar("Call", bound=Callable[..., Any])
_ORDERING = ("needs", "collect", "after")
Needs = str | Callable[..., Any] | Iterable["str | Callable[..., Any]"]


class Plan:
    """What is to be done: stages, what they need, what they may spend.

    plan = Plan("catalogue", budget={"usd": "5.00"})

    @plan.stage(targets=["a", "b"])
    def extract(task):
        task.spend(usd="0.01")
        return {"words": 42}
    """

    def __init__(
        self,
        name: str,
        *,
        budget: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        jobs: int | None = None,
        reuse: bool = True,
        on_pause: Literal["finish", "stop"] = "finish",
        tree: str | None = None,
        folder: Path | str | None = None,
    ) -> None:
        """`tree` is the folder that its outputs are proposed for: its state is kept before the first step runs."""
        rules.require_tree(tree)
        self.tree = tree
        self.name = check_name(name, "name")
        self.limits = limits_of(budget or {})
        self.config = config_of("config", config or {})
        self.jobs = None if jobs is None else whole("jobs", jobs, 1, 1000)
        rules.require_reuse(reuse)
        rules.require_on_pause(on_pause)
        self.reuse = reuse
        self.on_pause: Literal["finish", "stop"] = on_pause
        self.file: Path | None = None
        """The file it was read from, or that made it."""
        if folder is None:
            caller = sys._getframe(1).f_globals.get("__file__")
            self.file = Path(caller).absolute() if caller else None
            folder = self.file.parent if self.file else Path.cwd()
        self.folder = Path(folder).absolute()
        """Where commands run and input files are looked for."""
        self.stages: list[Stage] = []
        self._functions: dict[Callable[..., Any], str] = {}

    @overload
    def stage(self, call: Call, /) -> Call: ...

    @overload
    def stage(
        self,
        *,
        name: str | None = None,
        needs: Needs = (),
        collect: Needs = (),
        after: Needs = (),
        **words: Any,
    ) -> Callable[[Call], Call]: ...

    def stage(self, *bare: Any, name: str | None = None, **words: Any) -> Any:
        """Make a function a stage: it is called with a `Task` for every target.

        `needs` gives each step the value of the same-named target, `collect` a mapping of all targets, `after` only
        orders. Takes the words of a `[[stage]]`: targets, inputs, config, estimate, timeout, attempts, on_crash, secrets, jobs, rate, version,
        operation, effect."""

        def add(call: Call) -> Call:
            called = rules.require_named_function(call, name or getattr(call, "__name__", None))
            self.add({"name": called, **self._dependencies(words)}, call)
            return call

        return add(*bare) if bare else add

    def command(self, name: str, run: Sequence[str], **words: Any) -> str:
        """A stage that runs a program, no shell; answers its name, for others to need."""
        return self.add({"name": name, "run": list(run), **self._dependencies(words)})

    def approval(self, name: str, text: str, **words: Any) -> str:
        """A stage that waits for a person to approve exactly what flows into it."""
        return self.add({"name": name, "approve": text, **self._dependencies(words)})

    def add(self, words: Mapping[str, Any], call: Callable[[Any], Any] | None = None) -> str:
        """A stage from its words."""
        stage = stage_of(words, call)
        rules.require_new_stage(stage.name, self.stages)
        if call is not None:
            self._functions[call] = stage.name
        self.stages.append(stage)
        return stage.name

    def _dependencies(self, words: Mapping[str, Any]) -> dict[str, Any]:
        """The words of a stage, with the stages it depends on by their names."""
        named = {word: self._names(word, words[word]) for word in _ORDERING if word in words}
        return {**words, **named}

    def _names(self, word: str, needs: Needs) -> list[str]:
        if isinstance(needs, str) or callable(needs):
            needs = [needs]
        names = []
        for need in needs:
            name = need if isinstance(need, str) else self._functions.get(need)
            names.append(rules.require_stage_of_plan(word, need, name))
        return names


class Resolved:
    """A plan on this machine, now: its steps, and the content of every file that is an input."""

    def __init__(self, plan: Plan, choices: Choices | None = None) -> None:
        rules.require_stages(plan.name, plan.stages)
        self.plan, self.choices = plan, choices or Choices()
        self.release: Callable[[], None] = _nothing
        """To be called when its functions are not needed any more."""
        config, given = with_config(plan.config, plan.stages, self.choices.config)
        self.files = Files(plan.folder)
        stages, targets = [], {}
        for stage in given:
            try:
                if stage.glob:
                    targets[stage.name] = self.files.match(stage.glob, "targets")
                elif stage.targets is not None:
                    targets[stage.name] = list(stage.targets)
                stages.append(_with_version(stage, plan.folder))
            except InvalidConfig as error:
                raise _of_stage(error, stage) from None
        self.steps = Steps(stages, targets)
        if self.choices.only:
            self.steps = with_needs(self.steps, chosen(self.steps, self.choices.only))
        self.contexts = [Context(stage, config) for stage in self.steps.stages]
        self._inputs: list[tuple[tuple[str, ...], bool]] = []
        self._first_versions: dict[int, str | None] = {}
        self._own: dict[str, dict[str, list[str]] | str] = {}
        """Of stages whose steps have different input files: which each has."""
        hashed = {}
        for k, stage in enumerate(self.steps.stages):
            try:
                hashed[stage.name] = self._stage_inputs(k, stage)
                if not self.choices.only:
                    rules.require_config_for_targets(stage, self.steps.targets[k])
            except InvalidConfig as error:
                raise _of_stage(error, stage) from None
        secrets = {
            name: os.environ[name]
            for stage in stages
            for name in stage.secrets
            if name in os.environ
        }
        redactor = Redactor(secrets)
        given_choices = self.choices.text()
        rules.require_no_secret_chosen(given_choices, redactor.text(given_choices))
        self.body = body_of(plan.name, config, self.steps, hashed, self._own, clean=redactor.text)
        self.hash = hash_of_body(self.body)

    def first_version(self, k: int) -> str | None:
        """The version of a stage's function by the first algorithm; None where that says nothing."""
        stage = self.steps.stages[k]
        if stage.call is None or not stage.environment_hash:
            # A command, or a version that somebody said: no algorithm made it.
            return None
        if k not in self._first_versions:
            hosted = isinstance(getattr(stage.call, "version", None), CodeVersion)
            first = getattr(stage.call, "first", None)
            self._first_versions[k] = (
                first if hosted else first_version(stage.call, self.plan.folder)
            )
        return self._first_versions[k]

    def forced(self) -> set[int]:
        """The steps that run even if their results are there."""
        return chosen(self.steps, self.choices.only) if self.choices.force else set()

    def inputs(self, step: int) -> list[tuple[str, str]]:
        """The input files of a step, with what is in them now."""
        k, target = self.steps.place(step)
        names, own = self._inputs[k]
        if own:
            names = tuple(self._own_inputs(self.steps.stages[k], target))
        return [(name, self.files.digest(name)) for name in names]

    def _stage_inputs(self, k: int, stage: Stage) -> list[tuple[str, str]]:
        """The input files of all steps of a stage; looked for step by step only where they differ."""
        own = bool(stage.glob) or any("{target}" in pattern for pattern in stage.inputs)
        if own:
            of = {target: self._own_inputs(stage, target) for target in self.steps.targets[k]}
            names = sorted({name for some in of.values() for name in some})
            self._own[stage.name] = of if stage.inputs else "target"
        else:
            names = self.files.matches(stage.inputs, "inputs")
        self._inputs.append((() if own else tuple(names), own))
        return [(name, self.files.digest(name)) for name in names]

    def _own_inputs(self, stage: Stage, target: str) -> list[str]:
        patterns = [fill(pattern, glob.escape(target)) for pattern in stage.inputs]
        matches = self.files.matches(patterns, "inputs")
        return sorted({*matches, target}) if stage.glob else matches


def _nothing() -> None:
    """Functions that are in this process need no giving back."""


def _with_version(stage: Stage, folder: Path) -> Stage:
    if stage.call is None or stage.version:
        return stage
    hosted = getattr(stage.call, "version", None)
    version = hosted if isinstance(hosted, CodeVersion) else code_version(stage.call, folder)
    return msgspec.structs.replace(
        stage,
        version=version.code,
        environment=version.environment,
        environment_hash=version.environment_hash,
        unfollowed=version.unfollowed,
    )


def _of_stage(error: InvalidConfig, stage: Stage) -> InvalidConfig:
    return type(error)(
        f"stage {stage.name}: {error.message}", context={**error.context, "stage": stage.name}
    )
