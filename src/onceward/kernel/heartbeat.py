"""Shows every few seconds that the kernel lives, and finds out when it no longer may (L-22)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from onceward.core.limits import LOCK_HEARTBEAT_SECONDS
from onceward.core.records import Tenure
from onceward.core.sources import iso, steady_micros
from onceward.errors import LockLost, OncewardError
from onceward.locks.identity import boot_id, exe_sha256
from onceward.store.port import CommitFailed, DatabaseSession, Transient
from onceward.store.store import Store
from onceward.store.tables.singleton import beat


class Heartbeat:
    """A thread and a connection of its own. Calls `on_lost` once: the tenure is another's, or cannot be shown."""

    def __init__(
        self,
        store: Store,
        tenure: Tenure,
        on_lost: Callable[[str], None],
        every: float = LOCK_HEARTBEAT_SECONDS,
        ttl: float | None = None,
    ) -> None:
        self._store, self._tenure, self._on_lost = store, tenure, on_lost
        self._every = every
        self._ttl = store.lock_ttl if ttl is None else ttl
        self._stop = threading.Event()
        self._session: DatabaseSession | None = None
        self.progress = 0
        """Raised by whoever does the kernel's work, so that a beating but stalled kernel can be told."""
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        heard = time.monotonic()
        try:
            while not self._stop.wait(self._every):
                try:
                    self._beat()
                    heard = time.monotonic()
                except LockLost as lost:
                    return self._on_lost(lost.message)
                except (OncewardError, CommitFailed, Transient) as error:
                    # Busy or out of reach is no proof of anything; only silence beyond the time to live is.
                    self._hang_up()
                    if time.monotonic() - heard > self._ttl:
                        return self._on_lost(f"the lock could not be renewed in time: {error}")
        finally:
            self._hang_up()
        return None

    def _beat(self) -> None:
        self._session = self._session or self._store.database.connect()
        session = self._session
        session.begin(None)
        try:
            session.hold()
            beat(
                session,
                self._tenure,
                exe_sha256(),
                iso(session.now()),
                (boot_id(), steady_micros(), self.progress),
                lambda: LockLost("another kernel has taken this workspace"),
            )
            session.commit()
        finally:
            session.rollback()

    def _hang_up(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()
