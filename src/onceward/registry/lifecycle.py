"""The transactions of the registry: collections made, values admitted, superseded with an audit row, retired (S-5,
S-6)."""

from __future__ import annotations

import msgspec

from onceward.core.vocabulary import Audit, Collection, Key, Value, key_of
from onceward.registry import machine, rules
from onceward.registry.machine import Planned, RegistryPlan, schema_digest
from onceward.store.tables.registry import MetaRow, Registry, note_audit, note_meta
from onceward.store.transaction import Transaction


def make_collection(tx: Transaction, name: str, root: str, actor: str) -> Collection:
    """The collection of a name, made with its metadata if it is not there. Only the run that made it can undo
    it."""
    registry, wanted = Registry(tx), schema_digest(name)
    meta = registry.meta(name)
    if meta is None:
        note_meta(tx, MetaRow(name=name, schema_digest=wanted, root=root, created_at=tx.now))
    else:
        rules.require_schema(name, meta[0], wanted)
    if registry.collection(name) is None:
        tx.move(machine.create(tx.sources.new_id("col"), name, root, actor))
    found = registry.collection(name)
    assert found is not None
    return found


def admit(tx: Transaction, plan: RegistryPlan, one: Planned, root: str, actor: str) -> Value:
    """Admit a value of a plan, once; the value that it supersedes is superseded in the same transaction."""
    registry = Registry(tx)
    known = registry.value(one.key)
    if known is None:
        collection = rules.require_collection(plan.collection, registry.collection(plan.collection))
        if one.supersedes:
            before = registry.meant(str(key_of(one.supersedes)))
            supersede(tx, before, one.key, actor=actor, root=root, state="S4_VALUES", ref=plan.ref)
        rules.require_meaning(one.meaning)
        vocab_id = tx.sources.new_id("voc")
        tx.move(machine.admit(vocab_id, collection.collection_id, one.meaning, root, actor))
        known = registry.meant(vocab_id)
    rules.require_own_value(one.key, known, root)
    return known


def supersede(
    tx: Transaction, value: Value, successor: Key, *, actor: str, root: str, state: str, ref: str
) -> None:
    """Supersede a value, with the audit row that says why, in one transaction."""
    audit = Audit(
        audit_id=tx.sources.new_id("aud"),
        root=root,
        state=state,
        subject=value.vocab_id,
        rollback_ref=ref,
        position=0,
        created_at=tx.now,
    )
    event = tx.move(machine.supersede(value, successor, actor, audit))
    assert event is not None
    note_audit(tx, msgspec.structs.replace(audit, position=event.position))


def undo_values(tx: Transaction, root: str, actor: str) -> list[str]:
    """Retire what a run admitted. A value that is the successor of another run's value stays in force; answers
    those."""
    registry = Registry(tx)
    left = []
    for value in registry.of_root(root):
        if value.status != "active":
            continue
        if any(heir.root != root for heir in registry.heirs_of(value.key)):
            left.append(str(value.key))
        else:
            tx.move(machine.retire(value, "compensated", actor))
    return left


def undo_collection(tx: Transaction, name: str, root: str, actor: str) -> str:
    """Retire the collection that a run made, unless it holds values of other runs; answers why not."""
    registry = Registry(tx)
    collection = registry.collection(name)
    if collection is None:
        return ""
    if collection.root != root:
        return "another run made it"
    if any(value.root != root for value in registry.values(collection.collection_id)):
        return "it holds values of other runs"
    tx.move(machine.retire_collection(collection, "compensated", actor))
    return ""
