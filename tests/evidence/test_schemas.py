"""Everything that is exported validates against the schema it names (C-1, C-6)."""

from __future__ import annotations

import threading
import uuid
from collections import Counter

import pytest

from conftest import KINDS, schema_url
from onceward.artifacts.streams import Streams
from onceward.core import faults
from onceward.core.records import Request
from onceward.core.views import document
from onceward.dispatch.views import session_view
from onceward.dispatch.work import Command, Function
from onceward.errors import NetworkError
from scene import copied, files_of
from schemas import SPEC, validator, violations, violations_in_lines
from typing_in import Typed

EVENTS, TOKENS = "urm-events@1", "scheduler_dispatch_token@1"


@pytest.fixture(params=KINDS)
def busy(request, template, tmp_path):
    """The scene, and a session in which children end in every way there is."""
    url = "sqlite"
    if request.param == "postgresql":
        url = schema_url(request.getfixturevalue("postgres_url"), f"spec{uuid.uuid4().hex[:12]}")
    workspace = copied(template, tmp_path, url)
    _crash(workspace)
    kernel = workspace.kernel()
    kernel.processes.grace = 0.3
    going = threading.Event()
    try:
        children = kernel.open_session("ses_hand", 1, {"tokens": 10})
        _end_in_every_way(children, tmp_path)
        running, _queued, cancelled = children.spawn(
            [Function(call=lambda task: going.wait(600), name="waits") for _ in range(3)]
        )
        for child in (running, cancelled):
            _cancel(kernel, child)
        yield workspace
    finally:
        going.set()
        kernel.close()


def _cancel(kernel, child):
    payload = {"subject": child, "cancel_request_id": f"req-{child}"}
    kernel.ask(Request("children.cancel", uuid.uuid4().hex, payload, "tester"))


def _crash(workspace):
    """A child that its kernel's death cut off; the next kernel ends it."""
    kernel = workspace.kernel()
    children = kernel.open_session("ses_crashed", 1)
    with faults.armed("child.ended", act=faults.crash):
        (child,) = children.spawn([Function(call=lambda task: None, name="cut off")])
        with pytest.raises(faults.SimulatedCrash):
            children.wait(child)
    kernel.close()


def _end_in_every_way(children, folder):
    def fails(task):
        raise ValueError("no")

    def is_rate_limited(task):
        raise NetworkError("try again")

    works = [
        Command(argv=("echo", "hi"), cwd=folder),
        Command(argv=("false",), cwd=folder),
        Command(argv=("no-such-program",), cwd=folder),
        Command(argv=("sleep", "60"), cwd=folder, timeout=0.1),
        Function(call=fails, name="fails", target="one"),
        Function(call=is_rate_limited, name="again", attempts=2),
        Function(call=lambda task: task.spend(tokens=1), name="spends"),
        Function(call=lambda task: task.spend(tokens=100), name="spends too much"),
    ]
    reasons = {children.wait(child).reason for child in children.spawn(works)}
    assert reasons == {
        *("completed", "execution_failed", "start_failed", "timeout", "budget_exceeded"),
    }


@pytest.mark.rule("C-1", "C-6", "E-2")
def test_everything_that_is_exported_validates_against_the_schema_it_names(busy, tmp_path):
    found: Counter[str] = Counter()
    wrong: list[str] = []
    subjects = [*busy.ids.values(), "ses_hand", "ses_crashed"]
    with busy.reading() as store:
        Streams(busy.folder / "streams", store, "tester").project()
        for subject in subjects:
            if not subject.startswith("ent_"):
                wrong += violations(
                    document(session_view(store, subject)), f"status {subject}", found
                )
    for path in sorted((busy.folder / "streams").glob("*.ndjson")):
        wrong += violations_in_lines(path.read_bytes(), path.name, found)
    for number, subject in enumerate(subjects):
        bundle = tmp_path / f"{number}.tar"
        busy.export(subject, bundle, True)
        for name, data in files_of(bundle).items():
            if name.endswith((".json", ".ndjson")) and not name.startswith("artifacts/"):
                wrong += violations_in_lines(data, f"{subject} {name}", found)
    assert wrong == [], f"{len(wrong)} violations in {sum(found.values())}"
    assert found[EVENTS] > 500 and found[TOKENS] > 50 and found["onceward-bundle@1"] > 5
    assert found["budget.v1"] > 20


@pytest.mark.rule("C-30")
def test_the_budget_snapshots_of_children_add_up_to_the_totals_of_their_session(busy):
    with busy.reading() as store:
        shown = document(session_view(store, "ses_hand"))
    sums: Counter[str] = Counter()
    for child in shown["children"]:
        assert validator("budget.v1").is_valid(child["budget"])
        for lane in child["budget"]["lanes"]:
            sums[lane["budget_lane"]] += lane["debited"]
    assert sums["tokens"] == 1
    assert dict(sums) == {lane["lane"]: lane["total"] for lane in shown["lanes"]}


@pytest.mark.rule("C-1", "C-6", "I-1")
def test_everything_that_the_command_line_prints_or_writes_validates_too(template, tmp_path):
    workspace = copied(template, tmp_path, "sqlite")
    cli = Typed(tmp_path, "sqlite")
    ids = workspace.ids
    found: Counter[str] = Counter()
    wrong: list[str] = []
    for words in (
        ("events", "workspace", "--json"),
        ("events", f"session:{ids['approved']}", "--json"),
        ("events", f"entry:{ids['change done']}", "--json"),
        ("events", f"saga:{ids['saga done']}", "--json"),
        ("spawn", "--session", "s1", "--new", "--json", "--", "true"),
        ("status", "s1", "--json"),
        ("explain", "s1", "--json"),
        ("output", ids["approved"], "--to", "made", "--json"),
        ("seal", "--out", "seal.json", "--json"),
        ("seal", "--out", "seal.json", "--json"),
    ):
        done = cli(*words, check=0)
        wrong += violations_in_lines(done.stdout, " ".join(words), found)
    for file in ("made/manifest.json", "seal.json"):
        wrong += violations_in_lines((tmp_path / file).read_bytes(), file, found)
    assert wrong == []
    assert {EVENTS, TOKENS, "onceward_output@1", "onceward-seal@1"} <= found.keys()


@pytest.mark.rule("C-6")
def test_a_schema_still_refuses_what_nobody_described():
    event = {
        "schema": EVENTS,
        "event": "NOTED",
        "stream_id": "workspace",
        "seq": 1,
        "ts": "2026-01-01T00:00:00.000000Z",
        "source": "workspace",
        "context": {"actor": "a", "fence": 1, "signed": "ab" * 32},
        "detail": {},
        "prev_hash": "0" * 64,
        "hash": "0" * 64,
    }
    assert not violations(event, "", Counter())
    for context in ({"unknown": 1}, {"signed": "not a digest"}, {"signed": None}):
        odd = {**event, "context": {**event["context"], **context}}
        assert violations(odd, "", Counter()), context


def test_every_schema_is_a_schema_under_its_own_name():
    names = sorted(path.name.removesuffix(".schema.json") for path in SPEC.glob("*.schema.json"))
    assert names and all(validator(name).schema["$id"].endswith(name) for name in names)
