"""Every refusal of the registry, by values: no database, no clock (S-2, S-5, S-6)."""

from __future__ import annotations

import msgspec
import pytest

from onceward.core.limits import MAX_INTEGER, MAX_PLAN_ID_CHARS
from onceward.core.vocabulary import Audit, Collection, Key, Value, key_of
from onceward.registry import rules
from onceward.registry.machine import Meaning, schema_digest
from onceward.registry.rollback import CODES, VALID, RollbackPlan, RollbackStep, RollbackVerdict
from refusals import refused, refused_unless

MEANING = Meaning("pay", "1.0.0", "WRITE", "council")
PLANNED = {
    "operation_code": "pay",
    "protocol_version": "1.10.0",
    "act_type": "WRITE",
    "governing_authority_ref": "council",
}
PLAN = {"plan_id": "plan-1", "revision": 1, "collection": "ops", "value": [PLANNED]}
OPS = Collection("col_1", "ops", schema_digest("ops"), "run-1", "active", 1)
AUDIT = Audit(
    audit_id="aud_1",
    root="run-1",
    state="R2_SUPERSEDE",
    subject="voc_1",
    rollback_ref="incident-7",
    position=1,
    created_at=1,
)


def value(text, act="WRITE", *, root="run-1", status="active", collection="col_1", follows=None):
    key = key_of(text)
    meaning = Meaning(key.operation_code, key.protocol_version, act, "council")
    return Value(
        vocab_id=f"voc_{text}",
        collection_id=collection,
        operation_code=key.operation_code,
        protocol_version=key.protocol_version,
        act_type=act,
        governing_authority_ref="council",
        semantics_frozen=1,
        digest=meaning.digest(),
        root=root,
        successor_code=follows.operation_code if follows else None,
        successor_version=follows.protocol_version if follows else None,
        audit_id=None,
        status=status,
        version=1,
    )


class State:
    """A registry in memory, with one collection."""

    def __init__(self, *values, schema=None, collection=OPS):
        self.values, self.ops = values, collection
        self.schema = (schema, "run-1") if schema else None

    def collection(self, name):
        return self.ops if self.ops is not None and name == self.ops.name else None

    def meta(self, name):
        return self.schema

    def value(self, key):
        return next((one for one in self.values if one.key == key), None)

    def active(self, code, act):
        return next(
            (
                one
                for one in self.values
                if (one.operation_code, one.act_type, one.status) == (code, act, "active")
            ),
            None,
        )

    def find(self, text):
        return self.value(key_of(text))

    def heirs_of(self, key):
        return []


def planned(**but):
    return {**PLANNED, **but}


@pytest.mark.rule("S-5")
@pytest.mark.parametrize(
    ("but", "words"),
    [
        ({"operation_code": "p y"}, "is no operation code"),
        ({"act_type": ""}, "act_type must be 1 to 200"),
        ({"act_type": "x" * 201}, "act_type must be 1 to 200"),
        ({"act_type": "e\u0301"}, "in NFC"),
        ({"governing_authority_ref": "a\nb"}, "governing_authority_ref must be"),
        ({"protocol_version": "1.0"}, "is no version"),
    ],
)
def test_a_value_that_could_not_be_compared_or_digested_is_refused(but, words):
    assert str(rules.require_meaning(MEANING)) == "1.0.0"
    assert rules.digest_of(MEANING) == MEANING.digest()
    other = msgspec.structs.replace(MEANING, **but)
    for rule in (rules.require_meaning, rules.digest_of):
        with refused("INVALID_CONFIG", words):
            rule(other)


