"""Sessions and the dispatch tokens of their children (C-1, C-2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from onceward.core.records import ChildRecord, Token
from onceward.core.sources import Micros
from onceward.errors import LeaseConflict, NotFound
from onceward.store.port import Reads, Row, Writes
from onceward.store.table import WHOLE_TABLE, Lifecycle, Table

_PAGE = 500


class SessionRow(msgspec.Struct, frozen=True):
    """The parent scope of children."""

    session_id: str
    max_active_children: int
    queue_high: int
    dispatch_high: int
    created_at: Micros


_PROCESS: Final = "which process answers for it now; every event names the fence of its kernel"
SESSIONS: Final = Table(SessionRow, "sessions", key=("session_id",), bundle="sessions.ndjson")
DISPATCH_TOKENS: Final = Table(
    Token,
    "urm_dispatch_token",
    key=("child_id",),
    bundle="tokens.ndjson",
    evidence=ChildRecord,
    lifecycle=Lifecycle(
        machine="child", state="phase", stream="child", silent=("queued", "leased")
    ),
    not_evidence={
        "slot": "which of a kernel's places it has while it runs",
        "owner_host": _PROCESS,
        "owner_boot": _PROCESS,
        "owner_pid": _PROCESS,
        "owner_start": _PROCESS,
        "owner_fence": _PROCESS,
        "child_pid": _PROCESS,
        "child_start": _PROCESS,
        "last_seen": "how long it ran for certain, until its last event says how long it ran",
        "death": "what was found of its processes, until its last event says so",
    },
)
RECOVERIES: Final[Table[Any]] = Table(
    None,
    "recoveries",
    key=("fence",),
    not_evidence={WHOLE_TABLE: "that a kernel has looked at what its predecessor left"},
)


class Standing(msgspec.Struct, frozen=True):
    """The state of an ending child and its session, read in one query."""

    cancel_request_id: str | None
    joined_request_ids: str | None
    state: str
    """The state of its build; empty if it has none."""
    lane: Row
    """Its session's time lane."""
    marks: tuple[int, int]
    """The session's marks of its last numbers, of the queue and of dispatch."""
    last: tuple[int, int]
    """The last numbers ever given there."""
    waiting: bool
    """Whether somebody is queued."""


class Sessions:
    def __init__(self, rows: Reads) -> None:
        self._rows = rows

    def find(self, session_id: str) -> SessionRow | None:
        return SESSIONS.first(self._rows, "WHERE session_id = ?", (session_id,))

    def named(self, prefix: str) -> list[str]:
        """The session of that id, or else up to two whose ids begin so."""
        if self.find(prefix) is not None:
            return [prefix]
        found = self._rows.read(
            "SELECT session_id FROM sessions WHERE session_id >= ? AND session_id < ?"
            " ORDER BY session_id LIMIT 2",
            (prefix, prefix + "\U0010ffff"),
        )
        return [session_id for (session_id,) in found] if prefix else []

    def all(self, limit: int) -> list[tuple[str, int, int, int, Micros]]:
        """The newest sessions: id, children, those not ended, those that did not complete, when
        it was opened."""
        rows = self._rows.read(
            "SELECT s.session_id, count(t.child_id),"
            " CAST(sum(CASE WHEN t.phase <> 'terminal' THEN 1 ELSE 0 END) AS BIGINT),"
            " CAST(sum(CASE WHEN t.phase = 'terminal' AND t.reason <> 'completed'"
            " THEN 1 ELSE 0 END) AS BIGINT),"
            " s.created_at FROM sessions s"
            " LEFT JOIN urm_dispatch_token t ON t.parent_session_id = s.session_id"
            " GROUP BY s.session_id, s.created_at"
            " ORDER BY s.created_at DESC, s.session_id LIMIT ?",
            (limit,),
        )
        return [
            (session_id, children, open_children or 0, failed or 0, created_at)
            for session_id, children, open_children, failed, created_at in rows
        ]


