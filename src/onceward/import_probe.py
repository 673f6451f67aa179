"""The program of a probe: loads somebody's code in a process of its own, and says what came of it (K-15).

Run by `onceward.loading`, as `python -m onceward.import_probe ORDER DESCRIPTOR`."""

from __future__ import annotations

import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from onceward.builds.choices import Choices
from onceward.builds.plan_file import load
from onceward.code.python_file import imported
from onceward.errors import ExecutionFailed, OncewardError
from onceward.processes.standby import prctl
from onceward.sagas.saga_file import saga_in

_PDEATHSIG = 1
_SPARE_SECONDS = 30


class Probe(msgspec.Struct, frozen=True):
    """What to load, and under which limits."""

    kind: str
    """`plan`, `saga`, or `name` for something that a module defines."""
    place: str
    """The file, or `module:name`."""
    seconds: float
    memory: int
    folder: str = ""
    """For `name`: where the module is looked for first."""
    choices: dict[str, Any] = {}


class ProbeReport(msgspec.Struct, frozen=True):
    """What came of it: nothing is amiss unless something is said."""

    error: dict[str, Any] = {}
    out_of_memory: bool = False


def main(order: str, descriptor: str) -> None:
    probe = msgspec.json.decode(order, type=Probe)
    _limit(probe)
    report = _report(probe)
    os.write(int(descriptor), msgspec.json.encode(report))
    # Whatever it started, threads included, is not waited for.
    os._exit(0)


def _report(probe: Probe) -> ProbeReport:
    try:
        _load(probe)
    except MemoryError:
        return ProbeReport(out_of_memory=True)
    except OncewardError as error:
        if _out_of_memory(error):
            return ProbeReport(out_of_memory=True)
        return ProbeReport(_short(error))
    except (Exception, SystemExit) as error:
        return ProbeReport(_short(ExecutionFailed(f"{type(error).__name__}: {error}")))
    return ProbeReport()


def _load(probe: Probe) -> None:
    if probe.kind == "plan":
        load(Path(probe.place), msgspec.convert(probe.choices, Choices, strict=False))
    elif probe.kind == "saga":
        saga_in(Path(probe.place))
    else:
        imported(probe.place, Path(probe.folder))


def _out_of_memory(error: BaseException | None) -> bool:
    """Whether a refusal came of it, however it was told on the way."""
    while error is not None and not isinstance(error, MemoryError):
        error = error.__cause__ or error.__context__
    return error is not None


def _short(error: OncewardError) -> dict[str, Any]:
    """Short enough for a pipe that nobody reads yet."""
    document = error.document()
    context = {name: value for name, value in error.context.items() if len(str(value)) < 500}
    return {**document, "message": error.message[:4000], "context": context}


def _limit(probe: Probe) -> None:
    """Limits that hold whatever the code does; the time limit is a second one, for the case that our parent died."""
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (probe.memory, probe.memory))
    prctl(_PDEATHSIG, signal.SIGKILL)
    signal.setitimer(signal.ITIMER_REAL, probe.seconds + _SPARE_SECONDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
