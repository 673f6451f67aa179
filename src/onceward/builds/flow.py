"""What flows between steps: what each made, and the hash of all that flows into one (B-3)."""

from __future__ import annotations

from collections.abc import Mapping

from onceward.builds.plans import Resolved
from onceward.core.canon import digest
from onceward.core.steps import Output, result_digest
from onceward.dispatch.stage import Stage
from onceward.dispatch.task import Upstream
from onceward.store.tables.checkpoints import Checkpoint


class Flow:
    """Results that somebody still needs. Not safe for threads; whoever owns it holds a mutex."""

    def __init__(self, resolved: Resolved) -> None:
        self._resolved, self._steps = resolved, resolved.steps
        self._results: dict[int, tuple[str, tuple[Output, ...]]] = {}
        self._whole: dict[int, str] = {}
        self.begun_with: Mapping[str, str] = {}
        """Of a build that goes on: the versions of its stages' functions when it was begun."""

    def keep(self, step: int, outputs: tuple[Output, ...]) -> None:
        """What a step made, if another stage needs it."""
        k = self._steps.place(step)[0]
        if self._steps.feeds(k):
            # An approval leaves nothing, but what was approved is what flows on.
            made = (
                self.context_hash(step) if self._steps.stages[k].approve else result_digest(outputs)
            )
            self._results[step] = (made, outputs)

    def context_hash(self, step: int, version: str | None = None) -> str:
        """Of everything that decides what a step makes, as it is now; with `version` as if its function had that."""
        k, target = self._steps.place(step)
        upstream = []
        for m, single in self._steps.needs(step):
            made = self._all_of(m) if single is None else self._results[single][0]
            upstream.append((self._steps.stages[m].name, "" if single is None else target, made))
        inputs = self._resolved.inputs(step)
        return self._resolved.contexts[k].hash(target, inputs, upstream, version)

    def first_hash(self, step: int) -> str:
        """The context hash of a step as the first algorithm for versions of code made it; empty where it made none."""
        version = self._resolved.first_version(self._steps.place(step)[0])
        return self.context_hash(step, version) if version else ""

    def stage(self, step: int) -> Stage:
        return self._steps.stages[self._steps.place(step)[0]]

    def judged_hash(self, step: int, checkpoint: Checkpoint) -> str:
        """What the context hash of a step of this build would be with the code that a checkpoint of it was made with:
        another code does not undo what is done (B-11)."""
        stage = self.stage(step)
        if stage.call is None:
            return self.context_hash(step)
        return self.context_hash(step, checkpoint.code_version or self.begun_with.get(stage.name))

    def upstream(self, step: int) -> Upstream:
        """What the steps before this one left."""
        found: dict[str, dict[str, tuple[Output, ...]]] = {}
        for m, single in self._steps.needs(step):
            some = self._steps.of(m) if single is None else [single]
            found[self._steps.stages[m].name] = {
                self._steps.place(i)[1]: self._results[i][1] for i in some
            }
        return found

    def _all_of(self, m: int) -> str:
        if m not in self._whole:
            made = [[self._steps.place(i)[1], self._results[i][0]] for i in self._steps.of(m)]
            self._whole[m] = digest(made)
        return self._whole[m]
