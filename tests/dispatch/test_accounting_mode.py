"""A session whose lanes are counted in another mode is refused, whichever way somebody comes in (C-30)."""

from __future__ import annotations

import threading

import pytest

from helpers import count_in_another_mode
from onceward.core.views import document
from onceward.dispatch import debits
from onceward.dispatch.budget import Estimated
from onceward.dispatch.views import lane_list
from onceward.dispatch.work import Function
from onceward.errors import AccountingModeInvalid
from onceward.kernel.views import stream_lines
from onceward.store.tables.budgets import debits_of, lanes_of
from onceward.store.tables.children import Tokens

pytestmark = pytest.mark.rule("C-30")
CODE = "URM_DISPATCH_ACCOUNTING_MODE_INVALID"

PLAN = """
name = "counted"
[budget]
usd = "1.00"
[[stage]]
name = "first"
run = ["sh", "-c", "echo done > $ONCEWARD_OUT/o"]
[[stage]]
name = "second"
needs = ["first"]
run = ["sh", "-c", "echo done > $ONCEWARD_OUT/o"]
"""


def written(store, session_id):
    """All that a session has on record."""
    with store.read() as rows:
        return (
            lanes_of(rows, session_id),
            debits_of(rows, session_id),
            [token.phase for token in Tokens(rows).of_session(session_id)],
            list(stream_lines(store, f"session:{session_id}")),
        )


def test_a_session_of_another_mode_is_not_opened(workspace, kernel):
    kernel.open_session("ses_a", 1, {"tokens": 10}).close()
    count_in_another_mode(workspace.database, "ses_a")
    before = written(kernel.store, "ses_a")
    for limits in ({}, {"tokens": 20}, {"usd_micros": 5}):
        with pytest.raises(AccountingModeInvalid) as refused:
            kernel.open_session("ses_a", 1, limits)
        assert refused.value.code == CODE
    assert written(kernel.store, "ses_a") == before
    # It can still be looked at, and others go on.
    assert document(lane_list(kernel.store, "ses_a"))[0]["total"] == 0
    kernel.open_session("ses_b", 1).close()


def test_nothing_is_debited_in_another_mode(workspace, kernel):
    began, go_on = threading.Event(), threading.Event()

    def call(task):
        began.set()
        go_on.wait(100)

    children = kernel.open_session("ses_a", 1, {"tokens": 10})
    (child_id,) = children.spawn([Function(call=call, name="wait")])
    assert began.wait(100)
    count_in_another_mode(workspace.database, "ses_a")
    before = written(kernel.store, "ses_a")
    with kernel.store.read() as rows:
        token = Tokens(rows).get(child_id)
    for spend in (
        lambda tx: debits.debit(tx, token, {"tokens": 1}),
        lambda tx: debits.settle(tx, token, Estimated({"tokens": 1}), "tester"),
        lambda tx: debits.settle(tx, token, Estimated({"solver_calls": 1}), "tester"),
    ):
        with pytest.raises(AccountingModeInvalid):
            kernel.store.write(spend)
    assert written(kernel.store, "ses_a") == before
    go_on.set()


def test_a_build_of_another_mode_is_not_resumed(workspace, site):
    build_id = site.crash(PLAN)
    count_in_another_mode(workspace.database, build_id)
    with workspace.reading() as store:
        before = written(store, build_id)
    with pytest.raises(AccountingModeInvalid):
        site.resume(PLAN, build_id)
    with workspace.reading() as store:
        assert written(store, build_id) == before
