"""The process that holds the writer lock, and the one that asks it (K-13)."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal, TextIO

from onceward.artifacts.blobs import Artifacts
from onceward.artifacts.file_names import recorded_place
from onceward.artifacts.streams import Streams
from onceward.core.acts import all_acts
from onceward.core.changes import Policy, recorded_policy
from onceward.core.limits import (
    ARTIFACT_BYTES,
    PERMIT_SECONDS,
    REQUEST_POLL_SECONDS,
    SPILL_BYTES,
    TARGET_WAIT_SECONDS,
    TIDY_SECONDS,
)
from onceward.core.records import Answer, Request
from onceward.dispatch.children import Children
from onceward.dispatch.estimates import EstimatesInFlight
from onceward.dispatch.held_targets import HeldTargets
from onceward.dispatch.late import LateBox
from onceward.dispatch.recovery import ChildFiles, recover
from onceward.dispatch.recovery_progress import RecoveryProgress
from onceward.errors import (
    InvalidConfig,
    LockConflict,
    LockLost,
    OncewardError,
)
from onceward.kernel import tenure
from onceward.kernel.answers import Answers
from onceward.kernel.delivery import DeliveryThreads, deliver_at_once
from onceward.kernel.heartbeat import Heartbeat
from onceward.kernel.outbox import Delivery
from onceward.kernel.parts import PARTS
from onceward.kernel.sinks import Sink
from onceward.locks import TargetLock
from onceward.people import statements
from onceward.people.actor import Actor
from onceward.people.authority import Authority
from onceward.people.credentials import Credentials, Issuer
from onceward.people.keyring import Keyring, Signer
from onceward.people.principals import add_key, welcome
from onceward.people.trust import require_root
from onceward.processes.launcher import Processes
from onceward.processes.spool import Spool
from onceward.store.store import Store
from onceward.store.tables.budgets import set_workspace_limits, workspace_lanes
from onceward.store.tables.children import checked_position, note_recovery
from onceward.store.tables.keys import workspace_id
from onceward.store.tables.principals import Principals
from onceward.store.transaction import Transaction


class PlanRun:
    """A build of a plan while it runs under a kernel."""

    def __init__(self) -> None:
        self.met_another = False
        """Whether another build of the same plan ran at the same time, at any time since this one began."""


class Kernel:
    """Holds the workspace: carries out requests in order, delivers the outbox."""

    def __init__(
        self,
        store: Store,
        principal: str,
        sinks: Sequence[Sink],
        folder: Path,
        root_id: str = "",
        artifact_bytes: int = ARTIFACT_BYTES,
        limits: Mapping[str, int] | None = None,
        notices: Sequence[Sink] = (),
        seal_at_end: Callable[[Kernel], None] | None = None,
        registered: bool = False,
        policy: Policy | None = None,
        cutters: Mapping[str, str] | None = None,
        environment: str = "local",
        target_wait: float = TARGET_WAIT_SECONDS,
        interrupted: threading.Event | None = None,
        confirmation_seconds: int = PERMIT_SECONDS,
        lock_folder: Path | None = None,
        notes: TextIO | None = None,
        secrets: Mapping[str, str] | None = None,
    ) -> None:
        """`notes` is where to say what takes long before it answers anything. `secrets` are what this process was given
        for its own use, by name."""
        self.store = store
        self.principal = principal
        self.sinks, self.notices = sinks, notices
        self._why_lost = ""
        self._seal_at_end = seal_at_end
        self.registered = registered
        """Whether work must name an operation of the registry."""
        self.policy, self.cutters = policy or Policy(), cutters or {}
        """What changes need here, and what beside file trees and the registry they can be made to."""
        self.environment = environment
        self.confirmation_seconds = confirmation_seconds
        """How long a confirmation token is good."""
        self._alone: set[str] = set()
        self._mutex = threading.Lock()
        held = tenure.acquire(store, principal, root_id=root_id)
        self.fence = held.fence
        self.lost = threading.Event()
        self._plan_runs: dict[str, list[PlanRun]] = {}
        """By plan, its builds that run now."""
        self._sessions: list[Children] = []
        self._delivery = DeliveryThreads(store)
        self._heartbeat = Heartbeat(store, held, self._lose)
        self.processes = Processes()
        self.artifacts = Artifacts(folder / "artifacts", store, artifact_bytes)
        self.locks = TargetLock(lock_folder or folder / "locks", in_workspace=True)
        self.targets = HeldTargets(self.locks)
        self.target_wait = target_wait
        """Seconds that work waits in the queue for a target that somebody else holds."""
        self.spool = Spool(folder / "running")
        self.late = LateBox(folder / "late", principal, store.sources)
        self.streams = Streams(folder / "streams", store, principal)
        self.folder, self.home = folder, folder.parent
        self.authority, self.keyring = Authority(), Keyring(folder / "keys")
        self.signer: Signer | None = None
        """The key its principal acts with; nobody's while the principal is unknown."""
        self.held_secrets: dict[str, str] = dict(secrets or {})
        """What this process itself holds and no child may leave in what is kept, by name."""
        self.credentials = Credentials()
        """Of the children that run: what each may ask for in its own name."""
        self.estimates = EstimatesInFlight()
        self.work = folder / "work"
        """Where the folders of steps that run are."""
        self.interrupted = interrupted or threading.Event()
        """Set when somebody wants this process to end now: a kernel that leaves then waits for no remote sink."""
        self.answers = Answers(self)
        self.served = False
        """Whether somebody answers for it already: works beside it need not."""
        try:
            actor, first = self._sign_in()
            if not first:
                self._require_root()
            self._note_sinks(actor)
            files = ChildFiles(self.artifacts, self.spool, self.locks)
            with RecoveryProgress(notes) as progress:
                self.recovered = recover(
                    store, actor, self.processes.here, files, progress=progress.note
                )
            self.late.actor = actor
            self.late.file_all(store, self.artifacts)
            self.spool.clear()
            shutil.rmtree(self.work, ignore_errors=True)
            with store.read() as rows:
                PARTS.clear(rows, folder, self.home)
                capped = dict(limits or {}) or bool(workspace_lanes(rows))
            if capped:
                store.write(lambda tx: set_workspace_limits(tx, limits or {}))
            if first:
                self._found()
                self._require_root()
            self.note_policy()
        except BaseException:
            self.close()
            raise

    def _sign_in(self) -> tuple[str, bool]:
        """Show that whoever we act as is us, before anything is written: by its key, or, if nobody was here before, by
        a new one. Answers in whose name to clear up after a dead kernel, and whether nobody was here before."""
        with self.store.read() as rows:
            known = Principals(rows)
            found, first = known.find(self.principal), not known.all()
            if found is not None or first:
                self.signer = (
                    self.keyring.make(self.principal, workspace_id(rows))
                    if first
                    else self.keyring.signer(rows, self.principal)
                )
        able = first or (found is not None and found.may("operator"))
        return (self.principal if able else "kernel"), first

    def _found(self) -> None:
        """Whoever opens a workspace first is its admin, with the key that everybody else's comes from."""
        signer = self.signer
        assert signer is not None

        def enter(tx: Transaction) -> None:
            welcome(tx, self.principal)
            add_key(tx, self.principal, signer.key.public, signer.proof(), self.principal)

        self.store.write(enter)

    def _require_root(self) -> None:
        with self.store.read() as rows:
            root = self.authority.root(rows)
        if root is not None:
            require_root(self.folder, root)

    def _note_sinks(self, actor: str) -> None:
        """From now on each event is for exactly these: one that never arrives there is missed."""
        sinks = self.store.sinks
        with self.store.read() as rows:
            known = self.authority.sinks(rows)
        if known != sinks:
            self.store.write(
                lambda tx: tx.append("workspace", "SINKS_CHANGED", actor, {"sinks": sinks})
            )

    def note_policy(self) -> None:
        """What changes and confirmations need here is part of the signed record. A kernel whose principal may not
        change it allows only what was signed last as well."""
        signer, policy = self.signer, recorded_policy(self.policy, self.confirmation_seconds)
        with self.store.read() as rows:
            known = self.authority.policy(rows)
            roles = self.authority.roles(rows, self.principal)
        if known == policy:
            return
        if signer is None or not all_acts()["settings.note"].allows(roles):
            self.policy = self.policy.with_recorded(known)
            signed_seconds = known["confirmation_seconds"]
            self.confirmation_seconds = min(self.confirmation_seconds, signed_seconds)
            return

        def note(tx: Transaction) -> None:
            nonce = tx.sources.new_id("set")
            with statements.own_act(tx, signer, "settings.note", {"policy": policy}, nonce):
                tx.append("workspace", "SETTINGS_NOTED", self.principal, {"policy": policy})

        self.store.write(note)

    @property
    def actor(self) -> Actor:
        """Whoever opened the workspace here."""
        return Actor(self.principal, self.signer)

    def require(self, role: str, actor: Actor | None = None) -> None:
        """PERMISSION_DENIED unless somebody has a role: whoever opened the workspace, if nobody else is named."""
        with self.store.read() as rows:
            self.authority.require(rows, (actor or self.actor).principal, role)

    def recorded_place(self, file: Path | None) -> str:
        """A file as the record names it."""
        return recorded_place(file, self.home)

    @contextmanager
    def alone(self, name: str) -> Iterator[None]:
        """While this lasts nobody else in this kernel works on the same thing; LOCK_CONFLICT where somebody does."""
        with self._mutex:
            if name in self._alone:
                raise LockConflict(
                    f"{name} is being worked on right now; ask again when that has ended",
                    context={"subject": name},
                )
            self._alone.add(name)
        try:
            yield
        finally:
            with self._mutex:
                self._alone.discard(name)

    @contextmanager
    def running_plan(self, name: str) -> Iterator[PlanRun]:
        """While this lasts a build of this plan runs here."""
        run = PlanRun()
        with self._mutex:
            runs = self._plan_runs.setdefault(name, [])
            runs.append(run)
            if len(runs) > 1:
                for each in runs:
                    each.met_another = True
        try:
            yield run
        finally:
            with self._mutex:
                runs.remove(run)
                if not runs:
                    self._plan_runs.pop(name)

    def open_session(
        self,
        session_id: str,
        jobs: int,
        limits: Mapping[str, int] | None = None,
        role: str = "operator",
        on_pause: Literal["finish", "stop"] = "stop",
        decides_starts: bool = False,
        actor: Actor | None = None,
    ) -> Children:
        """A session to run children in, under this kernel; in the name of whoever opened the workspace here, where
        nobody else is named."""
        actor = actor or self.actor
        self.require(role, actor)
        if any(
            children.session_id == session_id and not children.closed for children in self._sessions
        ):
            raise InvalidConfig(
                f"session {session_id} is open already", context={"session_id": session_id}
            )
        done = self.recovered
        self.store.write(
            lambda tx: note_recovery(
                tx,
                self.fence,
                tx.now,
                done.recovered,
                done.unconfirmed,
                checked_position(tx),
            )
        )
        children = Children(
            *(self.store, self.processes, self.artifacts, self.targets, self.spool),
            session_id=session_id,
            actor=actor.principal,
            jobs=jobs,
            limits=limits,
            registered=self.registered,
            late=self.late,
            target_wait=self.target_wait,
            on_pause=on_pause,
            decides_starts=decides_starts,
            held_secrets={**self.keyring.secrets(), **self.held_secrets},
            issuer=Issuer(
                self.credentials, actor.principal, actor.signer, self.store.sources.secret
            ),
        )
        # What has ended is let go of; what cannot be ended is remembered to the end.
        self._sessions[:] = [other for other in self._sessions if not other.closed or other.stuck]
        self._sessions.append(children)
        return children

    def ask(self, request: Request, wait: float = 0) -> Answer:
        """Carry out one request now; the same id again returns the stored answer."""
        answer = self.answers.ask(request)
        self._heed()
        return answer

    def carry_out(self, works: bool = True) -> int:
        """Answer what other processes asked, in the order they asked; answers how many."""
        answered = self.answers.carry_out(works)
        if answered:
            self._heed()
        return answered

    def _heed(self) -> None:
        """What was asked may concern children that run."""
        for children in self._sessions:
            children.heed()

    def gc(self) -> tuple[int, int]:
        """Remove artifacts that nothing refers to; answers how many and how many bytes."""
        self.require("operator")
        self.artifacts.spill()
        return self.artifacts.gc()

    def deliver(self) -> list[Delivery]:
        """One pass over everything that is due; what others ask is answered meanwhile."""
        return deliver_at_once(self.store, [*self.sinks, *self.notices], self.carry_out)

    def run(self, stop: threading.Event) -> None:
        """Serve until told to stop. Sinks are served from now on until this kernel leaves, each on its own thread: a
        slow one delays no answer, no other sink and no result."""
        self._delivery.start([*self.sinks, *self.notices])
        tidying = threading.Thread(target=self._tidy_until, args=(stop,), name="tidy")
        tidying.start()
        self.served = True
        try:
            while not stop.is_set() and not self.lost.is_set():
                self._heartbeat.progress += 1
                if not self.carry_out():
                    stop.wait(REQUEST_POLL_SECONDS)
        finally:
            self.served = False
            stop.set()
            tidying.join()
        if self.lost.is_set():
            raise LockLost(self._why_lost)

    def close(self) -> None:
        """End the children, give the workspace back. What cannot be given back is taken over by the next kernel."""
        with ExitStack() as leaving:
            # Last in, first out, and each whatever became of the one before.
            leaving.callback(self.store.close_for_good)
            leaving.callback(self._heartbeat.stop)
            leaving.callback(self._release)
            leaving.callback(_quietly(self._flush))
            leaving.callback(_quietly(self._end_builds))
            leaving.callback(_quietly(self._seal))
            leaving.callback(_quietly(self._if_held), self.streams.seal)
            leaving.callback(_quietly(self._if_held), self.artifacts.make_room)
            leaving.callback(self.processes.close)
            for children in self._sessions:
                leaving.callback(_quietly(children.close))
            for children in self._sessions:
                leaving.callback(children.stop)

    @property
    def _held(self) -> bool:
        """Whether the lock is still ours, as far as we know: only its holder writes files, seals and delivers."""
        return self.store.tenure is not None

    def _if_held(self, act: Callable[[], object]) -> None:
        if self._held:
            act()

    def _seal(self) -> None:
        """Before we go, sign what happened into a second place (X60)."""
        if self._seal_at_end is not None and self.signer is not None and self._held:
            self._seal_at_end(self)

    @property
    def _stuck(self) -> bool:
        """Whether a function runs that only the end of this process will end."""
        return any(children.stuck for children in self._sessions)

    def _end_builds(self) -> None:
        """Mark what was not brought to its end, while there is still time to deliver that."""
        if not self._stuck:
            tenure.crash_active(self.store, self.principal)

    def _flush(self) -> None:
        """Events go out before we do; a kernel that only took short requests leaves all but notices to the next."""
        if self._held:
            self._delivery.start(self.notices)
            self._delivery.flush(self.interrupted)

    def _release(self) -> None:
        """Give the writer lock back; with a function that cannot be ended it is kept until this process is gone, for
        that is the proof the next kernel needs."""
        self._delivery.abandon()
        if not self._stuck:
            _quietly(tenure.release)(self.store, self.principal)

    def _lose(self, why: str) -> None:
        """Told by the heartbeat, on its thread: nothing more is written, in rows or in files, and children end. The
        next kernel finds the builds as we leave them and marks them as orphaned."""
        self._why_lost = why
        self.store.forfeit(why)
        self._delivery.abandon()
        self.lost.set()
        for children in list(self._sessions):
            children.stop()

    def _tidy_until(self, stop: threading.Event) -> None:
        """Keep the files up to date that only repeat the rows: no hurry, and cheaper by the dozen."""
        while not stop.wait(TIDY_SECONDS):
            # A kernel that may no longer write, or cannot, is stopped by its own loop; this one only waits.
            with suppress(Exception):
                if not self._held:
                    return
                self.streams.project(TIDY_SECONDS / 10)
                if self.artifacts.added > SPILL_BYTES:
                    self.artifacts.make_room()


def _quietly(act: Callable[..., object]) -> Callable[..., None]:
    """Do it, and leave what cannot be done to the next kernel."""

    def quiet(*arguments: object) -> None:
        with suppress(OncewardError, OSError):
            act(*arguments)

    return quiet