@pytest.mark.rule("S-2", "S-5")
@pytest.mark.parametrize(
    ("but", "words"),
    [
        ({"plan_id": 7}, "this is no registry plan"),
        ({"plan_id": ""}, ""),
        ({"plan_id": "x" * (MAX_PLAN_ID_CHARS + 1)}, "a plan_id has at most"),
        ({"collection": "o ps"}, "is no collection's name"),
        ({"revision": 0}, "a plan's revision"),
        ({"revision": MAX_INTEGER + 1}, "a plan's revision"),
        ({"value": []}, "at least one [[value]]"),
        ({"value": [planned(act_type="")]}, "act_type must be"),
        ({"value": [PLANNED, PLANNED]}, "two values of the plan"),
        ({"value": [PLANNED, planned(protocol_version="1.11.0")]}, "one can be active"),
        ({"value": [PLANNED, planned(act_type="READ")]}, "two values of the plan"),
        ({"value": [planned(supersedes="pay")]}, "is no value"),
        ({"value": [planned(supersedes="send@1.0.0")]}, "a newer version of the same operation"),
        ({"value": [planned(supersedes="pay@1.10.0")]}, "a newer version of the same operation"),
        ({"value": [planned(supersedes="pay@2.0.0")]}, "cannot supersede pay@2.0.0"),
    ],
)
def test_a_plan_that_could_never_be_carried_out_is_refused(but, words):
    good = rules.require_plan({**PLAN, "value": [planned(supersedes="pay@1.9.0")]})
    assert good.ref == "plan-1@1"
    with refused("INVALID_CONFIG", words):
        rules.require_plan({**PLAN, **but})


@pytest.mark.rule("S-6")
@pytest.mark.parametrize(
    ("but", "words"),
    [
        ({"step": [{"action": "undo"}]}, "this is no rollback plan"),
        ({"plan_id": "x" * (MAX_PLAN_ID_CHARS + 1)}, "a plan_id has at most"),
        ({"revision": 0}, "a plan's revision"),
    ],
)
def test_a_rollback_plan_that_cannot_be_read_is_refused(but, words):
    said = {"plan_id": "undo-1", "collection": "ops"}
    assert rules.require_rollback_plan(said) == RollbackPlan("undo-1", "ops")
    with refused("INVALID_CONFIG", words):
        rules.require_rollback_plan({**said, **but})


@pytest.mark.rule("S-2", "S-5")
@pytest.mark.parametrize(
    ("one", "state", "why"),
    [
        (planned(), State(schema="ff" * 32), "has another schema"),
        (planned(), State(value("pay@1.10.0", root="run-2")), "by another run: a version is used"),
        (planned(), State(value("pay@1.10.0", status="retired")), "pay@1.10.0 is retired, or not"),
        (planned(), State(value("pay@1.10.0", act="READ")), "or not what the plan says"),
        (planned(), State(value("pay@1.11.0")), "and pay@1.10.0 is not newer"),
        (planned(), State(value("pay@1.9.0")), 'say supersedes = "pay@1.9.0"'),
        (planned(supersedes="pay@1.9.0"), State(), "pay@1.9.0 is not the active value"),
        (
            planned(supersedes="pay@1.8.0"),
            State(value("pay@1.8.0", status="superseded"), value("pay@1.9.0")),
            "pay@1.8.0 is not the active value",
        ),
        (
            planned(supersedes="pay@1.9.0"),
            State(value("pay@1.9.0", collection="col_2")),
            "is in another collection",
        ),
        (
            planned(supersedes="pay@1.9.0"),
            State(value("pay@1.9.0"), collection=None),
            "is in another collection",
        ),
    ],
)
def test_what_stands_against_a_plan_is_told_and_refused(one, state, why):
    plan = rules.require_plan({**PLAN, "value": [one]})
    (against,) = rules.objections(plan, state, "run-1")
    assert why in against
    with refused("INVALID_CONFIG", why):
        rules.require_unopposed([against])


@pytest.mark.rule("S-2", "S-5")
@pytest.mark.parametrize(
    ("one", "state"),
    [
        (planned(), State()),
        (planned(), State(schema=schema_digest("ops"))),
        (planned(), State(value("pay@1.10.0"))),
        (planned(), State(value("pay@1.9.0", act="READ"))),
        (planned(supersedes="pay@1.9.0"), State(value("pay@1.9.0"))),
    ],
)
def test_nothing_stands_against_a_plan_that_fits(one, state):
    plan = rules.require_plan({**PLAN, "value": [one]})
    rules.require_unopposed(rules.objections(plan, state, "run-1"))


