"""What may be asked of sessions: commands to run as children."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from onceward.core.acts import work
from onceward.core.orders import Jobs, Order, Seconds


class Spawn(Order, frozen=True):
    argv: tuple[str, ...]
    session: str = ""
    """Go on in this session, or open one of this id; a new one of its own where it is empty."""
    folder: str = ""
    """Where to run, as seen from the workspace's own folder; it must lie in one of [server] folders."""
    jobs: Jobs | None = None
    budget: dict[str, Any] = {}
    target: str | None = None
    timeout: Seconds | None = None
    attempts: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1
    env: tuple[str, ...] = ()
    """Names of the asker's variables that it may see. Their values never travel with the request."""
    secrets: tuple[str, ...] = ()
    """The same, and redacted in whatever it leaves."""
    operation: str = ""
    effect: str = ""
    each: tuple[str, ...] = ()


work(
    "sessions.spawn",
    Spawn,
    role="operator",
    path="/sessions",
    operation="spawn",
    summary="run commands as children",
)
