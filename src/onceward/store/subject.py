"""Finding a subject of some kind by its name, and the last moves of its stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from onceward.core.chain import Event
from onceward.core.sources import iso
from onceward.core.views import Explanation
from onceward.store.port import Reads
from onceward.store.store import Store
from onceward.store.tables.events import newest_of

_STORY = 6


class Kind(msgspec.Struct, frozen=True):
    """A kind of thing: how to tell that a name means one of it, and what to say."""

    name: str
    find: Callable[[Reads, str], str | None]
    """The whole id of the one that is meant; None if it is of another kind."""
    explain: Callable[[Store, str], Explanation]


def story(rows: Reads, stream: str, source: str) -> list[str]:
    """The last moves that a stream tells of: when, what, by whom."""
    return [_line(event) for event in newest_of(rows, stream, source, _STORY)]


def _line(event: Event) -> str:
    facts = event.facts()
    name, actor = facts["event"], facts["context"]["actor"]
    return f"{iso(event.at)[:19]}  {name}{_because(facts['detail'])} by {actor}"


def _because(detail: Mapping[str, Any]) -> str:
    return f" ({detail['reason']})" if detail.get("reason") else ""
