"""The gate: open on what is locked, on either store; closed or invalid for anything else."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading

import msgspec
import pytest
from jsonschema import Draft202012Validator

import forked
from conftest import schema_url
from mutants import BUDGET, MANIFEST, MUTANTS, ORPHAN, ROOT, SCHEDULER, onceward, planted, python
from onceward.dispatch.work import Function
from onceward.errors import InvalidConfig
from onceward.evidence.records import StoreRecords
from onceward.evidence.replay import replay
from onceward.gate.manifest import (
    METRICS,
    LockedFixture,
    Outcome,
    apart,
    judge,
    manifest_hash,
    read_manifest,
    written,
)
from onceward.gate.run import _heard
from onceward.gate.script import Fixture, read_fixture
from onceward.store.tables.budgets import LaneTotal

ALL = (SCHEDULER, ORPHAN, BUDGET)


def schema(name):
    return Draft202012Validator(json.loads((ROOT / "spec" / f"{name}.schema.json").read_text()))


@pytest.fixture
def gate(tmp_path):
    """The gate's folder, to be changed."""
    shutil.copytree(MANIFEST.parent, tmp_path / "gate")
    return tmp_path / "gate"


def run(gate, *words, store=None):
    where = ["--store", store] if store else []
    done = onceward(None, "gate", "run", gate / "manifest.json", "--json", *words, *where, cwd=gate)
    return done.returncode, (json.loads(done.stdout) if done.stdout else None), done.stderr


@pytest.mark.rule("R-2", "R-3", "R-6")
@pytest.mark.guarantee("G6")
def test_what_is_locked_on_sqlite_comes_to_the_same_hash_on_postgresql(postgres_url):
    entries = [entry for _, entry in read_manifest(MANIFEST.read_bytes(), "manifest").entries()]
    files = [MANIFEST.parent / entry.fixture for entry in entries]
    done = onceward(
        None, "gate", "play", "--json", "--store", schema_url(postgres_url, "unused"), *files
    )
    assert done.returncode == 0, done.stdout[-2000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["sha256"] for one in found] == [entry.sha256 for entry in entries]
    assert not any(one.get("wrong") or one.get("error") for one in found)


@pytest.mark.rule("R-2", "R-3", "R-6")
@pytest.mark.guarantee("G6")
def test_three_runs_in_three_worlds_come_to_what_is_locked(gate):
    status, found, _ = run(gate)
    assert status == 0, found
    assert found["metrics"] == dict.fromkeys(ALL, 100.0) and found["all_passed"] and found["valid"]
    assert found["store"] == "sqlite"
    manifest = read_manifest(MANIFEST.read_bytes(), "manifest")
    assert found["vnext_plus9_manifest_hash"] == manifest_hash(manifest.metrics)
    assert {one["fixture"]: set(one["runs"]) for one in found["fixtures"]} == {
        entry.fixture: {entry.sha256} for _, entry in manifest.entries()
    }
    assert [len(one["runs"]) for one in found["fixtures"]] == [3] * len(found["fixtures"])
    schema("stop_gate_metrics@1").validate(found)
    assert len({tuple(sorted(world.items())) for world in found["runs"]}) == 3
    pinned = found["vnext_plus9_manifest_hash"]
    assert f"GATE := {pinned}\n" in (ROOT / "Makefile").read_text(), (
        "pinned in another file than the manifest"
    )
    assert run(gate, "--expect", pinned)[1] == found, "the report of the same fixtures is the same"


@pytest.mark.rule("R-2")
def test_manifest_and_fixtures_are_as_their_schemas_say():
    made = msgspec.json.schema(Fixture)
    kept = json.loads((ROOT / "spec" / "stop_gate.fixture@1.schema.json").read_text())
    assert {key: kept[key] for key in made} == made, "the schema of fixtures is that of the code"
    schema("stop_gate.vnext_plus9_manifest@1").validate(json.loads(MANIFEST.read_bytes()))
    for path in MANIFEST.parent.glob("*.json"):
        if path != MANIFEST:
            schema("stop_gate.fixture@1").validate(json.loads(path.read_bytes()))
            assert read_fixture(path.read_bytes(), path.name).name == path.stem


