"""What cannot be seen is marked, and nothing else is."""

from __future__ import annotations

import sys
import unicodedata

import pytest

from onceward.core.hidden import hidden, marked

FORTY = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b\u180e\u200b\u200c\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e"
    "\u2060\u2061\u2062\u2063\u2064\u2066\u2067\u2068\u2069\u3164\ufe00\ufe0f\ufeff\uffa0\U000e0001\U000e0041\U000e007f"
    "\U000e0100\u00a0\u2003\u202f\u3000\u2028\u2800\u0085\x1b\x07\r\x7f\ufffa\U0001d173"
)
"""Characters by which text hides: tags, soft hyphens, joiners, directions, selectors, fillers, spaces that are none."""


@pytest.mark.parametrize("char", FORTY, ids=lambda char: f"{ord(char):04x}")
def test_every_way_to_hide_is_marked(char):
    shown = marked(f"pay{char}load")
    assert char not in shown and len(shown) > len("payload")
    assert shown.startswith("pay") and shown.endswith("load")
    assert all(one.isprintable() for one in shown)


def test_what_people_write_stays_as_it_is():
    text = "naïve Straße 日本語 עברית हिन्दी 🙂 ∑ “quoted” — x\ty\nz"
    assert marked(text) == text


def test_whatever_unicode_says_is_ignored_or_drawn_as_nothing_is_hidden():
    """By the interpreter's own tables, character by character."""
    for code in range(sys.maxunicode + 1):
        char = chr(code)
        category = unicodedata.category(char)
        if category in ("Cf", "Cc", "Cs", "Zl", "Zp") or (category == "Zs" and char != " "):
            assert hidden(char) or char in "\t\n", hex(code)
        elif category[0] in "LNPS" and char.isprintable() and not hidden(char):
            assert marked(char) == char


def test_no_mark_can_be_mistaken_for_nothing():
    assert len({marked(char) for char in FORTY}) == len(set(FORTY))
