"""`gate record`: a locked fixture from a script, or from a session that really ran."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from onceward.errors import IntegrityFault, InvalidConfig
from onceward.evidence.records import Records
from onceward.gate import script
from onceward.gate.manifest import LockedFixture, read_manifest
from onceward.gate.manifest import written as manifest_text
from onceward.gate.play import Play, play
from onceward.gate.script import SCHEMA, Fixture, read_fixture, written
from onceward.gate.telling import Telling
from onceward.scratch import Scratches


def lock(fixture: Fixture, scratches: Scratches) -> tuple[Fixture, Play]:
    """A fixture with the transcript it comes to, twice the same; refused where its records do
    not agree."""
    with scratches() as scratch:
        first = play(fixture, scratch)
    with scratches() as scratch:
        second = play(fixture, scratch)
    if first.wrong or first.lines != second.lines:
        raise IntegrityFault(
            f"{fixture.name} cannot be locked: {first.wrong or 'two plays of it differ'}"
        )
    outcomes = first.lines[: len(fixture.script)]
    for number, line in enumerate(outcomes, 1):
        if '"refused":"INVALID_CONFIG"' in line:
            raise InvalidConfig(
                f"{fixture.name} cannot be locked: line {number} of the script comes to {line}"
            )
    if all('"skipped"' in line for line in outcomes):
        raise InvalidConfig(f"{fixture.name} cannot be locked: no line of its script does anything")
    return msgspec.structs.replace(fixture, expected=first.lines), first


def write(path: Path, metric: str, fixture: Fixture, played: Play) -> bool:
    """Put a fixture beside its manifest and lock it there; whether the manifest has changed.
    What could not be read back is not written, and what is not there any more is not listed."""
    read_fixture(written(fixture), fixture.name)
    metrics = {name: list(entries) for name, entries in listed(path).items()}
    file = f"{fixture.name}.json"
    data = written(fixture)
    for entries in metrics.values():
        entries[:] = [
            entry
            for entry in entries
            if entry.fixture != file and (path.parent / entry.fixture).exists()
        ]
    entry = LockedFixture(file, hashlib.sha256(data).hexdigest(), played.sha256)
    metrics.setdefault(metric, []).append(entry)
    text = manifest_text(metrics)
    before = path.read_bytes() if path.exists() else b""
    path.parent.mkdir(parents=True, exist_ok=True)
    for place, content in ((path.parent / file, data), (path, text)):
        fresh = place.with_name(f".{place.name}.new")
        fresh.write_bytes(content)
        fresh.replace(place)
    return text != before


def listed(path: Path) -> dict[str, list[LockedFixture]]:
    """The fixtures that a manifest lists, by metric; none where there is no manifest yet."""
    if not path.exists():
        return {}
    return read_manifest(path.read_bytes(), str(path), whole=False).metrics


def locked(path: Path) -> Iterator[tuple[str, Fixture]]:
    """The fixtures of a manifest with their metrics."""
    for metric, entries in listed(path).items():
        for entry in entries:
            file = path.parent / entry.fixture
            if file.exists():
                yield metric, read_fixture(file.read_bytes(), entry.fixture)


def told(records: Records, session: str, name: str, about: str) -> Fixture:
    """A session that ran, as a script: the same children, spending, cancels, crashes and ends in
    the same order."""
    ops = list(Telling(records, session).ops())
    return Fixture(schema=SCHEMA, name=name, about=about, script=ops, seed=session)


def require_told(fixture: Fixture) -> None:
    """A session that is told must have happened so: a line that came to nothing tells something
    else."""
    for number, line in enumerate(fixture.expected[: len(fixture.script)], 1):
        is_debit = isinstance(fixture.script[number - 1], script.Debit)
        if '"skipped"' in line or ('"refused"' in line and not is_debit):
            raise InvalidConfig(
                f"this session cannot be told as a script: line {number} would be {line}"
            )
