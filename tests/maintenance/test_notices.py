"""People are told when they are needed: by a command or a webhook, through the outbox, at least once."""

from __future__ import annotations

import json
import time

import pytest

from helpers import processes_with
from onceward import Plan, Saga, saga_running
from onceward.builds.lifecycle import Offer
from onceward.core import faults
from onceward.errors import InvalidConfig
from onceward.workspace import Workspace
from typing_in import until


def told(site):
    """What the notify command wrote down."""
    file = site.folder.parent / "notices"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def configured(site, text):
    (site.folder.parent / "onceward.toml").write_text(text)
    old = site.workspace
    url = None if old.settings.store.url == "sqlite" else old.settings.store.url
    site.workspace = Workspace(old.folder, store_url=url, principal="tester")


@pytest.fixture
def noticed(site):
    configured(
        site,
        '[notify]\ncommand = ["sh", "-c", "cat >> notices; echo \\"$ONCEWARD_NOTICE\\" > last"]\n',
    )
    return site


def spender(site, **words):
    plan = Plan("costly", folder=site.folder, budget={"usd": "0.01"}, **words)

    @plan.stage(targets=["a", "b"])
    def spend(task):
        task.spend(usd="0.01", settled=True)
        return task.target

    return plan


@pytest.mark.rule("B-9", "K-6")
def test_a_pause_is_told_with_what_to_do_next(noticed):
    assert noticed.run(spender(noticed), jobs=1)["state"] == "BUDGET_PAUSE"
    (notice,) = told(noticed)
    assert notice["event"] == "BUILD_PAUSED" and notice["plan"] == "costly"
    assert notice["build_id"] == noticed.build_id and len(notice["dedupe_key"]) == 64
    assert notice["text"].startswith("costly is paused: usd is at 0.02 of 0.01")
    assert f"onceward explain {noticed.build_id}" in notice["text"]
    assert "token" not in json.dumps(notice)
    assert (noticed.folder.parent / "last").read_text().strip() == notice["text"]


def test_a_success_is_no_reason_to_disturb_anybody(noticed):
    plan = Plan("good", folder=noticed.folder)
    plan.stage(name="work")(lambda task: 1)
    assert noticed.run(plan)["state"] == "SUCCESS"
    assert told(noticed) == []


def test_a_failure_is_told(noticed):
    def fails(task):
        raise ValueError("no")

    plan = Plan("sad", folder=noticed.folder)
    plan.stage(name="work")(fails)
    noticed.run(plan)
    assert [notice["text"].split(".")[0] for notice in told(noticed)] == ["sad failed at work:main"]


@pytest.mark.rule("B-15")
def test_an_approval_is_told_while_the_build_waits(noticed):
    plan = Plan("asks", folder=noticed.folder)
    plan.stage(name="draft")(lambda task: "text")
    plan.approval("agree", "Is it good?", needs="draft")
    with noticed.waiting(plan):
        (notice,) = until(lambda: told(noticed))
        assert notice["step"] == "agree:main" and "Is it good?" in notice["text"]
        noticed.ask("builds.abandon", build=noticed.build_id, failed=False)


@pytest.mark.rule("S-2")
def test_a_saga_that_is_stuck_is_told(noticed):
    def fails(task):
        raise ValueError("the bank is closed")

    saga = Saga("trip", folder=noticed.folder)
    saga.action(fails, name="pay", compensate=fails)
    outcome, _ = saga_running.run(noticed.workspace, saga)
    (notice,) = told(noticed)
    assert (notice["event"], notice["saga"], notice["saga_id"]) == (
        "SAGA_STUCK",
        "trip",
        outcome.saga_id,
    )
    assert (
        "trip is stuck at COMP_PAY: pay could not be undone (ValueError: the bank is closed"
        in notice["text"]
    )
    assert f"onceward explain {outcome.saga_id}" in notice["text"] and notice["step"] == "pay"


