"""Reading Python source into a syntax tree, from any thread."""

from __future__ import annotations

import ast
import threading
import types
import warnings
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")
_ALONE: Final = threading.Lock()
"""Python 3.11 counts the depth of its parser once for all threads, and raises SystemError where two of them parse at
the same time (fixed in later versions). `warnings.catch_warnings` is for one thread at a time, too."""
_TRIES: Final = 100
"""Somebody else's code may parse beside us, without our lock."""


def parsed(text: str) -> ast.Module:
    """The syntax tree of a source; SyntaxError or ValueError where it is no Python."""
    return undisturbed(lambda: ast.parse(text))


def compiled(tree: ast.Module, name: str) -> types.CodeType:
    """The code of a syntax tree."""
    return undisturbed(lambda: compile(tree, name, "exec", dont_inherit=True))


def undisturbed(read: Callable[[], T]) -> T:
    """Do something that uses Python's parser, as `inspect.getsource` does for classes, alone in this process."""
    with _ALONE, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(_TRIES):
            try:
                return read()
            except SystemError:
                continue
        return read()
