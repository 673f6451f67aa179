"""The life of a registry value: active, replaced by a successor, or withdrawn (S-5)."""

from __future__ import annotations

from onceward.kernel.machine import Machine

VALUE = Machine.parse(
    "value",
    """
    new        -> active      -                          VALUE_ADMITTED
    active     -> superseded  successor_named            VALUE_SUPERSEDED
    active     -> retired     withdrawn | compensated    VALUE_RETIRED
    superseded -> retired     withdrawn                  VALUE_RETIRED

    terminal retired
    """,
)
