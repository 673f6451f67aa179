"""A lifecycle as a page of data: states, arrows, the reasons each takes, the event it emits
(K-3)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from onceward.core.fold import Stated
from onceward.errors import IllegalTransition

NEW = "new"
"""What a subject is before its first move."""

_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Arrow:
    """One allowed move. `reason` and `event` are None where the table says `-`."""

    source: str
    target: str
    reason: str | None
    event: str | None
    bookkeeping: bool = False


class MachineError(ValueError):
    """A lifecycle's table contradicts itself; found at import."""


class Machine:
    """A lifecycle read from its table; immutable."""

    def __init__(
        self,
        name: str,
        arrows: Iterable[Arrow],
        terminal: Iterable[str],
        transient: Iterable[str] = (),
        stated: Stated | None = None,
    ) -> None:
        self.name = name
        self.stated = stated if stated is not None else Stated((), {})
        """Which columns of its rows its events state."""
        self.arrows = tuple(arrows)
        self.terminal = tuple(terminal)
        self.transient = tuple(transient)
        self.states = _in_order(self.arrows)
        self._index: Mapping[tuple[str, str, str | None], Arrow] = MappingProxyType(
            {(a.source, a.target, a.reason): a for a in self.arrows}
        )
        self._examine()

    @classmethod
    def parse(cls, name: str, table: str, columns: str = "") -> Machine:
        """Read a table of lines `from | from -> to  reason | reason  EVENT  [bookkeeping]`, `-` for
        none.

        `columns` is the table of what its events state of a row; `core/fold.py` has its form."""
        arrows: list[Arrow] = []
        marked: dict[str, tuple[str, ...]] = {"terminal": (), "transient": ()}
        for number, line in enumerate(table.splitlines(), 1):
            words = re.sub(r"\s*\|\s*", "|", line.strip()).split()
            if not words:
                continue
            if words[0] in marked:
                marked[words[0]] += tuple(words[1:])
            elif len(words) in (5, 6) and words[1] == "->" and words[5:] in ([], ["bookkeeping"]):
                sources, _, target, reasons, event = words[:5]
                for source in sources.split("|"):
                    for reason in reasons.split("|"):
                        arrows.append(
                            Arrow(
                                source=source,
                                target=target,
                                reason=_or_none(reason),
                                event=_or_none(event),
                                bookkeeping=len(words) == 6,
                            )
                        )
            else:
                raise MachineError(f"{name}, line {number}: cannot read {line.strip()!r}")
        stated = Stated.parse(columns)
        return cls(name, arrows, marked["terminal"], marked["transient"], stated)

    @property
    def initial(self) -> str:
        return next(a.target for a in self.arrows if a.source == NEW)

    @property
    def persistent(self) -> tuple[str, ...]:
        """The states that may be found in a store between two transactions."""
        return tuple(state for state in self.states if state not in self.transient)

    def find(self, source: str, target: str, reason: str | None) -> Arrow | None:
        return self._index.get((source, target, reason))

    def follow(self, source: str, target: str, reason: str | None) -> Arrow:
        """The arrow of this move, or ILLEGAL_TRANSITION saying what would be allowed."""
        arrow = self.find(source, target, reason)
        if arrow is None:
            raise self._refusal(source, target, reason)
        return arrow

    def allows(self, source: str, target: str) -> bool:
        return any(a.source == source and a.target == target for a in self.arrows)

    def events(self) -> frozenset[str]:
        return frozenset(a.event for a in self.arrows if a.event)

    def document(self) -> dict[str, Any]:
        arrows = [
            {"from": a.source, "to": a.target, "reason": a.reason, "event": a.event}
            for a in self.arrows
        ]
        said = {"name": self.name, "states": list(self.states), "terminal": list(self.terminal)}
        return {**said, "transient": list(self.transient), "arrows": arrows}

    def mermaid(self) -> str:
        """The machine as a Mermaid state diagram."""
        labels: dict[tuple[str, str], list[str]] = {}
        for arrow in self.arrows:
            labels.setdefault((arrow.source, arrow.target), []).append(arrow.reason or "")
        lines = ["stateDiagram-v2"]
        for (source, target), reasons in labels.items():
            text = ", ".join(filter(None, reasons))
            lines.append(
                f"    {'[*]' if source == NEW else source} --> {target}{f' : {text}' if text else ''}"
            )
        lines += [f"    {state} --> [*]" for state in self.terminal]
        return "\n".join(lines)

    def _refusal(self, source: str, target: str, reason: str | None) -> IllegalTransition:
        context = {"machine": self.name, "from": source, "to": target, "reason": reason}
        reasons = [a.reason for a in self.arrows if (a.source, a.target) == (source, target)]
        if reasons:
            wanted = ", ".join(r or "no reason" for r in reasons)
            return IllegalTransition(
                f"{self.name}: {source} -> {target} does not take the reason {reason!r}; it takes {wanted}",
                context=context,
            )
        targets = list(dict.fromkeys(a.target for a in self.arrows if a.source == source))
        onward = (
            f"from {source} it may go to {', '.join(targets)}" if targets else f"{source} is final"
        )
        return IllegalTransition(
            f"{self.name}: there is no move {source} -> {target}; {onward}", context=context
        )

    def _examine(self) -> None:
        if len(self._index) != len(self.arrows):
            raise MachineError(f"{self.name}: an arrow stands twice")
        births = {a.target for a in self.arrows if a.source == NEW}
        if len(births) != 1:
            raise MachineError(
                f"{self.name}: exactly one state must follow {NEW!r}, not {sorted(births)}"
            )
        if any(a.target == NEW for a in self.arrows):
            raise MachineError(f"{self.name}: nothing becomes {NEW!r} again")
        reasons = [arrow.reason for arrow in self.arrows if arrow.reason]
        for word in (*self.states, *reasons, *self.events()):
            if not _WORD.fullmatch(word):
                raise MachineError(f"{self.name}: {word!r} is not a name")
        for state in (*self.terminal, *self.transient):
            if state not in self.states:
                raise MachineError(f"{self.name}: {state} is marked but no arrow names it")
        for arrow in self.arrows:
            if arrow.source in self.terminal and not arrow.bookkeeping:
                raise MachineError(
                    f"{self.name}: {arrow.source} is terminal but leads to {arrow.target}"
                )
        unreachable = set(self.states) - self._reachable()
        if unreachable:
            raise MachineError(f"{self.name}: nothing leads to {sorted(unreachable)}")
        stuck = set(self.states) - set(self.terminal) - {a.source for a in self.arrows}
        if stuck:
            raise MachineError(
                f"{self.name}: nothing leads out of {sorted(stuck)} and they are not terminal"
            )

    def _reachable(self) -> set[str]:
        found: set[str] = set()
        frontier = {NEW}
        while frontier:
            frontier = {a.target for a in self.arrows if a.source in frontier} - found
            found |= frontier
        return found


def _or_none(word: str) -> str | None:
    return None if word == "-" else word


def _in_order(arrows: Iterable[Arrow]) -> tuple[str, ...]:
    names = (name for arrow in arrows for name in (arrow.source, arrow.target))
    return tuple(dict.fromkeys(name for name in names if name != NEW))
