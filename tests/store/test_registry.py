"""The registry's rules are the schema's own: whoever writes to the database is refused what no value may be (S-5)."""

from __future__ import annotations

from contextlib import contextmanager

import msgspec
import pytest

from onceward.core.vocabulary import Audit, Key, key_of, version_of
from onceward.errors import (
    IllegalTransition,
    IntegrityFault,
    InvalidConfig,
    NotFound,
    OncewardError,
)
from onceward.registry import machine
from onceward.registry.machine import Meaning, manifest_digest
from onceward.registry.rollback import RollbackPlan
from onceward.registry.rollback import RollbackStep as Step
from onceward.registry.rules import digest_of
from onceward.registry.rules import judge_rollback as judge
from onceward.store.tables.registry import MetaRow, Registry, note_audit, note_meta

ROOT = "root-1"


def meaning(code, version, act="READ", authority="council", frozen=True):
    return Meaning(code, version, act, authority, frozen)


@pytest.fixture
def collection(store):
    def make(tx):
        note_meta(tx, MetaRow("ops", machine.schema_digest("ops"), ROOT, tx.now))
        tx.move(machine.create(tx.sources.new_id("col"), "ops", ROOT, "tester"))

    store.write(make)
    with store.read() as rows:
        return Registry(rows).collection("ops")


@pytest.fixture
def admit(store, collection):
    def one(code, version, **words):
        vocab_id = store.sources.new_id("voc")
        store.write(
            lambda tx: tx.move(
                machine.admit(
                    vocab_id,
                    collection.collection_id,
                    meaning(code, version, **words),
                    ROOT,
                    "tester",
                )
            )
        )
        return Key(code, version)

    return one


def value(store, key):
    with store.read() as rows:
        return Registry(rows).value(key)


def supersede(store, key, successor):
    store.write(lambda tx: give_way(tx, key, successor))


def give_way(tx, key, successor, audited=True):
    found = Registry(tx).value(key)
    audit = Audit(
        audit_id=tx.sources.new_id("aud"),
        root=ROOT,
        state="R2_SUPERSEDE",
        subject=found.vocab_id,
        rollback_ref="incident-7",
        position=0,
        created_at=tx.now,
    )
    event = tx.move(machine.supersede(found, successor, "tester", audit))
    if audited:
        note_audit(tx, msgspec.structs.replace(audit, position=event.position))


def admitted(tx, collection):
    new = meaning("pay.again", "1.0.0")
    tx.move(machine.admit(tx.sources.new_id("voc"), collection.collection_id, new, ROOT, "tester"))
    return new.key


def retire(store, key, reason="withdrawn"):
    store.write(lambda tx: tx.move(machine.retire(Registry(tx).value(key), reason, "tester")))


@contextmanager
def refused(*constraints):
    """By one of these: of several rules that a write breaks, a database may name any."""
    with pytest.raises(IntegrityFault) as found:
        yield
    assert found.value.context["constraint"] in constraints
    if found.value.context["constraint"] in (
        "registry_values_forward",
        "registry_values_successor",
    ):
        assert found.value.context["rollback"].startswith("ROLLBACK_")
    assert "_" not in found.value.message.partition("write: ")[2], "a person can read why"


@pytest.mark.rule("S-5")
def test_versions_are_numbers():
    assert version_of("1.10.0") > version_of("1.9.0") > version_of("1.2.0") > version_of("0.99.99")
    assert max(map(version_of, ["1.10.0", "1.9.0", "1.2.0", "2.0.0", "2.0.1"])) == version_of(
        "2.0.1"
    )
    for odd in (
        "1.2",
        "1.2.3.4",
        "01.2.3",
        "1.2.x",
        "1.2.3-rc1",
        "v1.2.3",
        "",
        " 1.2.3",
        "1.2.-3",
        "\u0661.2.3",
        5,
    ):
        with pytest.raises(InvalidConfig):
            version_of(odd)
    assert str(key_of("pay.out@1.10.0")) == "pay.out@1.10.0"
    for odd in ("pay", "pay@", "@1.0.0", "pay@1", "pay out@1.0.0", "pay@1.0.0@2"):
        with pytest.raises(InvalidConfig):
            key_of(odd)


