"""Ordered records read along with others, and sums that stand for what was seen: how `verify`
does without memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from onceward.core.sources import LiveSources

_SALT = LiveSources().secret().encode()
"""A key of this process: whoever forges records cannot know it."""


def mark(*parts: Any) -> int:
    """A number that stands for these parts together: sums of marks agree only where what was
    added does."""
    data = msgspec.json.encode(parts)
    return int.from_bytes(hashlib.blake2b(data, key=_SALT, digest_size=12).digest(), "big")


class Ahead:
    """An ordered run of records that is read along with another."""

    def __init__(self, items: Iterator[Any], key: Callable[[Any], str]) -> None:
        self._items, self._key = items, key
        self._next = next(items, None)

    def before(self, key: str) -> Iterator[Any]:
        """The records that come before `key`."""
        while self._next is not None and self._key(self._next) < key:
            passed, self._next = self._next, next(self._items, None)
            yield passed

    def at(self, key: str) -> Any:
        """The one of that key, or None."""
        if self._next is None or self._key(self._next) != key:
            return None
        found, self._next = self._next, next(self._items, None)
        return found

    def all(self, key: str) -> Iterator[Any]:
        """Every one of that key."""
        while (found := self.at(key)) is not None:
            yield found

    def rest(self) -> Iterator[Any]:
        while self._next is not None:
            passed, self._next = self._next, next(self._items, None)
            yield passed


def weight(child: str, lane: str) -> int:
    """A number nobody can foresee that stands for a child's spending in a lane."""
    return mark(child, lane)
