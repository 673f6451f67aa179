"""Stream files: a projection that catches up, repairs a torn tail, and refuses to disagree (C-7)."""

from __future__ import annotations

import hashlib
import json

import pytest

from onceward.artifacts.streams import Streams
from onceward.core import faults
from onceward.errors import AtomicityViolation

pytestmark = [pytest.mark.rule("C-7"), pytest.mark.guarantee("G13")]
NAMES = ("workspace", "session:ses_a", "child:chd_1")


@pytest.fixture
def files(store, tmp_path):
    return Streams(tmp_path / "streams", store, "tester")


def say(files, count=1, streams=NAMES):
    def work(tx):
        for number in range(count):
            for stream in streams:
                tx.append(stream, "NOTED", "tester", {"n": number, "text": "å\n"})

    files.store.write(work)


def again(files):
    return Streams(files.folder, files.store, "tester")


def whole(files):
    assert [files.compare(stream) for stream in NAMES] == [None] * 3


def test_files_hold_one_line_an_event_and_catch_up(files):
    say(files, 3)
    assert files.project() == 9
    whole(files)
    assert files.project() == 0
    say(files, 2)
    assert again(files).project() == 6
    whole(files)
    lines = files.path_of("session:ses_a").read_bytes().splitlines()
    assert [json.loads(line)["seq"] for line in lines] == [1, 2, 3, 4, 5]


def test_a_file_that_is_gone_is_made_again(files):
    say(files, 3)
    files.project()
    before = files.path_of("child:chd_1").read_bytes()
    files.path_of("child:chd_1").unlink()
    say(files, 1)
    files.project()
    whole(files)
    assert files.path_of("child:chd_1").read_bytes().startswith(before)


@pytest.mark.parametrize("cut", [1, 10, 200])
def test_a_torn_last_line_is_recorded_then_cut_then_made_whole(files, cut):
    say(files, 3)
    files.project()
    path = files.path_of("session:ses_a")
    data = path.read_bytes()
    fragment = data.splitlines(keepends=True)[-1][:-cut]
    path.write_bytes(data[:-cut])
    say(files, 1)
    assert again(files).project() >= 4
    again(files).project()
    whole(files)
    (repair,) = [line for line in files.rebuilt("workspace") if b"STREAM_REPAIRED" in line]
    assert json.loads(repair)["detail"] == {
        "stream": "session:ses_a",
        "length": len(fragment),
        "sha256": hashlib.sha256(fragment).hexdigest(),
    }


@pytest.mark.parametrize("nth", [1, 2, 5, 9])
def test_a_crash_while_projecting_is_made_good(files, nth):
    say(files, 3)
    with faults.armed("stream.appended", nth, faults.crash), pytest.raises(faults.SimulatedCrash):
        files.project()
    again(files).project()
    whole(files)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data.replace(b'"n":2', b'"n":7'),
        lambda data: data + data.splitlines(keepends=True)[-1],
        lambda data: data + b'{"seq":99}\n',
        lambda data: data + b"not json\n",
        lambda data: data[: data.rindex(b'{"context"')] + b"\n",
    ],
)
def test_a_file_that_says_something_else_stops_everything_and_is_kept(files, spoil):
    say(files, 3)
    files.project()
    path = files.path_of("session:ses_a")
    spoiled = spoil(path.read_bytes())
    path.write_bytes(spoiled)
    assert files.compare("session:ses_a") is not None
    say(files, 1)
    with pytest.raises(AtomicityViolation, match="disagrees with the records") as refused:
        again(files).project()
    assert path.read_bytes() == spoiled
    assert (files.folder / "session:ses_a.ndjson.quarantine").read_bytes() == spoiled
    assert str(path) in refused.value.recovery[0].command
    path.unlink()
    again(files).project()
    whole(files)


def test_a_middle_line_that_was_changed_is_reported_when_looked_for(files):
    say(files, 5)
    files.project()
    path = files.path_of("session:ses_a")
    path.write_bytes(path.read_bytes().replace(b'"n":1', b'"n":8'))
    assert files.compare("session:ses_a") == "line 2 is not what was recorded"


@pytest.mark.parametrize(
    "harm",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1])),
        lambda path: path.write_bytes(b""),
    ],
)
def test_a_stream_that_says_nothing_new_is_looked_after_too(files, harm):
    say(files, 3)
    files.seal()
    harm(files.path_of("child:chd_1"))
    assert again(files).look_over() > 0
    whole(files)
    files.seal()
    assert again(files).look_over() == 0


def test_a_forged_line_in_a_quiet_stream_is_found_before_work_begins(files):
    say(files, 3)
    files.seal()
    path = files.path_of("child:chd_1")
    path.write_bytes(path.read_bytes() + path.read_bytes().splitlines(keepends=True)[-1])
    with pytest.raises(AtomicityViolation):
        again(files).look_over()


def test_a_seal_that_cannot_be_read_is_no_hint(files):
    say(files, 3)
    files.seal()
    seal = files.folder / ".seal"
    seal.write_bytes(b"\xff\xfe")
    assert again(files).look_over() == 0
    seal.unlink(missing_ok=True)
    seal.mkdir()
    assert again(files).look_over() == 0
    whole(files)


def test_the_longest_event_there_can_be_is_no_violation(files):
    files.store.write(
        lambda tx: tx.append("workspace", "NOTED", "tester", {"text": "x" * (1024 * 1024 - 200)})
    )
    files.project()
    say(files)
    again(files).project()
    whole(files)


def test_the_watermark_is_a_hint_and_nothing_more(files):
    say(files, 3)
    files.project()
    for hint in ("0", "999999", "garbage", "-5"):
        (files.folder / ".watermark").write_text(hint)
        say(files, 1)
        again(files).project()
        whole(files)
