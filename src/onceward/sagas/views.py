"""Views of sagas: list, status, explanation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from onceward.artifacts.blobs import Artifacts
from onceward.artifacts.outputs import read_back
from onceward.artifacts.outputs import value_of as value_of_outputs
from onceward.core.sagas import Run, SagaStep, Side
from onceward.core.sources import iso
from onceward.core.views import Explanation, LaneView, View, cost_of
from onceward.dispatch.views import lane_list
from onceward.kernel.tenure import vacant
from onceward.people.principals import who_may
from onceward.sagas import machine, rules
from onceward.store.port import Reads
from onceward.store.store import Store
from onceward.store.subject import Kind, story
from onceward.store.tables.children import Tokens
from onceward.store.tables.events import events_of
from onceward.store.tables.sagas import Runs, find_lease

_Steps = Mapping[tuple[str, Side], SagaStep]


class SagaSummary(View, frozen=True):
    """A run in a list."""

    saga_id: str
    name: str
    root: str
    state: str
    standing: str
    created_at: str
    next: str | None = None
    """The command that goes on with it."""


class ActionView(View, frozen=True):
    """An action of a run, or a compensation of its stop."""

    step: str
    side: Side
    status: str
    child_id: str | None = None
    error: dict[str, Any] | None = None


class SagaView(View, frozen=True):
    """A run with every state of it, and what to do next."""

    saga_id: str
    name: str
    root: str
    state: str
    standing: str
    steps: list[ActionView]
    lanes: list[LaneView]
    lease: str
    lease_held: bool
    last_ok_state: str | None = None
    input: Any = None
    file: str | None = None
    grant_id: str | None = None
    stuck: dict[str, Any] | None = None
    """Why a compensation, or the state that failed, waits for a person."""
    why: dict[str, Any] | None = None
    """Why it stopped."""
    left: list[str] | None = None
    """What compensations had to leave as it is."""
    not_undone: list[str] | None = None
    next: str | None = None

    def done(self, side: str) -> list[str]:
        """The steps of one side that are done."""
        return [one.step for one in self.steps if (one.side, one.status) == (side, "done")]


def saga_list(store: Store, limit: int = 100) -> list[SagaSummary]:
    """The newest runs, how they stand, and the command that goes on with each."""
    nobody = vacant(store)
    with store.read() as rows:
        return [
            _summary(run, iso(at), _standing(run, not nobody and _has_children(rows, run)))
            for run, at in Runs(rows).newest(limit)
        ]


def _summary(run: Run, created_at: str, standing: str) -> SagaSummary:
    return SagaSummary(
        saga_id=run.saga_id,
        name=run.name,
        root=run.idempotency_root,
        state=run.state,
        standing=standing,
        created_at=created_at,
        next=_next(run, standing),
    )


def saga_view(store: Store, name: str) -> SagaView:
    """A run, by its id, the beginning of it, or its root."""
    nobody = vacant(store)
    with store.read() as rows:
        run = Runs(rows).named(name)
        steps = {(step.step, step.side): step for step in Runs(rows).steps(run.saga_id)}
        running = not nobody and _has_children(rows, run)
        why, left = _stop(rows, run)
        lease = find_lease(rows, run.lease)
    standing = _standing(run, running)
    return SagaView(
        saga_id=run.saga_id,
        name=run.name,
        root=run.idempotency_root,
        state=run.state,
        standing=standing,
        steps=[*_actions(run, steps, running), *_compensations(run, steps)],
        lanes=lane_list(store, run.saga_id),
        lease=run.lease,
        lease_held=lease is not None and lease.holder == run.idempotency_root,
        last_ok_state=run.last_ok_state,
        input=machine.given_of(run),
        file=run.file or None,
        grant_id=run.grant_id,
        stuck=_decoded(run.stuck),
        why=why or None,
        left=left or None,
        not_undone=(list(machine.remaining(run)) if run.over else None) or None,
        next=_next(run, standing),
    )


def _standing(run: Run, running: bool) -> str:
    """How a run stands, in a word."""
    if run.over and machine.remaining(run):
        return "given up"
    if run.over:
        return "done" if run.state == machine.DONE else "stopped"
    if run.stuck is not None:
        return "stuck"
    return "running" if running else "unfinished"


def _next(run: Run, standing: str) -> str | None:
    """The command that goes on with a run."""
    verb = {"stuck": "retry", "unfinished": "resume"}.get(standing)
    if verb is None:
        return None
    if not run.file and run.name in machine.CARRIED:
        # The saga of a change is gone on with by the change.
        return (
            f"onceward change {machine.CARRIED[run.name]} {machine.given_of(run).get('entry_id')}"
        )
    return f"onceward saga {verb} {run.saga_id}"


def _has_children(rows: Reads, run: Run) -> bool:
    return any(True for _ in Tokens(rows).open_in(run.saga_id))


def _stop(rows: Reads, run: Run) -> tuple[dict[str, Any], list[str]]:
    """Why a run stopped, and what its compensations had to leave as it is."""
    why: dict[str, Any] = {}
    left: list[str] = []
    if machine.shape_of(run).place(run.state) is None:
        for event in events_of(rows, f"saga:{run.saga_id}"):
            facts = event.facts()
            if facts["event"] == "SAGA_STOPPED":
                why = {"step": facts["detail"]["failed"], **facts["detail"]["why"]}
            left += facts["detail"].get("left") or []
    return why, left


def _actions(run: Run, steps: _Steps, running: bool) -> list[ActionView]:
    return [
        _action(place.name, "action", _status(run, place.name, steps, running), steps)
        for place in machine.shape_of(run).places
    ]


def _compensations(run: Run, steps: _Steps) -> list[ActionView]:
    """What a run at a stop undoes."""
    shape = machine.shape_of(run)
    if shape.place(run.state) is not None or run.state == machine.DONE:
        return []
    views = []
    for number, name in enumerate(shape.stop(run.state).undo):
        status = "waiting"
        if number < run.undone:
            status = "done" if (name, "compensation") in steps else "not needed"
        elif run.stuck is not None and number == run.undone:
            status = "stuck"
        views.append(_action(name, "compensation", status, steps))
    return views


def _action(name: str, side: Side, status: str, steps: _Steps) -> ActionView:
    found = steps.get((name, side))
    return ActionView(
        step=name,
        side=side,
        status=status,
        child_id=found.child_id if found is not None else None,
        error=_decoded(found.error) if found is not None else None,
    )


def _status(run: Run, name: str, steps: _Steps, running: bool) -> str:
    if name == run.state:
        return "running" if running else "next"
    shape = machine.shape_of(run)
    names = [place.name for place in shape.places]
    if run.last_ok_state is not None and names.index(name) <= names.index(run.last_ok_state):
        return "done"
    place = shape.place(name)
    assert place is not None
    # Several states may share a stop: the one that failed has left something behind, or follows the last that is done.
    first = run.last_ok_state is None and name == names[0]
    follows = shape.after(run.last_ok_state or names[0]) == name
    if place.stop == run.state and ((name, "action") in steps or first or follows):
        return "failed"
    return "waiting" if shape.place(run.state) is not None else "not begun"


def _decoded(text: str | None) -> dict[str, Any] | None:
    return msgspec.json.decode(text, type=dict[str, Any]) if text else None


def value_of_action(artifacts: Artifacts, saga_id: str, action: str) -> Any:
    """What an action of a run left; files as their bytes."""
    with artifacts.store.read() as rows:
        step = rules.require_result(saga_id, action, Runs(rows).steps(saga_id))
    return value_of_outputs(artifacts, read_back(step.outputs), None)


# Explained in words.


def _find(rows: Reads, name: str) -> str | None:
    if name.startswith("sga_"):
        return Runs(rows).named(name).saga_id
    found = Runs(rows).of_root(name)
    return found.saga_id if found is not None else None


def _explain(store: Store, saga_id: str) -> Explanation:
    view = saga_view(store, saga_id)
    file = f" ({view.file})" if view.file else ""
    grant = f", under the grant {view.grant_id}" if view.grant_id else ""
    with store.read() as rows:
        moves = story(rows, f"saga:{saga_id}", "saga")
        who = who_may(rows, "operator") if view.next else []
    made = [f"done: {', '.join(view.done('action')) or 'nothing'}"]
    undone = view.done("compensation")
    if undone:
        made.append(f"undone: {', '.join(undone)}")
    return Explanation(
        id=saga_id,
        kind="saga",
        what=[f"a run of the saga {view.name}{file}", f"its root is {view.root}{grant}"],
        state=view.state,
        why=_why(view),
        story=moves,
        waits_for=_waits_for(view),
        who=who,
        cost=cost_of(view.lanes),
        made=made,
        next=_commands(view),
    )


def _why(view: SagaView) -> list[str]:
    sentences = []
    if view.why:
        sentences.append(_cause(view.why))
    sentences.append(_words_of_standing(view))
    return [*sentences, *(f"left as it is: {left}" for left in view.left or ())]


def _cause(why: Mapping[str, Any]) -> str:
    verbs = {
        "check_failed": "did not hold what its check wants",
        "guard_failed": "was kept from beginning by its guard",
    }
    reason = why.get("reason", "")
    sentence = f"{why['step']} {verbs.get(reason, 'failed')}"
    if reason == "abandoned":
        sentence = f"it was at {why['step']}"
    detail = _summary_of_error(why)
    return f"{sentence}: {detail}" if detail else sentence


def _words_of_standing(view: SagaView) -> str:
    stuck = view.stuck or {}
    if view.standing == "stuck" and stuck.get("again"):
        return f"{stuck.get('step')} is to be tried again; what was done before it is in force"
    if view.standing == "stuck":
        return f"{stuck.get('step')} could not be undone: {_summary_of_error(stuck)}"
    if view.standing == "given up":
        return f"it was given up, and this is not undone: {', '.join(view.not_undone or ())}"
    return {
        "done": "every action is done and checked",
        "stopped": "it stopped there, and its compensation is done",
        "running": "it runs",
        "unfinished": "the kernel that ran it stopped or died; what was done is kept",
    }[view.standing]


def _summary_of_error(error: Mapping[str, Any]) -> str:
    """What is known of a failure, in a few words."""
    if error.get("message"):
        return str(error["message"])
    status = f"exit {error['exit']}" if error.get("exit") is not None else ""
    known = ": ".join(filter(None, (status, str(error.get("last_line", "")))))
    return known or str(error.get("reason", ""))


def _waits_for(view: SagaView) -> list[str]:
    return {
        "stuck": ["a person: the cause to be gone, then a retry; or somebody to take it as it is"],
        "unfinished": ["somebody to go on with it"],
    }.get(view.standing, [])


def _commands(view: SagaView) -> list[str]:
    first = [view.next, f"onceward saga abandon {view.saga_id}"] if view.next else []
    return [*first, f"onceward saga show {view.saga_id}", f"onceward export {view.saga_id}"]


KINDS = (Kind("saga", _find, _explain),)
