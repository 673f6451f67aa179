"""Values of environment variables that somebody brings for a request: in memory only, until it is taken (C-9)."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import NamedTuple

from onceward.core.limits import BROUGHT_SECONDS, MAX_BROUGHT


class _Brought(NamedTuple):
    principal: str
    values: Mapping[str, str]
    until: float


class Environments:
    """By request id; what is too old, or too much, is forgotten."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._brought: dict[str, _Brought] = {}

    def bring(self, principal: str, request_id: str, values: Mapping[str, str]) -> None:
        now = time.monotonic()
        with self._mutex:
            kept = {key: one for key, one in self._brought.items() if one.until > now}
            kept.pop(request_id, None)
            kept[request_id] = _Brought(principal, dict(values), now + BROUGHT_SECONDS)
            # The oldest stand first.
            self._brought = dict(list(kept.items())[-MAX_BROUGHT:])

    def of(self, request_id: str, *principals: str) -> Mapping[str, str]:
        """What one of these principals brought for a request; nothing where nobody did."""
        with self._mutex:
            found = self._brought.get(request_id)
        if found is None or found.principal not in principals or found.until < time.monotonic():
            return {}
        return found.values

    def forget(self, request_id: str) -> None:
        with self._mutex:
            self._brought.pop(request_id, None)
