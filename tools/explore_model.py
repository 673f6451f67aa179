"""What a schedule should come to, without the engine: the explorer's model, small, slow and
separate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from onceward.core.limits import MAX_ACTIVE_CHILDREN
from onceward.core.records import ChildRecord
from onceward.evidence.records import StoreRecords
from onceward.gate import script
from onceward.gate.script import Op
from onceward.store.tables.budgets import LaneTotal

START: Final = 1_700_000_000_000_000
LANES: Final = ("tokens", "solver_calls")


@dataclass
class Kid:
    """A child, as the model knows it."""

    place: int
    kind: str
    attempts: int
    attempt: int = 1
    phase: str = "queued"
    slot: int = 0
    reason: str = ""
    cancel: str = ""
    asked: bool = False
    life: int = 0
    due: int | None = 0
    """When it may begin; None while only the engine's own dice know."""


@dataclass
class Model:
    """What should become of every line, without the engine: small, slow and separate."""

    kids: dict[str, Kid] = field(default_factory=dict)
    cap: int = 0
    limits: dict[str, int] = field(default_factory=dict)
    totals: dict[str, int] = field(default_factory=dict)
    places: int = 0
    dispatched: int = 0
    alive: bool = True
    open: bool = False
    life: int = 1
    now: int = START

    def copy(self) -> Model:
        kids = {name: replace(kid) for name, kid in self.kids.items()}
        return replace(self, kids=kids, limits=dict(self.limits), totals=dict(self.totals))

    def tell(self, op: Op) -> dict[str, Any] | None:
        """The outcome that a line must have; None where the model does not claim to know it."""
        self.now += 1000
        return self._tell(op)

    def _tell(self, op: Op) -> dict[str, Any] | None:
        if not self.alive and not isinstance(op, script.Recover | script.Wait):
            return {"skipped": True}
        return getattr(self, "_" + type(op).__name__.lower())(op)  # type: ignore[no-any-return]

    def _open(self, op: script.Open) -> dict[str, Any]:
        if self.open:
            return {"skipped": True}
        self.open, self.cap = True, op.cap or self.cap or MAX_ACTIVE_CHILDREN
        self.limits |= op.limits
        return {"opened": op.session}

    def _spawn(self, op: script.Spawn) -> dict[str, Any]:
        if not self.open or any(name in self.kids for name in op.children):
            return {"skipped": True}
        for name in op.children:
            self.places += 1
            self.kids[name] = Kid(self.places, op.kind, op.attempts, life=self.life)
        return {"queued": op.children}

    def _lease(self, op: script.Lease) -> dict[str, Any]:
        if not self.open or self.holder(op.slot):
            return {"skipped": True}
        return self._next(op.slot) if op.slot <= self.cap else {"next": None}

    def holder(self, slot: int) -> str:
        """Who has a slot."""
        return next(
            (
                n
                for n, kid in self.kids.items()
                if kid.slot == slot and kid.phase in ("leased", "started")
            ),
            "",
        )

    def _next(self, slot: int) -> dict[str, Any]:
        ready = [
            (kid.place, name)
            for name, kid in self.kids.items()
            if kid.phase == "queued" and self._due(kid)
        ]
        if any(self.totals.get(lane, 0) > limit for lane, limit in self.limits.items()):
            # A lane is over its limit: nothing starts any more, and what was queued ends.
            for _, name in ready:
                self.kids[name].phase, self.kids[name].reason = "terminal", "budget_exceeded"
            ready = []
        if not ready:
            return {"next": None}
        kid = self.kids[min(ready)[1]]
        self.dispatched += 1
        kid.phase, kid.slot = ("started" if kid.kind == "function" else "leased"), slot
        return {"next": min(ready)[1], "dispatch_seq": self.dispatched}

    def _due(self, kid: Kid) -> bool:
        # A pause is at most as long as it is and at least half of that; schedules wait for one or
        # the other.
        return kid.due is not None and kid.due <= self.now

    def _start(self, op: script.Start) -> dict[str, Any]:
        kid = self.kids.get(op.child)
        if kid is None or kid.phase != "leased" or kid.asked:
            return {"skipped": True}
        kid.phase = "started"
        return {"started": op.child}

    def _finish(self, op: script.Finish) -> dict[str, Any]:
        kid = self.kids.get(op.child)
        if kid is None or kid.phase not in ("leased", "started"):
            return {"skipped": True}
        if kid.phase == "leased" and op.reason != "start_failed":
            return {"skipped": True}
        kid.phase, kid.reason = "terminal", "cancelled" if kid.cancel else op.reason
        again = {}
        if op.retryable and not kid.cancel and kid.attempt < kid.attempts:
            self.places += 1
            name = f"{op.child.partition('.')[0]}.{kid.attempt + 1}"
            # Its pause is a second or two: what waits for time is let wait long enough.
            due = self.now + (1_000_000 << (kid.attempt - 1))
            self.kids[name] = Kid(
                self.places, kid.kind, kid.attempts, kid.attempt + 1, life=self.life, due=due
            )
            again = {"again": name}
        return {"ended": kid.reason, **again, **self._next(kid.slot)}

    def _debit(self, op: script.Debit) -> dict[str, Any]:
        kid = self.kids.get(op.child)
        if kid is None or kid.phase != "started":
            return {"skipped": True}
        over = [
            lane
            for lane, n in op.spend.items()
            if not op.settled and self.totals.get(lane, 0) + n > self.limits.get(lane, 1 << 60)
        ]
        if not over:
            self.add(op.spend)
        kid.asked = kid.asked or bool(over)
        return (
            {"refused": "URM_CHILD_BUDGET_EXCEEDED", "lane": over[0]}
            if over
            else {"debited": op.spend}
        )

    def add(self, spend: dict[str, Any]) -> None:
        for lane, amount in spend.items():
            self.totals[lane] = self.totals.get(lane, 0) + amount

    def _cancel(self, op: script.Cancel) -> dict[str, Any]:
        kid = self.kids.get(op.child)
        if kid is None:
            return {"skipped": True}
        if kid.phase == "terminal":
            return {"outcome": "already_terminal"}
        kid.cancel = kid.cancel or op.request
        if kid.phase == "queued":
            kid.phase, kid.reason = "terminal", "cancelled"
            return {"outcome": "cancelled"}
        kid.asked = True
        return {"outcome": "cancelling"}

    def _wait(self, op: script.Wait) -> dict[str, Any]:
        self.now += op.micros
        return {"waited": op.micros}

    def _race(self, op: script.Race) -> None:
        """Every order of its lines is right; which one it was is read off afterwards."""

    def _crash(self, op: script.Crash) -> dict[str, Any] | None:
        if op.during is not None:
            self._tell(op.during)
        self.die()
        return None

    def die(self) -> None:
        self.alive = self.open = False

    def _recover(self, op: script.Recover) -> dict[str, Any]:
        if self.alive:
            return {"skipped": True}
        left = [kid for kid in self.kids.values() if kid.phase != "terminal"]
        for kid in left:
            kid.reason = "terminated_on_restart" if kid.phase == "started" else "lease_orphaned"
            kid.phase = "terminal"
        self.alive, self.life = True, self.life + 1
        return {"unconfirmed": 0}


