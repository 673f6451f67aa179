"""Random moves, appends, requests, crashes and rival writers, against a model that fits on a page."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from conftest import schema_url
from helpers import get, orphan_lock
from onceward.builds.machine import BUILD, create
from onceward.core import faults
from onceward.core.records import Move, Request
from onceward.core.sources import ScriptedSources
from onceward.errors import IllegalTransition, LockLost, RequestConflict, StaleVersion
from onceward.evidence.verify import verify_rows
from onceward.kernel.tenure import acquire
from onceward.store import migrate
from onceward.store.store import Store
from onceward.store.tables.builds import Builds
from onceward.store.tables.events import streams

POINTS = [
    name
    for name in faults.POINTS
    if name.startswith(("write.", "move.", "commit.", "request.worked"))
]
REASONS = [*sorted({a.reason for a in BUILD.arrows if a.reason}), "because"]


class StoreModel(RuleBasedStateMachine):
    """What the store should hold, kept as plain dictionaries."""

    builds = Bundle("builds")
    requests = Bundle("requests")

    def make_database(self, sources):
        raise NotImplementedError

    @initialize()
    def open(self):
        self.sources = ScriptedSources()
        self.database = self.make_database(self.sources)
        migrate.migrate(self.database, self.sources)
        self.states: dict[str, tuple[str, int]] = {}
        self.lengths: dict[str, int] = {}
        self.answers: dict[tuple[str, int], object] = {}
        self.fence = 0
        self.store = self.take()

    def take(self):
        store = Store(self.database, self.sources, ["log"])
        acquire(store, "tester")
        self.fence += 1
        assert store.tenure.fence == self.fence
        for build_id, (state, version) in list(self.states.items()):
            if state == "ACTIVE":
                self.moved(build_id, "CRASHED", version + 1)
        return store

    def moved(self, build_id, state, version):
        self.states[build_id] = (state, version)
        self.noted(f"session:{build_id}")

    def noted(self, stream):
        self.lengths[stream] = self.lengths.get(stream, 0) + 1

    @rule(target=builds)
    def create_build(self):
        build_id = self.sources.new_id("bld")
        self.store.write(lambda tx: tx.move(create(build_id, "demo", "tester")))
        self.moved(build_id, "PENDING", 1)
        return build_id

    @rule(
        build_id=builds,
        to=st.sampled_from(BUILD.states),
        reason=st.sampled_from(REASONS),
        drift=st.sampled_from([0, 0, 0, -1, 1]),
    )
    def move_build(self, build_id, to, reason, drift):
        state, version = self.states[build_id]
        move = Move(BUILD, build_id, state, to, version + drift, "tester", reason)
        try:
            self.store.write(lambda tx: tx.move(move))
        except IllegalTransition:
            assert all((a.source, a.target, a.reason) != (state, to, reason) for a in BUILD.arrows)
        except StaleVersion:
            assert drift
        else:
            assert not drift
            assert any((a.source, a.target, a.reason) == (state, to, reason) for a in BUILD.arrows)
            self.moved(build_id, to, version + 1)

    @rule(build_id=builds, pick=st.randoms(use_true_random=False))
    def move_build_legally(self, build_id, pick):
        state, version = self.states[build_id]
        arrows = [a for a in BUILD.arrows if a.source == state]
        if arrows:
            arrow = pick.choice(arrows)
            self.store.write(
                lambda tx: tx.move(
                    Move(BUILD, build_id, state, arrow.target, version, "tester", arrow.reason)
                )
            )
            self.moved(build_id, arrow.target, version + 1)

    @rule(count=st.integers(1, 3))
    def append_facts(self, count):
        def note(tx):
            for number in range(count):
                tx.append("workspace", "NOTED", "tester", {"n": number})

        self.store.write(note)
        for _ in range(count):
            self.noted("workspace")

    def answered(self):
        """What was asked, and the event of its answer."""
        for _ in range(2):
            self.noted("workspace")

    def note_once(self, request):
        def note(tx, resource_id):
            return {
                "seq": tx.append("workspace", "NOTED", "tester", {"id": request.request_id}).seq
            }

        return self.store.answer(request, note)

    @rule(target=requests, payload=st.integers(0, 1))
    def ask(self, payload):
        request = Request("note", self.sources.new_id("req"), {"n": payload}, "tester")
        answer = self.note_once(request)
        assert not answer.replayed
        self.answered()
        self.answers[request.request_id, payload] = answer.value
        return request

    @rule(request=requests)
    def ask_again(self, request):
        answer = self.note_once(request)
        assert answer.replayed
        assert answer.value == self.answers[request.request_id, request.payload["n"]]

    @rule(request=requests)
    def ask_something_else_under_the_same_id(self, request):
        other = Request("note", request.request_id, {"n": 9}, "tester")
        try:
            self.note_once(other)
        except RequestConflict:
            return
        raise AssertionError("a request id was used for two payloads")

    @rule(target=requests, name=st.sampled_from(POINTS))
    def crash_and_ask_again(self, name):
        request = Request("note", self.sources.new_id("req"), {"n": 0}, "tester")
        with faults.armed(name, act=faults.crash):
            try:
                self.note_once(request)
                crashed = False
            except faults.SimulatedCrash:
                crashed = True
        if crashed:
            self.store.close()
            orphan_lock(self.database)
            self.store = self.take()
        answer = self.note_once(request)
        assert answer.replayed == (not crashed or name in ("commit.after", "write.answered"))
        self.answered()
        self.answers[request.request_id, 0] = answer.value
        return request

    @rule()
    def a_rival_takes_over_and_the_old_kernel_writes_nothing(self):
        old = self.store
        orphan_lock(self.database)
        self.store = self.take()
        try:
            old.write(lambda tx: tx.append("workspace", "NOTED", "ghost", {}))
        except LockLost:
            old.close()
            return
        raise AssertionError("a kernel wrote with an old fence")

    @precondition(lambda self: hasattr(self, "store"))
    @invariant()
    def the_store_is_what_the_model_says(self):
        with self.store.read() as rows:
            assert dict(streams(rows)) == self.lengths
            found = {
                b: (Builds(rows).get(b).state, Builds(rows).get(b).version) for b in self.states
            }
            ((events,),), ((parcels,),) = (
                rows.read("SELECT count(*) FROM events"),
                rows.read("SELECT count(*) FROM event_outbox"),
            )
        assert found == self.states
        assert events == parcels == sum(self.lengths.values())

    def teardown(self):
        if hasattr(self, "store"):
            with self.store.read() as rows:
                # A pause comes with the permit that it mints, which is the engine's business and not this model's.
                assert [fault for fault in verify_rows(rows).faults if fault.rule != "permit"] == []
            assert all(get(self.store, b).state == state for b, (state, _) in self.states.items())
            self.store.close()


def run(machine, examples):
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=25,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        ),
    )


@pytest.mark.rule("K-4", "K-8", "K-9", "K-12")
@pytest.mark.guarantee("G27")
def test_the_model_holds_on_sqlite(tmp_path):
    from onceward.store.sqlite import SqliteDatabase

    folders = iter(range(10_000))

    class OnSqlite(StoreModel):
        def make_database(self, sources):
            return SqliteDatabase(tmp_path / f"{next(folders)}.db", sources)

    run(OnSqlite, 36)


@pytest.mark.rule("K-4", "K-8", "K-9", "K-12")
@pytest.mark.guarantee("G27")
def test_the_model_holds_on_postgresql(postgres_url):
    from onceward.store.postgres import PostgresDatabase

    schemas = iter(range(10_000))

    class OnPostgres(StoreModel):
        def make_database(self, sources):
            return PostgresDatabase(schema_url(postgres_url, f"model{next(schemas)}"), sources)

    run(OnPostgres, 20)
