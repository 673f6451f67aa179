"""How sagas, grants and the registry stand, for whoever looks."""

from __future__ import annotations

from typing import Any

import msgspec

from onceward.artifacts.blobs import Artifacts
from onceward.core.grants import Grant
from onceward.core.sagas import Run
from onceward.core.sources import Micros, iso
from onceward.core.vocabulary import Value
from onceward.engine.assembly import Assembly
from onceward.engine.grants import about, doubt
from onceward.engine.outputs import read_back
from onceward.engine.outputs import value_of as value_of_outputs
from onceward.engine.reading import lane_list
from onceward.engine.tenure import vacant
from onceward.errors import NotFound
from onceward.lifecycles import saga as rules
from onceward.lifecycles.permit import refusal
from onceward.lifecycles.registry import objections
from onceward.lifecycles.rollback import RollbackPlan, Verdict, judge
from onceward.people.authority import Authority
from onceward.store.port import Reads
from onceward.store.store import Store
from onceward.store.tables.children import Tokens
from onceward.store.tables.events import events_of
from onceward.store.tables.grants import Grants
from onceward.store.tables.registry import Registry
from onceward.store.tables.sagas import Runs, find_lease


def standing(run: Run, at_work: bool) -> str:
    """How a run stands, in a word."""
    if run.over:
        return (
            "given up" if rules.remaining(run) else "done" if run.state == rules.DONE else "stopped"
        )
    if run.stuck is not None:
        return "stuck"
    return "running" if at_work else "unfinished"


def next_of(run: Run, how: str) -> str | None:
    """The command that goes on with a run."""
    verb = {"stuck": "retry", "unfinished": "resume"}.get(how)
    if verb and not run.file and run.name in rules.CARRIED:
        # The saga of a change is gone on with by the change.
        return f"onceward change {rules.CARRIED[run.name]} {rules.given_of(run).get('entry_id')}"
    return f"onceward saga {verb} {run.saga_id}" if verb else None


def saga_list(store: Store, limit: int = 100) -> list[dict[str, Any]]:
    """The newest runs, how they stand, and the command that goes on with each."""
    nobody = vacant(store)
    with store.read() as rows:
        return [
            _listed(run, at, standing(run, not nobody and _at_work(rows, run)))
            for run, at in Runs(rows).newest(limit)
        ]


def _listed(run: Run, at: Micros, how: str) -> dict[str, Any]:
    said = {
        "saga_id": run.saga_id,
        "name": run.name,
        "root": run.idempotency_root,
        "state": run.state,
        "standing": how,
        "created_at": iso(at),
        "next": next_of(run, how),
    }
    return {key: value for key, value in said.items() if value is not None}


def saga_status(store: Store, name: str) -> dict[str, Any]:
    """A run with every state of it, and what to do next."""
    nobody = vacant(store)
    with store.read() as rows:
        run = Runs(rows).named(name)
        steps = {(step.step, step.side): step for step in Runs(rows).steps(run.saga_id)}
        at_work = not nobody and _at_work(rows, run)
        why, left = _told(rows, run)
        lease = find_lease(rows, run.lease)
    how = standing(run, at_work)
    undone = list(rules.remaining(run)) if run.over else []
    shape = rules.shape_of(run)
    told: list[dict[str, Any]] = []
    for place in shape.places:
        told.append(
            {
                "step": place.name,
                "side": "action",
                "status": _status(run, place.name, steps, at_work),
            }
        )
        found = steps.get((place.name, "action"))
        if found is not None:
            told[-1] |= {"child_id": found.child_id, **_error(found.error)}
    told += _undoing(run, shape, steps)
    said = {
        **{
            "saga_id": run.saga_id,
            "name": run.name,
            "root": run.idempotency_root,
            "state": run.state,
        },
        **{
            "standing": how,
            "last_ok_state": run.last_ok_state,
            "steps": told,
            "lanes": lane_list(store, run.saga_id),
        },
        **{
            "input": rules.given_of(run),
            "file": run.file or None,
            "grant_id": run.grant_id,
            "lease": run.lease,
        },
        "lease_held": lease is not None and lease.holder == run.idempotency_root,
        "stuck": msgspec.json.decode(run.stuck) if run.stuck else None,
        **{"why": why or None, "left": left or None, "not_undone": undone or None},
        "next": next_of(run, how),
    }
    return {key: value for key, value in said.items() if value is not None}


def _told(rows: Reads, run: Run) -> tuple[dict[str, Any], list[str]]:
    """Why a run stopped, and what its compensations had to leave as it is."""
    why: dict[str, Any] = {}
    left: list[str] = []
    if rules.shape_of(run).place(run.state) is None:
        for event in events_of(rows, f"saga:{run.saga_id}"):
            said = event.facts()
            if said["event"] == "SAGA_STOPPED":
                why = {"step": said["detail"]["failed"], **said["detail"]["why"]}
            left += said["detail"].get("left") or []
    return why, left


def _undoing(run: Run, shape: rules.Shape, steps: Any) -> list[dict[str, Any]]:
    """What a run at a stop undoes."""
    if shape.place(run.state) is not None or run.state == rules.DONE:
        return []
    told = []
    for number, name in enumerate(shape.stop(run.state).undo):
        found = steps.get((name, "compensation"))
        status = "waiting"
        if number < run.undone:
            status = "done" if found is not None else "not needed"
        elif run.stuck is not None and number == run.undone:
            status = "stuck"
        told.append({"step": name, "side": "compensation", "status": status})
        if found is not None:
            told[-1] |= {"child_id": found.child_id, **_error(found.error)}
    return told