class Tokens:
    def __init__(self, rows: Reads) -> None:
        self._rows = rows

    def get(self, child_id: str) -> Token:
        found = DISPATCH_TOKENS.first(self._rows, "WHERE child_id = ?", (child_id,))
        if found is None:
            raise NotFound(f"there is no child {child_id}", context={"child_id": child_id})
        return found

    def next_queued(self, session_id: str, slot: int, now: Micros) -> tuple[Token, int, int] | None:
        """The child whose turn it is, lowest place in the queue among those that are due; the
        session's mark of the last dispatch number, and the number that comes next. A slot beyond
        the session's cap gets none."""
        found = self._rows.read(
            f"SELECT {DISPATCH_TOKENS.columns_of('t')}, s.dispatch_high,"
            " (SELECT max(m.dispatch_seq) FROM urm_dispatch_token m"
            " WHERE m.parent_session_id = s.session_id)"
            " FROM urm_dispatch_token t JOIN sessions s ON s.session_id = t.parent_session_id"
            " WHERE t.parent_session_id = ? AND t.phase = 'queued' AND t.phase <> 'terminal'"
            " AND t.due_at <= ?"
            # A slot holds one child, so as many slots as the cap are the cap: as persisted, not as
            # remembered (C-5).
            " AND s.max_active_children >= ?"
            " ORDER BY t.queue_seq LIMIT 1",
            (session_id, now, slot),
        )
        if not found:
            return None
        *columns, high, seen = found[0]
        return Token(*columns), high, max(high, seen or 0) + 1

    def closing(self, child_id: str) -> Standing:
        """What may have changed about a running child and its session since it began."""
        ((asked, joined, state, *lane, queue_mark, dispatch_mark, queued, dispatched, waiting),) = (
            self._rows.read(
                "SELECT t.cancel_request_id, t.joined_request_ids, d.state, b.budget_lane,"
                " b.limit_amount, b.total, b.carried,"
                " b.accounting_mode,"
                " s.queue_high, s.dispatch_high,"
                " (SELECT max(m.queue_seq) FROM urm_dispatch_token m"
                " WHERE m.parent_session_id = s.session_id),"
                " (SELECT max(m.dispatch_seq) FROM urm_dispatch_token m"
                " WHERE m.parent_session_id = s.session_id),"
                " (SELECT max(m.queue_seq) FROM urm_dispatch_token m"
                " WHERE m.parent_session_id = s.session_id"
                "  AND m.phase = 'queued' AND m.phase <> 'terminal')"
                " FROM urm_dispatch_token t JOIN sessions s ON s.session_id = t.parent_session_id"
                " LEFT JOIN budget_totals b ON b.parent_session_id = t.parent_session_id"
                " AND b.budget_lane = 'duration_secs'"
                " LEFT JOIN builds d ON d.build_id = t.parent_session_id"
                " WHERE t.child_id = ?",
                (child_id,),
            )
        )
        last = (max(queue_mark, queued or 0), max(dispatch_mark, dispatched or 0))
        return Standing(
            cancel_request_id=asked,
            joined_request_ids=joined,
            state=state or "",
            lane=tuple(lane),
            marks=(queue_mark, dispatch_mark),
            last=last,
            waiting=waiting is not None,
        )

    def next_due(self, session_id: str) -> Micros | None:
        """When the next queued child is due, if any is queued."""
        ((due,),) = self._rows.read(
            "SELECT min(due_at) FROM urm_dispatch_token"
            " WHERE parent_session_id = ? AND phase = 'queued'"
            " AND phase <> 'terminal'",
            (session_id,),
        )
        return None if due is None else int(due)

    def open_in(self, session_id: str) -> list[Token]:
        return DISPATCH_TOKENS.read(
            self._rows,
            "WHERE parent_session_id = ? AND phase <> 'terminal' ORDER BY queue_seq",
            (session_id,),
        )

    def queued_in(self, session_id: str, limit: int) -> list[Token]:
        return DISPATCH_TOKENS.read(
            self._rows,
            "WHERE parent_session_id = ? AND phase = 'queued'"
            " AND phase <> 'terminal' ORDER BY queue_seq LIMIT ?",
            (session_id, limit),
        )

    def asked_to_end(self, session_id: str) -> list[str]:
        """Children that have not ended and were asked to."""
        found = self._rows.read(
            "SELECT child_id FROM urm_dispatch_token"
            " WHERE parent_session_id = ? AND phase <> 'terminal'"
            " AND cancel_request_id IS NOT NULL",
            (session_id,),
        )
        return [child_id for (child_id,) in found]

    def times(self, session_id: str) -> dict[str, tuple[Micros, Micros | None]]:
        """When each child of a session was started, and when it ended."""
        found = self._rows.read(
            "SELECT child_id, started_at, CASE WHEN phase = 'terminal' THEN updated_at END"
            " FROM urm_dispatch_token"
            " WHERE parent_session_id = ? AND started_at IS NOT NULL"
            # Of one that its kernel's death cut off nobody knows when it ended.
            " AND (reason IS NULL OR reason NOT IN ('terminated_on_restart', 'lease_orphaned'))",
            (session_id,),
        )
        return {child_id: (started, ended) for child_id, started, ended in found}

    def left_behind(self, fence: int) -> Iterator[Token]:
        """Every open child of an older fence, session after session, in the order of its
        dispatch (C-20)."""
        return iter(
            DISPATCH_TOKENS.read(
                self._rows,
                "WHERE phase <> 'terminal' AND owner_fence < ?"
                " ORDER BY parent_session_id, CASE WHEN dispatch_seq IS NULL THEN 1"
                " ELSE 0 END, dispatch_seq, queue_seq",
                (fence,),
            )
        )

    def of_session(self, session_id: str) -> Iterator[Token]:
        """All children of a session in the order of their places in the queue."""
        after = 0
        while True:
            page = DISPATCH_TOKENS.read(
                self._rows,
                "WHERE parent_session_id = ? AND queue_seq > ? ORDER BY queue_seq LIMIT ?",
                (session_id, after, _PAGE),
            )
            yield from page
            if len(page) < _PAGE:
                return
            after = page[-1].queue_seq


