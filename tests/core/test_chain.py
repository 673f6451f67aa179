from __future__ import annotations

import hashlib
import json

import pytest

from onceward.core.canon import ZERO_HASH, canonical
from onceward.core.chain import Event, body_of, check_stream, first_break, link
from onceward.errors import InvalidConfig


def chain(length: int) -> list[Event]:
    events, prev = [], ZERO_HASH
    for seq in range(1, length + 1):
        body = body_of("NOTED", {"actor": "ann", "fence": 1}, {"n": seq, "text": "é\n"})
        made = link("workspace", seq, 1_700_000_000_000_000 + seq, "workspace", body, prev)
        events.append(
            Event("workspace", seq, 1_700_000_000_000_000 + seq, "workspace", body, prev, made)
        )
        prev = made
    return events


@pytest.mark.rule("K-5", "C-6")
def test_a_line_is_canonical_and_anyone_can_recompute_its_hash():
    prev = "0" * 64
    for event in chain(5):
        line = event.line()
        value = json.loads(line)
        assert canonical(value) == line
        claimed = value.pop("hash")
        assert value["prev_hash"] == prev
        assert hashlib.sha256(canonical(value)).hexdigest() == claimed
        assert set(value) == {
            "schema",
            "event",
            "stream_id",
            "seq",
            "ts",
            "source",
            "context",
            "detail",
            "prev_hash",
        }
        assert value["schema"] == "urm-events@1"
        prev = claimed


@pytest.mark.rule("K-5")
def test_every_cut_swap_and_edit_of_a_chain_is_found():
    events = chain(6)
    assert first_break(events) is None
    for index in range(5):
        assert first_break(events[:index] + events[index + 1 :])
        swapped = list(events)
        swapped[index], swapped[index + 1] = swapped[index + 1], swapped[index]
        assert first_break(swapped)
    for index, event in enumerate(events):
        for changed in (
            Event(
                event.stream,
                event.seq,
                event.at + 1,
                event.source,
                event.body,
                event.prev_hash,
                event.hash,
            ),
            Event(
                event.stream, event.seq, event.at, "other", event.body, event.prev_hash, event.hash
            ),
            Event(
                "child:x",
                event.seq,
                event.at,
                event.source,
                event.body,
                event.prev_hash,
                event.hash,
            ),
            Event(
                event.stream,
                event.seq,
                event.at,
                event.source,
                event.body + b" ",
                event.prev_hash,
                event.hash,
            ),
            Event(
                event.stream,
                event.seq,
                event.at,
                event.source,
                event.body,
                event.prev_hash,
                bytes(32),
            ),
            Event(
                event.stream, event.seq, event.at, event.source, event.body, b"p" * 32, event.hash
            ),
        ):
            assert first_break([*events[:index], changed, *events[index + 1 :]]), changed


@pytest.mark.parametrize(
    "stream",
    [
        "",
        "session:",
        "session:../etc",
        "child:a/b",
        "x:1",
        "workspace ",
        "child:a\nb",
        "child:é",
        "child:.a",
    ],
)
def test_a_stream_that_could_be_a_path_or_a_line_is_refused(stream):
    with pytest.raises(InvalidConfig):
        check_stream(stream)


def test_an_event_over_the_limit_is_refused():
    with pytest.raises(InvalidConfig, match="artifact"):
        body_of("NOTED", {}, {"text": "x" * 2_000_000})