@pytest.mark.rule("S-5")
def test_a_values_digest_is_over_its_meaning_and_nothing_else():
    one = meaning("pay", "1.0.0")
    assert one.digest() == meaning("pay", "1.0.0").digest()
    # sha256 of {"act_type":"READ","cser":"v1","governing_authority_ref":"council","operation_code":"pay",
    # "protocol_version":"1.0.0","semantics_frozen":true}
    assert one.digest() == "722b6522f5dc122740141b2d246f13570e5e5ff4919e9ca48d83da3b0815eb01"
    others = [
        meaning("pay2", "1.0.0"),
        meaning("pay", "1.0.1"),
        meaning("pay", "1.0.0", act="WRITE"),
        meaning("pay", "1.0.0", authority="other"),
        meaning("pay", "1.0.0", frozen=False),
    ]
    assert len({one.digest(), *(other.digest() for other in others)}) == 6
    for bad in (
        meaning("pay", "1.0.0", act="e\u0301"),
        meaning("pay", "1.0.0", authority=""),
        meaning("p y", "1.0.0"),
    ):
        with pytest.raises(InvalidConfig):
            digest_of(bad)
    assert manifest_digest({one.key: one.digest()}) != manifest_digest({})


@pytest.mark.rule("S-5")
def test_one_value_of_an_operation_and_act_is_active(store, admit):
    admit("pay", "1.9.0")
    with refused("registry_values_active"):
        admit("pay", "1.10.0")
    with refused("registry_values_key"):
        admit("pay", "1.9.0", act="WRITE")
    admit("pay", "2.0.0", act="WRITE")
    retire(store, Key("pay", "1.9.0"))
    admit("pay", "1.10.0")
    assert value(store, Key("pay", "1.9.0")).status == "retired"
    with pytest.raises(IllegalTransition):
        retire(store, Key("pay", "1.9.0"))


@pytest.mark.rule("S-5")
@pytest.mark.guarantee("G6")
def test_a_value_gives_way_to_one_that_comes_with_it(store, collection, admit):
    old = admit("pay", "1.9.0")
    new = meaning("pay", "1.10.0")

    def replace(tx):
        give_way(tx, old, new.key)
        tx.move(
            machine.admit(tx.sources.new_id("voc"), collection.collection_id, new, ROOT, "tester")
        )

    store.write(replace)
    assert value(store, old).successor == new.key and value(store, old).status == "superseded"
    assert value(store, new.key).status == "active"
    with store.read() as rows:
        registry = Registry(rows)
        assert [str(one.key) for one in registry.values(collection.collection_id)] == [
            "pay@1.9.0",
            "pay@1.10.0",
        ]
        assert [one.key for one in registry.heirs_of(new.key)] == [old]
        assert registry.meant("pay@1.10.0") == registry.meant(registry.value(new.key).vocab_id)
        with pytest.raises(NotFound):
            registry.meant("pay@3.0.0")


@pytest.mark.rule("S-5")
def test_successors_that_must_not_be_are_refused_by_the_database(store, collection, admit):
    old, other = admit("pay", "1.9.0"), admit("send", "1.0.0")
    with refused("registry_values_itself", "registry_values_forward"):
        supersede(store, old, old)
    admit("sign", "1.0.0", act="WRITE")
    with refused("registry_values_forward"):
        supersede(store, old, Key("sign", "1.0.0"))
    retire(store, other)
    with refused("registry_values_forward"):
        supersede(store, old, other)

    def back(tx):
        give_way(tx, old, Key("pay", "1.2.0"))
        tx.move(
            machine.admit(
                tx.sources.new_id("voc"),
                collection.collection_id,
                meaning("pay", "1.2.0"),
                ROOT,
                "tester",
            )
        )

    with refused("registry_values_forward"):
        store.write(back)
    assert value(store, old).status == "active", "a refused supersession leaves nothing"
    with refused("registry_values_follows", "references"):
        supersede(store, old, Key("pay", "9.0.0"))
    with refused("registry_values_audit_row", "references"):
        store.write(lambda tx: give_way(tx, old, admitted(tx, collection), audited=False))
    assert value(store, old).status == "active", "a refused supersession leaves nothing"
    fresh = admit("send", "1.1.0")
    supersede(store, old, fresh)
    with pytest.raises(OncewardError):
        supersede(store, fresh, old)
    with pytest.raises(IllegalTransition):
        supersede(store, old, fresh)