def put_off(tx: Writes, child_id: str, due_at: Micros) -> None:
    """A queued child is not due before a time."""
    tx.write(
        "UPDATE urm_dispatch_token SET due_at = ? WHERE child_id = ? AND phase = 'queued'",
        (due_at, child_id),
    )


def is_terminal(rows: Reads, child_id: str) -> bool:
    return bool(
        rows.read(
            "SELECT 1 FROM urm_dispatch_token WHERE child_id = ? AND phase = 'terminal'",
            (child_id,),
        )
    )


def live_child(rows: Reads, child_id: str) -> bool:
    """Whether a child is known here and has not ended."""
    found = rows.read("SELECT phase FROM urm_dispatch_token WHERE child_id = ?", (child_id,))
    return bool(found) and found[0][0] != "terminal"


def function_runs(rows: Reads) -> bool:
    """Whether a function child runs now."""
    return bool(
        rows.read(
            "SELECT 1 FROM urm_dispatch_token WHERE phase = 'started' AND kind = 'function' LIMIT 1"
        )
    )


def resolve(rows: Reads, prefix: str) -> list[str]:
    """The children that an id, or the one beginning of an id, means: a child, or all that a
    session has open."""
    sessions = Sessions(rows).named(prefix)
    if len(sessions) == 1:
        return [token.child_id for token in Tokens(rows).open_in(sessions[0])]
    found = rows.read(
        "SELECT child_id FROM urm_dispatch_token WHERE child_id >= ? AND child_id < ?"
        " ORDER BY child_id LIMIT 2",
        (prefix, prefix + "\U0010ffff"),
    )
    if len(found) != 1:
        why = "more than one child begins" if found else "there is no build, session or child"
        raise NotFound(
            f"{why} {'with ' if found else ''}{prefix[:80]}", context={"subject": prefix[:128]}
        )
    return [found[0][0]]


def open_session(tx: Writes, session_id: str, cap: int, now: Micros) -> None:
    """A new session, or a new cap for one that is there."""
    tx.write(
        "INSERT INTO sessions (session_id, max_active_children, queue_high, dispatch_high,"
        " created_at)"
        " VALUES (?, ?, 0, 0, ?) ON CONFLICT (session_id) DO UPDATE SET"
        " max_active_children = excluded.max_active_children",
        (session_id, cap, now),
    )


def last_queued(rows: Reads, session_id: str) -> tuple[int, int]:
    """A session's mark of the last number in its queue, and the last number ever given there."""
    found = rows.read(
        "SELECT queue_high, (SELECT max(queue_seq) FROM urm_dispatch_token"
        " WHERE parent_session_id = ?)"
        " FROM sessions WHERE session_id = ?",
        (session_id, session_id),
    )
    if not found:
        raise NotFound(f"there is no session {session_id}", context={"session_id": session_id})
    high, seen = found[0]
    return high, max(high, seen or 0)


def set_high(tx: Writes, session_id: str, kind: str, before: int, now: int) -> None:
    """Keep the last `queue` or `dispatch` number at once; two who counted from the same mark
    cannot both (C-2, X26)."""
    tx.write(
        f"UPDATE sessions SET {kind}_high = ? WHERE session_id = ? AND {kind}_high = ?",
        (now, session_id, before),
        lambda: LeaseConflict(
            f"another dispatch of {session_id} came between", context={"session_id": session_id}
        ),
    )


