"""Secrets leave no trace in what is shown or stored: their values are replaced, wherever they stand (E-4)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from onceward.errors import InvalidConfig

_SHORTEST = 4


def check_secret(name: str, value: str) -> str:
    """A secret that can be told from ordinary text; shorter ones would leave holes everywhere."""
    if len(value) < _SHORTEST:
        raise InvalidConfig(
            f"the secret {name} has fewer than {_SHORTEST} characters: it could not be redacted",
            context={"field": name},
        )
    return value


class Redactor:
    """Replaces every declared secret's value by its name, in texts and in streams that come in pieces."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self._marks: list[tuple[bytes, bytes]] = []
        for name, value in secrets.items():
            # As it is, as it stands inside JSON, and line by line where it has several.
            forms = {value, json.dumps(value)[1:-1], *value.splitlines()}
            mark = f"[redacted {name}]".encode()
            self._marks += [(os.fsencode(form), mark) for form in forms if len(form) >= _SHORTEST]
        # Longest first, so that none hides in another.
        self._marks.sort(key=lambda pair: -len(pair[0]))
        self._kept: dict[str, bytes] = {}

    def clean(self, data: bytes) -> bytes:
        for form, mark in self._marks:
            data = data.replace(form, mark)
        return data

    def text(self, text: str) -> str:
        return (
            self.clean(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass") if self._marks else text
        )

    def piece(self, stream: str, data: bytes) -> bytes:
        """The next piece of a stream; an end that may be the beginning of a secret waits for the piece after it."""
        data = self.clean(self._kept.pop(stream, b"") + data)
        held = max((_overlap(data, form) for form, _ in self._marks), default=0)
        if held:
            self._kept[stream] = data[-held:]
            data = data[:-held]
        return data

    def ends(self, head: bytes, tail: bytes) -> tuple[bytes, bytes]:
        """A text whose middle was dropped: half a secret at the cut goes too."""
        head, tail = self.clean(head), self.clean(tail)
        before = max((_overlap(head, form) for form, _ in self._marks), default=0)
        after = max((_overlap(tail[::-1], form[::-1]) for form, _ in self._marks), default=0)
        return head[: len(head) - before], tail[after:]

    def rest(self, stream: str) -> bytes:
        """What was still waiting when the stream ended."""
        return self._kept.pop(stream, b"")


def _overlap(data: bytes, form: bytes) -> int:
    """How much of the end of `data` is the beginning of `form`."""
    for size in range(min(len(data), len(form) - 1), 0, -1):
        if data.endswith(form[:size]):
            return size
    return 0
