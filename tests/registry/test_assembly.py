"""The assembly saga and rollback: values enter the registry under one grant, or stop at a named place (S-2, S-6)."""

from __future__ import annotations

import json

import msgspec
import pytest

from helpers import assert_sound
from onceward.core.records import Request
from onceward.core.views import document
from onceward.errors import InvalidConfig, PermitInvalid, RequestConflict
from onceward.registry.assembly import Assembly, Rollback, shipped
from onceward.registry.machine import schema_digest
from onceward.registry.rules import judge_rollback as judge
from onceward.registry.rules import require_plan as plan_of
from onceward.registry.rules import require_rollback_plan as rollback_of
from onceward.sagas.lifecycle import Wanted, abandon, begin, take_up
from onceward.sagas.machine import ASSEMBLY
from onceward.sagas.run import SagaRun, run_saga
from onceward.sagas.views import saga_view
from onceward.store.tables.grants import Grants
from onceward.store.tables.registry import Registry
from onceward.store.tables.sagas import Runs, find_lease, take_lease
from onceward.subjects import explain
from onceward.workspace import Workspace

ENV = "test"


def plan(*values, plan_id="plan", revision=1, collection="ops"):
    found = []
    for value in values or ("pay@1.0.0", "send@1.0.0", "sign@1.0.0"):
        key, _, before = value.partition(" over ")
        code, _, version = key.partition("@")
        one = {"operation_code": code, "protocol_version": version, "act_type": "WRITE"}
        found.append(
            {
                **one,
                "governing_authority_ref": "council",
                **({"supersedes": before} if before else {}),
            }
        )
    return plan_of(
        {"plan_id": plan_id, "revision": revision, "collection": collection, "value": found}
    )


class Site:
    def __init__(self, kernel):
        self.kernel, self.count = kernel, 0

    def ask(self, verb, **payload):
        self.count += 1
        return self.kernel.ask(
            Request(verb, f"r{self.count}", payload, self.kernel.principal)
        ).value

    def grant(self, saga, **other):
        scope = msgspec.to_builtins(saga.scope(None, ENV, self.kernel.principal)) | other
        grant = self.ask("grants.draft", scope=scope)["grant_id"]
        self.ask("grants.issue", grant=grant, scope=scope, seconds=600)
        return grant

    def apply(self, saga, grant=None, root=None):
        grant = grant or self.grant(saga)
        wanted = Wanted(
            saga, root or saga.root(grant), saga.given(), self.kernel.principal, ENV, grant
        )
        run, lease = begin(self.kernel, self.kernel.actor, wanted)
        return self.carry(saga, run, lease)

    def carry(self, saga, run, lease):
        if run.over or run.stuck is not None:
            return run
        return run_saga(
            self.kernel,
            SagaRun(self.kernel, self.kernel.actor, saga, run.saga_id, lease, lambda said: None),
        )

    def again(self, run, saga=None, retry=False):
        saga = saga or shipped(run)
        return self.carry(
            saga, *take_up(self.kernel, self.kernel.actor, saga, run.saga_id, ENV, retry=retry)
        )

    def registry(self, ask):
        with self.kernel.store.read() as rows:
            return ask(Registry(rows))

    def values(self, collection="ops"):
        found = self.registry(lambda r: r.values(r.collection(collection).collection_id))
        return {str(value.key): value.status for value in found}

    def status(self, grant):
        with self.kernel.store.read() as rows:
            found = Grants(rows).named(grant)
        return found.status, found.finalized_at is not None

    def sound(self):
        with self.kernel.store.read() as rows:
            assert_sound(rows)


@pytest.fixture
def here(kernel):
    return Site(kernel)


