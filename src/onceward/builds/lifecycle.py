"""A build's life around its run: begun, resumed, forked, confirmed, approved, abandoned (B-8 to B-11, B-15)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from onceward.artifacts.bases import take_base
from onceward.artifacts.blobs import Artifacts
from onceward.artifacts.outputs import Keeper, Kept, written
from onceward.builds import machine, rules
from onceward.builds.authority import objection_to_confirmation
from onceward.builds.code_changes import code_changes, environment_detail, environments_of
from onceward.builds.plan_changes import changes
from onceward.builds.plans import Resolved
from onceward.core.canon import canonical
from onceward.core.records import Build
from onceward.core.steps import step_name
from onceward.dispatch import debits, operations, queue
from onceward.errors import InvalidConfig
from onceward.kernel.kernel import Kernel
from onceward.people import permits
from onceward.people.actor import Actor
from onceward.store.port import Reads
from onceward.store.store import Store
from onceward.store.tables.builds import Builds, keep_plan, last_detail, plan_body
from onceward.store.tables.checkpoints import Checkpoint, in_doubt, put_checkpoint, told_of
from onceward.store.tables.permits import consume, find_confirmation
from onceward.store.tables.singleton import show_build
from onceward.store.transaction import Transaction


class Offer(msgspec.Struct, frozen=True):
    """What somebody brings to a resume."""

    token: str = ""
    proof: str = ""
    """What shows that somebody has the token, where the token itself must not travel."""
    limits: Mapping[str, int] = {}
    fork: bool = False
    strict_code: bool = False
    """Refuse to go on with other code than the build was begun with."""
    rerun: Sequence[str] = ()
    """Steps in doubt that are to run again."""
    accept: Mapping[str, Path] = {}
    """Steps in doubt that are done: what they made is in these files."""

    @property
    def shown(self) -> str:
        """The hash of the token that is shown; empty if none is."""
        proof = permits.proof_of(self.token) if self.token else self.proof
        return permits.hash_of_proof(proof) if proof else ""

    def words(self) -> rules.ResumeWords:
        """What of it a refusal repeats."""
        accept = {name: str(path) for name, path in self.accept.items()}
        return rules.ResumeWords(self.limits, self.rerun, accept)


def require_no_doubt(store: Store, name: str) -> None:
    """A plan is not begun anew while a step of it may have had its effect: that would run it twice by accident."""
    with store.read() as rows:
        _require_no_doubt(rows, name)


def _require_no_doubt(rows: Reads, name: str) -> None:
    for build in (*Builds(rows).in_state("CRASHED"), *Builds(rows).in_state("BUDGET_PAUSE")):
        if build.name == name:
            doubts = [step_name(c.stage, c.target) for c in in_doubt(rows, build.build_id)]
            rules.require_no_doubts(build.build_id, doubts)


def begin(
    kernel: Kernel,
    actor: Actor,
    resolved: Resolved,
    *,
    plan_file: str,
    jobs: int,
    limits: Mapping[str, int],
    reuse: bool = True,
    build_id: str = "",
    accept: Callable[[Transaction, str], None] = lambda tx, build_id: None,
    foreground: bool = False,
) -> str:
    """Store a new build, open its session and start it; answers its id. In the `foreground` it is the one build that
    this kernel carries, and the writer lock names it. `accept` is called in the same transaction."""
    kernel.require("operator", actor)
    require_no_doubt(kernel.store, resolved.plan.name)
    build_id = build_id or kernel.store.sources.new_id("bld")
    plan = resolved.plan
    base = None
    if plan.tree is not None:
        base = take_base(
            plan.folder,
            plan.tree,
            home=kernel.home,
            own=kernel.folder,
            artifacts=kernel.artifacts,
            names=kernel.policy.ignore,
        )

    def work(tx: Transaction) -> None:
        require_operations(tx, resolved, kernel.registered)
        _begin(
            tx,
            build_id,
            resolved,
            plan_file=plan_file,
            jobs=jobs,
            limits=limits,
            actor=actor.principal,
            reuse=reuse,
        )
        if base is not None:
            base.record(tx, kernel.artifacts, build_id, actor.principal)
        if foreground:
            show_build(tx, kernel.fence, build_id)
        accept(tx, build_id)

    kernel.store.write(work)
    return build_id


def require_operations(rows: Reads, resolved: Resolved, required: bool) -> None:
    """Every stage that does something is the operation it says it is, before any of them does (S-7)."""
    stages = [stage for stage in resolved.steps.stages if not stage.approve]
    named = [
        operations.Named(f"stage {stage.name}", stage.operation, stage.effect) for stage in stages
    ]
    operations.require(rows, named, required)


def _begin(
    tx: Transaction,
    build_id: str,
    resolved: Resolved,
    *,
    plan_file: str,
    jobs: int,
    limits: Mapping[str, int],
    actor: str,
    reuse: bool,
    parent: str | None = None,
) -> None:
    keep_plan(tx, resolved.hash, resolved.body)
    choices = resolved.choices.text()
    tx.move(
        machine.create(
            build_id,
            resolved.plan.name,
            actor,
            plan_hash=resolved.hash,
            plan_file=plan_file,
            parent=parent,
            reuse=reuse,
            choices=choices,
        )
    )
    queue.open_(tx, build_id, jobs, limits, actor)
    seen_in = environment_detail(environments_of(resolved))
    tx.move(machine.move(tx.builds.get(build_id), "ACTIVE", "build_started", actor, seen_in))


def resume(
    kernel: Kernel,
    actor: Actor,
    build_id: str,
    resolved: Resolved,
    *,
    plan_file: str,
    offer: Offer,
    jobs: int,
    accept: Callable[[Transaction, str], None] = lambda tx, build_id: None,
    foreground: bool = False,
) -> str:
    """Go on with a build, or fork it where its plan changed; answers the id of the build that is ACTIVE now, which
    `accept` is told in the same transaction.

    Everything else is checked before the token, and all of it is one transaction: a refusal changes nothing."""
    kernel.require("operator", actor)
    with kernel.store.read() as rows:
        build = Builds(rows).get(build_id)
        rules.require_resumable(build)
        before = plan_body(rows, build.plan_hash)
        code = code_changes(rows, build, resolved)
    changed = (
        changes(before or "{}", resolved.body)
        if before and build.plan_hash != resolved.hash
        else []
    )
    rules.require_same_plan(build.build_id, changed, offer.fork)
    rules.require_same_code(build.build_id, code.code, offer.strict_code)
    forks = bool(changed) or (offer.fork and bool(code.code))
    functions = {stage.name for stage in resolved.steps.stages if stage.call is not None}
    accepted = {
        name: _accepted(kernel.artifacts, name, path, name.partition(":")[0] in functions)
        for name, path in offer.accept.items()
    }
    child = kernel.store.sources.new_id("bld") if forks else build_id

    def go_on(tx: Transaction) -> str:
        if foreground:
            show_build(tx, kernel.fence, child)
        build = tx.builds.get(build_id)
        rules.require_resumable(build)
        require_operations(tx, resolved, kernel.registered)
        _decide(tx, actor, build, offer, accepted=accepted, artifacts=kernel.artifacts)
        if forks:
            permit = _require_token(tx, kernel, build, offer)
            # What the parent was allowed goes on unless somebody says otherwise.
            allowed = {
                lane.lane: lane.limit
                for lane in debits.lanes_to_write(tx, build_id).values()
                if lane.limit is not None
            }
            limits = {**resolved.plan.limits, **allowed, **offer.limits}
            _begin(
                tx,
                child,
                resolved,
                plan_file=plan_file,
                jobs=jobs,
                limits=limits,
                actor=actor.principal,
                reuse=bool(build.reuse),
                parent=build_id,
            )
            forked = {"child_build_id": child, **permit}
            tx.append(f"session:{build_id}", "BUILD_FORKED", actor.principal, forked)
            accept(tx, child)
            return child
        queue.open_(tx, build_id, jobs, offer.limits, actor.principal)
        if build.state == "BUDGET_PAUSE":
            rules.require_room(
                build_id,
                debits.lanes(tx, build_id),
                debits.workspace(tx),
                last_detail(tx, build_id),
                offer.words(),
            )
        permit = _require_token(tx, kernel, build, offer)
        tx.move(machine.resume(build, tx.now, actor.principal, {**code.detail(), **permit}))
        accept(tx, build_id)
        return build_id

    return kernel.store.write(go_on)


def _decide(
    tx: Transaction,
    actor: Actor,
    build: Build,
    offer: Offer,
    *,
    accepted: Mapping[str, list[Kept]],
    artifacts: Artifacts,
) -> None:
    """Every step in doubt needs a person's word (B-8)."""
    doubts = {step_name(c.stage, c.target): c for c in in_doubt(tx, build.build_id)}
    rules.require_decided(build, doubts, offer.words())
    for name, checkpoint in doubts.items():
        detail: dict[str, Any] = {
            "step": name,
            "child_id": checkpoint.child_id or "",
            "decision": "rerun",
        }
        if name in accepted:
            detail["decision"] = "accept"
            detail["outputs"] = [[o.name, o.sha256] for o, _ in accepted[name]]
            detail |= told_of(checkpoint)
            _accept(tx, checkpoint, accepted[name], artifacts)
        else:
            error = canonical({"reason": "terminated_on_restart"}).decode()
            put_checkpoint(
                tx, msgspec.structs.replace(checkpoint, status="FAILED", error=error), tx.now
            )
        tx.append(f"session:{build.build_id}", "STEP_DECIDED", actor.principal, detail)


