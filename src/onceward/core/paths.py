"""File names as text: every name that a file can have, in exactly one spelling.

A name of a file is bytes. What is readable text stands for itself. A backslash is written twice,
and what is no text, a control character, or not in Unicode's composed form is written byte by
byte as `\\xHH`."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_ESCAPE: Final = re.compile(rb"\\(?:\\|x([0-9a-f]{2}))")
_PLAIN: Final = re.compile("[^\x00-\x1f\x7f\\\\\ud800-\udfff]*")


def path_text(raw: bytes) -> str:
    """The bytes of a path as recorded text."""
    text = raw.decode("utf-8", "surrogateescape")
    if _PLAIN.fullmatch(text) and unicodedata.is_normalized("NFC", text):
        return text
    return "/".join(_part_text(part) for part in text.split("/"))


def raw_path(text: str) -> bytes:
    """The bytes of the path that recorded text means."""
    return _ESCAPE.sub(_meant, text.encode("utf-8"))


def is_path_text(text: str) -> bool:
    """Whether text is the one spelling of a path."""
    try:
        return path_text(raw_path(text)) == text
    except UnicodeEncodeError:
        return False


def _part_text(part: str) -> str:
    composed = unicodedata.is_normalized("NFC", part)
    return "".join(_character_text(one, composed) for one in part)


def _character_text(one: str, composed: bool) -> str:
    if one == "\\":
        return "\\\\"
    if _PLAIN.fullmatch(one) and (composed or one.isascii()):
        return one
    return "".join(f"\\x{byte:02x}" for byte in one.encode("utf-8", "surrogateescape"))


def _meant(found: re.Match[bytes]) -> bytes:
    return b"\\" if found[1] is None else bytes([int(found[1], 16)])
