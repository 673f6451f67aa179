"""The request ledger: one effect and one answer per id (K-8)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from helpers import count, everything
from onceward.core.records import Request
from onceward.errors import InvalidConfig, RequestConflict


def note(tx, resource_id):
    event = tx.append("workspace", "NOTED", "tester", {"resource": resource_id})
    return {"seq": event.seq, "resource": resource_id}


def ask(request_id="r1", payload=None, verb="note"):
    return Request(verb, request_id, payload or {}, "tester")


@pytest.mark.rule("K-8")
@pytest.mark.guarantee("G5")
def test_the_same_request_again_gets_the_stored_answer_and_no_second_effect(store):
    first = store.answer(ask(), note)
    before = everything(store)
    again = store.answer(ask(), note)
    assert not first.replayed
    assert again.replayed
    assert again.value == first.value
    assert everything(store) == before


@pytest.mark.rule("K-8")
def test_the_same_id_with_another_payload_is_a_conflict_that_shows_both_hashes(store):
    store.answer(ask(payload={"a": 1}), note)
    before = everything(store)
    with pytest.raises(RequestConflict) as conflict:
        store.answer(ask(payload={"a": 2}), note)
    assert conflict.value.context["stored"] != conflict.value.context["given"]
    assert conflict.value.http_status == 409
    assert everything(store) == before


@pytest.mark.rule("K-8")
def test_the_id_belongs_to_who_used_it(store):
    store.answer(ask(), note)
    with pytest.raises(RequestConflict):
        store.answer(Request("note", "r1", {}, "somebody else"), note)


@pytest.mark.rule("K-8")
def test_one_id_may_be_used_for_two_verbs(store):
    assert not store.answer(ask(verb="note"), note).replayed
    assert not store.answer(ask(verb="remark"), note).replayed


@pytest.mark.rule("K-8")
def test_a_request_that_is_taken_keeps_its_resource_through_a_crash(store):
    first = store.take(ask(), "bld")
    assert first.resource_id.startswith("bld_") and first.takes == 0
    again = store.take(ask(), "bld")
    assert again.resource_id == first.resource_id and again.takes == 1
    store.give_back(ask())
    assert store.take(ask()).takes == 1
    assert store.answer(ask(), note).value["resource"] == first.resource_id
    assert store.take(ask()).takes == store.take(ask()).takes


@pytest.mark.rule("K-8")
def test_a_request_that_fails_leaves_no_trace_and_may_be_asked_again(store):
    def fail(tx, resource_id):
        note(tx, resource_id)
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        store.answer(ask(), fail)
    assert count(store, "requests") == 0
    assert not store.answer(ask(), note).replayed


@pytest.mark.rule("K-8", "K-11")
@pytest.mark.parametrize(
    "request_id", ["", "x" * 129, "a\nb", "\x1b[31m"], ids=["empty", "long", "newline", "escape"]
)
def test_an_id_that_cannot_be_shown_is_refused(store, request_id):
    with pytest.raises(InvalidConfig):
        store.answer(ask(request_id), note)


@pytest.mark.rule("K-1", "K-11")
@pytest.mark.parametrize("payload", [{"a": 0.5}, {"a": "x" * 1_100_000}])
def test_a_payload_without_canonical_bytes_is_refused(store, payload):
    with pytest.raises(InvalidConfig):
        store.answer(ask(payload=payload), note)
    assert count(store, "requests") == 0


@pytest.mark.rule("K-8")
@pytest.mark.guarantee("G5")
def test_many_callers_with_one_id_have_one_effect(store):
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: store.answer(ask("same"), note), range(64)))
    assert sum(not answer.replayed for answer in answers) == 1
    assert len({answer.value["seq"] for answer in answers}) == 1
    assert count(store, "events") == 2
