"""The public `Saga`: declare actions, then run or resume them, from Python."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onceward.code.python_file import LOADED_AS
from onceward.core.views import document
from onceward.errors import InvalidConfig, OncewardError, Recovery
from onceward.plan import workspace_at
from onceward.sagas.declaration import Saga as _Saga


class Ran(dict[str, Any]):
    """How a run stands, as `onceward saga show --json` says it, and what its actions left."""

    def __init__(self, outcome: Any, place: Any) -> None:
        super().__init__(document(outcome))
        self._place = place

    @property
    def state(self) -> str:
        return str(self["state"])

    def value(self, action: str) -> Any:
        """What an action left: the value it returned, or its files by name, as bytes."""
        from onceward.sagas.views import value_of_action

        with self._place.artifacts() as kept:
            return value_of_action(kept, self["saga_id"], action)


class SagaStopped(OncewardError):
    """A run that is not DONE: it stopped at a named place, or is stuck there. `outcome` says how it stands."""

    code = "EXECUTION_FAILED"

    def __init__(self, outcome: Ran) -> None:
        self.outcome, self.stuck = outcome, outcome["standing"] == "stuck"
        why = outcome.get("stuck") if self.stuck else outcome.get("why")
        said = (
            (why or {}).get("message") or (why or {}).get("last_line") or (why or {}).get("reason")
        )
        super().__init__(
            f"run {outcome['saga_id']} {'is stuck at' if self.stuck else 'stopped at'} {outcome['state']}"
            + (f": {(why or {}).get('step')}: {said}" if said else ""),
            context={"saga_id": outcome["saga_id"], "state": outcome["state"]},
            recovery=[Recovery("go on", outcome["next"])] if outcome.get("next") else (),
        )


class Saga(_Saga):
    __doc__ = _Saga.__doc__

    def run(
        self,
        given: Any = None,
        *,
        root: str | None = None,
        grant: str | None = None,
        budget: Mapping[str, Any] | None = None,
        workspace: Path | str | None = None,
        store: str | None = None,
    ) -> Ran:
        """Carry it out with what it is given, in the workspace of this folder, which is made if there is none.

        The same `root` is the same run for ever: one that is done is not done again, one that was cut off goes on.
        Raises SagaStopped if it does not come to its end; the same as `onceward saga run FILE`."""
        from onceward import saga_running
        from onceward.dispatch.stage_words import limits_of

        if sys._getframe(1).f_globals.get("__name__") == LOADED_AS:
            raise InvalidConfig(
                'this file runs its saga when it is loaded; put that under if __name__ == "__main__":'
            )
        place = workspace_at(workspace, store)
        outcome, signal = saga_running.run(
            place, self, root=root, given=given, grant=grant, limits=limits_of(budget or {})
        )
        return _outcome(Ran(outcome, place), signal)

    def resume(
        self,
        run: str,
        *,
        retry: bool = False,
        budget: Mapping[str, Any] | None = None,
        workspace: Path | str | None = None,
        store: str | None = None,
    ) -> Ran:
        """Go on with a run of this saga, by its id or root; with `retry`, with one that is stuck."""
        from onceward import saga_running
        from onceward.dispatch.stage_words import limits_of

        place = workspace_at(workspace, store)
        outcome, signal = saga_running.resume(
            place, run, saga=self, retry=retry, limits=limits_of(budget or {})
        )
        return _outcome(Ran(outcome, place), signal)


def _outcome(outcome: Ran, signal: int) -> Ran:
    if signal == 130:
        raise KeyboardInterrupt
    if signal:
        raise SystemExit(signal)
    if outcome["standing"] != "done":
        raise SagaStopped(outcome)
    return outcome