@pytest.mark.rule("B-8")
def test_a_step_in_doubt_is_told_by_the_kernel_that_finds_it(noticed):
    plan = Plan("risky", folder=noticed.folder)
    plan.stage(name="pay", on_crash="ask")(lambda task: 1)
    with pytest.raises(faults.SimulatedCrash), faults.armed("child.ended", 1, faults.crash):
        noticed.run(plan)
    noticed.workspace.kernel().close()
    assert [notice["event"] for notice in told(noticed)] == ["STEP_IN_DOUBT"]
    assert "whether pay:main had its effect" in told(noticed)[0]["text"]
    noticed.resume(plan, noticed.build_id, Offer(rerun=["pay:main"]))
    assert len(told(noticed)) == 1


@pytest.mark.rule("K-6")
def test_a_command_that_fails_is_tried_again_and_ends_no_build(site):
    configured(site, '[notify]\ncommand = ["sh", "-c", "test -e there && cat >> notices"]\n')
    assert site.run(spender(site), jobs=1)["state"] == "BUDGET_PAUSE"
    assert told(site) == []
    with site.workspace.reading() as store, store.read() as rows:
        ((attempts, error),) = rows.read("SELECT attempts, last_error FROM event_outbox")
    assert attempts == 1 and error == "the notify command ended with 1"
    (site.folder.parent / "there").touch()
    kernel = site.workspace.kernel()
    from onceward.store.tables.outbox import make_due

    kernel.store.write(lambda tx: make_due(tx, tx.now))
    kernel.close()
    assert len(told(site)) == 1


def test_only_what_was_asked_for_is_told_and_only_that_waits(site):
    configured(site, '[notify]\ncommand = ["sh", "-c", "cat >> notices"]\non = ["failure"]\n')
    site.run(spender(site), jobs=1)
    assert told(site) == []
    with site.workspace.reading() as store, store.read() as rows:
        assert rows.read("SELECT count(*) FROM event_outbox") == [(0,)]


def test_a_webhook_gets_text_that_chat_programs_show(site, hook, monkeypatch):
    url, heard, _ = hook
    monkeypatch.setenv("HOOK", "s3cret")
    configured(site, f'[notify]\nwebhook = "{url}"\nsecret_env = "HOOK"\n')
    site.run(spender(site), jobs=1)
    ((headers, body),) = heard
    assert json.loads(body)["text"].startswith("costly is paused")
    assert headers["Content-Type"] == "application/json" and headers[
        "webhook-signature"
    ].startswith("v1,")


@pytest.mark.parametrize(
    "text",
    [
        '[notify]\nwebhook = "ftp://x"\n',
        '[notify]\nwebhook = "https://u:p@x"\n',
        '[notify]\non = ["dawn"]\n',
        "[notify]\nsounds = true\n",
        '[[sink]]\nname = "notify command"\nkind = "console"\n',
    ],
)
def test_settings_that_make_no_sense_are_refused(site, text):
    with pytest.raises(InvalidConfig):
        configured(site, text)


@pytest.mark.rule("K-6", "L-24")
def test_a_command_that_hangs_holds_up_nobody_and_is_ended_with_all_it_started(site):
    configured(
        site,
        '[notify]\ncommand = ["sh", "-c", "sleep 7777.7 & sleep 7777.7"]\n'
        '[[sink]]\nname = "log"\nkind = "ndjson"\npath = "events.ndjson"\n',
    )
    begun = time.monotonic()
    assert site.run(spender(site), jobs=1)["state"] == "BUDGET_PAUSE"
    first = time.monotonic() - begun
    begun = time.monotonic()
    site.workspace.kernel().close()
    assert first < 600 and time.monotonic() - begun < 600, (
        "it is tried once, for a few seconds, and not by the next command"
    )
    assert processes_with("7777.7") == []
    with site.workspace.reading() as store, store.read() as rows:
        found = rows.read(
            "SELECT attempts, last_error FROM event_outbox WHERE sink = 'notify command'"
        )
    ((attempts, error),) = found
    assert attempts == 1 and "took too long" in error