@pytest.mark.rule("S-5")
def test_a_collections_name_keeps_its_schema():
    rules.require_schema("ops", schema_digest("ops"), schema_digest("ops"))
    with refused("INVALID_CONFIG", "the collection ops has another schema"):
        rules.require_schema("ops", "ff" * 32, schema_digest("ops"))


def test_values_are_admitted_to_a_collection_that_is_there():
    assert rules.require_collection("ops", OPS) is OPS
    with refused("INVALID_CONFIG", "there is no collection ops"):
        rules.require_collection("ops", None)


@pytest.mark.rule("S-5")
@pytest.mark.parametrize("root", ["run-1", "run-2"])
def test_a_value_is_admitted_by_one_run_only(root):
    with refused_unless(root == "run-1", "INVALID_CONFIG", "by another run"):
        rules.require_own_value(MEANING.key, value("pay@1.0.0", root=root), "run-1")


@pytest.mark.parametrize("follows", [Key("pay", "1.10.0"), Key("pay", "2.0.0"), None])
def test_a_value_that_gave_way_names_its_successor(follows):
    after = Key("pay", "1.10.0")
    with refused_unless(follows == after, "INTEGRITY_FAULT", "did not give way to pay@1.10.0"):
        rules.require_successor("pay@1.9.0", value("pay@1.9.0", follows=follows), after)


@pytest.mark.rule("S-2")
def test_evidence_is_what_was_kept_and_written_down():
    rules.require_evidence_kept(b"{}", b"{}")
    with refused("INTEGRITY_FAULT", "differs from what was stored"):
        rules.require_evidence_kept(b"{} ", b"{}")
    assert rules.require_evidence(AUDIT) is AUDIT
    with refused("INTEGRITY_FAULT", "evidence of this run is missing"):
        rules.require_evidence(None)


@pytest.mark.rule("S-6")
def test_every_value_that_was_superseded_has_its_audit_row():
    rules.require_superseded([AUDIT, AUDIT])
    with refused("INTEGRITY_FAULT", "is not superseded"):
        rules.require_superseded([AUDIT, None])


@pytest.mark.rule("S-6")
@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (
            RollbackPlan("p", "other", [RollbackStep("delete", "pay@1.0.0")]),
            "no collection 'other'",
        ),
        (RollbackPlan("p", "ops", [RollbackStep("delete", "pay@9.9.9")]), "no value pay@9.9.9"),
        (RollbackPlan("p", "ops", [RollbackStep("delete", "pay")]), "is no value"),
    ],
)
def test_a_rollback_of_what_is_not_there_is_refused(plan, words):
    with refused("INVALID_CONFIG", words):
        rules.judge_rollback(plan, State(value("pay@1.0.0")))


@pytest.mark.rule("S-6")
@pytest.mark.parametrize(
    ("plan", "executing", "code"),
    [
        (RollbackPlan("p", "ops", [RollbackStep("delete", "pay@1.0.0")], True), False, CODES[0]),
        (RollbackPlan("p", "ops", [RollbackStep("delete", "pay@1.0.0")], True), True, CODES[2]),
        (RollbackPlan("p", "ops", [RollbackStep("delete", "pay@1.0.0")]), False, CODES[2]),
        (RollbackPlan("p", "ops", []), False, CODES[1]),
        (None, False, CODES[1]),
    ],
)
def test_a_rollback_that_is_only_checked_or_says_nothing_is_judged_first(plan, executing, code):
    verdict = rules.judge_rollback(plan, State(value("pay@1.0.0")), executing)
    assert verdict.code == code and verdict.why and not verdict.valid


@pytest.mark.rule("S-6")
@pytest.mark.parametrize("code", [VALID, *CODES])
def test_a_rollback_is_executed_only_where_no_rule_stands_against_it(code):
    with refused_unless(code == VALID, "INVALID_CONFIG", f"{code}: because"):
        rules.require_valid_rollback(RollbackVerdict(code, 1, "because"))
