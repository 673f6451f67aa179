"""For Python programs that run as children: spend before you spend, and say how far you are.

from onceward import child

child.spend(usd="0.01", tokens=120)     # raises BudgetExceeded when there is no room
child.progress(500, "half way")
"""

from __future__ import annotations

import fcntl
import importlib
import os
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from onceward.core.limits import REPORT_LINE_BYTES
from onceward.errors import BudgetExceeded, InvalidConfig, OncewardError, StoredError


def spend(*, settled: bool = False, **lanes: Any) -> None:
    """Debit lanes of the session's budget; `settled=True` for what is spent already."""
    say(spend=lanes, settled=settled)


def progress(thousandths: int, note: str = "") -> None:
    """Say how far this child is, from 0 to 1000."""
    if type(thousandths) is not int or not 0 <= thousandths <= 1000:
        raise InvalidConfig(f"progress must be 0 to 1000 thousandths, not {thousandths}")
    say(progress=thousandths, note=note)


def say(
    *,
    spend: Mapping[str, Any] | None = None,
    settled: bool = False,
    progress: int | None = None,
    note: str = "",
) -> None:
    """One line of the report, and its answer. Several processes of one child take turns."""
    said: dict[str, Any] = {"settled": settled} if spend else {}
    if spend:
        said["spend"] = {lane: _amount(lane, amount) for lane, amount in spend.items()}
    if progress is not None:
        said["progress"] = progress
    if note:
        said["note"] = note
    if (
        (progress is not None and type(progress) is not int)
        or not isinstance(note, str)
        or type(settled) is not bool
    ):
        raise InvalidConfig(
            "progress must be a whole number, note must be text, settled must be True or False"
        )
    said["id"] = f"{os.getpid()}-{time.monotonic_ns()}"
    if len(msgspec.json.encode(said)) > REPORT_LINE_BYTES:
        raise InvalidConfig(
            f"a report must have at most {REPORT_LINE_BYTES} bytes; shorten the note"
        )
    with _pipes() as (report, answers):
        # The answer comes on a pipe that all processes of the child share, so only one may ask at a time.
        fcntl.flock(report, fcntl.LOCK_EX)
        # Answers that nobody waited for would leave no room for ours.
        _drain(answers)
        os.write(report, msgspec.json.encode(said) + b"\n")
        answer = _answer(answers)
        while answer.get("id") != said["id"]:
            # Somebody asked and did not wait for this one.
            answer = _answer(answers)
    if not answer["ok"]:
        document = {
            "code": "INVALID_CONFIG",
            "message": "refused",
            "context": {},
            "recovery": [],
            **answer["error"],
        }
        if document["code"] == BudgetExceeded.code:
            raise BudgetExceeded(document["message"], context=document["context"])
        raise StoredError(document)


@contextmanager
def _pipes() -> Iterator[tuple[int, int]]:
    """The two pipes to the kernel: as inherited, or, where whoever started us closed them, from the child's first
    process, which the environment names."""
    names = ("ONCEWARD_REPORT_FD", "ONCEWARD_ACK_FD", "ONCEWARD_REPORT_ID", "ONCEWARD_LEADER")
    if any(name not in os.environ for name in names):
        raise InvalidConfig(
            "there is nobody to report to: this is for programs that Onceward runs (onceward spawn -- ...)"
        )
    numbers = [os.environ[name] for name in names[:2]]
    opened: list[int] = []
    try:
        for number, inode, mode in zip(
            numbers, os.environ[names[2]].split(":"), (os.O_WRONLY, os.O_RDONLY), strict=True
        ):
            # Opened anew: a lock on a descriptor that processes inherited from each other excludes none of them.
            opened.append(_open(("self", os.environ[names[3]]), number, inode, mode))
        yield opened[0], opened[1]
    except (OSError, ValueError) as error:
        raise InvalidConfig(
            f"descriptor {numbers[0]} (ONCEWARD_REPORT_FD) is closed, here and in the program that Onceward started,"
            f" or its kernel is gone ({error})"
        ) from None
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _open(places: tuple[str, ...], number: str, inode: str, mode: int) -> int:
    """A pipe by its number in one of these processes, if it is the one that is meant."""
    for place in places:
        path = f"/proc/{place}/fd/{number}"
        try:
            found = os.stat(path)  # noqa: PTH116
        except OSError:
            continue
        if stat.S_ISFIFO(found.st_mode) and str(found.st_ino) == inode:
            return os.open(path, mode | os.O_CLOEXEC)
    raise OSError(f"pipe {inode} is not open there")


def _amount(lane: str, amount: Any) -> str | int:
    if isinstance(amount, bool) or not isinstance(amount, str | int):
        shown = '"0.01"' if lane == "usd" else "120"
        raise InvalidConfig(
            f"{lane} takes {shown}, not {amount!r}: money is a string, all else a whole number"
        )
    return amount


def _drain(descriptor: int) -> None:
    os.set_blocking(descriptor, False)
    try:
        while os.read(descriptor, 65_536):
            pass
    except BlockingIOError:
        pass
    finally:
        os.set_blocking(descriptor, True)


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


def main(argv: list[str]) -> int:
    """Call a function of a module with a JSON value; what it returns is printed as JSON."""
    module, _, name = argv[1].partition(":")
    sys.path.insert(0, "")
    call: Any = importlib.import_module(module)
    for part in name.split("."):
        call = getattr(call, part)
    try:
        value = call(msgspec.json.decode(argv[2]))
    except OncewardError as error:
        print(f"{error.code}: {error.message}", file=sys.stderr)  # noqa: T201
        return _RETRYABLE.get(error.code, 1)
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    return 0


# How a program says that another attempt can help.
_RETRYABLE = {"NETWORK_ERROR": 75, "TRANSFORM_RATE_LIMIT": 76, "NEED_MORE_CONTEXT": 77}

if __name__ == "__main__":
    sys.exit(main(sys.argv))
