"""Sagas from Python files."""

from __future__ import annotations

from pathlib import Path

from onceward.code.python_file import made_in, named_in
from onceward.errors import InvalidConfig
from onceward.sagas.declaration import Saga


def saga_in(path: Path) -> Saga:
    """The saga that a Python file makes."""
    file = path.absolute()
    if not file.is_file() or file.suffix != ".py":
        what = "is no Python file" if file.exists() else "is not there"
        raise InvalidConfig(f"the saga {path} {what}", context={"file": str(path)})
    saga = made_in(file, Saga, "saga")
    named_in(file, lambda: saga.shape)
    return saga
