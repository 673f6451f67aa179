"""The composition root: the only file that names concrete databases and sinks."""

from __future__ import annotations

import fcntl
import getpass
import os
import shlex
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypeVar
from urllib.parse import urlsplit

from onceward import catalogue as _catalogue  # noqa: F401
from onceward import settings as settings_module
from onceward.artifacts.blobs import Artifacts
from onceward.artifacts.file_names import recorded_place
from onceward.core import faults
from onceward.core.changes import PathRule, Policy
from onceward.core.records import Request, check_name
from onceward.core.sources import LiveSources, Sources
from onceward.core.views import LaneView
from onceward.databases import postgres
from onceward.dispatch.views import lane_list, session_named
from onceward.errors import InvalidConfig, LockConflict, NotFound, Recovery
from onceward.evidence.records import StoreRecords
from onceward.kernel.answers import RequestHandler
from onceward.kernel.asker import Asker
from onceward.kernel.kernel import Kernel
from onceward.kernel.sinks import ConsoleSink, FileSink, Sink, WebhookSink
from onceward.kernel.tenure import require_nobody
from onceward.locks import TargetLock
from onceward.maintenance.notices import EVENTS, CommandNotice, WebhookNotice
from onceward.people.keyring import Keyring, inside_child
from onceward.settings import Settings, SinkSettings
from onceward.store import migrate
from onceward.store.migrate import Migration
from onceward.store.port import Database
from onceward.store.sqlite import SqliteDatabase
from onceward.store.store import Store
from onceward.store.tables.grants import Grants
from onceward.subjects import subject_named

if TYPE_CHECKING:
    from onceward.evidence.bundle import BundlePage
    from onceward.evidence.findings import Findings
    from onceward.evidence.replay import ReplayResult
    from onceward.evidence.seal import Receipt
    from onceward.evidence.workspace import Progress

T = TypeVar("T")
_STORE = "onceward.db"
_GITIGNORE = ".gitignore"
_IGNORE_ALL = "*\n"
"""Keys and rows are nothing for a repository."""
_UNPLACED = ".new."
_BEGINNINGS = (_STORE, _GITIGNORE, _UNPLACED)
"""How the names of the files begin that a workspace has before its store is made."""


