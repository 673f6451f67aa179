"""kill -9 of a saga at every arrival at every fault point, in every state and every compensation; then go on."""

from __future__ import annotations

import json
import os
import random
import signal
from collections import Counter

import msgspec
import pytest

from conftest import KINDS
from helpers import assert_sound
from onceward import saga_running
from onceward.core.records import Request
from onceward.store.tables.events import events_of
from onceward.store.tables.grants import Grants
from onceward.store.tables.registry import Registry
from onceward.store.tables.sagas import Runs, find_lease
from onceward.workspace import Workspace

VICTIM = "sagas_victim.py"
SEED = int(os.environ.get("ONCEWARD_SEED", "1"))
SHARE = int(os.environ.get("ONCEWARD_SAGA_DEATHS", "2"))
"""How many deaths of each scene are tried on each store; 0 for all of them."""
OURS = (
    "child.",
    "process.",
    "artifact.",
    "stream.",
    "move.",
    "commit.",
    "write.",
    "lock.",
    "target.",
)


@pytest.fixture
def scene(store_url, tmp_path):
    workspace = Workspace(tmp_path / ".onceward", store_url=store_url, principal="victim")
    workspace.create()
    workspace.kernel().close()
    return workspace


def on_stores(*scenes):
    """Each scene with its store: by default one of them, the seed says which; the long campaign has all on both."""
    return [
        (kind, *scene)
        for scene in scenes
        for kind in KINDS
        if not SHARE or (len("".join(scene)) + SEED + (kind == "sqlite")) % 2 == 0
    ]


class Trial:
    """One scene, killed at chosen moments, each time as a run of its own."""

    def __init__(self, workspace, store_url, executioner, number=0):
        self.workspace, self.executioner, self.number = workspace, executioner, number
        self.folder = workspace.folder.parent
        plain = {
            "folder": str(workspace.folder),
            "store": store_url,
            "fault": "",
            "nth": 0,
            "counted": False,
        }
        self.plain = {**plain, "fail": "", "stick": "", "grant": None, "plan": None}

    def order(self, **words):
        self.number += 1
        return {**self.plain, "root": f"r{self.number}", **words}

    def deaths(self, **words):
        """Every arrival at every fault point of a whole run."""
        assert self.executioner(**self.order(counted=True, **self.fresh(words))) == 0
        counts = json.loads((self.folder / "counts").read_text())
        found = [
            (name, nth)
            for name, many in counts.items()
            if name.startswith(OURS)
            for nth in range(1, many + 1)
        ]
        dice = random.Random(f"{SEED} {sorted(words.items())} {self.plain['store'] == 'sqlite'}")
        return found if SHARE == 0 else dice.sample(found, min(SHARE, len(found)))

    def fresh(self, words):
        return words

    def kill(self, death, words):
        order = self.order(**self.fresh(words))
        ending = self.executioner(**{**order, "fault": death[0], "nth": death[1]})
        assert ending in (0, -signal.SIGKILL), death
        return order, ending

    def go_on(self, order):
        assert self.executioner(**order) == 0, order
        return json.loads((self.folder / "outcome").read_text())

    def witnessed(self, root):
        file = self.folder / "witness"
        lines = file.read_text().splitlines() if file.exists() else []
        return [word for name, word in map(str.split, lines) if name == root]