@pytest.mark.rule("S-5")
@pytest.mark.parametrize(
    ("sql", "constraint"),
    [
        (
            "UPDATE registry_values SET act_type = 'WRITE', version = version + 1",
            "registry_values_meaning",
        ),
        ("UPDATE registry_values SET governing_authority_ref = ''", "registry_values_meaning"),
        ("UPDATE registry_values SET protocol_version = '9.0.0'", "registry_values_meaning"),
        ("UPDATE registry_values SET digest = 'ab'", "registry_values_meaning"),
        ("UPDATE registry_values SET root = 'other'", "registry_values_meaning"),
        ("UPDATE registry_values SET vocab_id = 'voc_x'", "registry_values_meaning"),
        ("UPDATE registry_values SET status = 'retired'", "registry_values_moved"),
        (
            "UPDATE registry_values SET status = 'retired', version = version + 1",
            "registry_values_moved",
        ),
        ("DELETE FROM registry_values", "registry_values_kept"),
        (
            "UPDATE registry_collections SET status = 'retired', version = version + 1",
            "registry_collections_moved",
        ),
        ("UPDATE registry_collections SET name = 'x'", "registry_collections_moved"),
        ("DELETE FROM registry_collections", "registry_collections_moved"),
        ("UPDATE registry_meta SET root = 'x'", "registry_meta_kept"),
        ("DELETE FROM registry_meta", "registry_meta_kept"),
        (
            "UPDATE registry_values SET successor_code = 'none', successor_version = '1.0.0', status = 'superseded'",
            "registry_values_moved",
        ),
    ],
)
def test_nothing_is_written_past_the_rules(store, admit, sql, constraint):
    key = admit("pay", "1.0.0")
    before = value(store, key)
    with pytest.raises(OncewardError) as found:
        store.write(lambda tx: tx.write(sql))
    # Of two rules that a write breaks, the database may name either.
    assert found.value.context["constraint"] in (
        constraint,
        "registry_values_moved",
        "registry_values_audited",
    )
    assert value(store, key) == before


@pytest.mark.rule("S-5")
def test_a_replaced_row_is_refused_too(store, kind, admit):
    admit("pay", "1.0.0")
    if kind != "sqlite":
        return
    columns = (
        "vocab_id, collection_id, operation_code, protocol_version, major, minor, patch, act_type,"
    )
    columns += " governing_authority_ref, semantics_frozen, digest, root, status, version, position, created_at, updated_at"
    with refused("registry_values_key", "registry_values_moved"):
        store.write(
            lambda tx: tx.write(
                f"INSERT OR REPLACE INTO registry_values ({columns}) SELECT 'voc_x', collection_id, operation_code,"
                " protocol_version, major, minor, patch, 'OTHER', governing_authority_ref, semantics_frozen, digest,"
                " root, status, version, position, created_at, updated_at FROM registry_values"
            )
        )


@pytest.mark.rule("S-5")
def test_a_collections_name_is_given_once(store, collection):
    with refused("registry_meta_kept", "registry_meta_pkey"):
        store.write(lambda tx: note_meta(tx, MetaRow("ops", "ab", "other", tx.now)))
    with refused("registry_collections_name"):
        store.write(lambda tx: tx.move(machine.create("col_other", "ops", "other", "tester")))
    store.write(lambda tx: tx.move(machine.retire_collection(collection, "compensated", "tester")))
    with store.read() as rows:
        assert Registry(rows).collection("ops") is None and Registry(rows).meta("ops")[1] == ROOT


@pytest.mark.rule("S-6")
def test_a_rollback_is_judged_by_what_is_in_the_registry(store, admit):
    old, new = admit("pay", "1.9.0"), admit("send", "1.0.0")
    step = Step("supersede", str(old), str(new), "incident-7")
    with store.read() as rows:
        registry = Registry(rows)
        assert judge(RollbackPlan("p", "ops", [step]), registry).valid
        by_id = Step(
            "supersede", registry.value(old).vocab_id, registry.value(new).vocab_id, "incident-7"
        )
        assert judge(RollbackPlan("p", "ops", [by_id]), registry).valid
        gone = Step("supersede", str(old), "send@9.0.0", "incident-7")
        assert (
            judge(RollbackPlan("p", "ops", [gone]), registry).code
            == "ROLLBACK_FORWARD_FAIL_CLOSED_VIOLATED"
        )
    assert value(store, old).status == "active", "a check executes nothing"
