"""For Python programs that run as children: spend before you spend, and say how far you are.

from onceward import child

child.spend(usd="0.01", tokens=120)     # raises BudgetExceeded when there is no room
child.progress(500, "half way")
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from typing import Any

import msgspec

from onceward.errors import BudgetExceeded, InvalidConfig, StoredError


def spend(*, settled: bool = False, **lanes: Any) -> None:
    """Debit lanes of the session's budget; `settled=True` for what is spent already."""
    say(spend=lanes, settled=settled)


def progress(thousandths: int, note: str = "") -> None:
    """Say how far this child is."""
    say(progress=thousandths, note=note)


def say(
    *, spend: Mapping[str, Any] | None = None, settled: bool = False, progress: int | None = None, note: str = ""
) -> None:
    """One line of the report, and its answer. Several processes of one child take turns."""
    try:
        report, answers = int(os.environ["ONCEWARD_REPORT_FD"]), int(os.environ["ONCEWARD_ACK_FD"])
        os.fstat(report)
        os.fstat(answers)
    except (KeyError, ValueError, OSError):
        raise InvalidConfig(
            "there is nobody to report to: this is for programs that Onceward runs (onceward spawn -- ...)"
        ) from None
    said: dict[str, Any] = {"settled": settled} if spend else {}
    if spend:
        said["spend"] = dict(spend)
    if progress is not None:
        said["progress"] = progress
    if note:
        said["note"] = note
    # The answer to our line comes on a pipe that all processes of the child share, so only one may ask at a time.
    fcntl.flock(report, fcntl.LOCK_EX)
    try:
        os.write(report, msgspec.json.encode(said) + b"\n")
        answer = _answer(answers)
    finally:
        fcntl.flock(report, fcntl.LOCK_UN)
    if not answer["ok"]:
        document = {"context": {}, "recovery": [], **answer["error"]}
        if document["code"] == BudgetExceeded.code:
            raise BudgetExceeded(document["message"], context=document["context"])
        raise StoredError(document)


def _answer(descriptor: int) -> dict[str, Any]:
    line = b""
    while not line.endswith(b"\n"):
        # A letter at a time: what follows the line belongs to whoever asks next.
        letter = os.read(descriptor, 1)
        if not letter:
            raise InvalidConfig("the kernel that ran this child is gone")
        line += letter
    answer: dict[str, Any] = msgspec.json.decode(line)
    return answer
