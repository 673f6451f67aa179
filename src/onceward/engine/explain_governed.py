"""Sagas, grants, values and collections in plain words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onceward.core.vocabulary import key_of
from onceward.engine.explanation import Explanation, Kind, cost_of, story, who_may
from onceward.engine.saga_reading import grant_named, saga_status
from onceward.errors import InvalidConfig, NotFound
from onceward.store.port import Reads
from onceward.store.store import Store
from onceward.store.tables.grants import Grants
from onceward.store.tables.registry import Registry
from onceward.store.tables.sagas import Runs


def _find_saga(rows: Reads, name: str) -> str | None:
    if name.startswith("sga_"):
        return Runs(rows).named(name).saga_id
    found = Runs(rows).of_root(name)
    return found.saga_id if found is not None else None


def _saga(store: Store, saga_id: str) -> Explanation:
    found = saga_status(store, saga_id)
    what = [
        f"a run of the saga {found['name']}" + (f" ({found['file']})" if "file" in found else "")
    ]
    what.append(
        f"its root is {found['root']}"
        + (f", under the grant {found['grant_id']}" if "grant_id" in found else "")
    )
    steps: Sequence[Mapping[str, Any]] = found["steps"]
    with store.read() as rows:
        moves = story(rows, f"saga:{saga_id}", "saga")
        who = who_may(rows, "operator") if "next" in found else []
    done = [step["step"] for step in steps if step["status"] == "done" and step["side"] == "action"]
    undone = [
        step["step"]
        for step in steps
        if step["status"] == "done" and step["side"] == "compensation"
    ]
    return Explanation(
        *(saga_id, "saga", what, found["state"]),
        why=_why(found),
        story=moves,
        waits_for=_awaited(found),
        who=who,
        cost=cost_of(found["lanes"]),
        made=[
            f"done: {', '.join(done) or 'nothing'}",
            *([f"undone: {', '.join(undone)}"] if undone else []),
        ],
        next=_next(found),
    )


def _why(found: Mapping[str, Any]) -> list[str]:
    why, stuck = found.get("why", {}), found.get("stuck") or {}
    verb = {
        "check_failed": "did not hold what its check wants",
        "guard_failed": "was kept from beginning by its guard",
    }
    said = []
    if why:
        what = verb.get(why.get("reason", ""), "failed")
        said.append(
            f"{why['step']} {what}"
            if why.get("reason") != "abandoned"
            else f"it was at {why['step']}"
        )
        said[0] += f": {_words(why)}" if _words(why) else ""
    said.append(
        {
            "done": "every action is done and checked",
            "stopped": "it stopped there, and its compensation is done",
            "given up": f"it was given up, and this is not undone: {', '.join(found.get('not_undone', ()))}",
            "stuck": f"{stuck.get('step')} is to be tried again; what was done before it is in force"
            if stuck.get("again")
            else f"{stuck.get('step')} could not be undone: {_words(stuck)}",
            "running": "it runs",
            "unfinished": "the kernel that ran it stopped or died; what was done is kept",
        }[found["standing"]]
    )
    return [*said, *(f"left as it is: {left}" for left in found.get("left", ()))]


def _words(error: Mapping[str, Any]) -> str:
    """What is known of a failure, in a few words."""
    if error.get("message"):
        return str(error["message"])
    exit_ = f"exit {error['exit']}" if error.get("exit") is not None else ""
    return ": ".join(filter(None, (exit_, str(error.get("last_line", ""))))) or str(
        error.get("reason", "")
    )


def _awaited(found: Mapping[str, Any]) -> list[str]:
    return {
        "stuck": ["a person: the cause to be gone, then a retry; or somebody to take it as it is"],
        "unfinished": ["somebody to go on with it"],
    }.get(found["standing"], [])


def _next(found: Mapping[str, Any]) -> list[str]:
    said = [found["next"]] if "next" in found else []
    return [
        *said,
        *([f"onceward saga abandon {found['saga_id']}"] if said else []),
        f"onceward saga show {found['saga_id']}",
        f"onceward export {found['saga_id']}",
    ]


def _find_grant(rows: Reads, name: str) -> str | None:
    return Grants(rows).named(name).grant_id if name.startswith("grt_") else None


def _grant(store: Store, grant_id: str) -> Explanation:
    found = grant_named(store, grant_id)
    scope, status = found["scope"], found["status"]
    with store.read() as rows:
        moves = story(rows, f"entry:{grant_id}", "grant")
        who = who_may(rows, "granter") if status in ("draft", "active") else []
    what = [
        f"an authority for {scope['executor']} to carry out {scope['plan_id']}@{scope['revision']}, once"
    ]
    what.append(f"in {scope['environment']}: {', '.join(scope['actions'])}")
    why = {
        "draft": "nobody has issued it, so it allows nothing",
        "active": f"{found.get('granter')} issued it, until {found.get('expires_at', '')[:19]} UTC",
        "consumed": f"the run {found.get('consumed_by_root')} used it; nothing else ever can",
        "expired": "its time has passed",
        "revoked": "it was taken back before it was used",
    }[status]
    following = {
        "draft": [f"onceward grant issue {grant_id}", f"onceward grant revoke {grant_id}"],
        "active": [
            f"onceward registry apply PLAN --grant {grant_id}",
            f"onceward grant revoke {grant_id}",
        ],
        "consumed": [f"onceward explain {found.get('consumed_by_root')}"],
    }
    return Explanation(
        *(grant_id, "grant", what, status),
        why=[why],
        story=moves,
        waits_for=["somebody with the role granter"] if status == "draft" else [],
        who=who,
        made=[f"manifest {scope['manifest_digest']}", f"schema {scope['schema_digest']}"],
        next=[*following.get(status, []), f"onceward grant show {grant_id}"],
    )


def _find_value(rows: Reads, name: str) -> str | None:
    try:
        if not name.startswith("voc_"):
            key_of(name)
        return Registry(rows).meant(name).vocab_id
    except (InvalidConfig, NotFound):
        return None


def _value(store: Store, vocab_id: str) -> Explanation:
    with store.read() as rows:
        registry = Registry(rows)
        value = registry.meant(vocab_id)
        heirs = registry.heirs_of(value.key)
        audit = registry.audit_of(value.audit_id) if value.audit_id else None
        moves = story(rows, f"entry:{vocab_id}", "value")
        run = Runs(rows).of_root(value.root)
    why = {
        "active": "it is in force",
        "superseded": f"{value.successor} follows it",
        "retired": "it was withdrawn; it stays what it was, for what was done with it",
    }[value.status]
    return Explanation(
        *(
            str(value.key),
            "value",
            [f"the operation {value.operation_code}, a {value.act_type}"],
            value.status,
        ),
        why=[
            why + (f", because of {audit.rollback_ref}" if audit is not None else ""),
            f"governed by {value.governing_authority_ref}",
        ],
        story=moves,
        made=[f"digest {value.digest}", *(f"{heir.key} gave way to it" for heir in heirs)],
        next=[
            f"onceward registry show {value.key}",
            *([f"onceward explain {run.saga_id}"] if run is not None else []),
        ],
    )


KINDS = (
    Kind("saga", _find_saga, _saga),
    Kind("grant", _find_grant, _grant),
    Kind("value", _find_value, _value),
)
