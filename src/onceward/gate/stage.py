"""The real engine under a script: its transactions called one by one, with a clock and ids that the
script has.

What a coordinator's threads do is done here in the order of the script; nothing of the engine is
replaced."""

from __future__ import annotations

from contextlib import suppress
from functools import partial, singledispatchmethod
from pathlib import Path
from typing import Any, Final

import msgspec

from onceward import catalogue as _catalogue  # noqa: F401
from onceward.artifacts.blobs import Artifacts
from onceward.artifacts.streams import Streams
from onceward.builds.acts import Cancel, cancel
from onceward.core import faults
from onceward.core.records import Token
from onceward.core.sources import ScriptedSources
from onceward.dispatch import child_run, queue
from onceward.dispatch.children import Children
from onceward.dispatch.held_targets import HeldTargets
from onceward.dispatch.machine import Ended
from onceward.dispatch.recovery import recover
from onceward.dispatch.work import Command, Function, Work
from onceward.errors import BudgetExceeded, OncewardError
from onceward.gate import script
from onceward.gate.script import Fixture, Op
from onceward.gate.turnstile import PacedStore, Turnstile
from onceward.kernel import tenure
from onceward.locks import TargetLock
from onceward.locks.identity import Identity
from onceward.processes.launcher import Processes
from onceward.processes.spool import Spool
from onceward.store.port import Database
from onceward.store.store import Store
from onceward.store.tables.children import Tokens, checked_position, note_recovery

ACTOR: Final = "stage"
_LINE_MICROS: Final = 1000
"""How much time passes with each line of a script."""
_CLOSED: Final = "the session is not open in this life"