def failing(saga, state, times=1, check=False, undo=False):
    """A saga one of whose states fails so many times, after it did what it does."""
    action, left = saga.actions[state], [times]

    def slip():
        left[0] -= 1
        if left[0] >= 0:
            raise ValueError(f"{state} was told to fail")

    def wrapped(stage):
        def act(task):
            value = stage.call(task)
            slip()
            return value

        return msgspec.structs.replace(stage, call=act)

    def judge(seen):
        slip()
        return action.check is None or action.check(seen)

    changes = (
        {"check": judge}
        if check
        else {"undo": wrapped(action.undo)}
        if undo
        else {"do": wrapped(action.do)}
    )
    saga.actions[state] = msgspec.structs.replace(action, **changes)
    return saga


@pytest.mark.rule("S-2", "S-3", "S-5")
@pytest.mark.guarantee("G16", "G17")
def test_a_plan_is_carried_out_once(here):
    saga = Assembly(plan(), ENV)
    grant = here.grant(saga)
    run = here.apply(saga, grant)
    assert (run.state, run.last_ok_state) == ("DONE", "S7_FINALIZE")
    assert here.values() == {"pay@1.0.0": "active", "send@1.0.0": "active", "sign@1.0.0": "active"}
    assert here.status(grant) == ("consumed", True), "stamped when its run came to its end"
    assert here.apply(saga, grant) == run, "the same plan under the same grant is the same run"
    with pytest.raises(RequestConflict):
        here.apply(Assembly(plan("pay@2.0.0"), ENV), grant, root=run.idempotency_root)
    audit = here.registry(lambda r: r.audit(run.idempotency_root, "S6_EVIDENCE", run.saga_id))
    kept = b"".join(here.kernel.artifacts.read(audit.rollback_ref.partition(":")[2]))
    said = msgspec.json.decode(kept)
    assert sorted(said["values"]) == ["pay@1.0.0", "send@1.0.0", "sign@1.0.0"]
    assert said["manifest_digest"] == saga.plan.manifest_digest
    with here.kernel.store.read() as rows:
        lease = find_lease(rows, "registry:ops")
    assert lease.holder == ""
    here.sound()


@pytest.mark.rule("S-2")
@pytest.mark.guarantee("G17")
@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("place", ASSEMBLY.places, ids=lambda place: place.name)
def test_every_state_that_fails_ends_at_its_stop(here, place, check):
    # Somebody else's things, which nothing may touch.
    other = here.apply(Assembly(plan("other@1.0.0", plan_id="other"), ENV))
    theirs = Assembly(plan("theirs@1.0.0", plan_id="theirs", collection="theirs"), ENV)
    assert here.apply(theirs).state == other.state == "DONE"
    mine = plan(collection="mine" if place.name < "S4" else "ops")
    saga = failing(Assembly(mine, ENV), place.name, check=check)
    grant = here.grant(saga)
    run = here.apply(saga, grant)
    forward = place.forward
    assert run.state == ("DONE" if forward else place.stop)
    assert (run.stuck is not None) == place.again
    # The grant is used up with the move that leads on from S1, and not before.
    assert here.status(grant) == (
        ("active", False) if place.stop.startswith("ABORT_") else ("consumed", forward)
    )
    collection = here.registry(lambda r: r.collection("mine"))
    assert collection is None, "what this run made is retired"
    own = here.registry(lambda r: {v.status for v in r.of_root(run.idempotency_root)})
    expected = {
        "COMP_VALUES": {"retired"},
        "COMP_EVIDENCE": {"active"},
        "COMP_FINALIZE": {"active"},
    }
    assert own == expected.get(place.stop, set())
    assert here.values("theirs") == {"theirs@1.0.0": "active"}
    assert here.values("ops")["other@1.0.0"] == "active"
    with here.kernel.store.read() as rows:
        held = [find_lease(rows, f"registry:{name}") for name in ("ops", "mine")]
    assert not any(lease.holder for lease in held if lease is not None), "every lease is given back"
    assert here.apply(saga, grant) == run, "an ending is an ending"
    here.sound()


