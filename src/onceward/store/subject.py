"""How a thing of some kind is found by its name, and the last moves that its stream tells of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

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
    return [
        f"{iso(event.at)[:19]}  {told['event']}{_because(told['detail'])} by {told['context']['actor']}"
        for event in newest_of(rows, stream, source, _STORY)
        for told in (event.facts(),)
    ]


def _because(detail: Mapping[str, Any]) -> str:
    return f" ({detail['reason']})" if detail.get("reason") else ""
