"""Those who listen, at the moments when something could be missed or told twice (I-3)."""

from __future__ import annotations

import asyncio
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from onceward.kernel.feed import Feeding, position_now
from onceward.serving import Service
from onceward.ui.http.access import CODE_SECONDS, SESSION_SECONDS, Doors, HttpRefused
from onceward.ui.http.feed import Feed, Listening

pytestmark = [pytest.mark.rule("I-3"), pytest.mark.parametrize("scene", ["sqlite"], indirect=True)]


class Line:
    """The far end of a line, which takes as much as it likes to."""

    def __init__(self, takes=True):
        self.got, self.takes, self.closed, self.transport = b"", takes, False, self

    def take(self, room):
        self.room = room
        return self

    def write(self, data):
        self.got += bytes(data)

    def get_write_buffer_size(self):
        return 0 if self.takes else 1

    def is_closing(self):
        return self.closed

    def close(self):
        self.closed = True

    @property
    def ids(self):
        return [int(found) for found in re.findall(rb"^id: (\d+)$", self.got, re.MULTILINE)]


@pytest.fixture
def service(scene):
    made = Service(scene)
    made.start()
    yield made
    made.stop()


@pytest.mark.guarantee("G23")
def test_codes_and_sessions_run_out(service):
    clock = [0.0]
    doors = Doors(service, 7423, lambda: clock[0])
    late, code = (doors.code_for("tester", doors.local) for _ in range(2))
    value, session = doors.sign_in(code, "")
    assert doors.caller("", value).principal == "tester" and session.principal == "tester"
    with pytest.raises(HttpRefused):
        doors.sign_in(code, "")
    clock[0] = CODE_SECONDS + 1
    with pytest.raises(HttpRefused):
        doors.sign_in(late, "")
    clock[0] = SESSION_SECONDS - 1
    assert doors.still(doors.caller("", value))
    clock[0] = SESSION_SECONDS + 1
    with pytest.raises(HttpRefused, match="over"):
        doors.caller("", value)


def alone(scene):
    """On a thread of its own: the driver of the browser has a loop on ours."""
    with ThreadPoolExecutor(1) as own:
        return own.submit(lambda: asyncio.run(scene())).result()


async def listen(feed, line, after):
    """Somebody who listens, as the server answers them; ends when they are let go of."""

    async def send(message):
        line.got += message.get("body", b"")

    scope = {"onceward.line": line, "method": "GET"}
    await Listening(feed, None, after, lambda: True)(scope, asyncio.Event().wait, send)


def happen(service, count=1):
    """So many requests, each of which is recorded; answers the id of the last event."""
    for number in range(count):
        ident = f"{time.monotonic_ns()}-{number}"
        service.ask("tester", "principals.add", {"name": f"p{ident}", "roles": ["viewer"]}, ident)
    return position_now(service.store)


def test_what_happens_while_the_feed_wakes_up_is_told(service, monkeypatch):
    """The first look, which finds out where to begin, is late: what came before it was not yet read by who listens."""
    look = Feeding.look
    monkeypatch.setattr(
        Feeding, "look", lambda self, store: (time.sleep(0.4), look(self, store))[1]
    )
    feed, line = Feed(service), Line()
    before = position_now(service.store)

    async def scene():
        listening = asyncio.ensure_future(listen(feed, line, before))
        await asyncio.sleep(0.15)
        last = await asyncio.to_thread(happen, service, 3)
        for _ in range(100):
            await asyncio.sleep(0.05)
            if line.ids and line.ids[-1] >= last:
                break
        listening.cancel()
        return last

    last = alone(scene)
    feed.close()
    assert line.ids == list(range(before + 1, last + 1))


def test_who_takes_nothing_is_let_go_of_and_others_miss_nothing(service, monkeypatch):
    monkeypatch.setattr("onceward.ui.http.feed._BEHIND", 3)
    monkeypatch.setattr("onceward.ui.http.feed.FEED_SECONDS", 0.02)
    feed, stuck, good = Feed(service), Line(takes=False), Line()
    before = position_now(service.store)

    async def scene():
        lost = asyncio.ensure_future(listen(feed, stuck, before))
        listening = asyncio.ensure_future(listen(feed, good, before))
        last = before
        for _ in range(200):
            last = await asyncio.to_thread(happen, service)
            await asyncio.sleep(0.03)
            if lost.done():
                break
        assert lost.done() and stuck.closed and not listening.done()
        for _ in range(100):
            await asyncio.sleep(0.05)
            if good.ids[-1] >= last:
                break
        listening.cancel()
        return last

    last = alone(scene)
    feed.close()
    assert good.ids == list(range(before + 1, last + 1)) and feed.listeners == 0
