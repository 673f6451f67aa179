"""`replay`: what follows from the records made again by the rules alone, and held against what is
stored (R-1).

Nothing is scheduled, no clock is read, no process is looked at. Facts come from the records: who
asked, when, what was seen. The rest is made anew: phases, leases, codes, the order of dispatch,
every event's bytes and hash, totals."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from onceward.core.records import Build
from onceward.errors import IntegrityFault, OncewardError, Recovery, StorageError
from onceward.evidence.bundle import BundleRecords, Reader
from onceward.evidence.differences import Difference, Differs
from onceward.evidence.records import Records
from onceward.evidence.replay_session import SessionReplay
from onceward.store.tables.children import SessionRow


class ReplayResult(msgspec.Struct, frozen=True):
    """The result of a replay."""

    sha256: str
    """The hash of everything replayed: the same for a store and for a bundle of it."""
    events: int
    children: int
    sessions: int
    difference: Difference | None = None


def replay(
    records: Records,
    sessions: Sequence[str] | None = None,
    progress: Callable[[int], None] | None = None,
) -> ReplayResult:
    """Replay some sessions, or all there are."""
    whole = hashlib.sha256()
    events = children = count = 0
    missing = set(sessions or ())
    for session, row in _all(records):
        if sessions is not None and session not in sessions:
            continue
        missing.discard(session)
        count += 1
        session_replay = SessionReplay(records, session, row, progress)
        found = _outcome(session_replay)
        if found is not None:
            return ReplayResult(
                sha256=session_replay.made.hexdigest(),
                events=events + session_replay.events,
                children=children + session_replay.ended,
                sessions=count,
                difference=found,
            )
        whole.update(session_replay.made.digest())
        events, children = events + session_replay.events, children + session_replay.ended
    lost = _lost(records, missing, sessions is None, events)
    return ReplayResult(
        sha256=whole.hexdigest(), events=events, children=children, sessions=count, difference=lost
    )


def _all(records: Records) -> Iterator[tuple[str, SessionRow | None]]:
    """Every session with its row, in order; a build that was never begun has a stream, and no
    session yet."""
    rows = records.all(SessionRow)
    row = next(rows, None)
    for build in records.all(Build):
        while row is not None and row.session_id < build.build_id:
            yield row.session_id, row
            row = next(rows, None)
        if row is None or row.session_id != build.build_id:
            yield build.build_id, None
    while row is not None:
        yield row.session_id, row
        row = next(rows, None)


def replay_bundle(path: Path, progress: Callable[[int], None] | None = None) -> ReplayResult:
    """Replay what a bundle holds, with nothing else; one that is not whole is refused."""
    reader = Reader(path)
    try:
        for why in reader.check_members():
            raise IntegrityFault(
                f"{path.name} is not the bundle that was exported: {why}",
                recovery=[
                    Recovery("see everything that is wrong with it", f"onceward verify {path.name}")
                ],
            )
        records = BundleRecords(reader)
        found = replay(records, [reader.page.subject], progress)
        lost = _lost(records, set(), True, found.events)
        return (
            found
            if found.difference is not None
            else msgspec.structs.replace(found, difference=lost)
        )
    finally:
        reader.close()


def _lost(records: Records, missing: set[str], whole: bool, events: int) -> Difference | None:
    """Sessions that are not there, and events that belong to none."""
    if missing:
        return Difference(f"session {min(missing)}", "session", None, "a session of that id")
    recorded = records.told() if whole else events
    return (
        Difference("events", "of sessions and children", recorded, events)
        if recorded != events
        else None
    )


def _outcome(session: SessionReplay) -> Difference | None:
    try:
        session.run()
    except Differs as found:
        return found.difference
    except StorageError:
        raise
    except (
        OncewardError,
        TypeError,
        ValueError,
        KeyError,
        AttributeError,
        RecursionError,
    ) as error:
        return Difference(
            session.looking_at, "form", f"something cannot be read: {error}"[:300], None
        )
    return None
