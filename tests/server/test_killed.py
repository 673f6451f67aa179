"""A server that is killed with -9 while many ask much of it: each thing is done once, and who listens misses nothing
(K-8, I-3)."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections import Counter

import pytest

from onceward.client import Client

REQUESTS = int(os.environ.get("ONCEWARD_HTTP_REQUESTS", "300"))
ASKERS = 8
COMMANDS = 24
"""How many of all requests are work, begun beside the others."""


class Load:
    """Askers, each with ids of its own, who ask until they are answered."""

    def __init__(self, url, token, total):
        self.url, self.token, self.total = url, token, total
        self.answers, self.replays, self.errors = {}, 0, []
        self._mutex = threading.Lock()
        self._threads = [
            threading.Thread(target=self._ask, args=(number,)) for number in range(ASKERS)
        ]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        for thread in self._threads:
            thread.join()

    @property
    def left(self):
        return any(thread.is_alive() for thread in self._threads)

    def _ask(self, asker):
        with Client(self.url, self.token, patience=600) as client:
            for number in range(asker, self.total, ASKERS):
                try:
                    self._one(client, number)
                except Exception as error:
                    self.errors.append((number, repr(error)))

    def _one(self, client, number):
        ident = f"load-{number}"
        if number < COMMANDS:
            said = client.spawn(argv=["true"], client_request_id=ident)
        else:
            made = hashlib.sha256(ident.encode()).hexdigest()
            said = client.new_token(
                token_hash=made, seconds=60, note=ident, client_request_id=ident
            )
        with self._mutex:
            self.replays += bool(said.pop("idempotent_replay", False))
            self.answers[number] = said


@pytest.mark.long
@pytest.mark.rule("K-8", "I-3")
@pytest.mark.guarantee("G4")
@pytest.mark.timeout(1500)
def test_each_of_very_many_requests_is_applied_once_though_the_server_is_killed_under_them(running):
    token = json.loads(running.cli("tokens", "new", "--json", check=0).stdout)["token"]
    heard = []

    def listen():
        with Client(running.url, token, patience=600) as client:
            for event in client.events():
                heard.append((event["id"], event["event"], event["detail"].get("note")))
                if event["detail"].get("note") == "the last":
                    return

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    kills = 0
    total = REQUESTS
    with Load(running.url, token, total) as load:
        while load.left and kills < 12:
            time.sleep(0.5)
            if load.left:
                running.kill()
                kills += 1
    assert load.errors == [] and len(load.answers) == total and kills >= 2
    client = running.client
    notes = Counter(one["note"] for one in client.list_tokens() if one["note"].startswith("load-"))
    assert notes == Counter({f"load-{number}": 1 for number in range(COMMANDS, total)})
    sessions = {load.answers[number]["session_id"] for number in range(COMMANDS)}
    assert len(sessions) == COMMANDS
    for session in sessions:
        children = client.show_session(session)["children"]
        assert (
            len(children) >= 1
            and len({one["queue_seq"] for one in children if one["attempt"] == 1}) == 1
        )
    # What was answered is what is answered again, word for word.
    again = client.new_token(
        token_hash=hashlib.sha256(f"load-{COMMANDS}".encode()).hexdigest(),
        seconds=60,
        note=f"load-{COMMANDS}",
        client_request_id=f"load-{COMMANDS}",
    )
    assert again == {**load.answers[COMMANDS], "idempotent_replay": True}
    last = client.new_token(token_hash="f" * 64, seconds=60, note="the last")
    assert last["token_id"]
    listener.join(600)
    assert not listener.is_alive()
    ids = [ident for ident, *_ in heard]
    assert ids == list(range(ids[0], ids[0] + len(ids))), "a gap, or a repeat"
    assert (
        Counter(
            note
            for _, name, note in heard
            if name == "TOKEN_MADE" and str(note).startswith("load-")
        )
        == notes
    )
