"""Settings: `onceward.toml` beside the workspace and the environment, validated once, frozen."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from onceward.core.changes import IGNORED_NAMES
from onceward.core.limits import (
    APPROVAL_SECONDS,
    ARTIFACT_BYTES,
    IMPORT_BYTES,
    IMPORT_LEAST_BYTES,
    IMPORT_SECONDS,
    MAX_CONFIRMATION_SECONDS,
    MAX_INTEGER,
    MIN_LOCK_TTL_MS,
    PERMIT_SECONDS,
    TARGET_WAIT_SECONDS,
)
from onceward.core.money import to_micros
from onceward.core.records import ROLES, check_name
from onceward.errors import InvalidConfig

FOLDER = ".onceward"
FILE = "onceward.toml"


class SinkSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where events are delivered."""

    name: str
    """Its name in the outbox."""
    kind: Literal["console", "ndjson", "webhook"]
    """`console`, `ndjson` or `webhook`."""
    path: str = ""
    """For `ndjson`: the file, relative to `onceward.toml`."""
    url: str = ""
    """For `webhook`: the URL to POST to."""
    secret_env: str = ""
    """For `webhook`: the environment variable that holds the signing secret."""


class StoreSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The database."""

    url: str = "sqlite"
    """`sqlite`, or `postgresql://…` with `schema=` naming the workspace."""
    unsafe_network_filesystem: bool = False
    """Allow SQLite where its locks cannot be trusted."""


class ArtifactSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of stored files."""

    max_bytes: int = ARTIFACT_BYTES
    """The largest artifact, in bytes."""


class LockSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The writer lock, and the locks of targets."""

    ttl_ms: int | None = None
    """Milliseconds without a heartbeat after which another kernel may take the writer lock although
    the process may still live: 600000 on SQLite, 60000 on PostgreSQL. Every machine that opens the
    workspace needs the same value."""
    folder: str = ""
    """The folder of target locks, relative to `onceward.toml` [default: `.onceward/locks`].
    Workspaces with the same folder share their target locks."""


class BuildSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How builds ask people."""

    confirmation_seconds: int = PERMIT_SECONDS
    """How long a confirmation token of a paused build is valid."""


class BudgetSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits for the whole workspace, in addition to the budget of each build."""

    usd: str | None = None
    """US dollars, as text: `"100.00"`."""
    tokens: int | None = None
    """Tokens."""
    solver_calls: int | None = None
    """Any calls that you count."""


Occasion = Literal["pause", "failure", "approval", "in_doubt", "stuck", "review", "escalation"]


class NotifySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How people are notified."""

    command: tuple[str, ...] = ()
    """A program to run, without a shell: the text is in ONCEWARD_NOTICE, and standard input has the
    notice as JSON."""
    webhook: str = ""
    """The URL to POST the notice to, as JSON; chat programs show its `text`."""
    secret_env: str = ""
    """For `webhook`: the environment variable that holds the signing secret."""
    on: tuple[Occasion, ...] = (
        "pause",
        "failure",
        "approval",
        "in_doubt",
        "stuck",
        "review",
        "escalation",
    )
    """The occasions to notify of."""

    def sinks(self) -> list[str]:
        """The names under which notices wait in the outbox."""
        return [f"notify {way}" for way in ("command", "webhook") if getattr(self, way)]


class SealSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where seals of the history are stored."""

    file: str = ""
    """A file, best where nobody who can change the store can write. A kernel seals into it before
    it exits, and `verify` checks the workspace against it."""


class GrantSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Grants in this workspace."""

    environment: str = "local"
    """The name of this environment in grants; a grant for another environment is refused."""


class RegistrySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the registry of operations is used."""

    require: bool = False
    """Require every stage, action and spawned command to name a registered operation that is in
    force."""


class PathSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Additional requirements for changes to some paths."""

    glob: str
    """Which paths, at any depth: `*` matches anything, also across folders."""
    approvals: int = 1
    """The number of different people who must approve."""
    role: str = ""
    """A role that at least one of them must have."""


class CutterSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cutter of your own: applies changes to something other than files."""

    name: str
    """Its name in changes."""
    python: str
    """`module:name` of an object with paths(), read(path) and write(path, data), or of a class or
    function that creates one for a target."""


class ChangeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requirements for changes."""

    authors_may_review: bool = False
    """Let authors approve their own changes; for people who work alone."""
    approvals: int = 1
    """The number of different people who must approve a change."""
    approval_seconds: int = APPROVAL_SECONDS
    """How long an approval is valid."""
    drift: Literal["files", "tree"] = "files"
    """What must be unchanged since the mark before a cut: the `files` of the change, or the whole
    `tree`."""
    sweep_seconds: int = 300
    """How often `serve` queues marked and deferred changes for review; 0 is never."""
    ignore: tuple[str, ...] = IGNORED_NAMES
    """Names of files and folders that are not part of a tree; `*` matches anything."""
    path: tuple[PathSettings, ...] = ()
    """Additional requirements for some paths."""
    cutter: tuple[CutterSettings, ...] = ()
    """Cutters of your own."""


class LimitSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Time limits."""

    target_wait: int = TARGET_WAIT_SECONDS
    """Seconds that a step waits in the queue for a target that is locked; then it fails and names
    the holder."""


class ServeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of `serve` for loading plans and sagas."""

    import_seconds: float = IMPORT_SECONDS
    """Seconds that loading a plan or saga may take."""
    import_memory: int = IMPORT_BYTES
    """Bytes of address space that loading it may take."""


class ServerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the server does for its clients."""

    folders: tuple[str, ...] = (".",)
    """Folders in which the server runs commands, with all folders below them; relative to
    `onceward.toml`."""
    spawn: bool = True
    """Whether the server runs commands. Anybody who can run one can read whatever the server's
    account can read."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything a workspace can be told."""

    store: StoreSettings = StoreSettings()
    sink: tuple[SinkSettings, ...] = ()
    locks: LockSettings = LockSettings()
    builds: BuildSettings = BuildSettings()
    artifacts: ArtifactSettings = ArtifactSettings()
    budget: BudgetSettings = BudgetSettings()
    notify: NotifySettings = NotifySettings()
    seal: SealSettings = SealSettings()
    grants: GrantSettings = GrantSettings()
    registry: RegistrySettings = RegistrySettings()
    changes: ChangeSettings = ChangeSettings()
    limits: LimitSettings = LimitSettings()
    serve: ServeSettings = ServeSettings()
    server: ServerSettings = ServerSettings()

    def sinks(self) -> list[str]:
        """Everybody who is told of events."""
        return [*(sink.name for sink in self.sink), *self.notify.sinks()]


TEMPLATE = """\
# Settings of this Onceward workspace. Everything here is optional.

# [store]
# url = "postgresql://user@host/database?schema=my_workspace"    # default: SQLite in .onceward/

# [locks]
# ttl_ms = 600000                 # a kernel without a heartbeat for this long loses the writer lock; PostgreSQL: 60000
# folder = "/var/lock/onceward"   # the folder of target locks; default: .onceward/locks

# [builds]
# confirmation_seconds = 3600     # how long a confirmation token is valid

# [artifacts]
# max_bytes = 26214400            # the largest output or log that is stored

# [budget]
# usd = "100.00"                  # limit for the whole workspace

# [notify]                        # when a person is needed: pause, failure, approval, review, in doubt
# command = ["mail", "-s", "Onceward needs you", "you@example.org"]    # or webhook = "https://..."

# [seal]
# file = "/mnt/elsewhere/onceward.seal"    # a signed seal of the history, renewed after every change

# [grants]
# environment = "production"      # the name of this environment; grants for another one are refused

# [registry]
# require = true                  # every stage and spawned command must name a registered operation

# [changes]
# approvals = 2                   # people who must approve a change; authors do not approve their own
# path = [{ glob = "billing/*", approvals = 2, role = "admin" }]

# [serve]
# import_seconds = 20             # time limit for loading a plan or saga in `serve`

# [server]
# folders = [".", "../other"]     # where `serve` runs commands; default: this folder
# spawn = false                   # do not run commands, only plans and sagas of this folder

# [[sink]]                        # deliver events elsewhere, at least once and in order
# name = "log"
# kind = "ndjson"                 # or "console", or "webhook" with url = "https://..." and secret_env = "NAME"
# path = "events.ndjson"
"""