@pytest.mark.rule("R-3")
@pytest.mark.parametrize("how", ["its own", "a fixture's", "kept elsewhere"])
def test_a_manifest_that_is_not_what_was_locked_gives_no_metrics(gate, how):
    path = gate / "manifest.json"
    said = json.loads(path.read_bytes())
    words = []
    if how == "its own":
        said["vnext_plus9_manifest_hash"] = "ab" * 32
    elif how == "a fixture's":
        said["metrics"][BUDGET][0]["sha256"] = "ab" * 32
    else:
        words = ["--expect", "ab" * 32]
    path.write_text(json.dumps(said))
    status, found, err = run(gate, *words)
    assert status == 5 and found is None
    error = json.loads(err)["error"]
    assert error["code"] == "INTEGRITY_FAULT" and "no metric is computed" in error["message"]
    assert len(error["context"]["vnext_plus9_manifest_hash"]) == 64


@pytest.mark.rule("R-2", "R-3")
@pytest.mark.parametrize(("metric", "at"), [(SCHEDULER, 100), (BUDGET, 2000)])
@pytest.mark.one_in(3)
def test_one_altered_byte_of_one_fixture_closes_only_its_metric(gate, metric, at):
    (entry, *_) = read_manifest(MANIFEST.read_bytes(), "m").metrics[metric]
    path = gate / entry.fixture
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))
    status, found, _ = run(gate)
    assert status == 1
    assert [name for name, value in found["metrics"].items() if value < 100.0] == [metric]
    (failed,) = (one for one in found["fixtures"] if not one["passed"])
    assert (failed["fixture"], failed["reason"]) == (entry.fixture, "fixture_changed")
    listed = len(read_manifest(MANIFEST.read_bytes(), "m").metrics[metric])
    assert found["metrics"][metric] == 100.0 * (listed - 1) / listed
    schema("stop_gate_metrics@1").validate(found)


def changed(change):
    said = json.loads(MANIFEST.read_bytes())
    change(said)
    said["vnext_plus9_manifest_hash"] = ""
    metrics = {m: [LockedFixture(**e) for e in entries] for m, entries in said["metrics"].items()}
    said["vnext_plus9_manifest_hash"] = manifest_hash(metrics, said.get("runs", 3))
    return json.dumps(said).encode()


@pytest.mark.rule("R-2", "K-11")
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda m: m["metrics"].__setitem__(ORPHAN, []), "no fixture is listed"),
        (lambda m: m["metrics"].pop(ORPHAN), "no fixture is listed"),
        (lambda m: m["metrics"].__setitem__("other_pct", []), "there is no metric"),
        (lambda m: m.__setitem__("runs", 1), "3 times"),
        (lambda m: m["metrics"][ORPHAN].append(m["metrics"][BUDGET][0]), "listed once"),
        (lambda m: m["metrics"][ORPHAN][0].__setitem__("fixture", "../x.json"), "a file beside it"),
        (lambda m: m.__setitem__("schema", "other@1"), "is no stop_gate"),
        (lambda m: m.__setitem__("more", 1), "is no manifest"),
    ],
)
def test_a_manifest_that_would_mean_nothing_is_refused(change, why):
    with pytest.raises(InvalidConfig, match=why):
        read_manifest(changed(change), "m")


