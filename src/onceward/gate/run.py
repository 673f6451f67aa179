"""`gate run`: every locked fixture executed in three fresh processes, each in a world of its own
(R-2, X34)."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from onceward.core import faults
from onceward.errors import InvalidConfig, OncewardError
from onceward.gate.manifest import (
    GateManifest,
    Judged,
    LockedFixture,
    Outcome,
    judge,
    read_manifest,
    report,
)
from onceward.gate.play import play
from onceward.gate.script import read_fixture
from onceward.scratch import Scratches
from onceward.settings import check_url

WORLDS: Final[Sequence[Mapping[str, str]]] = (
    {"PYTHONHASHSEED": "1", "TZ": "UTC", "LC_ALL": "C", "umask": "022"},
    {"PYTHONHASHSEED": "4711", "TZ": "Pacific/Kiritimati", "LC_ALL": "tr_TR.UTF-8", "umask": "077"},
    {"PYTHONHASHSEED": "271828", "TZ": "America/St_Johns", "LC_ALL": "de_DE.UTF-8", "umask": "000"},
)
"""What differs from run to run, beside the process, its folder and the order of fixtures."""
_PATIENCE: Final = 30.0
"""How long a run may take, and two seconds more for each fixture: one that does not end has
failed."""


def run(path: Path, expected: str, store: str) -> dict[str, Any]:
    """The report of a manifest. Refused where the manifest is not what it says it is."""
    check_url(store)
    manifest = read_manifest(path.read_bytes(), str(path), expected)
    files = {entry.fixture: _file(path, entry) for _, entry in manifest.entries()}
    outcomes = _worlds(path.parent.absolute(), _playable(manifest, files), store)
    judged = [
        _judged(metric, entry, files[entry.fixture], outcomes)
        for metric, entry in manifest.entries()
    ]
    kind = store.partition(":")[0]
    return report(manifest, judged, WORLDS, kind)


def _playable(manifest: GateManifest, files: Mapping[str, bytes]) -> list[str]:
    """The fixtures that can be played at all; the others have failed already."""
    found = []
    for _, entry in manifest.entries():
        try:
            read_fixture(files[entry.fixture], entry.fixture)
            found.append(entry.fixture)
        except OncewardError:
            continue
    return found


def _file(path: Path, entry: LockedFixture) -> bytes:
    try:
        return (path.parent / entry.fixture).read_bytes()
    except OSError as error:
        raise InvalidConfig(
            f"the manifest lists {entry.fixture}, which cannot be read: {error.strerror}",
            context={"field": "fixture"},
        ) from None


def _judged(
    metric: str, entry: LockedFixture, data: bytes, outcomes: Sequence[Mapping[str, Outcome]]
) -> Judged:
    nothing = Outcome(error="it was not played")
    runs = [run.get(entry.fixture, nothing) for run in outcomes]
    try:
        fixture = read_fixture(data, entry.fixture)
    except OncewardError:
        return judge(metric, entry, data, expected=[], outcomes=runs)
    return judge(metric, entry, data, expected=fixture.expected, outcomes=runs, about=fixture.about)


def _worlds(folder: Path, fixtures: Sequence[str], store: str) -> list[dict[str, Outcome]]:
    """All runs, at the same time; the last two in another order, so that nothing may lean on
    what came before."""
    orders = [list(fixtures), list(reversed(fixtures)), [*fixtures[1::2], *fixtures[::2]]]
    with tempfile.TemporaryDirectory(prefix="onceward-gate-") as scratch:
        started = []
        for number, (world, order) in enumerate(zip(WORLDS, orders, strict=True), 1):
            cwd = Path(scratch) / f"world {number}"
            cwd.mkdir()
            started.append(_start(world, cwd, [folder / name for name in order], store))
        patience = _PATIENCE + 2 * len(fixtures)
        return [
            _heard(process, order, patience) for process, order in zip(started, orders, strict=True)
        ]


def _start(
    world: Mapping[str, str], cwd: Path, fixtures: Sequence[Path], store: str
) -> subprocess.Popen[bytes]:
    ours = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("ONCEWARD_", "LC_", "LANG"))
    }
    settings = {key: value for key, value in world.items() if key != "umask"}
    # The code that is judged is the code that runs here, wherever it was found.
    paths = [str(Path(__file__).resolve().parents[2]), *map(os.path.abspath, _paths())]
    words = [sys.executable, "-m", "onceward", "gate", "play", "--json", *map(str, fixtures)]
    return subprocess.Popen(
        words,
        cwd=cwd,
        env={**ours, **settings, "PYTHONPATH": os.pathsep.join(paths), "ONCEWARD_STORE": store},
        umask=int(world["umask"], 8),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def _paths() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


def _heard(
    process: subprocess.Popen[bytes], fixtures: Sequence[str], patience: float
) -> dict[str, Outcome]:
    """The outcomes of a run, by fixture; a run that stopped says why for the rest."""
    error = ""
    try:
        out, err = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        error = f"it was ended after {patience:g} s"
    heard: dict[str, Outcome] = {}
    for name, line in zip(fixtures, out.splitlines(), strict=False):
        try:
            heard[name] = msgspec.json.decode(line, type=Outcome)
        except msgspec.DecodeError:
            break
    last = err.decode("utf-8", "replace").strip().splitlines()[-1:] or [
        f"exit {process.returncode}"
    ]
    silent = Outcome(error=error or last[0][:300])
    return {name: heard.get(name, silent) for name in fixtures}


def once(data: bytes, name: str, scratches: Scratches) -> Outcome:
    """One fixture played here and now. Whatever the engine raises is what became of it."""
    faults.disarm()
    try:
        with scratches() as scratch:
            found = play(read_fixture(data, name), scratch)
    except Exception as error:
        return Outcome(error=f"{type(error).__name__}: {error}"[:300])
    return Outcome(found.sha256, found.lines, found.wrong)
