"""The money side of a build: estimates, objections, and the pause that asks a person (B-9, B-10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from onceward.builds import machine
from onceward.builds.plans import Resolved
from onceward.core.limits import MEDIAN_OF
from onceward.dispatch import debits
from onceward.dispatch.budget import Refusal, median, out_of_time, overrun, precheck
from onceward.dispatch.children import Children
from onceward.dispatch.estimates import EstimatesInFlight
from onceward.dispatch.machine import Ended
from onceward.dispatch.stage import Stage
from onceward.people import permits, statements
from onceward.people.actor import Actor
from onceward.store.port import Reads
from onceward.store.store import Store
from onceward.store.tables.checkpoints import recorded_costs
from onceward.store.tables.permits import mint_confirmation
from onceward.store.transaction import Transaction

if TYPE_CHECKING:
    from onceward.builds.attempt import Attempt

Pause = tuple[str, Mapping[str, Any], str]
"""Why, what there is to say about it, and the secret of its confirmation token."""


class Admission(msgspec.Struct, frozen=True):
    """How many of the chosen attempts may start, in their order, and why the next one may not."""

    count: int
    pause: Pause | None = None
    waits: bool = False
    """Whether the next one would fit if nothing else were in flight."""


class Admissions:
    """What a build may spend, what its stages cost so far, and whether there is room for more."""

    def __init__(
        self,
        *,
        store: Store,
        build_id: str,
        resolved: Resolved,
        actor: Actor,
        estimates: EstimatesInFlight,
        children: Children,
        confirmation_seconds: int,
    ) -> None:
        self._build_id, self._actor = build_id, actor
        self._confirmation_micros = confirmation_seconds * 1_000_000
        self.in_flight, self._children = estimates, children
        self._stages = resolved.steps.stages
        with store.read() as rows:
            lanes = [
                *debits.lanes(rows, build_id).values(),
                *debits.workspace(rows).values(),
            ]
            self.limited = any(lane.limit is not None for lane in lanes)
            """Whether there is any limit to look at."""
            self._costs: dict[int, list[tuple[int, int]]] = {}
            for k, stage in enumerate(self._stages):
                if self.limited and not stage.estimate:
                    self._costs[k] = recorded(rows, resolved.plan.name, stage.name)

    def estimate(self, k: int) -> Mapping[str, int]:
        return usual(self._stages[k], self._costs.get(k))

    def to_finish(self, left: Mapping[int, int]) -> dict[str, int]:
        """What the steps that are left will cost, by lane, as far as anybody can tell; `left` counts them by stage."""
        totals: dict[str, int] = {}
        for k, count in left.items():
            for lane, amount in self.estimate(k).items():
                totals[lane] = totals.get(lane, 0) + count * amount
        return totals

    def note(self, k: int, spent: Mapping[str, int]) -> None:
        costs = self._costs.get(k)
        if costs is not None:
            costs.append((spent.get("usd_micros", 0), spent.get("tokens", 0)))
            del costs[:-MEDIAN_OF]

    def after(
        self, tx: Transaction, attempt: Attempt, ended: Ended, chosen: Sequence[Attempt]
    ) -> Admission:
        """In the commit of an attempt's end: a pause, if its child found no room or crossed the budget; else who of
        those that come next may start."""
        if ended.reason == "budget_exceeded":
            names = ("lane", "limit", "observed", "asked", "scope")
            detail = {name: ended.detail[name] for name in names if name in ended.detail}
            detail["step"] = attempt.name
            return Admission(0, self._pause(tx, "budget_exceeded", detail))
        return self.before(tx, chosen, ended=attempt)

    def before(
        self, tx: Transaction, chosen: Sequence[Attempt], ended: Attempt | None = None
    ) -> Admission:
        """In the commit that begins attempts: who may start, or a pause, if the budget is crossed or the first would
        not fit with nothing else in flight. `ended` is the attempt that this commit ends."""
        if not self.limited:
            return Admission(len(chosen))
        own, whole = debits.lanes_to_write(tx, self._build_id), debits.workspace(tx)
        ended_id = ended.child_id if ended is not None else ""
        over = overrun(own) or overrun(whole, "workspace")
        if over is None and chosen:
            over = out_of_time(own, self._children.running_micros(except_child=ended_id))
        if over is not None:
            detail = {name: value for name, value in over.detail().items() if name != "asked"}
            if ended is not None:
                detail["step"] = ended.name
            return Admission(0, self._pause(tx, "budget_exceeded", detail))
        for count, attempt in enumerate(chosen):
            beside = self.in_flight.before(
                attempt.child_id, ended=ended_id, build_id=self._build_id
            )
            beside_all = self.in_flight.before(attempt.child_id, ended=ended_id)
            blocked = precheck(own, attempt.estimate, in_flight=beside)
            if blocked is None:
                blocked = precheck(whole, attempt.estimate, "workspace", in_flight=beside_all)
                beside = beside_all
            if blocked is None:
                continue
            if beside.get(blocked.lane) or count:
                return Admission(count, waits=True)
            detail = _estimated(blocked, attempt.name)
            return Admission(0, self._pause(tx, "budget_precheck_block", detail))
        return Admission(len(chosen))

    def _pause(self, tx: Transaction, reason: str, detail: Mapping[str, Any]) -> Pause:
        """Pause the build and mint the permit to go on, as one."""
        build = tx.builds.get(self._build_id)
        secret = tx.sources.secret()
        money = debits.lanes(tx, self._build_id).get("usd_micros")
        permit = permits.mint(
            tx.sources.new_id("prm"),
            subject=self._build_id,
            bound=build.version + 1,
            secret_hash=permits.hash_of(secret),
            expires_at=tx.now + self._confirmation_micros,
        )
        spent = money.total if money is not None else 0
        told = permits.told(permit, spent)
        asked = {"build": self._build_id, "bound": permit.bound, **told}
        with statements.own_act(tx, self._actor.signer, "builds.pause", asked, permit.permit_id):
            tx.move(machine.pause(build, reason, {**detail, **told}, self._actor.principal))
        mint_confirmation(tx, permit, spent, tx.now)
        return reason, detail, secret


def recorded(rows: Reads, name: str, stage: str) -> list[tuple[int, int]]:
    """What the last steps of a stage cost, the newest last."""
    return recorded_costs(rows, name, stage, MEDIAN_OF)[::-1]


def usual(stage: Stage, costs: Sequence[tuple[int, int]] | None) -> Mapping[str, int]:
    """What a step of a stage will cost: as declared, else the median of what was recorded, else nothing."""
    if stage.estimate or not costs:
        return stage.estimate
    return {
        "usd_micros": median([cost for cost, _ in costs]),
        "tokens": median([tokens for _, tokens in costs]),
    }


def _estimated(blocked: Refusal, step: str) -> dict[str, Any]:
    detail = blocked.detail()
    detail["estimate"] = detail.pop("asked")
    return {**detail, "step": step}