def set_highs(tx: Writes, session_id: str, before: tuple[int, int], now: tuple[int, int]) -> None:
    """Keep both last numbers at once."""
    tx.write(
        "UPDATE sessions SET queue_high = ?, dispatch_high = ?"
        " WHERE session_id = ? AND queue_high = ? AND dispatch_high = ?",
        (*now, session_id, *before),
        lambda: LeaseConflict(
            f"another dispatch of {session_id} came between", context={"session_id": session_id}
        ),
    )


def ask_to_end(tx: Writes, child_id: str, cancel_request_id: str) -> None:
    """Mark a child as one that is to end; whoever runs it looks for the mark."""
    tx.write(
        "UPDATE urm_dispatch_token SET cancel_request_id = ?"
        " WHERE child_id = ? AND cancel_request_id IS NULL",
        (cancel_request_id, child_id),
    )


def join_request_to_end(tx: Writes, child_id: str, joined_request_ids: str) -> None:
    """Keep the later requests to end a child, as a JSON list."""
    tx.write(
        "UPDATE urm_dispatch_token SET joined_request_ids = ? WHERE child_id = ?",
        (joined_request_ids, child_id),
    )


def note_last_seen(tx: Writes, fence: int, last_seen: Micros) -> None:
    """For the children a dead kernel left running: how long they ran for certain."""
    tx.write(
        "UPDATE urm_dispatch_token SET last_seen = ?"
        " WHERE phase = 'started' AND phase <> 'terminal'"
        " AND owner_fence < ? AND last_seen IS NULL",
        (last_seen, fence),
    )


def last_event_of(rows: Reads, child_id: str) -> str | None:
    """The name of what a child's stream says last."""
    facts = _last(rows, child_id)
    return None if facts is None else str(facts["event"])


def last_detail_of(rows: Reads, child_id: str) -> dict[str, Any]:
    """The detail of what a child's stream says last."""
    facts = _last(rows, child_id)
    return {} if facts is None else dict(facts["detail"])


def _last(rows: Reads, child_id: str) -> Any:
    found = rows.read(
        "SELECT e.body FROM events e JOIN streams s ON s.stream_no = e.stream_no WHERE s.stream = ?"
        " ORDER BY e.seq DESC LIMIT 1",
        (f"child:{child_id}",),
    )
    return msgspec.json.decode(found[0][0]) if found else None


def pronounce(tx: Writes, child_id: str, death: str) -> None:
    """Keep the verdict on a child's processes, so that nobody has to look again."""
    tx.write(
        "UPDATE urm_dispatch_token SET death = ? WHERE child_id = ? AND death IS NULL",
        (death, child_id),
    )


def recovery_done(rows: Reads, fence: int) -> bool:
    return bool(rows.read("SELECT 1 FROM recoveries WHERE fence = ?", (fence,)))


def checked_position(rows: Reads) -> int:
    """How far the events had come when the last completed recovery checked them."""
    ((position,),) = rows.read("SELECT coalesce(max(position), 0) FROM recoveries")
    return int(position)


def ended_after(rows: Reads, position: int) -> Iterator[tuple[str, str | None]]:
    """Every child whose token came to its end after a position, and the body of the event it names,
    if there is one.

    A child that never had an event is at position 0; one that ended there is always among them."""
    eventless = rows.read(
        "SELECT child_id FROM urm_dispatch_token WHERE phase = 'terminal' AND position = 0"
        f" ORDER BY child_id LIMIT {_PAGE}"
    )
    yield from ((child_id, None) for (child_id,) in eventless)
    after: tuple[int, str] = (position, "\U0010ffff")
    while True:
        page = rows.read(
            "SELECT t.position, t.child_id, e.body FROM urm_dispatch_token t"
            " LEFT JOIN events e ON e.position = t.position"
            " WHERE t.phase = 'terminal' AND (t.position, t.child_id) > (?, ?)"
            f" ORDER BY t.position, t.child_id LIMIT {_PAGE}",
            after,
        )
        yield from ((child_id, body) for _, child_id, body in page)
        if len(page) < _PAGE:
            return
        after = (page[-1][0], page[-1][1])


def note_recovery(
    tx: Writes, fence: int, now: Micros, recovered: int, unconfirmed: int, position: int
) -> None:
    """Recovery is done under this fence; it has checked the events up to a position."""
    tx.write(
        "INSERT INTO recoveries (fence, at, recovered, unconfirmed, position)"
        " VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (fence) DO NOTHING",
        (fence, now, recovered, unconfirmed, position),
    )
