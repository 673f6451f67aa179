"""Onceward: costly, consequential work, done once and proven afterwards."""

import sys
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":
    raise ImportError(
        "Onceward runs on Linux, and on macOS as best it can; not on Windows, whose files and processes"
        " cannot be locked the way it needs. On Windows, use it inside WSL 2."
    )

from onceward.core.version import VERSION
from onceward.errors import BudgetExceeded, NeedMoreContext, NetworkError, OncewardError, RateLimit

if TYPE_CHECKING:
    from onceward.changes.cutters import Place
    from onceward.dispatch.task import Task
    from onceward.engine import Engine, Handle, open
    from onceward.plan import BuildStopped, Plan, Result
    from onceward.saga import Saga, SagaStopped
    from onceward.workspace import Workspace

__version__ = VERSION
__all__ = [
    "BudgetExceeded",
    "BuildStopped",
    "Engine",
    "Handle",
    "NeedMoreContext",
    "NetworkError",
    "OncewardError",
    "Place",
    "Plan",
    "RateLimit",
    "Result",
    "Saga",
    "SagaStopped",
    "Task",
    "Workspace",
    "__version__",
    "open",
]

_LATE = {
    "Place": "onceward.changes.cutters",
    "Plan": "onceward.plan",
    "Result": "onceward.plan",
    "BuildStopped": "onceward.plan",
    "Saga": "onceward.saga",
    "SagaStopped": "onceward.saga",
    "Task": "onceward.dispatch.task",
    "open": "onceward.engine",
    "Engine": "onceward.engine",
    "Handle": "onceward.engine",
    "Workspace": "onceward.workspace",
}


def __getattr__(name: str) -> Any:
    """Names that need the engine are imported when they are asked for: `--help` and locks stay quick."""
    if name not in _LATE:
        raise AttributeError(f"module 'onceward' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LATE[name]), name)