@pytest.mark.rule("S-1", "S-8")
@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G17")
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("kind", "fail", "stick"),
    on_stores(("", ""), ("a", ""), ("b", "a"), ("c", ""), ("c", "c"), ("c", "b")),
)
def test_a_saga_comes_to_its_end_wherever_it_is_killed(scene, store_url, executioner, fail, stick):
    trial = Trial(scene, store_url, executioner)
    words, killed = {"fail": fail, "stick": stick}, Counter()
    wanted = ["DONE", "done"] if not fail else [f"COMP_{fail.upper()}", "stopped"]
    roots = []
    for death in trial.deaths(**words):
        order, ending = trial.kill(death, words)
        killed[ending] += 1
        with scene.reading() as store, store.read() as rows:
            run = Runs(rows).of_root(order["root"])
            done = (
                {step.step for step in Runs(rows).steps(run.saga_id) if step.status == "done"}
                if run
                else set()
            )
            before = trial.witnessed(order["root"])
        assert trial.go_on(order) == wanted, death
        again = trial.witnessed(order["root"])[len(before) :]
        assert not {word for word in again if not word.startswith("-")} & done, (
            death,
            "what was done is not done again",
        )
        left = {
            path.name
            for path in (trial.folder / order["root"]).iterdir()
            if not path.name.startswith("stuck")
        }
        assert left == ({"a", "b", "c"} if not fail else set()), death
        roots.append(order["root"])
    examine(scene, roots, wanted)
    assert killed[-signal.SIGKILL] > len(roots) / 2


def examine(scene, roots, wanted):
    """The same ending for all, every lease free, and a record that agrees with itself."""
    kernel = scene.kernel()
    try:
        with kernel.store.read() as rows:
            for root in roots:
                run = Runs(rows).of_root(root)
                assert run.state == wanted[0] and run.over and run.stuck is None
                assert find_lease(rows, run.lease).holder == ""
            assert_sound(rows)
        assert not list(scene.folder.glob("work/*"))
    finally:
        kernel.close()


class Assembling(Trial):
    """The same for plans: each has values of its own, and a grant of its own."""

    shared = True

    def fresh(self, words):
        number = self.number + 1
        one = {
            "protocol_version": "1.0.0",
            "act_type": "WRITE",
            "governing_authority_ref": "council",
        }
        values = [{"operation_code": f"op{number}.{name}", **one} for name in ("x", "y")]
        collection = "ops" if self.shared else f"own{number}"
        plan = {
            "plan_id": f"plan{number}",
            "revision": 1,
            "collection": collection,
            "value": values,
        }
        return {**words, "plan": plan, "grant": self.grant(plan)}

    def grant(self, plan):
        make = saga_running.to_apply if "value" in plan else saga_running.to_roll_back
        saga = make(plan, self.workspace.settings.grants.environment)
        scope = msgspec.to_builtins(saga.scope(None, "local", "victim"))
        kernel = self.workspace.kernel()
        try:
            drafted = kernel.ask(
                Request("grants.draft", f"d{plan['plan_id']}", {"scope": scope}, "victim")
            ).value
            issued = {"grant": drafted["grant_id"], "scope": scope, "seconds": 6000}
            kernel.ask(Request("grants.issue", f"i{plan['plan_id']}", issued, "victim"))
            return drafted["grant_id"]
        finally:
            kernel.close()


STOPS = {
    "": "DONE",
    "S0_PREFLIGHT": "ABORT_PREFLIGHT",
    "S1_RESERVED": "ABORT_NO_LEASE",
    "S2_SCHEMA": "COMP_SCHEMA",
    "S4_VALUES": "COMP_VALUES",
    "S6_EVIDENCE": "COMP_EVIDENCE",
    "S7_FINALIZE": "COMP_FINALIZE",
}


@pytest.mark.rule("S-2", "S-3", "S-4")
@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G16")
@pytest.mark.guarantee("G17")
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("kind", "fail"), on_stores(*((stop,) for stop in STOPS)))
def test_an_assembly_comes_to_its_end_wherever_it_is_killed(scene, store_url, executioner, fail):
    trial = Assembling(scene, store_url, executioner)
    foreign = trial.order(**trial.fresh({"fail": ""}))
    assert trial.go_on(foreign) == ["DONE", "done"]
    trial.shared = fail != "S2_SCHEMA"
    # What finishes forward does: its compensation is to finish.
    state = "DONE" if fail == "S7_FINALIZE" else STOPS[fail]
    # What cannot be kept as evidence waits for a person, who has it tried again.
    ends = {"DONE": "done", "COMP_EVIDENCE": "stuck"}
    wanted = [state, ends.get(state, "stopped")]
    orders = []
    for death in trial.deaths(fail=fail):
        order, _ = trial.kill(death, {"fail": fail})
        assert trial.go_on(order) == wanted, death
        orders.append(order)
    examine_registry(scene, orders, wanted, fail, foreign)


