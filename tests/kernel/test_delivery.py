"""Delivery beside a kernel's work: a sink that is slow or silent keeps nobody, and local sinks miss nothing."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from helpers import count, create
from onceward import Plan
from onceward.core.records import Request
from onceward.core.sources import LiveSources
from onceward.kernel import sinks
from onceward.kernel.delivery import DeliveryThreads
from onceward.kernel.outbox import deliver
from onceward.kernel.sinks import FileSink, WebhookSink
from onceward.kernel.tenure import holder
from onceward.workspace import Workspace
from typing_in import until

NEVER = 3600.0
"""A limit that no test lives to see."""
PATIENCE = 120.0
"""How long a test waits for what takes a second on an idle machine."""


class Line:
    """A server on loopback that takes connections and answers as it is told: a list of pieces, or nothing at all."""

    def __init__(self, answer=None, every=0.0):
        self.answer, self.every, self.taken = answer, every, []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/in"

    def _serve(self):
        while not self._over.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.taken.append(connection)
            if self._over.is_set():
                # It came while we were closed, and nobody else closes it.
                connection.close()
                return
            threading.Thread(target=self._drip, args=(connection,), daemon=True).start()

    def _drip(self, connection):
        try:
            while self.answer is not None and not self._over.wait(self.every):
                connection.sendall(self.answer)
        except OSError:
            pass

    def close(self):
        self._over.set()
        self._socket.close()
        for connection in self.taken:
            connection.close()


@pytest.fixture
def silent():
    line = Line()
    yield line
    line.close()


@pytest.fixture
def dripping():
    line = Line(b"H", every=0.05)
    yield line
    line.close()


def webhook(url, name="hook"):
    return WebhookSink(name, url, "", "wsp_1", LiveSources())


def finishes(work):
    """What a work on a thread of its own comes to; it must come to its end."""
    results = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert results, "it hangs"
    return results[0]


def with_sinks(workspace, *kinds, url=""):
    """The same workspace with these sinks."""
    words = {
        "file": 'name = "file"\nkind = "ndjson"\npath = "out.ndjson"\n',
        "console": 'name = "console"\nkind = "console"\n',
        "hook": f'name = "hook"\nkind = "webhook"\nurl = "{url}"\n',
    }
    text = "".join(f"[[sink]]\n{words[kind]}" for kind in kinds)
    (workspace.folder.parent / "onceward.toml").write_text(text)
    said = workspace.settings.store.url
    return Workspace(
        workspace.folder, store_url=None if said == "sqlite" else said, principal="tester"
    )


def quick(site, steps=1, wait=lambda: None):
    plan = Plan("quick", folder=site.folder)
    plan.stage(name="work", targets=[f"t{n}" for n in range(steps)])(lambda task: wait())
    return plan


def undelivered(workspace):
    """The events that the file lacks, and those that it has out of order."""
    with workspace.reading() as store, store.read() as rows:
        # What a child's stream tells is told by its session's stream, too; only that one is posted.
        events = rows.read(
            "SELECT e.hash FROM events e JOIN streams s ON s.stream_no = e.stream_no"
            " WHERE s.stream NOT LIKE 'child:%' ORDER BY e.position"
        )
    lines = (workspace.folder.parent / "out.ndjson").read_text().splitlines()
    told = [json.loads(line)["event"]["hash"] for line in lines]
    expected = [key.hex() for (key,) in events]
    assert expected
    return [] if told == expected else [(told, expected)]


@pytest.mark.rule("K-6")
def test_a_webhook_has_a_limit_for_the_whole_call_not_for_each_byte(store, dripping, monkeypatch):
    monkeypatch.setattr(sinks, "WEBHOOK_TIMEOUT_SECONDS", 0.5)
    create(store)
    (done,) = finishes(lambda: deliver(store, [webhook(dripping.url, "log")]))
    assert (done.delivered, done.failed) == (0, 1)
    assert "did not answer within" in done.last_error
    assert count(store, "event_outbox") == 1


@pytest.mark.rule("K-6")
def test_looking_up_a_webhooks_name_is_part_of_its_time(store, monkeypatch):
    monkeypatch.setattr(sinks, "WEBHOOK_TIMEOUT_SECONDS", 0.5)
    asked, answer = threading.Event(), threading.Event()

    def slow(*args, **kwargs):
        asked.set()
        answer.wait(PATIENCE)
        raise OSError("no such name")

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    create(store)
    create(store)
    sink = webhook("http://nowhere.invalid/", "log")
    (done,) = finishes(lambda: deliver(store, [sink]))
    assert asked.is_set() and done.failed == 2
    assert "has not ended yet" in done.last_error, (
        "one thread waits for the name, not one per event"
    )
    answer.set()


@pytest.mark.rule("K-6")
@pytest.mark.parametrize("answer", [None, b"H"])
def test_a_webhook_with_tls_is_given_up_in_its_handshake_too(store, monkeypatch, answer):
    monkeypatch.setattr(sinks, "WEBHOOK_TIMEOUT_SECONDS", 0.5)
    line = Line(answer, every=0.05)
    create(store)
    url = line.url.replace("http:", "https:")
    (done,) = finishes(lambda: deliver(store, [webhook(url, "log")]))
    assert (done.delivered, done.failed) == (0, 1)
    line.close()


@pytest.mark.rule("K-6")
def test_a_run_is_not_kept_by_a_webhook_that_never_answers(site, silent, monkeypatch):
    monkeypatch.setattr(sinks, "WEBHOOK_TIMEOUT_SECONDS", NEVER)
    site.workspace = with_sinks(site.workspace, "hook", "file", url=silent.url)
    plan = quick(site, wait=lambda: until(lambda: silent.taken, PATIENCE) and None)
    outcome = finishes(lambda: site.run(plan))
    assert outcome["state"] == "SUCCESS"
    assert "to hook: the webhook did not answer within" in outcome["untold"]
    with site.workspace.reading() as store:
        assert holder(store) is None
    assert undelivered(site.workspace) == [], "sinks do not wait for each other"


@pytest.mark.rule("K-6")
def test_local_sinks_have_everything_when_a_run_has_ended(site, capsys):
    site.workspace = with_sinks(site.workspace, "file", "console")
    for _ in range(5):
        outcome = site.run(quick(site, steps=3))
        assert outcome["state"] == "SUCCESS" and "untold" not in outcome
        assert undelivered(site.workspace) == []
    printed = [line for line in capsys.readouterr().out.splitlines() if "[OUTBOX]" in line]
    lines = (site.workspace.folder.parent / "out.ndjson").read_text().splitlines()
    assert printed == [f"[OUTBOX] {line}" for line in lines]


@pytest.mark.rule("K-6", "L-24")
def test_local_sinks_are_told_that_a_build_was_stopped(site):
    site.workspace = with_sinks(site.workspace, "file")
    kernel = site.workspace.kernel()
    stop = threading.Event()
    serving = threading.Thread(target=kernel.run, args=(stop,))
    serving.start()
    build_id = create(kernel.store)

    def begin(tx):
        from onceward.builds import machine as rules

        tx.move(rules.move(tx.builds.get(build_id), "ACTIVE", "build_started", "tester"))

    kernel.store.write(begin)
    stop.set()
    serving.join()
    kernel.close()
    lines = (site.workspace.folder.parent / "out.ndjson").read_text().splitlines()
    assert json.loads(lines[-1])["event"]["event"] == "BUILD_CRASHED"


@pytest.mark.rule("K-6")
def test_what_a_webhook_accepts_before_the_kernel_leaves_is_settled_and_the_rest_is_repeated(
    site, hook
):
    url, heard, answers = hook
    answers[0] = 500
    site.workspace = with_sinks(site.workspace, "hook", url=url)
    assert "to hook: the webhook answered 500" in site.run(quick(site))["untold"]
    answers[0] = 200
    heard.clear()
    kernel = site.workspace.kernel()
    kernel.ask(Request("outbox.flush", "again", {}, "tester"))
    kernel.deliver()
    assert count(kernel.store, "event_outbox") == 0
    kernel.close()
    events = [json.loads(body) for _, body in heard]
    assert len({event["id"] for event in events}) == len(events)
    for subject in {event["subject"] for event in events}:
        numbers = [event["sequence"] for event in events if event["subject"] == subject]
        assert numbers == sorted(numbers)


@pytest.mark.rule("K-6", "L-24")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_run_that_waits_for_its_webhook(site, store_url, silent, number):
    workspace = with_sinks(site.workspace, "hook", "file", url=silent.url)
    program = str(Path(__file__).with_name("leaving_kernel.py"))
    run = subprocess.Popen(
        [sys.executable, program, str(workspace.folder), store_url],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.stdout.readline() == "over\n"
    until(lambda: silent.taken, PATIENCE)
    run.send_signal(number)
    said, _ = run.communicate(timeout=PATIENCE)
    assert said.startswith("SUCCESS ") and "to hook" in said
    assert run.returncode == 128 + number
    with workspace.reading() as store:
        assert holder(store) is None
        with store.read() as rows:
            tried = rows.read("SELECT max(attempts) FROM event_outbox WHERE sink = 'hook'")
    assert int(tried[0][0]) == 0, "a call that was cut off is no failure of the webhook"
    assert undelivered(workspace) == []


@pytest.mark.rule("K-6", "K-13")
def test_a_flush_of_a_slow_webhook_delays_no_answer(site, silent, monkeypatch):
    monkeypatch.setattr(sinks, "WEBHOOK_TIMEOUT_SECONDS", NEVER)
    site.workspace = with_sinks(site.workspace, "hook", url=silent.url)
    kernel = site.workspace.kernel()
    create(kernel.store)
    failures = []

    def flush():
        try:
            kernel.deliver()
        except Exception as error:
            failures.append(error)

    flushing = threading.Thread(target=flush, daemon=True)
    flushing.start()
    until(lambda: silent.taken, PATIENCE)
    asked = Request("principals.add", "r1", {"name": "bob", "roles": ["viewer"]}, "tester")
    engine = site.workspace.engine()
    assert engine.ask(asked, wait=PATIENCE).value["name"] == "bob"
    engine.close()
    for sink in kernel.sinks:
        sink.deadline.cancel()
    flushing.join(PATIENCE)
    assert not flushing.is_alive() and not failures
    kernel.close()


@pytest.mark.rule("K-6")
def test_a_sink_that_is_left_behind_settles_nothing(store, tmp_path):
    entered, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    class Stuck(FileSink):
        def settle(self):
            entered.set()
            go_on.wait(PATIENCE)
            super().settle()
            ended.set()

    create(store)
    threads = DeliveryThreads(store)
    threads.start([Stuck("log", tmp_path / "out.ndjson")])
    assert entered.wait(PATIENCE)
    threads.abandon()
    go_on.set()
    assert ended.wait(PATIENCE)
    until(lambda: not any(thread.name == "sink log" for thread in threading.enumerate()), PATIENCE)
    assert count(store, "event_outbox") == 1, "the event comes again: at least once"
