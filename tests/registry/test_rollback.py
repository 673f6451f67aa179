"""One bad rollback plan for each rule, and exactly its code; the clean one is valid for review (S-6)."""

from __future__ import annotations

import msgspec
import pytest

from onceward.core.vocabulary import Collection, Key, Value, key_of
from onceward.errors import InvalidConfig, NotFound
from onceward.registry.machine import schema_digest
from onceward.registry.rollback import CODES, VALID, RollbackPlan
from onceward.registry.rollback import RollbackStep as Step
from onceward.registry.rules import judge_rollback as judge


def value(
    text, act="READ", authority="council", status="active", collection="col_1", successor=None
):
    key = key_of(text)
    follows = (successor.operation_code, successor.protocol_version) if successor else (None, None)
    return Value(
        *(
            f"voc_{text}",
            collection,
            key.operation_code,
            key.protocol_version,
            act,
            authority,
            1,
            "ab",
            "root",
        ),
        *(*follows, None, status, 1),
    )


class Facts:
    """A registry in a dictionary."""

    def __init__(self, *values):
        self.known = {str(one.key): one for one in values}
        self.ids = {one.vocab_id: one for one in values}

    def collection(self, name):
        return (
            Collection("col_1", name, schema_digest(name), "root", "active", 1)
            if name == "ops"
            else None
        )

    def find(self, text):
        return self.ids.get(text) or self.known.get(text)

    def meant(self, text):
        found = self.find(text) if text.startswith("voc_") else self.known.get(str(key_of(text)))
        if found is None:
            raise NotFound(text)
        return found

    def heirs_of(self, key):
        return [one for one in self.known.values() if one.successor == key]


FACTS = Facts(
    value("pay@1.9.0"),
    value("send@1.0.0"),
    value("send@0.9.0", status="superseded", successor=Key("send", "1.0.0")),
    value("sign@1.0.0", act="WRITE"),
    value("rule@1.0.0", authority="somebody"),
    value("gone@1.0.0", status="retired"),
    value("far@1.0.0", collection="col_2"),
    value("old@1.0.0", status="active"),
)
GOOD = Step("supersede", "pay@1.9.0", "send@1.0.0", "incident-7")


def plan(*steps, **words):
    return RollbackPlan("p", "ops", list(steps), **words)


def but(**words):
    return msgspec.structs.replace(GOOD, **words)


BAD = {
    0: plan(GOOD, execute=True),
    1: plan(),
    2: plan(Step("delete", "pay@1.9.0", rollback_ref="x")),
    3: plan(Step("retire", "send@1.0.0", rollback_ref="x")),
    4: plan(Step("rewrite", "events", rollback_ref="x")),
    5: plan(Step("change", "pay@1.9.0", rollback_ref="x", fields=["act_type"])),
    6: plan(but(successor="rule@1.0.0")),
    7: plan(but(successor="")),
    8: plan(but(successor="gone@1.0.0")),
    9: plan(but(rollback_ref=" ")),
    10: plan(but(target="far@1.0.0")),
}


@pytest.mark.rule("S-6")
@pytest.mark.parametrize("number", BAD)
def test_each_rule_has_its_code(number):
    found = judge(BAD[number], FACTS)
    assert found.code == CODES[number] and not found.valid and found.why


@pytest.mark.rule("S-6")
def test_a_clean_plan_is_valid_for_review_by_key_and_by_id():
    assert judge(plan(GOOD), FACTS).code == VALID == "ROLLBACK_CONTRACT_VALID_FOR_REVIEW"
    assert judge(plan(but(target="voc_pay@1.9.0", successor="voc_send@1.0.0")), FACTS).valid
    assert judge(plan(GOOD, execute=True), FACTS, executing=True).valid
    assert judge(None, FACTS).code == CODES[1]


@pytest.mark.rule("S-6")
def test_the_lowest_number_answers_whichever_step_it_is_in():
    both = plan(but(rollback_ref=""), Step("delete", "pay@1.9.0"))
    assert (judge(both, FACTS).code, judge(both, FACTS).step) == (CODES[2], 2)
    for later in range(2, 11):
        mixed = plan(*BAD[later].steps, *BAD[2].steps, execute=True)
        assert judge(mixed, FACTS).code == CODES[0]


@pytest.mark.rule("S-6")
@pytest.mark.parametrize("successor", ["none@1.0.0", "sign@1.0.0", "pay@1.9.0", "gone@1.0.0"])
def test_a_successor_that_would_not_do_fails_closed(successor):
    assert judge(plan(but(successor=successor)), FACTS).code == CODES[8]


@pytest.mark.rule("S-6", "K-11")
def test_a_plan_that_cannot_be_read_is_no_plan():
    with pytest.raises(InvalidConfig):
        judge(plan(but(target="pay")), FACTS)
    with pytest.raises(InvalidConfig):
        judge(RollbackPlan("p", "other", [GOOD]), FACTS)
    with pytest.raises(InvalidConfig):
        judge(plan(but(target="pay@9.9.9")), FACTS)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"action": "undo", "target": "pay@1.9.0"}, Step)