@pytest.mark.thorough
@pytest.mark.rule("K-11")
def test_careless_words_are_refused_with_the_right_status(gate):
    assert onceward(None, "gate", "run", "nowhere.json", cwd=gate).returncode == 2
    (gate / "two-at-a-time.json").unlink()
    status, found, err = run(gate)
    assert status == 2 and found is None and "two-at-a-time.json" in err
    assert onceward(None, "gate", "record", gate / "manifest.json").returncode == 0, (
        "what is gone is left out"
    )
    assert run(gate)[0] == 0
    typo = onceward(
        None,
        "gate",
        "record",
        gate / "manifest.json",
        "nosuch.json",
        "--metric",
        "budget",
        cwd=gate,
    )
    assert typo.returncode == 2 and "there is no file nosuch.json" in typo.stderr
    (gate / "manifest.json").write_text("{}")
    assert run(gate)[0] == 2
    for text, why in (
        (
            '{"schema": "stop_gate.fixture@1", "name": "a", "about": "", "script": [{"op": "fly"}]}',
            "fly",
        ),
        ('{"schema": "stop_gate.fixture@1", "name": "A b", "about": "", "script": []}', "no name"),
        ('{"schema": "x", "name": "a", "about": "", "script": []}', "is no stop_gate.fixture@1"),
        (
            '{"schema": "stop_gate.fixture@1", "name": "a", "about": "",'
            ' "script": [{"op": "finish", "child": "a", "reason": "bored"}]}',
            "bored",
        ),
        (
            '{"schema": "stop_gate.fixture@1", "name": "a", "about": "",'
            ' "script": [{"op": "race", "ops": [{"op": "crash"}]}]}',
            "inside another line",
        ),
        (
            '{"schema": "stop_gate.fixture@1", "name": "a", "about": "", "script": [{"op": "crash", "at": "x"}]}',
            "no fault point",
        ),
    ):
        with pytest.raises(InvalidConfig, match=why):
            read_fixture(text.encode(), "f")


@pytest.mark.rule("R-2")
def test_verdicts_have_one_reason_each():
    data = b"{}"
    entry = LockedFixture("f.json", hashlib.sha256(data).hexdigest(), "aa")
    good = Outcome("aa", ['{"line":1,"next":"a"}'])
    assert judge("m", entry, data, [], [good] * 3).passed
    other = Outcome("bb", ['{"line":1,"next":"b"}'])
    told = judge("m", entry, data, good.lines, [good, other, good])
    assert (told.reason, told.where) == ("runs_disagree", 'line 1, next: "a" is now "b"')
    assert judge("m", entry, data, good.lines, [other] * 3).reason == "not_as_locked"
    third = judge("m", entry, data, [], [good, good, Outcome("aa", good.lines, "verify: x")])
    assert (third.reason, third.where) == ("records_disagree", "run 3: verify: x")
    ended = judge("m", entry, data, [], [good, Outcome(error="it was ended"), good])
    assert (ended.reason, ended.where) == ("did_not_end", "run 2: it was ended")
    assert judge("m", entry, b"other", [], [good] * 3).reason == "fixture_changed"
    assert apart(["1", "2"], ["1"]) == "line 2" and "same" in apart(["1"], ["1"])


@pytest.mark.rule("R-2")
def test_a_run_that_does_not_end_is_ended():
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            'import time; print(\'{"sha256":"aa"}\', flush=True); time.sleep(60)',
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    found = _heard(process, ["a", "b"], 0.8)
    assert found["a"].sha256 == "aa" and found["b"].error == "it was ended after 0.8 s"
    assert process.returncode is not None