def _accept(
    tx: Transaction, checkpoint: Checkpoint, kept: list[Kept], artifacts: Artifacts
) -> None:
    for output, blob in kept:
        artifacts.record(
            tx, checkpoint.child_id or checkpoint.build_id, output.name, output.kind, blob
        )
    outputs = written([output for output, _ in kept])
    done = msgspec.structs.replace(
        checkpoint, status="SUCCESS", how="accepted", outputs=outputs, error=None
    )
    put_checkpoint(tx, done, tx.now)


def _accepted(artifacts: Artifacts, name: str, path: Path, value: bool) -> list[Kept]:
    """A file as the result of a step: as the value a function would have returned, or as the file a command left."""
    rules.require_file_to_accept(name, str(path), path.is_file())
    if not value:
        return Keeper(artifacts).value({path.name: path})
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidConfig(
            f"cannot read {path}: {error.strerror}", context={"file": str(path)}
        ) from None
    try:
        return Keeper(artifacts).value(json.loads(data))
    except ValueError as error:
        if path.suffix == ".json":
            raise InvalidConfig(
                f"{path} is no JSON: {error}", context={"file": str(path)}
            ) from None
    try:
        return Keeper(artifacts).value(data.decode())
    except UnicodeDecodeError:
        return Keeper(artifacts).value(data)


def _require_token(tx: Transaction, kernel: Kernel, build: Build, offer: Offer) -> dict[str, str]:
    """The last check of a resume, and the only one that uses something up (B-10). Answers what to say of it."""
    if build.state != "BUDGET_PAUSE":
        return {}
    permit, objection = None, "is missing"
    if offer.shown:
        permit = find_confirmation(tx, offer.shown)
        objection = permits.objection(permit, build.build_id, build.version, tx.now)
    if permit is not None and not objection:
        seconds = kernel.confirmation_seconds
        objection = objection_to_confirmation(kernel.authority, tx, permit, seconds)
    permit = rules.require_confirmation(build.build_id, permit, objection)
    consume(tx, "confirmation_tokens", permit, tx.now)
    return {"permit_id": permit.permit_id}