def _status(run: Run, name: str, steps: Any, at_work: bool) -> str:
    if name == run.state:
        return "running" if at_work else "next"
    shape = rules.shape_of(run)
    names = [place.name for place in shape.places]
    if run.last_ok_state is not None and names.index(name) <= names.index(run.last_ok_state):
        return "done"
    place = shape.place(name)
    assert place is not None
    # Several states may share a stop: the one that failed has left something behind, or follows the last that is done.
    after = (run.last_ok_state is None and name == names[0]) or shape.after(
        run.last_ok_state or names[0]
    ) == name
    if place.stop == run.state and ((name, "action") in steps or after):
        return "failed"
    return "waiting" if shape.place(run.state) is not None else "not begun"


def _error(text: str | None) -> dict[str, Any]:
    return {"error": msgspec.json.decode(text)} if text else {}


def _at_work(rows: Reads, run: Run) -> bool:
    return any(True for _ in Tokens(rows).open_in(run.saga_id))


def grant_of(grant: Grant, now: int) -> dict[str, Any]:
    """A grant, and whether it can still be used."""
    late = grant.status == "active" and grant.expires_at <= now
    said = {
        **{"grant_id": grant.grant_id, "status": "expired" if late else grant.status},
        "scope": msgspec.to_builtins(grant.scope),
        "scope_digest": grant.scope.digest(),
        "expires_at": iso(grant.expires_at) if grant.expires_at else None,
        **{"granter": grant.granter, "consumed_by_root": grant.consumed_by_root},
        "finalized_at": iso(grant.finalized_at) if grant.finalized_at else None,
    }
    return {key: value for key, value in said.items() if value is not None}


def grant_list(store: Store, limit: int = 100) -> list[dict[str, Any]]:
    with store.read() as rows:
        return [grant_of(grant, store.sources.now()) for grant in Grants(rows).all(limit)]


def grant_named(store: Store, name: str) -> dict[str, Any]:
    with store.read() as rows:
        found = Grants(rows).named(name)
        told = about(rows, found.grant_id)
        return {
            **grant_of(found, store.sources.now()),
            **({"about": told} if told is not None else {}),
        }


def registry_list(store: Store) -> list[dict[str, Any]]:
    """Every collection that is in force, with its values."""
    with store.read() as rows:
        registry = Registry(rows)
        return [
            {
                **{
                    "collection": one.name,
                    "collection_id": one.collection_id,
                    "schema_digest": one.schema_digest,
                },
                **{"root": one.root, "status": one.status},
                "values": [value_of(value) for value in registry.values(one.collection_id)],
            }
            for one in registry.collections()
        ]


def value_of(value: Value) -> dict[str, Any]:
    said = {
        **{
            "value": str(value.key),
            "vocab_id": value.vocab_id,
            "status": value.status,
            "act_type": value.act_type,
        },
        **{
            "governing_authority_ref": value.governing_authority_ref,
            "digest": value.digest,
            "root": value.root,
        },
        "semantics_frozen": bool(value.semantics_frozen),
        "successor": str(value.successor) if value.successor else None,
    }
    return {key: found for key, found in said.items() if found is not None}


def value_named(store: Store, name: str) -> dict[str, Any]:
    with store.read() as rows:
        return value_of(Registry(rows).meant(name))


def foreseen(store: Store, assembly: Assembly, executor: str, grant: str | None) -> dict[str, Any]:
    """What a plan for the registry would do, what a grant must name, and what stands against it."""
    plan, scope = assembly.plan, assembly.scope(None, assembly.environment, executor)
    with store.read() as rows:
        known = Registry(rows).collection(plan.collection)
        given = Grants(rows).named(grant) if grant is not None else None
        used = (given.consumed_by_root or "") if given is not None else ""
        own = assembly.root(given.grant_id) if given is not None else ""
        mine = bool(own) and (used == own or used.startswith(f"{own}#"))
        against = objections(plan, Registry(rows), used if mine else own)
        if given is not None and not mine:
            why = refusal(given, scope, executor, store.sources.now()) or doubt(
                rows, Authority(), given
            )
            against += [why] if why else []
    return {
        **{
            "plan": plan.ref,
            "collection": plan.collection,
            "collection_is": "there already" if known else "new",
        },
        "values": [{"value": str(one.key), **msgspec.to_builtins(one)} for one in plan.value],
        **{
            "scope": msgspec.to_builtins(scope),
            "scope_digest": scope.digest(),
            "objections": against,
        },
    }


def judged(store: Store, plan: RollbackPlan | None) -> Verdict:
    """The one answer to a rollback plan; nothing is executed."""
    with store.read() as rows:
        return judge(plan, Registry(rows))


def value_of_action(artifacts: Artifacts, saga_id: str, action: str) -> Any:
    """What an action of a run left; files as their bytes."""
    with artifacts.store.read() as rows:
        steps = [
            s
            for s in Runs(rows).steps(saga_id)
            if (s.step, s.side, s.status) == (action, "action", "done")
        ]
    if not steps:
        raise NotFound(
            f"run {saga_id} has no result of {action[:80]!a}", context={"action": action[:80]}
        )
    return value_of_outputs(artifacts, read_back(steps[0].outputs), None)