@pytest.mark.thorough
@pytest.mark.rule("R-2")
def test_a_session_that_really_ran_is_recorded_and_locked(gate, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    (work / "plan.py").write_text(
        "from onceward import Plan\nplan = Plan('p', jobs=2)\n"
        "@plan.stage(targets=['a', 'b', 'c', 'd'])\ndef draft(task):\n    task.spend(usd='0.01', tokens=3)\n"
        "    if task.target == 'c':\n        raise ValueError('no')\n"
    )
    assert (
        onceward(
            None, "run", "plan.py", "--keep-going", "--budget", "usd=1.00", cwd=work
        ).returncode
        == 1
    )
    assert onceward(None, "spawn", "--", "sh", "-c", "exit 3", cwd=work).returncode == 1
    session = json.loads(onceward(None, "status", "--json", cwd=work).stdout)["sessions"][0][
        "session_id"
    ]
    manifest = gate / "manifest.json"
    locked = {
        metric: len(entries)
        for metric, entries in read_manifest(manifest.read_bytes(), "m").metrics.items()
    }
    for subject, name in (("latest", "a-build"), (session, "a-command")):
        words = (
            "gate",
            "record",
            manifest,
            subject,
            "--metric",
            "scheduler",
            "--name",
            name,
            "--json",
        )
        done = onceward(None, *words, cwd=work)
        assert done.returncode == 0, done.stderr
        fixture = read_fixture((gate / f"{name}.json").read_bytes(), name)
        told = "\n".join(fixture.expected)
        assert ("URM_CHILD_EXECUTION_FAILED" in told) and not any(
            '"skipped"' in line for line in fixture.expected
        )
    assert onceward(None, "gate", "record", manifest, "latest", cwd=work).returncode == 2, (
        "it needs a name"
    )
    status, found, _ = run(gate)
    assert (
        status == 0
        and sum(one["metric"] == SCHEDULER for one in found["fixtures"]) == locked[SCHEDULER] + 2
    ), found
    again = onceward(None, "gate", "record", manifest, cwd=work)
    assert (
        again.returncode == 0
        and "locked again" not in again.stdout
        and again.stdout.count("unchanged") == sum(locked.values()) + 2
    )


@pytest.mark.thorough
@pytest.mark.rule("R-2")
def test_sessions_with_crashes_retries_and_refusals_are_told_as_they_were(gate, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    fails = "import os; os._exit(75)"
    onceward(None, "init", cwd=work)
    for words in (
        ("spawn", "--session", "s1", "--new", "--", "true"),
        ("spawn", "--session", "s1", "--", "sh", "-c", "exit 2"),
        ("spawn", "--session", "s2", "--new", "--attempts", "2", "--", sys.executable, "-c", fails),
        (
            "spawn",
            "--session",
            "s3",
            "--new",
            "--budget",
            "tokens=1",
            "--",
            "onceward",
            "report",
            "--tokens",
            "5",
        ),
    ):
        onceward(None, *words, cwd=work)
    dies = {**os.environ, "ONCEWARD_FAULT": "child.ended"}
    assert (
        forked.run(
            ["spawn", "--session", "s4", "--new", "--", "true"], cwd=work, env=dies
        ).returncode
        == -9
    )
    assert onceward(None, "spawn", "--session", "s4", "--", "true", cwd=work).returncode == 0
    manifest = gate / "manifest.json"
    for session in ("s1", "s2", "s3", "s4"):
        done = onceward(
            None,
            "gate",
            "record",
            manifest,
            session,
            "--metric",
            "orphan",
            "--name",
            session,
            cwd=work,
        )
        assert done.returncode == 0, (session, done.stderr)
        fixture = read_fixture((gate / f"{session}.json").read_bytes(), session)
        codes = {line for line in fixture.expected if "WORKER_" in line}
        assert codes and not any('"skipped"' in line for line in fixture.expected)
    again = read_fixture((gate / "s2.json").read_bytes(), "s2").script
    assert [op.child for op in again if hasattr(op, "child") and hasattr(op, "micros")] == [
        "c1",
        "c1.2",
    ]
    assert run(gate)[0] == 0


@pytest.mark.rule("K-11")
@pytest.mark.parametrize(
    ("manifest", "name"),
    [
        ('{"name": "mypkg"}', "x"),
        ("[1]", "x"),
        ("not json", "x"),
        ('{"metrics": 5}', "x"),
        (None, "../evil"),
        (None, "manifest"),
        (None, "\u00c4 b"),
    ],
)
def test_nothing_is_written_over_or_outside(tmp_path, manifest, name):
    folder = tmp_path / "m"
    folder.mkdir()
    path = folder / "manifest.json"
    if manifest is not None:
        path.write_text(manifest)
    source = MANIFEST.parent / "last-penny.json"
    done = onceward(
        None, "gate", "record", path, source, "--metric", "budget", "--name", name, cwd=folder
    )
    assert done.returncode == 2 and "INVALID_CONFIG" in done.stderr, done.stderr
    assert [one.name for one in tmp_path.rglob("*")] == (
        ["m"] if manifest is None else ["m", "manifest.json"]
    )
    assert manifest is None or path.read_text() == manifest


@pytest.mark.rule("K-11")
def test_what_does_nothing_is_not_locked(tmp_path):
    head = {"schema": "stop_gate.fixture@1", "name": "idle", "about": ""}
    fixture = tmp_path / "idle.json"
    for lines, why in (
        ([{"op": "lease", "slot": 1}, {"op": "finish", "child": "ghost"}], "does anything"),
        ([], "empty"),
        ([{"op": "spawn", "children": ["a", "a"]}], "each its own"),
        ([{"op": "spawn", "children": ["a.2"]}], "each its own"),
        ([{"op": "open", "cap": 0}], "line 1 of the script"),
        ([{"op": "open", "limits": {"usd": 1}}], "there is no lane 'usd'"),
        (
            [{"op": "open"}, {"op": "spawn", "children": ["a"], "kind": "banana"}],
            "a function or a process",
        ),
        ([{"op": "wait", "micros": -5}], "line 1 of the script"),
        (
            [{"op": "open"}, {"op": "race", "ops": [{"op": "lease", "slot": 1}], "turns": [7]}],
            "a turn is",
        ),
        ([{"op": "leese", "slot": 1}], "lines are open, spawn"),
        (
            [{"op": "finish", "child": "a", "reason": "canceled"}],
            "one of budget_exceeded, cancelled",
        ),
        (
            [{"op": "crash", "at": "commit.befor", "during": {"op": "open"}}],
            "there are write.begun",
        ),
        (
            [
                {"op": "open"},
                {"op": "spawn", "children": ["a"]},
                {"op": "lease", "slot": 1},
                {"op": "debit", "child": "a", "spend": {"wood": 1}},
            ],
            "line 4",
        ),
    ):
        fixture.write_text(json.dumps({**head, "script": lines}))
        done = onceward(
            None, "gate", "record", tmp_path / "manifest.json", fixture, "--metric", "budget"
        )
        assert done.returncode == 2 and why in done.stderr, done.stderr
    rows = [{"table": "sessions", "columns": ["session_id"], "rows": [[{"hex": 5}]]}]
    fixture.write_text(json.dumps({**head, "script": [{"op": "recover"}], "rows": rows}))
    done = onceward(
        None, "gate", "record", tmp_path / "manifest.json", fixture, "--metric", "budget"
    )
    assert done.returncode == 2 and "cannot be read" in done.stderr
    assert not (tmp_path / "manifest.json").exists()


@pytest.mark.rule("R-2")
def test_the_code_that_is_judged_is_the_code_that_runs(tmp_path):
    bug = MUTANTS["dispatch reordered"]
    source = planted(tmp_path / "src", bug.symbol, bug.old, bug.new)
    found = python(None, "-m", "onceward", "gate", "run", MANIFEST, "--json", cwd=source)
    assert json.loads(found.stdout)["metrics"][SCHEDULER] < 100.0


@pytest.mark.rule("K-11", "I-1")
def test_bad_words_are_refused_before_the_work(gate, tmp_path):
    assert run(gate, store="nonsense")[0] == 2
    assert run(gate, "--page", str(tmp_path / "nowhere" / "x.html"))[0] == 2
    assert run(gate, "--page", str(tmp_path / "x.html"), "--expect", "ab" * 32)[0] == 5
    assert not (tmp_path / "x.html").exists(), "no verdict, no page"
    for text in ('{"schema": "stop_gate_metrics@1"}', '{"metrics": 5}', "[" * 100_000, "{}"):
        odd = tmp_path / "odd.json"
        odd.write_text(text)
        assert onceward(None, "gate", "show", odd).returncode == 2, text[:40]


@pytest.mark.thorough
@pytest.mark.rule("I-1", "R-3")
def test_people_can_read_it(gate, tmp_path):
    page = tmp_path / "gate.html"
    done = onceward(None, "gate", "run", gate / "manifest.json", "--page", page)
    assert done.returncode == 0 and "The gate is open" in done.stdout
    text = page.read_text()
    assert (
        all(metric in text for metric in METRICS) and "<script" not in text and "http" not in text
    )
    shown = onceward(None, "gate", "show", gate / "manifest.json").stdout
    assert "two-at-a-time" in shown and "six functions, two slots" in shown
    assert 'next="a"' in onceward(None, "gate", "show", gate / "two-at-a-time.json").stdout
    played = onceward(None, "gate", "play", gate / "two-at-a-time.json")
    assert played.returncode == 0 and "as locked; " in played.stdout
    odd = gate / "odd.json"
    odd.write_text((gate / "two-at-a-time.json").read_text().replace('"slot":2', '"slot":1', 1))
    played = onceward(None, "gate", "play", odd)
    assert played.returncode == 1 and "not as locked: " in played.stdout
    report = tmp_path / "report.json"
    (gate / "last-penny.json").write_bytes((gate / "last-penny.json").read_bytes() + b" ")
    closed = onceward(None, "gate", "run", gate / "manifest.json", "--json")
    report.write_text(closed.stdout)
    told = onceward(None, "gate", "show", report).stdout
    assert "The gate is closed" in told and "last-penny.json: fixture_changed" in told
    assert onceward(None, "gate", "show", page).returncode == 2


@pytest.mark.rule("R-2")
def test_a_manifest_is_written_the_same_whatever_the_order():
    metrics = read_manifest(MANIFEST.read_bytes(), "m").metrics
    upside_down = {metric: list(reversed(metrics[metric])) for metric in reversed(metrics)}
    assert written(upside_down) == written(metrics) == MANIFEST.read_bytes()


@pytest.mark.rule("R-4")
@pytest.mark.guarantee("G1")
def test_live_threads_come_to_the_same_end_in_whatever_order(kernel):
    """Which of two that run at once ends first is not claimed; the events, each child's own order and totals are."""
    seen = [
        essence(kernel, f"ses_{turn}", order)
        for turn, order in enumerate(["012345", "103254", "120345"])
    ]
    assert seen[0] == seen[1] == seen[2]
    lives, totals = seen[0]
    assert totals["tokens"] == 60 and len(lives) == 6
    assert lives[5] == [
        ("WORKER_START", None, None),
        ("WORKER_FAIL", "execution_failed", "URM_CHILD_EXECUTION_FAILED"),
    ]


def essence(kernel, session, order):
    """Six children of a session, let go in some order; what of it must be the same in every order."""
    going = [threading.Event() for _ in range(6)]

    def work(number):
        def call(task):
            assert going[number].wait(600)
            task.spend(tokens=10)
            if number == 4:
                raise ValueError("no")

        return call

    children = kernel.open_session(session, 2, {"tokens": 60})
    ids = children.spawn([Function(call=work(number), name="work") for number in range(6)])
    for number in map(int, order):
        going[number].set()
        children.wait(ids[number]) if number < 2 else None
    for child in ids:
        children.wait(child)
    lives = {}
    with kernel.store.read() as rows:
        records = StoreRecords(rows)
        for life in records.lives(ids).values():
            said = [event.facts() for event in life.events]
            told = [
                (one["event"], one["detail"].get("reason"), one["detail"].get("code"))
                for one in said
            ]
            lives[life.child.queue_seq] = told
        totals = {
            row.budget_lane: row.total for row in records.of(LaneTotal, parent_session_id=session)
        }
        assert replay(records, [session]).difference is None
    return lives, totals