@pytest.mark.rule("S-2")
@pytest.mark.parametrize(
    ("fails", "undoes", "stop"),
    [
        ("S2_SCHEMA", "S2_SCHEMA", "COMP_SCHEMA"),
        ("S3_VERIFY_SCHEMA", "S2_SCHEMA", "COMP_SCHEMA"),
        ("S4_VALUES", "S4_VALUES", "COMP_VALUES"),
        ("S5_VERIFY_VALUES", "S4_VALUES", "COMP_VALUES"),
        ("S6_EVIDENCE", "S6_EVIDENCE", "COMP_EVIDENCE"),
        ("S7_FINALIZE", "S7_FINALIZE", "COMP_FINALIZE"),
    ],
)
def test_a_compensation_that_fails_leaves_the_run_stuck_and_can_be_tried_again(
    here, fails, undoes, stop
):
    saga = failing(failing(Assembly(plan(), ENV), fails), undoes, times=2, undo=True)
    run = here.apply(saga)
    for _ in range(2):
        assert (run.state, run.settled) == (stop, 0) and "told to fail" in run.stuck
        run = here.again(run, saga, retry=True)
    if stop == "COMP_EVIDENCE":
        # What was done is in force: the state that failed is tried again, under the same root and grant.
        assert json.loads(run.stuck)["again"] and not run.over
        run = here.again(run, Assembly(plan(), ENV), retry=True)
    assert run.stuck is None and run.over
    assert run.state == ("DONE" if stop in ("COMP_FINALIZE", "COMP_EVIDENCE") else stop)
    here.sound()


@pytest.mark.rule("S-2")
def test_a_run_whose_evidence_could_not_be_kept_says_so_and_has_a_way_on(here):
    """Its values are in force, nobody says that they were undone, and the same run under the same grant comes to its
    end once the cause is gone; or somebody takes it as it is."""
    first = Assembly(plan("pay@1.0.0"), ENV)
    run = here.apply(failing(first, "S6_EVIDENCE"))
    told = document(saga_view(here.kernel.store, run.saga_id))
    assert (told["state"], told["standing"]) == ("COMP_EVIDENCE", "stuck")
    assert told["next"] == f"onceward saga retry {run.saga_id}"
    assert told["left"] == ["1 values of ops are in force without their evidence"]
    assert here.values() == {"pay@1.0.0": "active"}
    said = explain(here.kernel.store, [run.saga_id])
    assert any("what was done before it is in force" in line for line in said.why)
    for _ in range(2):
        # As often as it takes.
        run = here.again(run, failing(first, "S6_EVIDENCE"), retry=True)
        assert run.state == "COMP_EVIDENCE" and run.stuck
    run = here.again(run, Assembly(plan("pay@1.0.0"), ENV), retry=True)
    assert run.state == "DONE" and here.status(run.grant_id) == ("consumed", True)
    other = here.apply(failing(Assembly(plan("send@1.0.0", revision=2), ENV), "S6_EVIDENCE"))
    here.kernel.store.write(lambda tx: abandon(tx, "tester", other.saga_id, "r"))
    with here.kernel.store.read() as rows:
        assert Runs(rows).get(other.saga_id).over
    here.sound()


@pytest.mark.rule("S-2", "S-5")
def test_a_run_whose_values_were_retired_says_how_to_go_on(here):
    """A version is used once: the next one, under a fresh grant, is the way on."""
    run = here.apply(failing(Assembly(plan("pay@1.0.0"), ENV), "S5_VERIFY_VALUES"))
    assert (run.state, run.over) == ("COMP_VALUES", True)
    again = here.apply(Assembly(plan("pay@1.0.0"), ENV))
    assert again.state == "ABORT_PREFLIGHT"
    with here.kernel.store.read() as rows:
        (failed,) = [step.error for step in Runs(rows).steps(again.saga_id) if step.error]
    assert "give it the next one in the plan" in failed
    assert here.apply(Assembly(plan("pay@1.0.1", revision=2), ENV)).state == "DONE"
    assert here.values() == {"pay@1.0.0": "retired", "pay@1.0.1": "active"}
    here.sound()


