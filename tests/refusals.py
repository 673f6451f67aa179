"""What a test of a rule expects: a refusal with its code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import pytest

from onceward.errors import OncewardError


@contextmanager
def refused(code: str, words: str = "") -> Iterator[None]:
    """The block raises an error with this code, and a message that has these words in it."""
    with pytest.raises(OncewardError, match=re.escape(words) if words else None) as caught:
        yield
    assert caught.value.code == code, caught.value


def refused_unless(holds: bool, code: str, words: str = "") -> AbstractContextManager[None]:
    """The same where something does not hold; where it does, the block raises nothing."""
    return nullcontext() if holds else refused(code, words)
