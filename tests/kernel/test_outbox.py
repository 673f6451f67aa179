"""Delivery: at least once, in order within a stream, and a failing sink holds up nobody else."""

from __future__ import annotations

import base64
import hashlib
import hmac
import io
import json

import pytest

from conftest import MakeDatabase
from helpers import count, create, lines, orphan_lock, step
from onceward.core import faults
from onceward.core.chain import Event
from onceward.core.limits import OUTBOX_BACKOFF_MAX_MICROS, OUTBOX_TRIES
from onceward.core.sources import LiveSources, ScriptedSources
from onceward.core.views import document
from onceward.errors import NetworkError
from onceward.kernel.outbox import deliver, pause_before_retry
from onceward.kernel.sinks import ConsoleSink, FileSink, WebhookSink, signing_key
from onceward.kernel.tenure import acquire
from onceward.kernel.views import outbox_status
from onceward.store import migrate
from onceward.store.store import Store
from onceward.store.tables.outbox import make_due


class Recorder:
    """A sink that remembers what it accepted and refuses what it is told to."""

    deadline = None

    def __init__(self, name="log"):
        self.name, self.refuse, self.seen, self.offered = name, lambda stream, seq: False, [], 0

    def send(self, parcel):
        self.offered += 1
        if self.refuse(parcel.event.stream, parcel.event.seq):
            raise NetworkError("not now")
        self.seen.append((parcel.event.stream, parcel.event.seq, parcel.dedupe_key))

    def settle(self):
        pass


@pytest.fixture
def scripted(make_database: MakeDatabase):
    """A store whose clock the test moves."""
    sources = ScriptedSources()
    database = make_database(sources)
    migrate.migrate(database, sources)
    store = Store(database, sources, ["log"])
    acquire(store, "tester")
    yield store
    store.close()


@pytest.mark.rule("K-6")
@pytest.mark.guarantee("G14")
def test_everything_is_delivered_once_in_order_and_its_keys_are_kept(store):
    builds = [create(store) for _ in range(3)]
    for _ in range(50):
        for build_id in builds:
            step(store, build_id)
    sink = Recorder()
    (done,) = deliver(store, [sink])
    assert (done.delivered, done.failed) == (153, 0)
    for build_id in builds:
        assert [seq for stream, seq, _ in sink.seen if stream.endswith(build_id)] == list(
            range(1, 52)
        )
    assert count(store, "event_outbox") == 0
    assert count(store, "outbox_used") == 153 == len({key for *_, key in sink.seen})
    assert deliver(store, [sink])[0].delivered == 0


@pytest.mark.rule("K-6")
def test_a_used_key_is_never_emitted_again_even_after_its_row_was_flushed(store):
    create(store)
    deliver(store, [Recorder()])

    def post_again(tx):
        ((position, at, stream),) = tx.read(
            "SELECT e.position, e.at, s.stream FROM events e JOIN streams s ON s.stream_no = e.stream_no"
        )
        born = Event(stream, 1, at, "build", b"", b"", b"", position)
        tx.write_together(
            tx._posts(born, "BUILD_CREATED", stream.removeprefix("session:"), 1, "PENDING:")
        )

    store.write(post_again)
    assert count(store, "event_outbox") == 0


@pytest.mark.rule("K-6")
def test_a_refused_event_holds_back_its_own_stream_and_no_other(scripted):
    blocked, free = create(scripted), create(scripted)
    for _ in range(3):
        step(scripted, blocked)
        step(scripted, free)
    sink = Recorder()
    sink.refuse = lambda stream, seq: stream.endswith(blocked) and seq == 2
    (done,) = deliver(scripted, [sink])
    assert (done.delivered, done.failed, done.last_error) == (5, 1, "not now")
    assert [seq for stream, seq, _ in sink.seen if stream.endswith(blocked)] == [1]
    assert [seq for stream, seq, _ in sink.seen if stream.endswith(free)] == [1, 2, 3, 4]
    (status,) = document(outbox_status(scripted, ["log"]))
    assert (status["waiting"], status["parked"], status["last_error"]) == (3, 0, "not now")
    sink.refuse = lambda stream, seq: False
    assert deliver(scripted, [sink])[0].delivered == 0, "it is not due yet"
    scripted.sources.advance(10_000_000)
    assert deliver(scripted, [sink])[0].delivered == 3
    assert [seq for stream, seq, _ in sink.seen if stream.endswith(blocked)] == [1, 2, 3, 4]