@pytest.mark.rule("S-2", "S-5")
def test_a_newer_version_takes_over_and_cannot_be_taken_back_from_who_depends_on_it(here):
    assert here.apply(Assembly(plan(), ENV)).state == "DONE"
    newer = plan("pay@1.10.0 over pay@1.0.0", "new@1.0.0", revision=2)
    run = here.apply(failing(Assembly(newer, ENV), "S5_VERIFY_VALUES"))
    assert (run.state, run.settled) == ("COMP_VALUES", 1)
    assert here.values() == {
        **{"new@1.0.0": "retired", "pay@1.0.0": "superseded", "pay@1.10.0": "active"},
        **{"send@1.0.0": "active", "sign@1.0.0": "active"},
    }
    with here.kernel.store.read() as rows:
        undone = next(s for s in Runs(rows).steps(run.saga_id) if s.side == "compensation")
    assert undone.status == "done"
    third = here.apply(Assembly(plan("pay@1.11.0 over pay@1.10.0", revision=3), ENV))
    assert third.state == "DONE" and here.values()["pay@1.11.0"] == "active"
    audit = here.registry(
        lambda r: r.audit(third.idempotency_root, "S4_VALUES", r.meant("pay@1.10.0").vocab_id)
    )
    assert audit.rollback_ref == "plan@3"
    here.sound()


@pytest.mark.rule("S-2")
@pytest.mark.parametrize(
    ("values", "why"),
    [
        (["pay@1.0.0"], "in the registry already"),
        (["pay@1.1.0"], 'say supersedes = "pay@1.0.0"'),
        (["pay@1.1.0 over pay@1.0.1"], "is not the active value"),
        (["far@1.1.0 over far@1.0.0"], "is in another collection"),
    ],
)
def test_what_cannot_be_is_found_before_anything_is_written(here, values, why):
    here.apply(Assembly(plan("pay@1.0.0"), ENV))
    here.apply(Assembly(plan("far@1.0.0", collection="far", plan_id="far"), ENV))
    before = here.values()
    saga = Assembly(plan(*values, revision=2), ENV)
    grant = here.grant(saga)
    run = here.apply(saga, grant)
    assert (run.state, run.settled) == ("ABORT_PREFLIGHT", 1)
    with here.kernel.store.read() as rows:
        (step,) = Runs(rows).steps(run.saga_id)
    assert why in msgspec.json.decode(step.error)["message"]
    assert here.values() == before and here.status(grant) == ("active", False)
    here.sound()


@pytest.mark.rule("S-2", "S-4")
def test_without_the_lease_nothing_is_written_and_the_grant_is_untouched(here):
    saga = Assembly(plan(), ENV)
    grant = here.grant(saga)
    here.kernel.store.write(lambda tx: take_lease(tx, "registry:ops", "another run", "t", tx.now))
    run = here.apply(saga, grant)
    assert (run.state, run.settled, run.lease_fence) == ("ABORT_NO_LEASE", 1, 0)
    assert here.status(grant) == ("active", False)
    assert here.registry(lambda r: r.meta("ops")) is None
    with here.kernel.store.read() as rows:
        assert find_lease(rows, "registry:ops").holder == "another run"
    here.sound()


@pytest.mark.rule("S-3")
@pytest.mark.guarantee("G16")
@pytest.mark.parametrize(
    "other",
    [
        {"plan_id": "else"},
        {"revision": 9},
        {"manifest_digest": "ab" * 32},
        {"schema_digest": "ab" * 32},
        {"environment": "prod"},
        {"executor": "eve"},
        {"actions": ["S2_SCHEMA"]},
    ],
    ids=lambda other: next(iter(other)),
)
def test_a_grant_for_anything_else_is_refused_and_untouched(here, other):
    saga = Assembly(plan(), ENV)
    here.ask("principals.add", name="eve", roles=["operator"])
    grant = here.grant(saga, **other)
    run = here.apply(saga, grant)
    assert (run.state, run.settled) == ("ABORT_NO_LEASE", 1)
    assert here.status(grant) == ("active", False)
    assert here.registry(lambda r: r.meta("ops")) is None
    with here.kernel.store.read() as rows:
        failed = next(s for s in Runs(rows).steps(run.saga_id) if s.status == "failed")
    assert "PERMIT_INVALID" in failed.error
    here.sound()


