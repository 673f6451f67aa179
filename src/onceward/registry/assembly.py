"""The sagas that Onceward ships: assembly puts values into the registry (S-2), rollback supersedes them (S-6)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from onceward.core.canon import canonical, digest
from onceward.core.grants import Scope
from onceward.core.sagas import Run
from onceward.core.vocabulary import Audit
from onceward.grants import lifecycle as grants
from onceward.registry import lifecycle as registry
from onceward.registry import rules
from onceward.registry.machine import RegistryPlan, manifest_digest
from onceward.registry.rollback import RollbackPlan
from onceward.sagas.declaration import ActionTask, Judge, Saga, Seen
from onceward.sagas.machine import ASSEMBLY, ROLLBACK, Shape, given_of
from onceward.sagas.run import SagaRun
from onceward.store.port import Reads
from onceward.store.tables.registry import Registry, note_audit
from onceward.store.tables.sagas import Runs
from onceward.store.transaction import Transaction

Act = Callable[[ActionTask], Any]
Write = Callable[[Transaction, SagaRun], None]


class Shipped(Saga):
    """A saga with the states of the contract, under a lease on its collection and a grant for exactly its plan."""

    reserves = True
    table: Shape
    collection: str

    plan: RegistryPlan | RollbackPlan

    def __init__(self, name: str, environment: str) -> None:
        super().__init__(name, granted=True, folder=Path.cwd())
        self.environment = environment

    def given(self) -> dict[str, Any]:
        """The input of its run: all that is needed to resume it."""
        return {"plan": msgspec.to_builtins(self.plan), "environment": self.environment}

    def root(self, grant_id: str) -> str:
        """The same plan under the same grant is the same run."""
        return f"{self.plan.plan_id}@{self.plan.revision}:{grant_id}"

    @property
    def shape(self) -> Shape:
        return self.table

    def lease(self, root: str) -> str:
        return f"registry:{self.collection}"

    def put(
        self,
        name: str,
        act: Act,
        check: Judge | None = None,
        undo: Act | None = None,
        write: Write | None = None,
    ) -> None:
        self._add(
            name,
            {},
            call=act,
            compensate=undo,
            check=check,
            guard=None,
            words={"timeout": "1h", "attempts": 1},
        )
        self.actions[name] = msgspec.structs.replace(self.actions[name], write=write)

    def about(self, given: Any) -> dict[str, Any]:
        return {"kind": self.name, "plan": self.given()["plan"]}

    def ask(self, task: ActionTask) -> None:
        """Check that the grant is valid; it is used with the move to the next state."""
        run: SagaRun = task.site
        with run.store.read() as rows:
            grant = Runs(rows).get(run.saga_id).grant_id or ""
            grants.require(rows, run.kernel.authority, grant, self._scope(run), run.actor.principal)

    def reserve(self, tx: Transaction, run: SagaRun) -> None:
        """Take the lease and use the grant: both or neither."""
        run.reserve(tx, self._scope(run))

    def _scope(self, run: SagaRun) -> Scope:
        return self.scope(None, self.environment, run.actor.principal)


class Assembly(Shipped):
    """Puts the values of a plan into a collection."""

    table = ASSEMBLY
    plan: RegistryPlan

    def __init__(self, plan: RegistryPlan, environment: str) -> None:
        super().__init__(ASSEMBLY.name, environment)
        self.plan, self.collection = plan, plan.collection
        self.put("S0_PREFLIGHT", self._preflight, self._unopposed)
        self.put("S1_RESERVED", self.ask, write=self.reserve)
        self.put("S2_SCHEMA", self._schema, undo=self._undo_schema)
        self.put("S3_VERIFY_SCHEMA", self._read_schema, self._schema_holds)
        self.put("S4_VALUES", self._values, undo=self._undo_values)
        self.put("S5_VERIFY_VALUES", self._read_values, self._values_hold)
        self.put("S6_EVIDENCE", self._evidence, undo=self._note_failure)
        self.put("S7_FINALIZE", self._read_evidence, undo=self._read_evidence)

    def scope(self, given: Any, environment: str, executor: str) -> Scope:
        return Scope(
            plan_id=self.plan.plan_id,
            revision=self.plan.revision,
            manifest_digest=self.plan.manifest_digest,
            schema_digest=self.plan.schema_digest,
            environment=environment,
            executor=executor,
            actions=tuple(place.name for place in ASSEMBLY.places),
        ).check()

    def _preflight(self, task: ActionTask) -> dict[str, Any]:
        with task.site.store.read() as rows:
            rules.require_unopposed(rules.objections(self.plan, Registry(rows), task.root))
        return {"values": len(self.plan.value)}

    def _unopposed(self, seen: Seen) -> bool:
        return not rules.objections(self.plan, Registry(seen.rows), seen.root)

    def _schema(self, task: ActionTask) -> dict[str, Any]:
        run: SagaRun = task.site
        made = run.write(
            lambda tx: registry.make_collection(tx, self.collection, task.root, run.actor.principal)
        )
        return {"collection_id": made.collection_id, "own": made.root == task.root}

    def _undo_schema(self, task: ActionTask) -> dict[str, Any]:
        run: SagaRun = task.site
        actor = run.actor.principal
        kept = run.write(lambda tx: registry.undo_collection(tx, self.collection, task.root, actor))
        return {"left": [f"the collection {self.collection}: {kept}"] if kept else []}

    def _read_schema(self, task: ActionTask) -> dict[str, Any]:
        with task.site.store.read() as rows:
            found = Registry(rows).collection(self.collection)
        return {"schema_digest": found.schema_digest if found else None}

    def _schema_holds(self, seen: Seen) -> bool:
        found = Registry(seen.rows).collection(self.collection)
        return (
            found is not None
            and found.schema_digest == self.plan.schema_digest == seen.result["schema_digest"]
        )

    def _values(self, task: ActionTask) -> dict[str, str]:
        """Admit each value in its own transaction; values that supersede others come last."""
        run: SagaRun = task.site
        made, actor = {}, run.actor.principal
        for at, one in enumerate(
            sorted(self.plan.value, key=lambda one: (bool(one.supersedes), one.key))
        ):
            task.check()

            def admit(tx: Transaction, one: Any = one) -> Any:
                return registry.admit(tx, self.plan, one, task.root, actor)

            made[str(one.key)] = run.write(admit).vocab_id
            task.progress(1000 * (at + 1) // len(self.plan.value), str(one.key))
        return made

    def _undo_values(self, task: ActionTask) -> dict[str, list[str]]:
        run: SagaRun = task.site
        left = run.write(lambda tx: registry.undo_values(tx, task.root, run.actor.principal))
        return {"left": [f"{key}: another value gave way to it" for key in left]}

    def _read_values(self, task: ActionTask) -> dict[str, Any]:
        with task.site.store.read() as rows:
            return self._found(rows, task.root)

    def _found(self, rows: Reads, root: str) -> dict[str, Any]:
        """Digest and number of the values that this run has in force."""
        own = [value for value in Registry(rows).of_root(root) if value.status == "active"]
        before = {one.key: one.supersedes for one in self.plan.value if one.supersedes}
        gives_way = {value.key: before[value.key] for value in own if value.key in before}
        for key, old in gives_way.items():
            rules.require_successor(old, Registry(rows).meant(old), key)
        digests = {value.key: value.digest for value in own}
        return {"manifest_digest": manifest_digest(digests, gives_way), "count": len(own)}

    def _values_hold(self, seen: Seen) -> bool:
        wanted = {"manifest_digest": self.plan.manifest_digest, "count": len(self.plan.value)}
        return bool(seen.result == wanted == self._found(seen.rows, seen.root))

    def _evidence(self, task: ActionTask) -> dict[str, Any]:
        """Store the evidence, read it back, and record that it was stored."""
        run: SagaRun = task.site
        with run.store.read() as rows:
            own = Registry(rows).of_root(task.root)
        said = {
            "plan_id": self.plan.plan_id,
            "revision": self.plan.revision,
            "root": task.root,
            "schema_digest": self.plan.schema_digest,
            "manifest_digest": self.plan.manifest_digest,
            "collection": self.collection,
            "values": {
                str(value.key): {"vocab_id": value.vocab_id, "digest": value.digest}
                for value in own
            },
        }
        evidence = canonical(said)
        blob = run.kernel.artifacts.keep(evidence)
        run.write(lambda tx: self._audit(tx, run, task.root, blob))
        rules.require_evidence_kept(b"".join(run.kernel.artifacts.read(blob.sha256)), evidence)
        return {"evidence": blob.sha256}

    def _audit(self, tx: Transaction, run: SagaRun, root: str, blob: Any) -> None:
        """Record the evidence, once per root and state."""
        if Registry(tx).audit(root, "S6_EVIDENCE", run.saga_id) is not None:
            return
        audit_id, ref = tx.sources.new_id("aud"), f"evidence:{blob.sha256}"
        run.kernel.artifacts.record(tx, run.saga_id, "evidence.json", "json", blob)
        said = {
            "audit_id": audit_id,
            "audit_root": root,
            "audit_state": "S6_EVIDENCE",
            "evidence": blob.sha256,
        }
        event = tx.append(f"saga:{run.saga_id}", "REGISTRY_AUDITED", run.actor.principal, said)
        audit = Audit(
            audit_id=audit_id,
            root=root,
            state="S6_EVIDENCE",
            subject=run.saga_id,
            rollback_ref=ref,
            position=event.position,
            created_at=tx.now,
        )
        note_audit(tx, audit)

    def _note_failure(self, task: ActionTask) -> dict[str, Any]:
        """What is recorded where the evidence could not be stored."""
        with task.site.store.read() as rows:
            found = self._found(rows, task.root)
        left = [f"{found['count']} values of {self.collection} are in force without their evidence"]
        said = {"failed": "S6_EVIDENCE", "root": task.root, "plan": self.plan.ref, "left": left}
        return {**said, **found}

    def _read_evidence(self, task: ActionTask) -> dict[str, Any]:
        """Check that the evidence is there, before the grant is finalized and the lease released."""
        run: SagaRun = task.site
        with run.store.read() as rows:
            audit = Registry(rows).audit(task.root, "S6_EVIDENCE", run.saga_id)
        sha256 = rules.require_evidence(audit).rollback_ref.partition(":")[2]
        return {
            "evidence": sha256,
            "bytes": sum(len(piece) for piece in run.kernel.artifacts.read(sha256)),
        }


class Rollback(Shipped):
    """Supersedes values, all of them or none."""

    table = ROLLBACK
    plan: RollbackPlan

    def __init__(self, plan: RollbackPlan, schema_digest: str, environment: str) -> None:
        super().__init__(ROLLBACK.name, environment)
        self.plan, self.collection, self.schema_digest = plan, plan.collection, schema_digest
        self.put("R0_CHECK", self._check)
        self.put("R1_RESERVED", self.ask, write=self.reserve)
        self.put("R2_SUPERSEDE", self._check, write=self._supersede)
        self.put("R3_FINALIZE", self._read_back, undo=self._read_back)

    def given(self) -> dict[str, Any]:
        return {**super().given(), "schema_digest": self.schema_digest}

    def scope(self, given: Any, environment: str, executor: str) -> Scope:
        return Scope(
            plan_id=self.plan.plan_id,
            revision=self.plan.revision,
            manifest_digest=digest(msgspec.to_builtins(self.plan)),
            schema_digest=self.schema_digest,
            environment=environment,
            executor=executor,
            actions=tuple(place.name for place in ROLLBACK.places),
        ).check()

    def _check(self, task: ActionTask) -> dict[str, str]:
        with task.site.store.read() as rows:
            return self._judged(rows)

    def _judged(self, rows: Reads) -> dict[str, str]:
        verdict = rules.judge_rollback(self.plan, Registry(rows), executing=True)
        rules.require_valid_rollback(verdict)
        return {"code": verdict.code}

    def _supersede(self, tx: Transaction, run: SagaRun) -> None:
        """Supersede every value, with its audit row, in the transaction of the move to the next state."""
        found, root = Registry(tx), Runs(tx).get(run.saga_id).idempotency_root
        self._judged(tx)
        for step in self.plan.steps:
            registry.supersede(
                tx,
                found.meant(step.target),
                found.meant(step.successor).key,
                actor=run.actor.principal,
                root=root,
                state="R2_SUPERSEDE",
                ref=step.rollback_ref,
            )

    def _read_back(self, task: ActionTask) -> dict[str, str]:
        with task.site.store.read() as rows:
            found = Registry(rows)
            targets = {step.target: found.meant(step.target) for step in self.plan.steps}
            rules.require_superseded(
                [
                    found.audit(task.root, "R2_SUPERSEDE", target.vocab_id)
                    for target in targets.values()
                ]
            )
            return {name: str(target.successor) for name, target in targets.items()}


def shipped(run: Run) -> Shipped | None:
    """The shipped saga of a run, made from what the run was given; None for a user's saga."""
    if run.file or run.shape not in (ASSEMBLY.text(), ROLLBACK.text()):
        return None
    given = given_of(run)
    if run.shape == ASSEMBLY.text():
        return Assembly(rules.require_plan(given["plan"]), given["environment"])
    plan = rules.require_rollback_plan(given["plan"])
    return Rollback(plan, given["schema_digest"], given["environment"])
