"""Every (state × state) pair of every lifecycle, against the contract's own words."""

from __future__ import annotations

import itertools
import re

import pytest

from onceward.builds import machine as build
from onceward.changes import machine as change
from onceward.core.machine import NEW, Machine
from onceward.core.records import Build
from onceward.dispatch import machine as child
from onceward.errors import IllegalTransition
from onceward.grants import machine as permit
from onceward.registry import machine as registry
from onceward.sagas import machine as saga
from onceward.store import migrate
from onceward.store.schema import LIFECYCLES

ALLOWED: dict[str, tuple[Machine, dict[str, str]]] = {
    "build": (
        build.BUILD,
        {
            NEW: "PENDING",
            "PENDING": "ACTIVE ABANDONED",
            "ACTIVE": "SUCCESS FAILED CRASHED BUDGET_PAUSE ABANDONED",
            "CRASHED": "ACTIVE ABANDONED",
            "BUDGET_PAUSE": "ACTIVE FAILED ABANDONED",
        },
    ),
    "collection": (registry.COLLECTION, {NEW: "active", "active": "retired"}),
    "child": (
        child.CHILD,
        {
            NEW: "queued",
            "queued": "leased terminal",
            "leased": "started terminal",
            "started": "terminal",
        },
    ),
    "saga": (
        saga.SAGA,
        {
            NEW: "S0_PREFLIGHT",
            "S0_PREFLIGHT": "S1_RESERVED ABORT_PREFLIGHT",
            "S1_RESERVED": "S2_SCHEMA ABORT_NO_LEASE",
            "S2_SCHEMA": "S3_VERIFY_SCHEMA COMP_SCHEMA",
            "S3_VERIFY_SCHEMA": "S4_VALUES COMP_SCHEMA",
            "S4_VALUES": "S5_VERIFY_VALUES COMP_VALUES",
            "S5_VERIFY_VALUES": "S6_EVIDENCE COMP_VALUES",
            "S6_EVIDENCE": "S7_FINALIZE COMP_EVIDENCE",
            "S7_FINALIZE": "DONE COMP_FINALIZE",
            # At a stop its compensations are moves of their own: done, stuck, tried again, settled.
            "ABORT_PREFLIGHT": "ABORT_PREFLIGHT",
            "ABORT_NO_LEASE": "ABORT_NO_LEASE",
            "COMP_SCHEMA": "COMP_SCHEMA",
            "COMP_VALUES": "COMP_VALUES",
            "COMP_EVIDENCE": "COMP_EVIDENCE S6_EVIDENCE",
            "COMP_FINALIZE": "COMP_FINALIZE DONE",
        },
    ),
    "grant": (
        permit.GRANT,
        # A consumed grant is stamped when its run has come to the end (S-2).
        {
            NEW: "draft",
            "draft": "active revoked",
            "active": "consumed expired revoked",
            "consumed": "consumed",
        },
    ),
    "value": (
        registry.VALUE,
        {NEW: "active", "active": "superseded retired", "superseded": "retired"},
    ),
    "change_set": (
        change.CHANGE_SET,
        {NEW: "open", "open": "applied undone stuck", "stuck": "open undone"},
    ),
    "change": (
        change.CHANGE,
        {
            NEW: "marked",
            "marked": "review_pending abandoned",
            "review_pending": "reviewed_approved reviewed_deferred reviewed_rejected abandoned",
            "reviewed_approved": "cut_in_progress reviewed_deferred abandoned",
            "reviewed_deferred": "review_pending abandoned",
            "reviewed_rejected": "abandoned",
            "cut_in_progress": "cut_applied",
            "cut_applied": "verify_in_progress abandoned",
            "verify_in_progress": "verified_complete verify_failed_escalated",
            "verified_complete": "abandoned",
            "verify_failed_escalated": "abandoned",
        },
    ),
}


@pytest.mark.rule("K-3", "B-1", "C-3", "H-1", "S-2", "S-3", "S-5")
@pytest.mark.parametrize("name", ALLOWED)
def test_exactly_the_arrows_of_the_contract_are_allowed(name):
    machine, wanted = ALLOWED[name]
    for source, target in itertools.product((NEW, *machine.states), machine.states):
        assert machine.allows(source, target) == (target in wanted.get(source, "").split()), (
            source,
            target,
        )


@pytest.mark.rule("B-1")
@pytest.mark.parametrize(
    ("source", "target", "reasons"),
    [
        ("PENDING", "ACTIVE", "build_started"),
        ("ACTIVE", "SUCCESS", "normal_completion"),
        ("ACTIVE", "FAILED", "unhandled_error"),
        (
            "ACTIVE",
            "CRASHED",
            "crash_detected orphaned_at_startup corrupt_state_detected lock_stolen",
        ),
        ("ACTIVE", "BUDGET_PAUSE", "budget_exceeded budget_precheck_block"),
        ("BUDGET_PAUSE", "FAILED", "budget_exceeded"),
        ("CRASHED", "ACTIVE", "operator_resume"),
        ("BUDGET_PAUSE", "ACTIVE", "operator_resume"),
    ],
)
def test_each_arrow_of_a_build_takes_its_own_reasons(source, target, reasons):
    found = {a.reason for a in build.BUILD.arrows if (a.source, a.target) == (source, target)}
    assert found == set(reasons.split())
    with pytest.raises(IllegalTransition):
        build.BUILD.follow(source, target, "because")


@pytest.mark.rule("C-6")
def test_a_child_has_only_the_four_lifecycle_names():
    assert child.CHILD.events() == {"WORKER_START", "WORKER_PASS", "WORKER_FAIL", "WORKER_CANCEL"}


@pytest.mark.rule("H-1")
def test_a_change_is_never_found_half_cut_or_half_verified():
    assert set(change.CHANGE.transient) == {"cut_in_progress", "verify_in_progress"}
    assert len(change.CHANGE.persistent) == 9


@pytest.mark.rule("K-3")
def test_the_schema_allows_exactly_the_persistent_states_of_each_stored_machine():
    machines = {machine.name: machine for machine, _ in ALLOWED.values()}
    text = "".join(m.text for m in migrate.known())
    for name, table in LIFECYCLES.items():
        if (
            name == "saga"
        ):  # Every run brings its own states; its shape is held against its events by `verify`.
            continue
        found = re.search(
            rf"CONSTRAINT {table.name}_{table.lifecycle.state}\s+CHECK \({table.lifecycle.state} IN \(([^)]*)\)",
            text,
        )
        assert found, table.name
        assert set(re.findall(r"'(\w+)'", found.group(1))) == set(machines[name].persistent)


def test_a_decision_refuses_what_the_table_refuses():
    active = Build("bld_1", "demo", "SUCCESS", 3, 0, 0)
    with pytest.raises(IllegalTransition, match="SUCCESS is final"):
        build.move(active, "ACTIVE", "operator_resume", "ann")
