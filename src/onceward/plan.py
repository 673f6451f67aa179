"""The public `Plan`: declare stages, then run or resume them, from Python."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onceward.builds.plans import Plan as _Plan
from onceward.code.python_file import LOADED_AS
from onceward.errors import InvalidConfig, OncewardError


class BuildStopped(OncewardError):
    """A build that did not succeed: `result` says how it stands."""

    code = "EXECUTION_FAILED"

    def __init__(self, result: Result) -> None:
        super().__init__(
            f"build {result.build_id} is {result.state}: {result.outcome.get('why') or result.outcome.get('reason')}"
            + (f"; next: {result.outcome['next']}" if result.outcome.get("next") else ""),
            context={"build_id": result.build_id, "state": result.state},
        )
        self.result = result


class Result:
    """What came of a run: the build as it stands, and what its steps made."""

    def __init__(self, folder: Path, outcome: Mapping[str, Any], store_url: str | None) -> None:
        self.outcome = dict(outcome)
        self.build_id: str = outcome["build_id"]
        self.state: str = outcome["state"]
        self.reason: str | None = outcome.get("reason")
        self.cost_usd: str = outcome["cost_usd"]
        self.tokens: int = outcome["tokens"]
        self.steps: dict[str, int] = outcome["steps"]
        self.in_doubt: list[str] = outcome.get("in_doubt", [])
        """Steps that ended well and left what cannot be recorded: a person decides about them."""
        self._folder, self._store_url = folder, store_url

    def value(self, stage: str, target: str = "main") -> Any:
        """What one step made: the value it returned, or what it left by name (files as bytes)."""
        return self._values(stage, target)[target]

    def values(self, stage: str) -> dict[str, Any]:
        """What the steps of a stage made, by target: always a mapping, also for one."""
        return self._values(stage, None)

    def _values(self, stage: str, target: str | None) -> dict[str, Any]:
        from onceward.builds.views import values_of_stage
        from onceward.workspace import Workspace

        with Workspace(
            self._folder, store_url=self._store_url or os.environ.get("ONCEWARD_STORE")
        ).artifacts() as kept:
            return values_of_stage(kept, self.build_id, stage, target)

    def __repr__(self) -> str:
        return f"<build {self.build_id} {self.state}, {self.cost_usd} usd>"


class Plan(_Plan):
    __doc__ = _Plan.__doc__

    def run(
        self,
        *,
        workspace: Path | str | None = None,
        store: str | None = None,
        jobs: int | None = None,
        budget: Mapping[str, Any] | None = None,
        keep_going: bool = False,
        reuse: bool = True,
        only: Sequence[str] = (),
        force: bool = False,
        quiet: bool = False,
    ) -> Result:
        """Carry the plan out in the workspace of this folder, which is made if there is none.

        Raises BuildStopped if the build does not succeed; the same as `onceward run FILE`."""
        from onceward import running
        from onceward.builds.choices import Choices
        from onceward.builds.jobs import BuildOptions
        from onceward.builds.plans import Resolved
        from onceward.dispatch.stage_words import limits_of

        if sys._getframe(1).f_globals.get("__name__") == LOADED_AS:
            raise InvalidConfig(
                'this file runs its plan when it is loaded; put that under if __name__ == "__main__":'
            )
        place, display = workspace_at(workspace, store), _display(quiet)
        limits = limits_of(budget or {})
        options = BuildOptions(jobs=jobs, limits=limits, keep_going=keep_going, reuse=reuse)
        resolved = Resolved(self, Choices(tuple(only), force))
        told, signal = running.run(place, resolved, display, options)
        return _result(place, display, told, signal, store)

    def resume(
        self,
        build_id: str,
        *,
        token: str = "",
        workspace: Path | str | None = None,
        store: str | None = None,
        jobs: int | None = None,
        budget: Mapping[str, Any] | None = None,
        keep_going: bool = False,
        fork: bool = False,
        strict_code: bool = False,
        quiet: bool = False,
    ) -> Result:
        """Go on with a build of this plan that crashed or was paused.

        Code that changed meanwhile runs what is left; what is done is kept. `strict_code` refuses instead."""
        from onceward import running
        from onceward.builds.jobs import BuildOptions
        from onceward.builds.lifecycle import Offer
        from onceward.dispatch.stage_words import limits_of

        place, display = workspace_at(workspace, store), _display(quiet)
        offer = Offer(
            token=token, limits=limits_of(budget or {}), fork=fork, strict_code=strict_code
        )
        options = BuildOptions(jobs=jobs, keep_going=keep_going)
        told, signal = running.resume(place, build_id, display, offer, options, plan=self)
        return _result(place, display, told, signal, store)


class _Quiet:
    """Tells nobody."""

    def begun(self, begun: Any) -> None: ...

    def told(self, said: Mapping[str, Any]) -> None: ...

    def end(self) -> None: ...

    def result(self, outcome: Mapping[str, Any]) -> None: ...


def _display(quiet: bool) -> Any:
    from onceward.ui.cli.displays import build_display

    return _Quiet() if quiet else build_display(as_json=False)


def workspace_at(folder: Path | str | None, store: str | None) -> Any:
    from onceward.settings import find_workspace, ignored_settings
    from onceward.workspace import Workspace

    named = str(folder) if folder is not None else os.environ.get("ONCEWARD_WORKSPACE")
    store = store or os.environ.get("ONCEWARD_STORE")
    found = find_workspace(named)
    ignored = "" if named else ignored_settings(found)
    if ignored:
        sys.stderr.write(f"{ignored}\n")
    place = Workspace(
        found,
        store_url=store,
        principal=os.environ.get("ONCEWARD_AS"),
        notes=sys.stderr,
    )
    place.ensure()
    return place


def _result(
    place: Any, display: Any, told: Mapping[str, Any], signal: int, store: str | None
) -> Result:
    display.result(told)
    if signal == 130:
        raise KeyboardInterrupt
    if signal:
        raise SystemExit(signal)
    result = Result(place.folder, told, store)
    if result.state != "SUCCESS":
        if not isinstance(display, _Quiet):
            _leave_without_a_trace()
        raise BuildStopped(result)
    return result


def _leave_without_a_trace() -> None:
    """A script whose build stopped, and that does not mind, has been told why: it exits as `onceward run` would."""
    before = sys.excepthook

    def leave(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if isinstance(error, BuildStopped):
            waits = error.result.state == "BUDGET_PAUSE" or error.result.in_doubt
            sys.exit(3 if waits else 1)
        before(kind, error, trace)

    if before.__name__ != leave.__name__ or before.__module__ != leave.__module__:
        sys.excepthook = leave