class Staged(Children):
    """A coordinator that starts no threads: whoever holds it takes its turns."""

    def rouse(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def running_micros(self, but: str = "") -> int:
        """Time passes only as the script says, and is charged when a child ends."""
        return 0


class OccupiedSlot(msgspec.Struct):
    """A child that has a slot."""

    session: str
    slot: int
    token: Token


class ScriptStage:
    """One play. Each line answers what came of it, in words that are the same in every run."""

    def __init__(
        self, database: Database, folder: Path, fixture: Fixture, sources: ScriptedSources
    ) -> None:
        self.database, self.folder, self.sources = database, folder, sources
        self.names: dict[str, str] = dict(fixture.names)
        self.places: dict[str, OccupiedSlot] = {}
        self.sessions: dict[str, Staged] = {}
        self.store: PacedStore | None = None
        self._now, self._life = fixture.start, 1000 if fixture.rows else 0
        if not fixture.rows:
            self._begin("stage")

    def close(self) -> None:
        self._die()

    def play(self, op: Op) -> dict[str, Any]:
        """One line of the script."""
        self._now += _LINE_MICROS
        self.sources.set(self._now)
        if self.store is None and not isinstance(op, script.Recover | script.Wait | script.Tear):
            return {"skipped": "there is no kernel"}
        return self._try(op)

    def name_of(self, child_id: str) -> str:
        return next((name for name, known in self.names.items() if known == child_id), child_id)

    def _unplaced(self, name: str) -> str:
        return "it has no slot" if name in self.names else "there is no such child"

    def _try(self, op: Op) -> dict[str, Any]:
        try:
            return self._do(op)  # type: ignore[no-any-return]
        except OncewardError as error:
            why = {"why": error.message} if error.code == "INVALID_CONFIG" else {}
            return {"refused": error.code, **why}

    @singledispatchmethod
    def _do(self, op: Any) -> Any:
        raise AssertionError(op)

    @_do.register
    def _(self, op: script.Open) -> Any:
        assert self.store is not None
        known = self.sessions.get(op.session)
        if known is not None:
            return {"skipped": "it is open"}
        here = self._here
        with self.store.read() as rows:
            cap = op.cap or queue.cap_of(rows, op.session)
        self.sessions[op.session] = Staged(
            store=self.store,
            processes=Processes(here=here),
            artifacts=Artifacts(self.folder / "artifacts", self.store),
            targets=HeldTargets(TargetLock(self.folder / "locks")),
            spool=Spool(self.folder / "kernel" / "running"),
            session_id=op.session,
            actor=ACTOR,
            jobs=cap,
            limits=op.limits,
        )
        return {"opened": op.session}

    @_do.register
    def _(self, op: script.Spawn) -> Any:
        children = self.sessions.get(op.session)
        if children is None:
            return {"skipped": _CLOSED}
        if any(name in self.names for name in op.children):
            return {"skipped": "there is such a child already"}
        ids = children.spawn([self._work(op) for _ in op.children])
        self.names |= zip(op.children, ids, strict=True)
        return {"queued": op.children}

    def _work(self, op: script.Spawn) -> Work:
        if op.kind == "function":
            return Function(call=lambda task: None, name="work", attempts=op.attempts)
        return Command(argv=("work",), cwd=self.folder, attempts=op.attempts)

    @_do.register
    def _(self, op: script.Lease) -> Any:
        children = self.sessions.get(op.session)
        if children is None:
            return {"skipped": _CLOSED}
        if any(
            (place.session, place.slot) == (op.session, op.slot) for place in self.places.values()
        ):
            return {"skipped": "the slot is taken"}
        return self._took(op.session, op.slot, children.turn(op.slot, None))

    @_do.register
    def _(self, op: script.Start) -> Any:
        place = self.places.get(op.child)
        if place is None or place.token.phase != "leased":
            return {"skipped": self._unplaced(op.child) if place is None else "it runs already"}
        child_id = place.token.child_id
        assert self.store is not None
        if self.sessions[place.session].running[child_id].asked:
            return {"skipped": "it was asked to end"}
        place.token = self.store.write(
            lambda tx: queue.start(
                tx, Tokens(tx).get(child_id), actor=ACTOR, pid=1000 + place.slot, began="1"
            )
        )
        return {"started": op.child}

    @_do.register
    def _(self, op: script.Finish) -> Any:
        place = self.places.get(op.child)
        if place is None:
            return {"skipped": self._unplaced(op.child)}
        children, token = self.sessions[place.session], place.token
        if token.phase == "leased" and op.reason != "start_failed":
            return {"skipped": "it has not started"}
        running = children.running[token.child_id]
        detail = (
            dict(running.refused) if op.reason == "budget_exceeded" and not op.detail else op.detail
        )
        ended = Ended(op.reason, detail, op.retryable)
        micros = op.micros if token.phase == "started" else None
        closing = child_run.closing_of(children, token, ended=ended, micros=micros, blobs={})
        turn = children.turn(place.slot, closing)
        del self.places[op.child]
        again = {}
        if turn.successor is not None:
            again = {"again": f"{op.child.partition('.')[0]}.{turn.successor.attempt}"}
            self.names[again["again"]] = turn.successor.child_id
        assert turn.ended is not None
        return {"ended": turn.ended.reason, **again, **self._took(place.session, place.slot, turn)}

    def _took(self, session: str, slot: int, turn: queue.Turn) -> dict[str, Any]:
        if turn.next is None:
            return {"next": None}
        name = self.name_of(turn.next.child_id)
        self.places[name] = OccupiedSlot(session, slot, turn.next)
        return {"next": name, "dispatch_seq": turn.next.dispatch_seq}

    @_do.register
    def _(self, op: script.Debit) -> Any:
        place = self.places.get(op.child)
        if place is None or place.token.phase != "started":
            return {"skipped": self._unplaced(op.child) if place is None else "it has not started"}
        children = self.sessions[place.session]
        running = children.running[place.token.child_id]
        try:
            child_run.spend_now(children, place.token, running, lanes=op.spend, settled=op.settled)
        except BudgetExceeded as error:
            running.refuse(error.context)
            return {"refused": error.code, **error.context}
        return {"debited": op.spend}

    @_do.register
    def _(self, op: script.Cancel) -> Any:
        child_id = self.names.get(op.child)
        if child_id is None:
            return {"skipped": "there is no such child"}
        assert self.store is not None
        asked = Cancel(child_id, op.request)
        said = self.store.write(lambda tx: cancel(tx, ACTOR, asked))
        for children in self.sessions.values():
            children.heed()
        return {"outcome": said["receipts"][0]["outcome"]}

    @_do.register
    def _(self, op: script.Stop) -> Any:
        children = self.sessions.get(op.session)
        if children is None:
            return {"skipped": _CLOSED}
        children.stop()
        return {"stopping": op.session}

    @_do.register
    def _(self, op: script.Wait) -> Any:
        self._now += op.micros
        return {"waited": op.micros}

    @_do.register
    def _(self, op: script.Crash) -> Any:
        reached = False
        if op.during is not None:
            with faults.armed(op.at, act=faults.crash):
                try:
                    self._try(op.during)
                except faults.SimulatedCrash:
                    reached = True
        self._die()
        if reached:
            self._learn()
        return {"crashed": op.at if reached else "now"}

    def _learn(self) -> None:
        """Next attempts that were queued in the very commit after which the kernel died."""
        store = Store(self.database, self.sources)
        with store.read() as rows:
            found = rows.read(
                "SELECT child_id, predecessor, attempt FROM urm_dispatch_token"
                " WHERE predecessor IS NOT NULL"
                " ORDER BY attempt, child_id"
            )
        store.close()
        known = {child_id: name for name, child_id in self.names.items()}
        for child_id, predecessor, attempt in found:
            if child_id not in known:
                known[child_id] = f"{known[predecessor].partition('.')[0]}.{attempt}"
                self.names[known[child_id]] = child_id

    @_do.register
    def _(self, op: script.Recover) -> Any:
        if self.store is not None:
            return {"skipped": "the kernel is alive"}
        if not op.dies:
            return self._begin(op.host)
        with faults.armed(op.dies, act=faults.crash):
            try:
                return self._begin(op.host)
            except faults.SimulatedCrash:
                return {"crashed": op.dies}

    @_do.register
    def _(self, op: script.Race) -> Any:
        assert self.store is not None
        pace = self.store.pace = Turnstile(op.turns)
        try:
            return {"race": pace.run([partial(self._try, inner) for inner in op.ops])}
        finally:
            self.store.pace = None

    @_do.register
    def _(self, op: script.Tear) -> Any:
        path = self.folder / "streams" / f"child:{self.names.get(op.child)}.ndjson"
        if not path.exists():
            return {"skipped": "there is no such file"}
        with path.open("ab") as file:
            file.write(op.text.encode())
        return {"torn": op.child}

    @_do.register
    def _(self, op: script.Project) -> Any:
        assert self.store is not None
        return {"lines": Streams(self.folder / "streams", self.store, ACTOR).project()}

    @property
    def _here(self) -> Identity:
        return Identity(
            hostname=self._host,
            machine_id=f"machine-{self._host}",
            boot_id=f"boot-{self._life}",
            pid=100 + self._life,
            process_start="1",
        )

    def _begin(self, host: str) -> dict[str, Any]:
        """A kernel takes the store, and brings to its end what the last one left."""
        self._life += 1
        self._host = host
        store = PacedStore(self.database, self.sources)
        try:
            held = tenure.acquire(store, ACTOR, root_id="stage", here=self._here)
            found = recover(store, ACTOR, self._here)
            store.write(
                lambda tx: note_recovery(
                    tx,
                    fence=held.fence,
                    now=tx.now,
                    recovered=found.recovered,
                    unconfirmed=found.unconfirmed,
                    position=checked_position(tx),
                )
            )
        except BaseException:
            store.close()
            raise
        self.store = store
        return {"recovered": found.recovered, "unconfirmed": found.unconfirmed}

    def _die(self) -> None:
        """Nothing is given back: whatever was not committed is gone."""
        store, self.store = self.store, None
        self.places, self.sessions = {}, {}
        if store is not None:
            with suppress(OncewardError):
                store.close()