class Workspace:
    """A store, its settings and the folder around it; opens what a command needs of it."""

    def __init__(
        self,
        folder: Path,
        *,
        store_url: str | None = None,
        principal: str | None = None,
        sources: Sources | None = None,
        console: TextIO | None = None,
        notes: TextIO | None = None,
    ) -> None:
        """`notes` is where a person is told what takes long, such as recovery after a crash."""
        self.folder = folder
        self._console, self._notes = console, notes
        self.settings: Settings = settings_module.load(folder, store_url)
        self.principal = check_name(principal or os_user(), "principal")
        self.sources = sources or LiveSources()
        self._database: Database | None = None

    @property
    def database(self) -> Database:
        if self._database is None:
            self._database = self._make_database()
        return self._database

    @property
    def locks(self) -> TargetLock:
        """The target locks of this workspace."""
        return TargetLock(self.lock_folder, in_workspace=True)

    @property
    def lock_folder(self) -> Path:
        """Where the target locks are: in the workspace's own folder, unless the settings say otherwise."""
        folder = self.settings.locks.folder
        return self.folder.parent / folder if folder else self.folder / "locks"

    @property
    def keyring(self) -> Keyring:
        """The key files of this workspace that this machine has."""
        return Keyring(self.folder / "keys")

    def recorded_place(self, file: Path | None) -> str:
        """A file as the record names it."""
        return recorded_place(file, self.folder.parent)

    def create(self) -> list[str]:
        """Make the folder, the settings file and the store, where they are not there yet."""
        made = self._make_files()
        made += [f"schema {done.number} ({done.name})" for done in self._migrate()]
        return made

    def _make_files(self) -> list[str]:
        made = []
        settings_file = self.folder.parent / settings_module.FILE
        hidden = self.folder / _GITIGNORE
        try:
            if not self.folder.is_dir():
                self._make_folder()
                made.append(str(self.folder))
            faults.point("create.folder")
            if not hidden.exists() or not hidden.stat().st_size:
                hidden.unlink(missing_ok=True)
                self._place(hidden, _IGNORE_ALL)
            if not settings_file.exists():
                self._place(settings_file, settings_module.TEMPLATE)
                made.append(str(settings_file))
            faults.point("create.settings")
        except OSError as error:
            raise InvalidConfig(
                f"cannot write in {self.folder.parent}: {error.strerror}",
                context={"folder": str(self.folder.parent)},
                recovery=[Recovery("make the folder writable, or choose another with --workspace")],
            ) from error
        return made

    def _make_folder(self) -> None:
        """The folder with the file that marks it as ours, at once: where making a workspace was cut off can be told."""
        fresh = self.folder.with_name(f"{self.folder.name}.new")
        try:
            fresh.mkdir(mode=0o700, parents=True, exist_ok=True)
            (fresh / _GITIGNORE).write_text(_IGNORE_ALL, "utf-8")
            faults.point("create.staged")
            fresh.rename(self.folder)
        except OSError:
            # Of several who make it at the same time one gives it its name.
            if not self.folder.is_dir():
                raise

    def _place(self, path: Path, text: str) -> None:
        """A new file with its whole content, or none; one that somebody else placed meanwhile stays."""
        fresh = self.folder / f"{_UNPLACED}{os.getpid()}"
        try:
            fresh.write_text(text, "utf-8")
            with suppress(FileExistsError):
                path.hardlink_to(fresh)
        finally:
            fresh.unlink(missing_ok=True)

    def _cut_off(self, waiting: Sequence[Migration]) -> bool:
        """Whether the making of this workspace began and did not come to its end, so that it can be finished.

        With a part of the schema it is enough that there is no event. Without any, a file of ours could be one that
        was damaged, and a schema one that was misspelt: only an SQLite folder that never had anything else counts."""
        if len(waiting) < len(migrate.known()):
            return not migrate.used(self.database)
        return self._folder_is_fresh()

    def _folder_is_fresh(self) -> bool:
        """Whether the folder is there and holds nothing but what making a workspace begins with."""
        if self.settings.store.url != "sqlite":
            return False
        try:
            names = [file.name for file in self.folder.iterdir()]
        except OSError:
            return False
        ours = _GITIGNORE in names or self.folder.name == settings_module.FOLDER
        return ours and all(name.startswith(_BEGINNINGS) for name in names)

    def ensure(self) -> list[str]:
        """Make the workspace if there is none; one that is there is left as it is."""
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            with _one_at_a_time(self.folder.parent):
                try:
                    self.store().close()
                except NotFound:
                    return self.create()
        except OSError as error:
            raise InvalidConfig(f"cannot use {self.folder.parent}: {error.strerror}") from error
        return []

    def store(self) -> Store:
        """The store to read from; NOT_FOUND with the next command where there is none."""
        if not (self.folder / _STORE).exists() and self._folder_is_fresh():
            self._finish()
        self._require_folder()
        wanted = {event for occasion in self.settings.notify.on for event in EVENTS[occasion]}
        notices = dict.fromkeys(self.settings.notify.sinks(), wanted)
        store = Store(
            self.database,
            self.sources,
            sinks=[sink.name for sink in self.settings.sink],
            notices=notices,
            lock_ttl_ms=self.settings.locks.ttl_ms,
        )
        waiting = migrate.pending(self.database)
        if waiting and self._cut_off(waiting):
            self._finish()
            waiting = migrate.pending(self.database)
        store.require_schema(waiting)
        return store

    @contextmanager
    def reading(self) -> Iterator[Store]:
        """The store for as long as something is read from it."""
        store = self.store()
        try:
            yield store
        finally:
            store.close()

    def empty_store(self) -> Store:
        """The store to restore into, which may not be there yet."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Store(self.database, self.sources)

    def migrate(self) -> list[Migration]:
        self._require_folder()
        return self._migrate()

    def pending_migrations(self) -> list[Migration]:
        self._require_folder()
        return migrate.pending(self.database)

    def kernel(self, interrupted: threading.Event | None = None) -> Kernel:
        """Become the kernel; LOCK_CONFLICT if another lives. Once `interrupted`, it waits for no remote sink."""
        try:
            return self._become(interrupted)
        except LockConflict:
            # Whoever is inside a child of the kernel that lives is not told how to end it.
            with self.reading() as store, store.read() as rows:
                inside = self.keyring.child_around(rows)
            if inside:
                raise inside_child(self.principal, inside) from None
            raise

    def _become(self, interrupted: threading.Event | None = None) -> Kernel:
        store = self.store()
        try:
            return Kernel(
                *(store, self.principal, self.sinks(store), self.folder, self.root_id()),
                artifact_bytes=self.settings.artifacts.max_bytes,
                limits=settings_module.limits_of(self.settings),
                notices=self.notices(store),
                seal_at_end=self._seal_at_end if self.seal_file is not None else None,
                registered=self.settings.registry.require,
                policy=self.policy,
                cutters=self.cutters,
                environment=self.settings.grants.environment,
                target_wait=self.settings.limits.target_wait,
                interrupted=interrupted,
                confirmation_seconds=self.settings.builds.confirmation_seconds,
                lock_folder=self.lock_folder,
                notes=self._notes,
                secrets=self._own_secrets(),
            )
        except BaseException:
            store.close()
            raise

    @property
    def policy(self) -> Policy:
        """What changes need here."""
        said = self.settings.changes
        alike = {name: getattr(said, name) for name in Policy.__struct_fields__ if name != "path"}
        return Policy(
            **alike,
            path=tuple(PathRule(rule.glob, rule.approvals, rule.role) for rule in said.path),
        )

    @property
    def cutters(self) -> dict[str, str]:
        """Places of the user's own that changes can be made to."""
        return {cutter.name: cutter.python for cutter in self.settings.changes.cutter}

    @contextmanager
    def artifacts(self) -> Iterator[Artifacts]:
        """What is kept, to be read."""
        with self.reading() as store:
            yield Artifacts(self.folder / "artifacts", store, self.settings.artifacts.max_bytes)

    def grant(self, prefix: str) -> str:
        """The one grant that an id or its beginning means."""
        with self.reading() as store, store.read() as rows:
            return Grants(rows).named(prefix).grant_id

    def session(self, prefix: str) -> str:
        """The one session that an id or its beginning means; NOT_FOUND with what to do where there is none."""
        with self.reading() as store:
            return session_named(store, prefix)

    def spending(self, session_id: str) -> list[LaneView]:
        """The lanes of a session's budget."""
        with self.reading() as store:
            return lane_list(store, session_id)

    def verify(self, seals: Sequence[Path], progress: Progress | None) -> Findings:
        """Everything this workspace has, held against itself and against seals that were kept elsewhere."""
        from onceward.evidence.seal import read_receipt
        from onceward.evidence.workspace import verify_workspace

        kept = self.seal_file
        paths = [*seals, *([kept] if kept is not None and kept.exists() else [])]
        receipts = [(path.name, read_receipt(path.read_bytes(), path.name)) for path in paths]
        with self.reading() as store:
            found = verify_workspace(store, self.folder, receipts, progress)
        if kept is not None and not kept.exists() and found.checked.get("seals"):
            found.fault("seal", kept.name, "it was sealed to this file, and the file is gone")
        return found

    def replay(
        self, subject: str | None, runs: int = 1, progress: Callable[[int], None] | None = None
    ) -> list[ReplayResult]:
        """A build or session, or all there are, made again from the records as of one moment, as often as asked."""
        from onceward.evidence.replay import replay

        if subject is not None:
            return self.telling(
                subject,
                lambda records, session: [
                    replay(records, [session], progress) for _ in range(runs)
                ],
            )
        with self.reading() as store, store.read() as rows:
            return [replay(StoreRecords(rows), None, progress) for _ in range(runs)]

    def telling(self, subject: str, tell: Callable[[StoreRecords, str], T]) -> T:
        """What can be told of a build or session from its records."""
        with self.reading() as store:
            session = subject_named(store, subject)
            with store.read() as rows:
                return tell(StoreRecords(rows), session)

    def _seal_at_end(self, kernel: Kernel) -> None:
        """The seal of a kernel that leaves, in the file that the settings name; a file with another seal must hold an
        older one of this history."""
        from onceward.evidence import sealing
        from onceward.evidence.seal import read_receipt

        file, signer = self.seal_file, kernel.signer
        assert file is not None and signer is not None
        with kernel.store.read() as rows:
            if not sealing.needed(rows):
                return
            older = read_receipt(file.read_bytes(), "the seal") if file.exists() else None
            receipt = sealing.prepare(rows, signer, older)
        payload = {"envelope": receipt.envelope.document()}
        kernel.ask(Request("seals.add", receipt.envelope.statement_hash, payload, kernel.principal))
        sealing.write(file, receipt)

    def prepare_seal(self, path: Path | None) -> Receipt:
        """The seal of everything there is now; one that is at `path` already must be an older one of this history."""
        from onceward.evidence.seal import read_receipt

        older = (
            read_receipt(path.read_bytes(), path.name)
            if path is not None and path.exists()
            else None
        )
        return self.sealed_by(self.principal, older)

    def sealed_by(self, principal: str, older: Receipt | None = None) -> Receipt:
        """A seal that somebody signs whose key is here; it is theirs to have recorded."""
        from onceward.evidence import sealing

        with self.reading() as store, store.read() as rows:
            return sealing.prepare(rows, self.keyring.signer(rows, principal), older)

    def inside(self, name: str) -> Path:
        """A file of the workspace's own folder: what comes over a line names no other."""
        home = self.folder.parent.resolve()
        try:
            place = (home / name).resolve()
            place.exists()
            inside = place.is_relative_to(home) and not place.is_relative_to(self.folder.resolve())
        except (OSError, ValueError, RuntimeError):
            inside = False
        if not inside:
            raise InvalidConfig(
                f"{name[:100]!a} is not in the workspace's folder",
                context={"field": "file", "file": name[:200]},
            )
        return place

    def working_folder(self, name: str) -> Path:
        """A folder in which a command may be run for who asks from elsewhere, as [server] folders says."""
        home = self.folder.parent.resolve()
        try:
            place = (home / name).resolve()
            allowed = [(home / folder).resolve() for folder in self.settings.server.folders]
            inside = any(map(place.is_relative_to, allowed)) and place.is_dir()
            inside = inside and not place.is_relative_to(self.folder.resolve())
        except (OSError, ValueError, RuntimeError):
            inside = False
        if not inside:
            raise InvalidConfig(
                f"{name[:200]!a} is not a folder in which this server runs commands",
                context={"field": "folder", "folder": name[:200]},
                recovery=[
                    Recovery("run it in the workspace's own folder"),
                    Recovery("or name that folder in folders under [server] in onceward.toml"),
                ],
            )
        return place

    def export(self, subject: str, path: Path | None, whole: bool) -> tuple[Path, BundlePage]:
        """The bundle of a build or session, in a new file."""
        from onceward.evidence.export import export

        with self.artifacts() as artifacts:
            session = subject_named(artifacts.store, subject)
            target = path or Path.cwd() / f"{session}.bundle.tar"
            with artifacts.store.read() as rows:
                return target, export(StoreRecords(rows), session, target, artifacts.read, whole)

    @property
    def seal_file(self) -> Path | None:
        """Where the settings want the newest seal to be kept."""
        return self.folder.parent / self.settings.seal.file if self.settings.seal.file else None

    def root_id(self) -> str:
        """The mark of the artifact root, made with it: two machines that read the same one see the same artifacts."""
        root = self.folder / "artifacts"
        mark = root / ".root"
        try:
            root.mkdir(mode=0o700, exist_ok=True)
            if not mark.exists():
                fresh = root / f".root.{os.getpid()}"
                fresh.write_text(self.sources.secret()[:32], "ascii")
                with suppress(FileExistsError):
                    mark.hardlink_to(fresh)
                fresh.unlink()
            return mark.read_text("ascii")
        except OSError as error:
            raise InvalidConfig(
                f"cannot use the artifact root {root}: {error.strerror}",
                context={"folder": str(root)},
            ) from error

    def engine(self) -> RequestHandler:
        """The kernel if the writer lock can be had, else a line to the kernel that has it (K-13)."""
        try:
            return self._become()
        except LockConflict:
            return self.asker()

    def asker(self) -> Asker:
        """A line to the kernel that lives."""
        return Asker(self.store(), self._become, self.keyring)

    def sinks(self, store: Store) -> list[Sink]:
        if not self.settings.sink:
            return []
        with store.read() as rows:
            ((workspace_id,),) = rows.read("SELECT workspace_id FROM workspace")
        return [self._sink(sink, workspace_id) for sink in self.settings.sink]

    def notices(self, store: Store) -> list[Sink]:
        """Who is told when a person is needed."""
        notify = self.settings.notify
        found: list[Sink] = []
        if notify.command:
            found.append(CommandNotice("notify command", notify.command, self.folder.parent, store))
        if notify.webhook:
            secret = os.environ.get(notify.secret_env) if notify.secret_env else ""
            found.append(WebhookNotice("notify webhook", notify.webhook, secret, store))
        return found

    def _own_secrets(self) -> dict[str, str]:
        """What this process was given for its own use, by name: no child may leave it in what is kept."""
        names = [sink.secret_env for sink in self.settings.sink]
        names.append(self.settings.notify.secret_env)
        found = {name: os.environ[name] for name in names if name in os.environ}
        if self.settings.store.url != "sqlite":
            found["STORE_PASSWORD"] = urlsplit(self.settings.store.url).password or ""
        return {name: value for name, value in found.items() if value}

    def new_file(self, path: Path) -> SqliteDatabase:
        """A file to back up into."""
        return SqliteDatabase(path, self.sources, unsafe_network_filesystem=True)

    def old_file(self, path: Path) -> SqliteDatabase:
        """A backup to read from, left exactly as it is."""
        return SqliteDatabase(path, self.sources, unsafe_network_filesystem=True, read_only=True)

    def _finish(self) -> None:
        """Go on with the making of a workspace that was cut off."""
        self._make_files()
        self._migrate(unused_only=True)

    def _migrate(self, *, unused_only: bool = False) -> list[Migration]:
        """Bring the schema up to date, but never under a kernel that lives."""
        if not migrate.pending(self.database):
            return []
        store = Store(self.database, self.sources)
        try:
            require_nobody(store)
        finally:
            store.close()
        return migrate.migrate(self.database, self.sources, unused_only=unused_only)

    def _sink(self, sink: SinkSettings, workspace_id: str) -> Sink:
        if sink.kind == "console":
            return ConsoleSink(sink.name, self._console)
        if sink.kind == "ndjson":
            return FileSink(sink.name, self.folder.parent / sink.path)
        secret = os.environ.get(sink.secret_env) if sink.secret_env else ""
        return WebhookSink(sink.name, sink.url, secret, workspace_id, self.sources)

    def _make_database(self) -> Database:
        store = self.settings.store
        if store.url == "sqlite":
            return SqliteDatabase(
                self.folder / _STORE,
                self.sources,
                unsafe_network_filesystem=store.unsafe_network_filesystem,
            )
        return postgres(store.url, self.sources)

    def _require_folder(self) -> None:
        if not self.folder.is_dir() or (
            self.settings.store.url == "sqlite" and not (self.folder / _STORE).exists()
        ):
            inside = self.folder / settings_module.FOLDER
            if inside.is_dir():
                raise NotFound(
                    f"there is no workspace at {self.folder}, but there is one in it",
                    recovery=[
                        Recovery("name that folder", f"--workspace {shlex.quote(str(inside))}")
                    ],
                )
            here = self.folder == Path.cwd() / settings_module.FOLDER
            where = "" if here else f"--workspace {shlex.quote(str(self.folder))} "
            raise NotFound(
                f"there is no workspace at {self.folder}",
                recovery=[Recovery("make one", f"onceward {where}init")],
            )


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Of several who would make a workspace here, the first does, and the others find it whole."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def os_user() -> str:
    """The principal of whoever runs this, when nobody says otherwise."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid-{os.getuid()}"
