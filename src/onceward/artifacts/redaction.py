"""Secrets leave no trace in what is shown or stored: their values are replaced, wherever they
stand (E-4)."""

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
    """Replaces every declared secret's value by its name, in texts and in streams that come in
    pieces."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self._marks: list[tuple[bytes, bytes]] = []
        for name, value in secrets.items():
            # As it is, as it stands inside JSON, and line by line where it has several.
            spelled = {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
            forms = {value, *spelled, *value.splitlines()}
            mark = f"[redacted {name}]".encode()
            self._marks += [(os.fsencode(form), mark) for form in forms if len(form) >= _SHORTEST]
        self._kept: dict[str, bytes] = {}

    def also(self, secrets: Mapping[str, str]) -> Redactor:
        """One that replaces these too; what waits in this one's streams stays here."""
        made = Redactor(secrets)
        made._marks += self._marks
        return made

    def clean(self, data: bytes) -> bytes:
        """The same without secrets; where two overlap, all of both goes."""
        out, at = b"", 0
        for start, end, mark in self._spans(data):
            out += data[at:start] + mark
            at = end
        return out + data[at:] if at else data

    def text(self, text: str) -> str:
        if not self._marks:
            return text
        try:
            data, errors = text.encode("utf-8", "surrogateescape"), "surrogateescape"
        except UnicodeEncodeError:
            data, errors = text.encode("utf-8", "surrogatepass"), "surrogatepass"
        return self.clean(data).decode("utf-8", errors)

    def piece(self, stream: str, data: bytes) -> bytes:
        """The next piece of a stream; an end that may be the beginning of a secret waits for the
        piece after it."""
        data = self._kept.pop(stream, b"") + data
        cut = self._safe_end(data)
        if cut < len(data):
            self._kept[stream] = data[cut:]
        return self.clean(data[:cut])

    def rest(self, stream: str) -> bytes:
        """The data that was still held back when the stream ended."""
        return self.clean(self._kept.pop(stream, b""))

    def ends(self, head: bytes, tail: bytes) -> tuple[bytes, bytes]:
        """A text whose middle was dropped: half a secret at the cut goes too."""
        after = max((_overlap(tail[::-1], form[::-1]) for form, _ in self._marks), default=0)
        return self.clean(head[: self._safe_end(head)]), self.clean(tail[after:])

    def _safe_end(self, data: bytes) -> int:
        """Up to where nothing that comes later can make a secret out of what is there."""
        cut = len(data) - max((_overlap(data, form) for form, _ in self._marks), default=0)
        for start, end, _ in self._spans(data):
            if start < cut < end:
                cut = start
        return cut

    def _spans(self, data: bytes) -> list[tuple[int, int, bytes]]:
        """The places of secrets, overlapping ones merged."""
        places = []
        for form, mark in self._marks:
            at = data.find(form)
            while at >= 0:
                # Of those that begin together, the longest comes first and gives its mark.
                places.append((at, -at - len(form), mark))
                at = data.find(form, at + 1)
        merged: list[tuple[int, int, bytes]] = []
        for start, negative_end, mark in sorted(places):
            end = -negative_end
            if merged and start < merged[-1][1]:
                first_start, last_end, first_mark = merged[-1]
                merged[-1] = (first_start, max(end, last_end), first_mark)
            else:
                merged.append((start, end, mark))
        return merged


def _overlap(data: bytes, form: bytes) -> int:
    """How much of the end of `data` is the beginning of `form`, but not all of it."""
    for size in range(min(len(data), len(form) - 1), 0, -1):
        if data.endswith(form[:size]):
            return size
    return 0