@pytest.mark.rule("K-6")
def test_an_event_that_never_goes_out_is_parked_and_flushing_tries_it_again(scripted):
    poisoned, other = create(scripted), create(scripted)
    sink = Recorder()
    sink.refuse = lambda stream, seq: stream.endswith(poisoned)
    for _ in range(OUTBOX_TRIES + 3):
        deliver(scripted, [sink])
        scripted.sources.advance(OUTBOX_BACKOFF_MAX_MICROS)
    assert sink.offered == OUTBOX_TRIES + 1
    (status,) = document(outbox_status(scripted, ["log"]))
    assert (status["waiting"], status["parked"]) == (1, 1)
    step(scripted, other)
    assert deliver(scripted, [sink])[0].delivered == 1
    sink.refuse = lambda stream, seq: False
    scripted.write(lambda tx: make_due(tx, tx.now))
    assert deliver(scripted, [sink])[0].delivered == 1


@pytest.mark.rule("K-6")
def test_a_dead_sink_is_given_up_soon_and_the_next_one_is_served(make_database, sources):
    database = make_database(sources)
    migrate.migrate(database, sources)
    store = Store(database, sources, ["dead", "alive"])
    acquire(store, "tester")
    for _ in range(20):
        create(store)
    dead, alive = Recorder("dead"), Recorder("alive")
    dead.refuse = lambda stream, seq: True
    first, second = deliver(store, [dead, alive])
    assert (first.delivered, first.failed, dead.offered) == (0, 3, 3)
    assert (second.delivered, second.failed) == (20, 0)
    assert [e["waiting"] for e in document(outbox_status(store, ["dead", "alive"]))] == [20, 0]
    store.close()


@pytest.mark.rule("K-6")
def test_pauses_double_up_to_a_bound_with_jitter():
    sources = ScriptedSources()
    pauses = [pause_before_retry(attempts, sources) for attempts in range(60)]
    assert all(750_000 << a <= pauses[a] <= 1_000_000 << a for a in range(14))
    assert max(pauses) <= OUTBOX_BACKOFF_MAX_MICROS
    assert len(set(pauses[-10:])) > 1


@pytest.mark.rule("K-6")
@pytest.mark.guarantee("G14")
@pytest.mark.parametrize("point", ["outbox.delivered", "outbox.settled"])
def test_a_crash_around_delivery_repeats_events_but_never_loses_one(
    store, database, sources, point
):
    for _ in range(5):
        create(store)
    sink = Recorder()
    with faults.armed(point, act=faults.crash), pytest.raises(faults.SimulatedCrash):
        deliver(store, [sink])
    store.close()
    orphan_lock(database)
    heir = Store(database, sources, ["log"])
    acquire(heir, "heir")
    deliver(heir, [sink])
    assert len(sink.seen) == (10 if point == "outbox.delivered" else 5)
    assert len({key for *_, key in sink.seen}) == 5
    heir.close()


@pytest.mark.rule("K-6")
def test_the_console_prints_a_marked_json_line(store):
    build_id = create(store)
    out = io.StringIO()
    deliver(store, [ConsoleSink("log", out)])
    marker, _, text = out.getvalue().partition(" ")
    assert marker == "[OUTBOX]"
    told = json.loads(text)
    assert told["event"] == json.loads(lines(store, f"session:{build_id}")[0])
    assert len(told["dedupe_key"]) == 64


@pytest.mark.rule("K-6")
def test_the_file_gets_one_line_an_event(store, tmp_path):
    build_id = create(store)
    step(store, build_id)
    deliver(store, [FileSink("log", tmp_path / "out.ndjson")])
    step(store, build_id)
    deliver(store, [FileSink("log", tmp_path / "out.ndjson")])
    told = [
        json.loads(line)["event"] for line in (tmp_path / "out.ndjson").read_text().splitlines()
    ]
    assert told == [json.loads(line) for line in lines(store, f"session:{build_id}")]


@pytest.mark.rule("K-6")
def test_a_file_that_cannot_be_written_keeps_the_events_waiting(store, tmp_path):
    create(store)
    (done,) = deliver(store, [FileSink("log", tmp_path / "none" / "out.ndjson")])
    assert (done.delivered, done.failed) == (0, 1)
    assert count(store, "event_outbox") == 1