def test_without_a_grant_there_is_no_run(here):
    saga = Assembly(plan(), ENV)
    with pytest.raises(PermitInvalid, match="only under a grant"):
        Wanted(saga, "root", saga.given(), "tester", ENV)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"value": []}, "at least one"),
        ({"revision": 0}, "from 1 on"),
        ({"collection": "no name"}, "no collection"),
        ({"plan_id": ""}, "plan_id"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(words, why):
    good = msgspec.to_builtins(plan())
    with pytest.raises(InvalidConfig, match=why):
        plan_of(good | words)
    with pytest.raises(InvalidConfig, match="one can be active"):
        plan("pay@1.0.0", "pay@1.1.0")
    with pytest.raises(InvalidConfig, match="newer version"):
        plan("pay@1.0.0 over pay@1.1.0")


def undoing(*steps, **words):
    found = [{"action": "supersede", "rollback_ref": "incident-7", **step} for step in steps]
    return rollback_of({"plan_id": "back", "collection": "ops", "step": found, **words})


@pytest.mark.rule("S-6")
@pytest.mark.guarantee("G17")
def test_a_rollback_supersedes_with_its_audit_row_in_one_transaction(here):
    here.apply(Assembly(plan(), ENV))
    saga = Rollback(
        undoing({"target": "pay@1.0.0", "successor": "send@1.0.0"}), schema_digest("ops"), ENV
    )
    grant = here.grant(saga)
    run = here.apply(saga, grant)
    assert run.state == "DONE" and here.status(grant) == ("consumed", True)
    assert here.values()["pay@1.0.0"] == "superseded"
    target = here.registry(lambda r: r.meant("pay@1.0.0"))
    audit = here.registry(lambda r: r.audit(run.idempotency_root, "R2_SUPERSEDE", target.vocab_id))
    assert (audit.rollback_ref, audit.audit_id) == ("incident-7", target.audit_id)
    assert here.apply(saga, grant) == run
    here.sound()


@pytest.mark.rule("S-6")
def test_a_rollback_of_several_is_all_or_nothing(here):
    here.apply(Assembly(plan(), ENV))
    steps = [
        {"target": "pay@1.0.0", "successor": "send@1.0.0"},
        {"target": "send@1.0.0", "successor": "sign@1.0.0"},
    ]
    before = here.values()
    # Both at once would leave pay pointing at what is no longer in force.
    both = here.apply(Rollback(undoing(*steps), schema_digest("ops"), ENV))
    assert both.state == "DONE" and before != here.values()
    assert here.values() == {
        "pay@1.0.0": "superseded",
        "send@1.0.0": "superseded",
        "sign@1.0.0": "active",
    }
    here.sound()


@pytest.mark.rule("S-6")
@pytest.mark.parametrize(
    ("steps", "code"),
    [
        ([("pay", "send"), ("send", "pay")], "ROLLBACK_FORWARD_FAIL_CLOSED_VIOLATED"),
        ([("pay", "send"), ("pay", "sign")], "ROLLBACK_ERASES_HISTORY"),
        ([("send", "sign"), ("pay", "send")], "ROLLBACK_FORWARD_FAIL_CLOSED_VIOLATED"),
    ],
)
def test_each_step_is_judged_as_those_before_it_leave_things(here, steps, code):
    here.apply(Assembly(plan(), ENV))
    back = undoing(*({"target": f"{a}@1.0.0", "successor": f"{b}@1.0.0"} for a, b in steps))
    assert here.registry(lambda r: judge(back, r)).code == code
    saga = Rollback(back, schema_digest("ops"), ENV)
    grant = here.grant(saga)
    assert here.apply(saga, grant).state == "ABORT_CHECK" and here.status(grant) == (
        "active",
        False,
    )
    here.sound()


@pytest.mark.rule("S-6")
def test_what_is_history_already_is_not_rolled_back(here):
    here.apply(Assembly(plan(), ENV))
    back = undoing({"target": "pay@1.0.0", "successor": "send@1.0.0"})
    assert here.apply(Rollback(back, schema_digest("ops"), ENV)).state == "DONE"
    verdict = here.registry(lambda r: judge(back, r))
    assert (verdict.code, "send@1.0.0 follows it" in verdict.why) == (
        "ROLLBACK_ERASES_HISTORY",
        True,
    )
    retiring = undoing({"action": "retire", "target": "send@1.0.0", "successor": "sign@1.0.0"})
    assert here.registry(lambda r: judge(retiring, r)).code == "ROLLBACK_ORPHANS_DEPENDENCY"
    retiring = undoing({"action": "retire", "target": "sign@1.0.0", "successor": "send@1.0.0"})
    assert here.registry(lambda r: judge(retiring, r)).code == "ROLLBACK_SUCCESSOR_RULE_ABSENT"


@pytest.mark.rule("S-2", "S-3")
@pytest.mark.guarantee("G16")
def test_who_gives_a_run_up_before_it_used_its_grant_has_the_grant_still(here):
    saga = Assembly(plan(), ENV)
    grant = here.grant(saga)
    asking = saga.actions["S1_RESERVED"].do.call

    def given_up(task):
        here.kernel.store.write(lambda tx: abandon(tx, "tester", task.site.saga_id, "req"))
        return asking(task)

    action = saga.actions["S1_RESERVED"]
    saga.actions["S1_RESERVED"] = msgspec.structs.replace(
        action, do=msgspec.structs.replace(action.do, call=given_up)
    )
    run = here.apply(saga, grant)
    assert (run.state, run.settled) == ("ABORT_NO_LEASE", 1) and here.status(grant) == (
        "active",
        False,
    )
    with here.kernel.store.read() as rows:
        assert find_lease(rows, "registry:ops") is None
    here.sound()


@pytest.mark.rule("S-3")
@pytest.mark.guarantee("G16")
def test_nobody_else_goes_on_under_a_grant(here, workspace, store_url):
    saga = failing(failing(Assembly(plan(), ENV), "S4_VALUES"), "S4_VALUES", undo=True)
    run = here.apply(saga)
    assert run.stuck is not None
    here.ask("principals.add", name="bob", roles=["operator"])
    here.kernel.close()
    bob = Site(Workspace(workspace.folder, store_url=store_url, principal="bob").kernel())
    with pytest.raises(PermitInvalid, match="is for tester, not for bob"):
        bob.again(run, saga, retry=True)
    bob.kernel.close()


def test_what_a_compensation_must_leave_is_said(here):
    here.apply(Assembly(plan(), ENV))
    run = here.apply(
        failing(Assembly(plan("pay@1.1.0 over pay@1.0.0", revision=2), ENV), "S5_VERIFY_VALUES")
    )
    found = document(saga_view(here.kernel.store, run.saga_id))
    assert (
        found["left"] == ["pay@1.1.0: another value gave way to it"]
        and found["standing"] == "stopped"
    )
    assert found["why"]["step"] == "S5_VERIFY_VALUES"


@pytest.mark.rule("S-6")
def test_a_bad_rollback_is_never_executed(here):
    here.apply(Assembly(plan(), ENV))
    before = here.values()
    saga = Rollback(
        undoing({"target": "pay@1.0.0", "successor": "none@1.0.0"}), schema_digest("ops"), ENV
    )
    grant = here.grant(saga)
    run = here.apply(saga, grant)
    assert (run.state, run.settled) == ("ABORT_CHECK", 1) and here.values() == before
    assert here.status(grant) == ("active", False)
    here.sound()
