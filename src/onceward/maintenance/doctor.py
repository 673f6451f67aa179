"""Looks the workspace over and says what to fix."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from onceward.errors import OncewardError
from onceward.evidence.findings import Findings
from onceward.evidence.seal import read_receipt
from onceward.kernel import tenure
from onceward.kernel.views import outbox_status
from onceward.store.store import Store
from onceward.store.tables.keys import newest_seal


class CheckResult(msgspec.Struct, frozen=True):
    """One check and its outcome."""

    name: str
    status: str
    detail: str
    fix: str = ""


def examine_machine(version: str) -> list[CheckResult]:
    """The checks that need no workspace."""
    clock = time.time()
    sane = 1_700_000_000 < clock < 4_000_000_000
    system = platform.system()
    return [
        CheckResult("onceward", "ok", version),
        CheckResult("python", "ok", platform.python_version()),
        CheckResult(
            "system",
            "ok" if system == "Linux" else "warn",
            f"{system} {platform.release()}",
            ""
            if system == "Linux"
            else "Linux is supported; macOS is best effort; Windows is not, use WSL 2",
        ),
        CheckResult(
            "clock",
            "ok" if sane else "warn",
            time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(clock)),
            "" if sane else "set the system clock; times are labels, nothing else depends on them",
        ),
        *_parts(),
    ]


def _parts() -> Iterable[CheckResult]:
    """The programs and packages that commands and stores need."""
    program = shutil.which("onceward")
    if program:
        yield CheckResult("program", "ok", program)
    else:
        yield CheckResult(
            "program",
            "warn",
            "onceward is not on the PATH",
            "put it there: steps in shell call `onceward report`, and completion needs it",
        )
    driver = importlib.util.find_spec("psycopg") is not None
    yield CheckResult(
        "postgresql",
        "ok",
        "driver installed" if driver else "no driver: pip install 'psycopg[binary]'",
    )


def examine_store(
    store: Store,
    sinks: Sequence[str],
    verify: Callable[[], Findings],
    seal_file: Path | None = None,
) -> list[CheckResult]:
    """Every check of a workspace; one that cannot be made is itself a finding. `verify` is what
    `onceward verify` does: the two never disagree."""
    checks: list[CheckResult] = []
    for look in (
        _database,
        lambda s: _evidence(verify),
        lambda s: _seal(s, seal_file),
        _writer_lock,
        lambda s: _outbox(s, sinks),
    ):
        checks += _looked(look, store)
    return checks


def _looked(look: Callable[[Store], Iterable[CheckResult]], store: Store) -> list[CheckResult]:
    try:
        return list(look(store))
    except OncewardError as error:
        fix = error.recovery[0] if error.recovery else None
        return [
            CheckResult(
                "store",
                "fail",
                f"{error.code}: {error.message}",
                (fix.command or fix.action) if fix else "",
            )
        ]


def _database(store: Store) -> Iterable[CheckResult]:
    for name, status, detail, fix in store.database.health():
        yield CheckResult(name, status, detail, fix if status != "ok" else "")


def _evidence(verify: Callable[[], Findings]) -> Iterable[CheckResult]:
    found = verify()
    if found.faults:
        yield CheckResult(
            "evidence",
            "fail",
            found.first(),
            "see all of it: onceward verify; then restore the last good backup",
        )
        return
    seen = ", ".join(
        f"{what} {found.checked.get(what, 0):,}" for what in ("events", "streams", "signatures")
    )
    yield CheckResult("evidence", "ok", f"{seen}: chains whole, states agree")


def _seal(store: Store, path: Path | None) -> Iterable[CheckResult]:
    """Whether what the settings want sealed elsewhere is."""
    if path is None:
        return
    with store.read() as rows:
        newest = newest_seal(rows)
    try:
        kept = read_receipt(path.read_bytes(), path.name).envelope.statement_hash
    except (OSError, OncewardError) as error:
        kept, why = (
            "",
            getattr(error, "message", None) or f"{path}: {getattr(error, 'strerror', error)}",
        )
        yield CheckResult(
            "seal", "warn", f"not kept: {why}", f"look at it, then: onceward seal --out {path}"
        )
        return
    same = newest is not None and newest.statement_hash == kept
    fix = (
        ""
        if same
        else f"the file is of another history or an older one: onceward verify --against {path}"
    )
    yield CheckResult(
        "seal",
        "ok" if same else "warn",
        f"kept in {path}" if same else f"{path} is not the newest seal",
        fix,
    )


def _writer_lock(store: Store) -> Iterable[CheckResult]:
    held = tenure.holder(store)
    if held is None:
        yield CheckResult("writer lock", "ok", "free")
        return
    with store.read() as rows:
        found = tenure.standing(rows, held, rows.now(), store.lock_ttl)
    note = "" if found.stands else " (the next command takes it over)"
    yield CheckResult(
        "writer lock", "ok", f"pid {held.acquired_by_pid} on {held.hostname}: {found.why}{note}"
    )


def _outbox(store: Store, sinks: Sequence[str]) -> Iterable[CheckResult]:
    for entry in outbox_status(store, sinks):
        fix = ""
        if not entry.configured:
            fix = "configure the sink again, or its events wait for ever"
        elif entry.last_error:
            fix = f"mend it ({entry.last_error}), then: onceward outbox flush"
        detail = f"{entry.waiting} waiting, {entry.parked} parked"
        yield CheckResult(f"sink {entry.sink}", "warn" if fix else "ok", detail, fix)
