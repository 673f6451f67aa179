"""Text that people decide about is shown whole: what cannot be seen, or looks like a space and
is none, gets a mark."""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import Final

_IGNORABLE: Final = (
    (0x00AD, 0x00AD),
    (0x034F, 0x034F),
    (0x061C, 0x061C),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x200B, 0x200F),
    (0x202A, 0x202E),
    (0x2060, 0x206F),
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),
    (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFFB),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0xE0000, 0xE0FFF),
)
"""Unicode's Default_Ignorable_Code_Point (DerivedCoreProperties, 16.0) and the annotation
characters: drawn as nothing."""
_BLANK: Final = frozenset({0x2800, 0xFFFC, 0x16FE4, 0x1D159})
"""Drawn as nothing, though Unicode counts them among the signs."""
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def hidden(char: str) -> bool:
    """Whether a character cannot be seen, or is a space that is not the one of ASCII. Tabs and
    ends of lines are seen."""
    code = ord(char)
    if code < 0x7F:
        return code < 0x20 and char not in "\t\n"
    category = unicodedata.category(char)
    return (
        category in _UNSEEN
        or category == "Zs"
        or code in _BLANK
        or any(first <= code <= last for first, last in _IGNORABLE)
    )


def marked(text: str) -> str:
    """Text with a mark for every character that is hidden in it."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_mark, text))


@lru_cache(maxsize=4096)
def _mark(char: str) -> str:
    if not hidden(char):
        return char
    code = ord(char)
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"⟨U+{code:04X}⟩"
