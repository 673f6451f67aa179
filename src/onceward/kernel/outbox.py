"""One pass over the outbox of a sink: at least once, in order within a stream, backing off after a failure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from onceward.core import faults
from onceward.core.limits import (
    OUTBOX_BACKOFF_MAX_MICROS,
    OUTBOX_BACKOFF_MICROS,
    OUTBOX_BATCH,
    OUTBOX_TRIES,
)
from onceward.core.sources import Micros, Sources
from onceward.errors import OncewardError
from onceward.kernel.sinks import DeliveryCancelled, Sink
from onceward.store.store import Store
from onceward.store.tables.outbox import Parcel, delivered, parcels, postponed
from onceward.store.transaction import Transaction

_GIVE_UP_AFTER = 3


class Delivery(msgspec.Struct, frozen=True):
    """What one pass over one sink came to."""

    sink: str
    delivered: int
    failed: int
    last_error: str | None = None


def deliver(store: Store, sinks: Sequence[Sink]) -> list[Delivery]:
    """One pass over each sink in turn: everything that is due goes out."""
    return [deliver_to(store, sink) for sink in sinks]


def pause_before_retry(attempts: int, sources: Sources) -> Micros:
    """How long to wait after the `attempts`-th failure: doubling, with up to a quarter of jitter."""
    pause = min(OUTBOX_BACKOFF_MICROS << min(attempts, 40), OUTBOX_BACKOFF_MAX_MICROS)
    return int(pause * (1 - sources.fraction() / 4))


def deliver_to(
    store: Store,
    sink: Sink,
    *,
    again: bool = True,
    abandoned: Callable[[], bool] = lambda: False,
) -> Delivery:
    """One pass over one sink: everything that is due, or, without `again`, only what was never tried.

    Nothing is settled any more once `abandoned` says so: somebody else may hold the writer lock by then."""
    after = sent = failed = 0
    held_back: set[str] = set()
    last_error: str | None = None
    while failed < (_GIVE_UP_AFTER if again else 1) and not _over(sink):
        with store.read() as rows:
            page = parcels(rows, sink.name, after, OUTBOX_BATCH)
            now = rows.now()
        if not page:
            break
        after = page[-1].event.position
        held_back |= set() if again else {parcel.event.stream for parcel in page if parcel.attempts}
        accepted, failures = _send(
            sink, page, held_back, now, _GIVE_UP_AFTER - failed if again else 1
        )
        faults.point("outbox.delivered")
        if abandoned():
            break
        if accepted or failures:
            _settle(store, accepted, failures)
        faults.point("outbox.settled")
        sent, failed = sent + len(accepted), failed + len(failures)
        last_error = failures[-1][1] if failures else last_error
    return Delivery(sink.name, sent, failed, last_error)


def _over(sink: Sink) -> bool:
    return sink.deadline is not None and sink.deadline.over


def _send(
    sink: Sink, page: list[Parcel], held_back: set[str], now: Micros, patience: int
) -> tuple[list[Parcel], list[tuple[Parcel, str]]]:
    """Offer a page to the sink. A stream whose event is not accepted waits behind it, to keep its order."""
    accepted: list[Parcel] = []
    failures: list[tuple[Parcel, str]] = []
    for parcel in page:
        stream = parcel.event.stream
        if stream in held_back or parcel.parked or parcel.due_at > now:
            held_back.add(stream)
            continue
        if len(failures) == patience or _over(sink):
            break
        try:
            sink.send(parcel)
        except DeliveryCancelled:
            break
        except Exception as error:
            failures.append((parcel, _why(error)))
            held_back.add(stream)
        else:
            accepted.append(parcel)
    try:
        sink.settle()
    except Exception as error:
        return [], [*failures, *((parcel, _why(error)) for parcel in accepted)][:patience]
    return accepted, failures


def _why(error: Exception) -> str:
    """What went wrong, for people; a stranger's words may hold a secret, so only their kind is told."""
    return (
        error.message
        if isinstance(error, OncewardError)
        else f"the sink failed: {type(error).__name__}"
    )


def _settle(store: Store, accepted: list[Parcel], failures: list[tuple[Parcel, str]]) -> None:
    def settle(tx: Transaction) -> None:
        delivered(tx, accepted)
        for parcel, error in failures:
            parked = parcel.attempts + 1 >= OUTBOX_TRIES
            due_at = tx.now + pause_before_retry(parcel.attempts, tx.sources)
            postponed(tx, parcel, due_at, tx.now if parked else None, error)

    store.write(settle)
