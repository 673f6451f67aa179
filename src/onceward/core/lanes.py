"""Budget lanes: what can be counted and limited (C-30). A lane is declared here, and in the CHECK of its table."""

from __future__ import annotations

from typing import Final

import msgspec


class LaneKind(msgspec.Struct, frozen=True):
    """One dimension of a budget."""

    name: str
    """As stored."""
    asked: str
    """As people and children name it."""
    label: str
    """As it is shown."""


KINDS: Final = (
    LaneKind("solver_calls", asked="solver_calls", label="solver calls"),
    LaneKind("duration_secs", asked="duration_secs", label="seconds of work"),
    LaneKind("tokens", asked="tokens", label="tokens"),
    LaneKind("usd_micros", asked="usd", label="usd"),
)
LANES: Final = tuple(kind.name for kind in KINDS)
LABELS: Final = {kind.name: kind.label for kind in KINDS}
LANE_NAMES: Final = tuple(kind.asked for kind in reversed(KINDS))
"""The names to ask by, money first."""
LANE_BY_NAME: Final = {kind.asked: kind.name for kind in KINDS}