def orders(model: Model, op: Op) -> Iterator[tuple[Model, dict[str, Any] | None]]:
    """The models that a line may leave: one, but for a crash in the middle of something, and for
    races."""
    if isinstance(op, script.Race) and model.alive:
        for first in (0, 1):
            after = model.copy()
            after.now += 1000
            told: dict[int, Any] = {}
            for number in (first, 1 - first):
                told[number] = after._tell(op.ops[number])
            yield after, {"race": [told[0], told[1]]}
            second = op.ops[1 - first]
            if (
                isinstance(second, script.Debit)
                and second.settled
                and told[1 - first].get("skipped")
            ):
                # It was on its way when its child ended: money that is gone is counted all the
                # same.
                late = after.copy()
                late.add(second.spend)
                told[1 - first] = {"debited": second.spend}
                yield late, {"race": [told[0], told[1]]}
        return
    if isinstance(op, script.Crash) and op.during is not None and model.alive:
        before = model.copy()
        before.now += 1000
        before.die()
        yield before, None
    if isinstance(op, script.Recover) and op.dies and not model.alive:
        # Where it dies there may have been nothing to do; then it did not die.
        before = model.copy()
        before.now += 1000
        yield before, {"crashed": op.dies}
    after = model.copy()
    yield after, after.tell(op)


def agrees(claimed: dict[str, Any] | None, found: dict[str, Any]) -> bool:
    """Whether an outcome is what a model claims; what it does not speak of may be anything."""
    if claimed is None:
        return True
    if "race" in claimed:
        return all(
            agrees(one, other)
            for one, other in zip(claimed["race"], found.get("race", [{}, {}]), strict=True)
        )
    if claimed.get("skipped"):
        # Who came second finds that the child has ended, in the engine's own words.
        return "skipped" in found or found.get("refused") == "EXECUTION_FAILED"
    return all(found.get(key) == value for key, value in claimed.items())


def distinct(models: Iterable[Model]) -> list[Model]:
    """Each once: different orders often come to the same."""
    found: list[Model] = []
    for model in models:
        if model not in found:
            found.append(model)
    return found


def unlike(models: Sequence[Model], names: dict[str, str], records: StoreRecords) -> str:
    """How the records differ from every model that was left."""
    children = {child.child_id: child for child in records.all(ChildRecord)}
    totals = {row.budget_lane: row.total for row in records.all(LaneTotal)}
    why = ""
    for model in models:
        why = ""
        for name, kid in model.kids.items():
            child = children.get(names.get(name, ""))
            if child is None:
                why = f"{name} is not there"
            elif (child.phase, child.reason or "", child.cancel_request_id or "") != (
                kid.phase,
                kid.reason,
                kid.cancel,
            ):
                why = f"{name} is {child.phase} {child.reason}, where it should be {kid.phase} {kid.reason}"
        for lane in LANES:
            if totals.get(lane, 0) != model.totals.get(lane, 0):
                why = f"{lane} is {totals.get(lane, 0)}, where it should be {model.totals.get(lane, 0)}"
        if len(children) != len(model.kids):
            why = f"there are {len(children)} children, where there should be {len(model.kids)}"
        if not why:
            return ""
    return why
