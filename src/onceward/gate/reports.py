"""Reports of the gate that a workspace keeps, for whoever looks later."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from onceward.core.sources import Micros, iso
from onceward.gate.manifest import HASH

_KEPT = 50


def keep(
    folder: Path, name: str, manifest: str, at: Micros, report: Mapping[str, Any]
) -> dict[str, Any]:
    """A report under its name; of very many the oldest go."""
    place = folder / "gate"
    place.mkdir(mode=0o700, exist_ok=True)
    said = {"report": name, "manifest": manifest, "at": iso(at), **report}
    fresh = place / f".{name}.{os.getpid()}"
    fresh.write_bytes(msgspec.json.encode(said))
    fresh.replace(place / f"{name}.json")
    for old in sorted(place.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)[:-_KEPT]:
        old.unlink(missing_ok=True)
    return said


def kept(folder: Path) -> list[dict[str, Any]]:
    """Every report that is kept, the newest first."""
    found = []
    for path in (folder / "gate").glob("*.json"):
        try:
            said = msgspec.json.decode(path.read_bytes())
        except (OSError, msgspec.DecodeError):
            continue
        if (
            isinstance(said, dict)
            and {"report", "manifest", "at", "metrics", "fixtures", HASH} <= said.keys()
        ):
            found.append(said)
    return sorted(found, key=lambda said: str(said["at"]), reverse=True)