def examine_registry(scene, orders, wanted, fail, foreign):
    used = not wanted[0].startswith("ABORT_")
    status = {"DONE": "active", "COMP_VALUES": "retired", "COMP_EVIDENCE": "active"}.get(wanted[0])
    kernel = scene.kernel()
    try:
        with kernel.store.read() as rows:
            registry = Registry(rows)
            for order in orders:
                run = Runs(rows).of_root(order["root"])
                waits = wanted[1] == "stuck"
                assert (run.state, run.over, bool(run.stuck)) == (wanted[0], not waits, waits)
                lease = find_lease(rows, run.lease)
                assert lease is None or lease.holder == ""
                own = registry.of_root(order["root"])
                assert {value.status for value in own} == ({status} if status else set())
                assert len(own) == (2 if status else 0), "no value twice, none missing"
                told = [
                    event.facts()["event"] for event in events_of(rows, f"entry:{order['grant']}")
                ]
                assert told.count("GRANT_CONSUMED") == used, "the grant is used once"
                assert Grants(rows).named(order["grant"]).status == (
                    "consumed" if used else "active"
                )
                if fail == "S2_SCHEMA":
                    assert registry.collection(order["plan"]["collection"]) is None
            theirs = registry.of_root(foreign["root"])
            assert {value.status for value in theirs} == {"active"} and len(theirs) == 2, (
                "others' things are untouched"
            )
            assert registry.collection("ops").root == foreign["root"]
            assert_sound(rows)
    finally:
        kernel.close()


class RollingBack(Assembling):
    """For rollbacks: two values come first, then one gives way to the other."""

    def fresh(self, words):
        made = self.order(**super().fresh({"fail": ""}))
        assert self.go_on(made) == ["DONE", "done"]
        first, second = (f"{value['operation_code']}@1.0.0" for value in made["plan"]["value"])
        step = {
            "action": "supersede",
            "target": first,
            "successor": second,
            "rollback_ref": "incident-7",
        }
        plan = {"plan_id": f"back{self.number}", "collection": "ops", "step": [step]}
        return {**words, "plan": plan, "grant": self.grant(plan)}


@pytest.mark.rule("S-6")
@pytest.mark.guarantee("G17")
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("kind", "fail"), on_stores(("",), ("R2_SUPERSEDE",), ("R3_FINALIZE",)))
def test_a_rollback_is_there_whole_or_not_at_all_wherever_it_is_killed(
    scene, store_url, executioner, fail
):
    trial = RollingBack(scene, store_url, executioner)
    wanted = ["ABORT_SUPERSEDE", "stopped"] if fail == "R2_SUPERSEDE" else ["DONE", "done"]
    orders = []
    for death in trial.deaths(fail=fail):
        order, _ = trial.kill(death, {"fail": fail})
        assert trial.go_on(order) == wanted, death
        orders.append(order)
    kernel = scene.kernel()
    try:
        with kernel.store.read() as rows:
            for order in orders:
                (step,) = order["plan"]["step"]
                value = Registry(rows).meant(step["target"])
                audit = Registry(rows).audit(order["root"], "R2_SUPERSEDE", value.vocab_id)
                done = wanted[0] == "DONE"
                assert (value.status, audit is not None) == (
                    "superseded" if done else "active",
                    done,
                )
                grant = Grants(rows).named(order["grant"])
                assert (grant.status, grant.finalized_at is not None) == ("consumed", done)
            assert_sound(rows)
    finally:
        kernel.close()