def find_workspace(asked: str | None, *, nearest: bool = True) -> Path:
    """The workspace's folder: as asked, else the nearest `.onceward` upwards, else here."""
    if asked:
        return Path(asked).absolute()
    here = Path.cwd()
    for folder in (here, *here.parents) if nearest else ():
        if (folder / FOLDER).is_dir():
            return folder / FOLDER
    return here / FOLDER


def ignored_settings(workspace: Path) -> str:
    """A line about a settings file that is nearer than the workspace's own and not in force; empty
    if there is none.

    Whoever stands beside it takes it for the one that counts."""
    here = Path.cwd()
    folders = (here, *here.parents)
    home = workspace.parent
    if home not in folders:
        return ""
    nearer = (folder / FILE for folder in folders[: folders.index(home)])
    ignored = next((file for file in nearer if file.is_file()), None)
    if ignored is None:
        return ""
    return (
        f"{ignored} is ignored: the nearest workspace is {workspace}, and its settings are in"
        f" {home / FILE}. To make a workspace beside it: cd {ignored.parent} && onceward init"
    )


def load(workspace: Path, store_url: str | None = None) -> Settings:
    """The settings of a workspace; `store_url` from the command line wins."""
    file = workspace.parent / FILE
    try:
        settings = (
            msgspec.convert(tomllib.loads(file.read_text("utf-8")), Settings)
            if file.exists()
            else Settings()
        )
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfig(f"{file}: {error}", context={"file": str(file)}) from None
    except msgspec.ValidationError as error:
        raise InvalidConfig(
            f"{file}: {_in_words(str(error))}", context={"file": str(file)}
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"cannot read {file}: {error}", context={"file": str(file)}) from None
    if store_url:
        settings = msgspec.structs.replace(
            settings, store=msgspec.structs.replace(settings.store, url=store_url)
        )
    _check(settings, file)
    return settings


def _in_words(text: str) -> str:
    """What is wrong with a setting, with the setting first and TOML's words for kinds."""
    what, _, place = text.partition(" - at `$.")
    for kind, word in (
        ("array", "list"),
        ("str", "text"),
        ("object", "table"),
        ("int", "whole number"),
    ):
        what = what.replace(f"`{kind}`", f"a {word}" if word != "text" else word)
    what = what[:1].lower() + what[1:]
    return f"{place.rstrip('`')}: {what}" if place else what


def _check_webhook(text: str, what: str) -> None:
    if not text.startswith(("http://", "https://")):
        raise InvalidConfig(f"{what} must begin with http:// or https://")
    try:
        url = urlsplit(text)
        fits = bool(url.hostname) and (url.port or 1) > 0
    except ValueError:
        fits = False
    if not fits:
        raise InvalidConfig(f"{what} is not a valid URL")
    if "@" in url.netloc:
        raise InvalidConfig(f"{what} must not contain a password; sign with secret_env instead")


def limits_of(settings: Settings) -> dict[str, int]:
    """The workspace's limits by lane."""
    budget = settings.budget
    found = {"tokens": budget.tokens, "solver_calls": budget.solver_calls}
    limits = {lane: limit for lane, limit in found.items() if limit is not None}
    for lane, limit in limits.items():
        if not 0 <= limit <= MAX_INTEGER:
            raise InvalidConfig(
                f"{lane} under [budget] must be between 0 and {MAX_INTEGER}",
                context={"field": lane},
            )
    return (
        limits
        if budget.usd is None
        else {**limits, "usd_micros": to_micros(budget.usd, "usd under [budget]")}
    )


