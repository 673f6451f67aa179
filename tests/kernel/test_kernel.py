"""Who may write: one kernel, and others that ask it (K-13)."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from helpers import count, create, orphan_lock
from onceward.core import acts, faults
from onceward.core.records import Request
from onceward.core.views import document
from onceward.errors import (
    InvalidConfig,
    LockConflict,
    LockLost,
    PermissionDenied,
    RequestConflict,
    StoredError,
)
from onceward.kernel.answers import Pending
from onceward.kernel.asker import Asker
from onceward.kernel.kernel import Kernel
from onceward.people.views import principal_list
from onceward.workspace import Workspace, os_user


@pytest.fixture
def workspace(tmp_path: Path, store_url: str) -> Workspace:
    made = Workspace(tmp_path / ".onceward", store_url=store_url)
    made.create()
    return made


@pytest.fixture
def kernel(workspace):
    kernel = workspace.kernel()
    yield kernel
    kernel.close()


def add(name, request_id="r1", role="operator", by=None):
    return Request("principals.add", request_id, {"name": name, "roles": [role]}, by or os_user())


@pytest.mark.rule("K-13")
def test_the_first_to_open_a_workspace_is_its_admin(kernel):
    (found,) = document(principal_list(kernel.store))
    assert (found["name"], found["roles"], found["key"]) == (
        os_user(),
        ["admin"],
        kernel.signer.key.fingerprint,
    )


@pytest.mark.rule("K-13", "K-8")
def test_a_kernel_carries_out_a_request_once(kernel):
    first = kernel.ask(add("bob"))
    assert first.value == {"name": "bob", "roles": ["operator"]}
    again = kernel.ask(add("bob"))
    assert again.replayed
    assert again.value == first.value
    with pytest.raises(RequestConflict):
        kernel.ask(add("eve"))


@pytest.mark.rule("K-13")
def test_another_process_asks_and_the_kernel_answers_in_the_order_asked(workspace, kernel):
    asker = workspace.engine()
    assert isinstance(asker, Asker)
    stop = threading.Event()
    serving = threading.Thread(target=kernel.run, args=(stop,))
    try:
        for number in range(5):
            assert asker.ask(add(f"p{number}", f"r{number}"), wait=0) == Pending(f"r{number}")
        serving.start()
        for number in range(5):
            assert asker.ask(add(f"p{number}", f"r{number}"), wait=10).value["name"] == f"p{number}"
    finally:
        stop.set()
        serving.join()
        asker.close()
    with kernel.store.read() as rows:
        order = rows.read("SELECT body FROM events ORDER BY position")
    said = [json.loads(body) for (body,) in order]
    names = [event["detail"]["principal"] for event in said if event["event"] == "PRINCIPAL_ADDED"]
    assert names == [os_user(), "p0", "p1", "p2", "p3", "p4"]


@pytest.mark.rule("K-13", "K-8")
def test_a_filed_request_waits_for_the_next_kernel_and_is_done_once(workspace):
    kernel = workspace.kernel()
    asker = workspace.engine()
    assert asker.ask(add("bob"), wait=0) == Pending("r1")
    kernel.close()
    heir = workspace.kernel()
    assert heir.carry_out() == 1
    assert heir.carry_out() == 0
    assert asker.ask(add("bob"), wait=0).value["name"] == "bob"
    assert heir.ask(add("bob")).replayed
    asker.close()
    heir.close()


@pytest.mark.rule("K-13")
def test_a_refusal_is_an_answer_too(workspace, kernel):
    offer = workspace.keyring.make("bob", kernel.signer.workspace).offer()
    kernel.ask(
        Request(
            "principals.add", "r0", {"name": "bob", "roles": ["admin"], "key": offer}, os_user()
        )
    )
    asker = workspace.engine()
    bad = Request("principals.add", "r1", {"name": "x\ny", "roles": ["operator"]}, "bob")
    assert asker.ask(bad, wait=0) == Pending("r1")
    kernel.carry_out()
    with pytest.raises(StoredError) as refused:
        asker.ask(bad, wait=5)
    assert refused.value.code == "INVALID_CONFIG"
    assert refused.value.exit_status == 2
    asker.close()


@pytest.mark.rule("K-13", "H-9")
def test_roles_are_checked_by_the_kernel_even_if_the_asker_lied(workspace, kernel):
    kernel.ask(add("viewer", "r0", "viewer"))
    asker = workspace.engine()
    with pytest.raises(PermissionDenied, match="has only viewer"):
        asker.ask(add("eve", by="viewer"), wait=0)
    asker.store.file(add("eve", by="viewer"))
    kernel.carry_out()
    with asker.store.read() as rows:
        ((answer,),) = rows.read("SELECT answer FROM requests WHERE request_id = 'r1'")
    assert json.loads(answer)["error"]["code"] == "PERMISSION_DENIED"
    with pytest.raises(PermissionDenied, match="not known here"):
        kernel.ask(add("eve", "r2", by="nobody"))
    asker.close()


@pytest.mark.rule("K-13", "K-11")
@pytest.mark.parametrize(
    "request_",
    [
        Request("no.such.verb", "r1", {}, os_user()),
        Request("principals.add", "r1", {"name": "bob"}, os_user()),
        Request("principals.add", "r1", {"name": "bob", "roles": ["king"]}, os_user()),
        Request("principals.add", "r1", {"name": "bob", "roles": []}, os_user()),
        Request("principals.add", "r1", {"name": "", "roles": ["viewer"]}, os_user()),
        Request("principals.add", "r1", {"name": "bob", "roles": ["viewer"], "more": 1}, os_user()),
    ],
)
def test_bad_requests_are_refused_and_nothing_is_written(kernel, request_):
    before = count(kernel.store, "events")
    with pytest.raises(InvalidConfig):
        kernel.ask(request_)
    assert (count(kernel.store, "events"), count(kernel.store, "requests")) == (before, 0)


@pytest.mark.rule("K-13", "L-21")
def test_a_second_kernel_is_refused_while_the_first_lives(workspace, kernel):
    with pytest.raises(LockConflict):
        workspace.kernel()


@pytest.mark.rule("K-9", "K-13")
def test_a_kernel_that_lost_its_fence_stops_and_answers_nothing(workspace, kernel):
    asker = workspace.engine()
    asker.ask(add("bob"), wait=0)
    orphan_lock(workspace.database)
    heir = workspace.kernel()
    with pytest.raises(LockLost):
        kernel.carry_out()
    assert heir.carry_out() == 1
    heir.close()
    asker.close()


@pytest.mark.rule("K-8", "K-13")
@pytest.mark.parametrize("point", ["request.worked", "commit.before", "commit.after"])
def test_a_crash_while_answering_neither_loses_nor_repeats_the_request(workspace, point):
    kernel = workspace.kernel()
    asker = workspace.engine()
    asker.ask(add("bob"), wait=0)
    with faults.armed(point, act=faults.crash), pytest.raises(faults.SimulatedCrash):
        kernel.carry_out()
    kernel.store.close()
    orphan_lock(workspace.database)
    heir = workspace.kernel()
    heir.carry_out()
    assert asker.ask(add("bob"), wait=0).value["name"] == "bob"
    with heir.store.read() as rows:
        told = rows.read("SELECT 1 FROM events WHERE body LIKE '%bob%PRINCIPAL_ADDED%'")
    assert len(told) == 1
    heir.close()
    asker.close()


def test_a_running_kernel_delivers_and_a_slow_sink_delays_no_answer(tmp_path, store_url):
    made = Workspace(tmp_path / ".onceward", store_url=store_url)
    made.create()
    (tmp_path / "onceward.toml").write_text(
        '[[sink]]\nname = "log"\nkind = "ndjson"\npath = "out.ndjson"\n'
    )
    workspace = Workspace(tmp_path / ".onceward", store_url=store_url)
    kernel: Kernel = workspace.kernel()
    entered = threading.Event()
    leave = threading.Event()
    send = kernel.sinks[0].send

    def slow(parcel):
        entered.set()
        leave.wait(600)
        send(parcel)

    kernel.sinks[0].send = slow
    create(kernel.store)
    stop = threading.Event()
    serving = threading.Thread(target=kernel.run, args=(stop,))
    serving.start()
    asker = workspace.engine()
    try:
        assert entered.wait(600)
        assert asker.ask(add("bob"), wait=10).value["name"] == "bob"
        leave.set()
        deadline = time.monotonic() + 10
        while count(kernel.store, "event_outbox") and time.monotonic() < deadline:
            stop.wait(0.02)
        assert count(kernel.store, "event_outbox") == 0
    finally:
        leave.set()
        stop.set()
        serving.join()
        asker.close()
        kernel.close()
    told = [
        json.loads(line)["event"]["event"]
        for line in (tmp_path / "out.ndjson").read_text().splitlines()
    ]
    assert sorted(told) == [
        "ACT_SIGNED",
        "BUILD_CREATED",
        "KEY_ADDED",
        "KEY_ADDED",
        "PRINCIPAL_ADDED",
        "PRINCIPAL_ADDED",
        "REQUEST_ANSWERED",
        "SINKS_CHANGED",
    ]


@pytest.mark.rule("K-13")
def test_an_asker_whose_kernel_goes_becomes_the_kernel_and_answers_itself(workspace):
    kernel = workspace.kernel()
    asker = workspace.engine()
    leaving = threading.Timer(0.3, kernel.close)
    leaving.start()
    assert asker.ask(add("bob"), wait=20).value["name"] == "bob"
    leaving.join()
    asker.close()
    heir = workspace.kernel()
    assert [p["name"] for p in document(principal_list(heir.store))] == sorted(["bob", os_user()])
    heir.close()


@pytest.mark.rule("K-8")
def test_an_answer_found_before_asking_says_that_it_is_a_replay(workspace, kernel):
    kernel.ask(add("bob"))
    asker = workspace.engine()
    assert asker.ask(add("bob"), wait=0).replayed
    asker.close()


@pytest.mark.rule("K-13")
def test_a_request_that_cannot_be_answered_blocks_none_behind_it(workspace, kernel, monkeypatch):
    def bug(tx, actor, asked):
        raise ZeroDivisionError("s3cret")

    monkeypatch.setitem(
        acts.REGISTRY.acts, "bug", acts.Act(name="bug", role="viewer", payload=dict, run=bug)
    )
    huge = Request(
        "principals.add", "r1", {"name": "x" * 1_000_000, "roles": ["viewer"]}, os_user()
    )
    asker = workspace.engine()
    asker.ask(huge, wait=0)
    asker.ask(Request("bug", "r2", {}, os_user()), wait=0)
    asker.ask(add("bob", "r3"), wait=0)
    assert kernel.carry_out() == 3
    assert kernel.carry_out() == 0
    with pytest.raises(StoredError) as refused:
        asker.ask(huge, wait=5)
    assert refused.value.code == "INVALID_CONFIG"
    with pytest.raises(StoredError, match="ZeroDivisionError") as failed:
        asker.ask(Request("bug", "r2", {}, os_user()), wait=5)
    assert "s3cret" not in str(failed.value.document())
    assert asker.ask(add("bob", "r3"), wait=5).value["name"] == "bob"
    asker.close()


def test_a_kernel_that_fails_to_open_gives_the_lock_back(workspace, monkeypatch):
    def fail(tx, name):
        raise RuntimeError("no")

    monkeypatch.setattr("onceward.kernel.kernel.welcome", fail)
    with pytest.raises(RuntimeError):
        workspace.kernel()
    monkeypatch.undo()
    workspace.kernel().close()


@pytest.mark.rule("K-13")
def test_a_schema_is_never_changed_under_a_kernel_that_lives(workspace, monkeypatch):
    from onceward.store import migrate

    known = [
        *migrate.known(),
        migrate.Migration(9998, "more", "CREATE TABLE more (n INTEGER PRIMARY KEY) STRICT;\n"),
    ]
    kernel = workspace.kernel()
    monkeypatch.setattr(migrate, "known", lambda: known)
    for attempt in (workspace.migrate, workspace.create):
        with pytest.raises(LockConflict):
            attempt()
    assert len(workspace.pending_migrations()) == 1
    monkeypatch.undo()
    kernel.close()
    monkeypatch.setattr(migrate, "known", lambda: known)
    assert [m.number for m in workspace.migrate()] == [9998]
