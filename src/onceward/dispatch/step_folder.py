"""Where a step works: its folder, what it finds there, what it leaves, and what of its secrets is taken out."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from onceward.artifacts.blobs import Artifacts, Blob
from onceward.artifacts.outputs import Keeper, Kept, fetch
from onceward.artifacts.redaction import Redactor
from onceward.core.canon import canonical_config
from onceward.core.steps import Output
from onceward.dispatch.task import Inputs, Task, Upstream
from onceward.errors import StorageError
from onceward.processes.prints import at_work, step_threads


class StepFolder:
    """One child's place to work in."""

    def __init__(
        self,
        artifacts: Artifacts,
        folder: Callable[[], Path],
        secrets: Sequence[str],
        upstream: Callable[[], Upstream],
        collected: Sequence[str] = (),
        held: Redactor | None = None,
    ) -> None:
        """`held` takes out what the kernel itself holds."""
        self._held = held or Redactor({})
        self._artifacts, self._make = artifacts, folder
        self._secrets, self._upstream = secrets, upstream
        self._collected = frozenset(collected)
        self._task: Task | None = None
        self._thread = 0

    @cached_property
    def folder(self) -> Path:
        """Where this attempt finds what flows in and leaves what it makes."""
        return self._make()

    def given(self) -> dict[str, str]:
        """How a command finds its way around."""
        return {
            "ONCEWARD_CONFIG": str(self.folder / "config.json"),
            "ONCEWARD_INPUTS": str(self.folder / "inputs"),
            "ONCEWARD_OUT": str(self.folder / "out"),
        }

    def seat(self, task: Task, home: Path) -> Task:
        """A function takes its place."""
        self._task = task
        task.shown = self.redactor().text
        task.folder = home
        task.inputs = Inputs(
            self._artifacts,
            self._upstream(),
            lambda: self.folder / "inputs",
            self._collected,
        )
        at_work.set(task)
        self._thread = threading.get_ident()
        step_threads[self._thread] = task
        return task

    def lay_out(self, name: str, config: Any, files: Iterable[tuple[str, Output]]) -> None:
        """The folders of a command: its config, what flows in as files, and room for what it leaves."""
        try:
            for place in ("inputs", "out"):
                (self.folder / place).mkdir(mode=0o700, parents=True)
            (self.folder / "config.json").write_bytes(canonical_config(config))
        except OSError as error:
            raise StorageError(f"cannot make a folder for {name}: {error.strerror}") from error
        for place, output in files:
            fetch(self._artifacts, output, self.folder / "inputs" / place / output.name)

    def collect(self, value: Any) -> list[Kept]:
        """Make durable what it left."""
        keeper = Keeper(self._artifacts, self.redactor())
        if self._task is None:
            return keeper.folder(self.folder / "out")
        return keeper.everything(value, self.folder / "out" if self._task.left else None)

    def set_aside(self, value: Any) -> list[Kept]:
        """Keep what it left although that cannot be taken as its outputs."""
        left = self._task is None or self._task.left
        keeper = Keeper(self._artifacts, self.redactor())
        return keeper.aside(value, self.folder / "out" if left else None)

    def clear(self) -> Blob | None:
        """Leave the place as if nobody had been there; answers the log of a function, if it said anything."""
        log, task, self._task = None, self._task, None
        at_work.set(None)
        step_threads.pop(self._thread, None)
        if task is not None and (log_text := task.said()):
            text = log_text.encode("utf-8", "replace")
            log = self._artifacts.keep_log(self.redactor().clean(text))
        if task is None or task.left or task.inputs:
            shutil.rmtree(self.folder, ignore_errors=True)
        return log

    def redactor(self) -> Redactor:
        """Takes its secrets out of what it leaves, and what its kernel holds."""
        secrets: Mapping[str, str] = {
            name: os.environ[name] for name in self._secrets if name in os.environ
        }
        return self._held.also(secrets)