def _check(settings: Settings, file: Path) -> None:
    check_url(settings.store.url)
    check_name(settings.grants.environment, "grants.environment")
    if settings.artifacts.max_bytes < 1:
        raise InvalidConfig(
            f"{file}: artifacts.max_bytes must be at least 1",
            context={"field": "artifacts.max_bytes"},
        )
    _check_locks(settings, file)
    limits_of(settings)
    if settings.limits.target_wait < 0:
        raise InvalidConfig(
            f"{file}: limits.target_wait must be 0 or more seconds",
            context={"field": "limits.target_wait"},
        )
    _check_serve(settings.serve, file)
    _check_changes(settings.changes, file)
    names = [sink.name for sink in settings.sink]
    for sink in settings.sink:
        check_name(sink.name, "sink.name")
        needed = {"ndjson": "path", "webhook": "url", "console": "name"}[sink.kind]
        if not getattr(sink, needed):
            raise InvalidConfig(f"{file}: sink {sink.name!r} of kind {sink.kind} needs {needed}")
        if sink.kind == "webhook":
            _check_webhook(sink.url, f"{file}: sink {sink.name!r}: url")
        if sink.name.startswith("notify "):
            raise InvalidConfig(
                f"{file}: sink {sink.name!r}: names that begin with 'notify ' are reserved for [notify]"
            )
    if settings.notify.webhook:
        _check_webhook(settings.notify.webhook, f"{file}: notify.webhook")
    if len(set(names)) != len(names):
        raise InvalidConfig(f"{file}: two sinks have the same name")


def _check_locks(settings: Settings, file: Path) -> None:
    ttl = settings.locks.ttl_ms
    if ttl is not None and not MIN_LOCK_TTL_MS <= ttl <= MAX_INTEGER:
        raise InvalidConfig(
            f"{file}: locks.ttl_ms must be at least {MIN_LOCK_TTL_MS}",
            context={"field": "locks.ttl_ms"},
        )
    if "\0" in settings.locks.folder:
        raise InvalidConfig(
            f"{file}: locks.folder is not a valid path", context={"field": "locks.folder"}
        )
    if not 1 <= settings.builds.confirmation_seconds <= MAX_CONFIRMATION_SECONDS:
        raise InvalidConfig(
            f"{file}: builds.confirmation_seconds must be between 1 and {MAX_CONFIRMATION_SECONDS}",
            context={"field": "builds.confirmation_seconds"},
        )


def _check_serve(serve: ServeSettings, file: Path) -> None:
    for name, least in (("import_seconds", 1), ("import_memory", IMPORT_LEAST_BYTES)):
        if not least <= getattr(serve, name) <= MAX_INTEGER:
            raise InvalidConfig(
                f"{file}: serve.{name} must be at least {least}", context={"field": f"serve.{name}"}
            )


def _check_changes(changes: ChangeSettings, file: Path) -> None:
    numbers = {"approvals": changes.approvals, "approval_seconds": changes.approval_seconds}
    numbers |= {f"approvals for {rule.glob!a}": rule.approvals for rule in changes.path}
    for what, number in numbers.items():
        if not 1 <= number <= MAX_INTEGER:
            raise InvalidConfig(
                f"{file}: changes: {what} must be at least 1", context={"field": "changes"}
            )
    for rule in changes.path:
        if rule.role not in ("", *ROLES):
            raise InvalidConfig(
                f"{file}: changes: {rule.role[:40]!a} is not a role; choose from {', '.join(ROLES)}",
                context={"field": "changes"},
            )
    names = [cutter.name for cutter in changes.cutter]
    for name in names:
        check_name(name, "changes.cutter.name")
        if name in ("tree", "registry") or names.count(name) > 1:
            raise InvalidConfig(
                f"{file}: changes: the cutter {name!r} is defined twice",
                context={"field": "changes"},
            )


def check_url(url: str) -> str:
    """Where rows can be."""
    if url != "sqlite" and not url.startswith(("postgresql://", "postgres://")):
        raise InvalidConfig(
            'the store URL must be "sqlite" or begin with postgresql://',
            context={"field": "store.url"},
        )
    return url
