"""Views of the registry: collections and values, what a plan would do, explanation."""

from __future__ import annotations

from typing import Any

import msgspec

from onceward.core.views import Explanation, View
from onceward.core.vocabulary import Value, key_of
from onceward.errors import InvalidConfig, NotFound
from onceward.grants.lifecycle import doubt
from onceward.grants.rules import refusal
from onceward.people.authority import Authority
from onceward.registry.assembly import Assembly
from onceward.registry.rollback import RollbackPlan, RollbackVerdict
from onceward.registry.rules import judge_rollback, objections
from onceward.store.port import Reads
from onceward.store.store import Store
from onceward.store.subject import Kind, story
from onceward.store.tables.grants import Grants
from onceward.store.tables.registry import Registry
from onceward.store.tables.sagas import Runs


class ValueView(View, frozen=True):
    """A value: an operation by its version."""

    value: str
    vocab_id: str
    status: str
    act_type: str
    governing_authority_ref: str
    digest: str
    root: str
    semantics_frozen: bool
    successor: str | None = None


class CollectionView(View, frozen=True):
    """A collection that is in force, with its values."""

    collection: str
    collection_id: str
    schema_digest: str
    root: str
    status: str
    values: list[ValueView]


class PlanForecast(View, frozen=True):
    """What a plan would do, what a grant must name, and what stands against it."""

    plan: str
    collection: str
    collection_is: str
    values: list[dict[str, Any]]
    scope: dict[str, Any]
    scope_digest: str
    objections: list[str]


def registry_list(store: Store) -> list[CollectionView]:
    """Every collection that is in force, with its values."""
    with store.read() as rows:
        registry = Registry(rows)
        return [
            CollectionView(
                collection=one.name,
                collection_id=one.collection_id,
                schema_digest=one.schema_digest,
                root=one.root,
                status=one.status,
                values=[_view(value) for value in registry.values(one.collection_id)],
            )
            for one in registry.collections()
        ]


def value_view(store: Store, name: str) -> ValueView:
    """A value, as code@version or by its id."""
    with store.read() as rows:
        return _view(Registry(rows).meant(name))


def _view(value: Value) -> ValueView:
    return ValueView(
        value=str(value.key),
        vocab_id=value.vocab_id,
        status=value.status,
        act_type=value.act_type,
        governing_authority_ref=value.governing_authority_ref,
        digest=value.digest,
        root=value.root,
        semantics_frozen=bool(value.semantics_frozen),
        successor=str(value.successor) if value.successor else None,
    )


def forecast(store: Store, assembly: Assembly, executor: str, grant: str | None) -> PlanForecast:
    """What a plan for the registry would do, what a grant must name, and what stands against it."""
    plan, scope = assembly.plan, assembly.scope(None, assembly.environment, executor)
    with store.read() as rows:
        known = Registry(rows).collection(plan.collection)
        against = _objections(rows, assembly, executor, grant, store.sources.now())
    return PlanForecast(
        plan=plan.ref,
        collection=plan.collection,
        collection_is="there already" if known else "new",
        values=[{"value": str(one.key), **msgspec.to_builtins(one)} for one in plan.value],
        scope=msgspec.to_builtins(scope),
        scope_digest=scope.digest(),
        objections=against,
    )


def _objections(
    rows: Reads, assembly: Assembly, executor: str, grant: str | None, now: int
) -> list[str]:
    given = Grants(rows).named(grant) if grant is not None else None
    if given is None:
        return list(objections(assembly.plan, Registry(rows), ""))
    used, own = given.consumed_by_root or "", assembly.root(given.grant_id)
    if used == own or used.startswith(f"{own}#"):
        # The run of this very plan used it, and may go on.
        return list(objections(assembly.plan, Registry(rows), used))
    against = list(objections(assembly.plan, Registry(rows), own))
    scope = assembly.scope(None, assembly.environment, executor)
    why = refusal(given, scope, executor, now) or doubt(rows, Authority(), given)
    return [*against, why] if why else against


def verdict_on(store: Store, plan: RollbackPlan | None) -> RollbackVerdict:
    """The one answer to a rollback plan; nothing is executed."""
    with store.read() as rows:
        return judge_rollback(plan, Registry(rows))


# Explained in words.


def _find(rows: Reads, name: str) -> str | None:
    try:
        if not name.startswith("voc_"):
            key_of(name)
        return Registry(rows).meant(name).vocab_id
    except (InvalidConfig, NotFound):
        return None


def _explain(store: Store, vocab_id: str) -> Explanation:
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
    because = f", because of {audit.rollback_ref}" if audit is not None else ""
    commands = [f"onceward registry show {value.key}"]
    if run is not None:
        commands.append(f"onceward explain {run.saga_id}")
    return Explanation(
        id=str(value.key),
        kind="value",
        what=[f"the operation {value.operation_code}, a {value.act_type}"],
        state=value.status,
        why=[why + because, f"governed by {value.governing_authority_ref}"],
        story=moves,
        made=[f"digest {value.digest}", *(f"{heir.key} gave way to it" for heir in heirs)],
        next=commands,
    )


KINDS = (Kind("value", _find, _explain),)
