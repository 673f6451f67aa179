"""Names of files as text (H-2)."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.core.paths import is_path_text, path_text, raw_path


@pytest.mark.rule("H-2")
@pytest.mark.parametrize(
    ("name", "text"),
    [
        (b"plain.txt", "plain.txt"),
        ("grün/ñ.txt".encode(), "grün/ñ.txt"),
        (b"two\nlines", "two\\x0alines"),
        (b"back\\slash", "back\\\\slash"),
        (b"looks\\x0a", "looks\\\\x0a"),
        (b"latin\xe9", "latin\\xe9"),
        (b"half\xc3/\xa4", "half\\xc3/\\xa4"),
        (unicodedata.normalize("NFD", "ä").encode(), "a\\xcc\\x88"),
    ],
)
def test_every_name_has_one_spelling(name, text):
    assert path_text(name) == text and raw_path(text) == name
    assert is_path_text(text)


@pytest.mark.parametrize("text", ["a\\b", "\\x41", "\\xC3", "\\x", "a\nb", "\\xc3\\xa4", "\ud800"])
def test_other_spellings_are_none(text):
    assert not is_path_text(text)


@given(st.binary(max_size=40))
def test_any_bytes_come_back(name):
    name = name.replace(b"\0", b"")
    text = path_text(name)
    assert raw_path(text) == name and is_path_text(text)
    text.encode("utf-8")
    assert unicodedata.is_normalized("NFC", text) or "\\" in text


@given(st.text(max_size=30))
def test_of_two_spellings_that_mean_one_name_one_counts(text):
    if is_path_text(text):
        assert path_text(raw_path(text)) == text