@pytest.mark.rule("K-6")
def test_the_webhook_gets_a_signed_cloud_event(store, hook):
    url, heard, _ = hook
    build_id = create(store)
    deliver(store, [WebhookSink("log", url, "s3cret", "wsp_1", LiveSources())])
    headers, body = heard[0]
    event = json.loads(body)
    assert headers["Content-Type"].startswith("application/cloudevents+json")
    assert event["specversion"] == "1.0"
    assert event["type"] == "onceward.build_created"
    assert event["source"] == "/onceward/wsp_1"
    assert event["subject"] == f"session:{build_id}"
    assert event["data"] == json.loads(lines(store, f"session:{build_id}")[0])
    assert event["id"] == headers["webhook-id"]
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    wanted = base64.b64encode(hmac.new(b"s3cret", signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{wanted}"
    assert count(store, "event_outbox") == 0


@pytest.mark.rule("K-6")
def test_a_secret_is_read_as_standard_webhooks_writes_it():
    """The example that the libraries of Standard Webhooks are tested with."""
    key = signing_key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    signed = b'msg_p5jXN8AQM9LWM0D4loKWxJek.1614265330.{"test": 2432232314}'
    signature = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest())
    assert signature == b"g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    for text in ("s3cret", "whsec_no base64!"):
        assert signing_key(text) == text.encode()


@pytest.mark.rule("K-6")
@pytest.mark.parametrize("answer", [301, 400, 500])
def test_any_answer_but_success_keeps_the_event_waiting(store, hook, answer):
    url, heard, answers = hook
    answers[0] = answer
    create(store)
    (done,) = deliver(store, [WebhookSink("log", url, "", "wsp_1", LiveSources())])
    assert (done.delivered, done.failed) == (0, 1)
    assert done.last_error == f"the webhook answered {answer}"
    assert "webhook-signature" not in heard[0][0]
    assert count(store, "event_outbox") == 1


def test_a_webhook_nobody_listens_at_is_a_network_error(store):
    create(store)
    (done,) = deliver(
        store, [WebhookSink("log", "http://127.0.0.1:9/", "", "wsp_1", LiveSources())]
    )
    assert done.failed == 1
    assert "cannot be reached" in (done.last_error or "")


@pytest.mark.rule("K-6")
@pytest.mark.guarantee("G14")
def test_a_torn_last_line_of_the_file_is_cut_and_its_event_comes_again_whole(store, tmp_path):
    out = tmp_path / "out.ndjson"
    create(store)
    deliver(store, [FileSink("log", out)])
    whole = out.read_bytes()
    out.write_bytes(whole + b'{"dedupe_key":"torn')
    create(store)
    deliver(store, [FileSink("log", out)])
    assert out.read_bytes().startswith(whole)
    assert [json.loads(line)["event"]["event"] for line in out.read_bytes().splitlines()] == [
        "BUILD_CREATED"
    ] * 2


@pytest.mark.rule("K-6")
def test_a_sink_that_fails_in_its_own_way_stops_no_other_and_tells_no_secret(
    make_database, sources
):
    database = make_database(sources)
    migrate.migrate(database, sources)
    store = Store(database, sources, ["odd", "log"])
    acquire(store, "tester")
    create(store)

    class Odd(Recorder):
        def send(self, parcel):
            raise ValueError("s3cret")

    odd, log = Odd("odd"), Recorder()
    first, second = deliver(store, [odd, log])
    assert (first.failed, first.last_error) == (1, "the sink failed: ValueError")
    assert second.delivered == 1
    store.close()


@pytest.mark.guarantee("G26")
def test_events_stamped_in_the_future_are_delivered_now(scripted):
    scripted.sources.advance(10**15)
    create(scripted)
    scripted.sources.set(1_700_000_000_000_000)
    create(scripted)
    assert deliver(scripted, [Recorder()])[0].delivered == 2


def test_a_webhook_whose_secret_is_not_set_keeps_its_events_waiting(store, hook):
    url, heard, _ = hook
    create(store)
    (done,) = deliver(store, [WebhookSink("log", url, None, "wsp_1", LiveSources())])
    assert (done.failed, heard) == (1, [])
