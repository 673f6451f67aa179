"""What a step's function is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any

from onceward.artifacts.blobs import Artifacts
from onceward.artifacts.outputs import value_of
from onceward.core.steps import Output
from onceward.core.text import text_of
from onceward.dispatch import rules
from onceward.dispatch.work import ChildTask

Upstream = Mapping[str, Mapping[str, tuple[Output, ...]]]
"""What the steps before left, by stage and target."""

_LOG_BYTES = 1024 * 1024


class Task(ChildTask):
    """One attempt at one step: what flows in, what it may spend, and where it leaves what it makes.

    `inputs[stage]` is what the same-named step of a needed stage left; of a collected stage it is a mapping by target,
    also for one and for none."""

    stage: str
    target: str
    build_id: str
    idempotency_key: str
    """The same on every attempt: hand it to whoever must not do this twice."""
    config: dict[str, Any]
    inputs: Mapping[str, Any]
    folder: Path
    """The plan's own, where targets and inputs that are files are found."""

    def __init__(
        self,
        child: ChildTask,
        step: tuple[str, str, str],
        key: str,
        config: dict[str, Any],
        folder: Callable[[], Path],
    ) -> None:
        super().__init__(child.token, child.running, child.debit)
        self.build_id, self.stage, self.target = step
        self.idempotency_key, self.config = key, config
        self._folder = folder
        self.left = False
        """Whether there may be something in its folder."""
        self.shown: Callable[[str], str] = str
        """What of its prints others may see: all but its secrets."""
        self.lines: list[str] = []
        self._logged = 0
        self._partial = ""

    @property
    def place(self) -> Path:
        """This attempt's own folder, whether it was made or not."""
        return self._folder()

    @property
    def out(self) -> Path:
        """A folder: every file left there becomes an output."""
        place = self._folder() / "out"
        self.left = True
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        return place

    def printed(self, text: str) -> None:
        """What its code printed goes into the log by the line."""
        *lines, self._partial = (self._partial + text).split("\n")
        for line in lines:
            self.log(line)
        if len(self._partial) > _LOG_BYTES:
            self._partial = ""

    def said(self) -> str:
        """The whole log."""
        rest = [self._partial] if self._partial else []
        return "".join(f"{line}\n" for line in (*self.lines, *rest))

    def log(self, text: str) -> None:
        """A line for the step's log."""
        line = text_of(text, longest=_LOG_BYTES)
        self._logged += len(line)
        if self._logged <= _LOG_BYTES:
            self.lines.append(line)


class Inputs(Mapping[str, Any]):
    """What flows into a step, read when it is asked for."""

    def __init__(
        self,
        artifacts: Artifacts,
        upstream: Upstream,
        folder: Callable[[], Path],
        collected: Set[str] = frozenset(),
    ) -> None:
        """`collected` are the stages that all flow in, by target."""
        self._artifacts, self.upstream, self._folder = artifacts, upstream, folder
        self.collected = collected
        self._read: dict[str, dict[str, Any]] = {}

    def __getitem__(self, stage: str) -> Any:
        rules.require_needed(stage, self.upstream)
        steps = self.upstream[stage]
        if stage not in self.collected:
            return self.value(stage, next(iter(steps)))
        if stage not in self._read:
            self._read[stage] = {target: self.value(stage, target) for target in steps}
        return self._read[stage]

    def __repr__(self) -> str:
        return f"<inputs of {', '.join(self.upstream) or 'nothing'}>"

    def __contains__(self, stage: object) -> bool:
        return stage in self.upstream

    def get(self, stage: str, default: Any = None) -> Any:
        return self[stage] if stage in self.upstream else default

    def __iter__(self) -> Iterator[str]:
        return iter(self.upstream)

    def __len__(self) -> int:
        return len(self.upstream)

    def value(self, stage: str, target: str) -> Any:
        return value_of(
            self._artifacts, self.upstream[stage][target], self._folder() / stage / target
        )
