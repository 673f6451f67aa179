"""Views: what can be seen of a subject, typed. Commands, pages, the API and explanations are made from them."""

from __future__ import annotations

from typing import Any

import msgspec


class View(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is seen of something. A field that has nothing to say is left out of JSON."""


class LaneView(View, frozen=True):
    """What was spent in a lane, and what may be; no limit is null. Money is in millionths."""

    lane: str
    limit: int | None
    total: int


def document(view: Any) -> Any:
    """A view, or a list of views, as plain JSON values."""
    return msgspec.to_builtins(view)
