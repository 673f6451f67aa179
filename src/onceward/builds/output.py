"""What a build made, as a folder to hand on: staged, verified, moved into place whole, then pointed at (B-13)."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from onceward.artifacts.blobs import Artifacts
from onceward.artifacts.outputs import read_back
from onceward.builds.handoff import as_html, as_markdown
from onceward.builds.views import build_view
from onceward.core import faults
from onceward.core.canon import canonical, sha256_hex
from onceward.core.durable import sync_all
from onceward.core.limits import MAX_OUTPUT_FILES, MAX_OUTPUT_PATH
from onceward.core.records import Build
from onceward.errors import IntegrityFault, InvalidConfig, Recovery, StorageError
from onceward.store.store import Store
from onceward.store.tables.builds import Builds
from onceward.store.tables.checkpoints import checkpoints_of

_PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MODES = {"program": "0755"}


class Written(msgspec.Struct, frozen=True):
    """Where it is, and what it is by digest."""

    folder: str
    manifest_sha256: str
    files: int
    bytes: int


def write_output(
    artifacts: Artifacts, name: str, root: Path, project: str, to: Path | None
) -> Written:
    """Write the outputs of a build below `root`/`project`, or as the new folder `to`. A crash anywhere leaves what was
    there before, or all of the new."""
    _require_project(project)
    store = artifacts.store
    with store.read() as rows:
        build = Builds(rows).named(name)
    entries = _entries(store, build)
    manifest = canonical({"schema": "onceward_output@1", "name": build.name, "files": entries})
    sha256 = sha256_hex(manifest)
    home = _home(root, project) if to is None else to.parent
    place = home / f"{build.build_id}-{sha256[:12]}" if to is None else to
    if to is not None:
        _require_plain_way(home, root.parent)
    if to is not None and (os.path.lexists(to) or not home.is_dir()):
        why = "is there already" if os.path.lexists(to) else "has no folder to be in"
        raise InvalidConfig(f"{to} {why}; nothing was written", context={"folder": str(to)})
    written = Written(str(place), sha256, len(entries), sum(entry["bytes"] for entry in entries))
    _sweep(home)
    if not place.is_dir():
        staging = home / f".new-{os.getpid()}-{store.sources.new_id('out')}"
        try:
            _stage(artifacts, store, build, entries, manifest, staging)
            _move(staging, place)
        except PermissionError as error:
            raise InvalidConfig(
                f"cannot write {place}: {error.strerror}", context={"folder": str(place)}
            ) from error
        except OSError as error:
            raise StorageError(f"cannot write {place}: {error.strerror}") from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    _verify(place, entries, manifest)
    if to is None:
        _point(home, place)
    return written


def _require_plain_way(home: Path, workspace: Path) -> None:
    """No link on the way, and not among the workspace's own files."""
    real = home.resolve()
    if real != Path(os.path.normpath(home)):
        raise InvalidConfig(
            f"there is a link on the way to {home}; nothing was written",
            context={"folder": str(home)},
            recovery=[Recovery(f"name the real folder: {real}")],
        )
    if real.is_relative_to(workspace.resolve()):
        raise InvalidConfig(
            f"{home} is the workspace's own; nothing was written", context={"folder": str(home)}
        )


def _sweep(home: Path) -> None:
    """Remove what somebody who was killed had staged."""
    for path in home.glob(".new-*"):
        pid = path.name.split("-")[1]
        if pid.isdecimal() and not Path("/proc", pid).exists():
            shutil.rmtree(path, ignore_errors=True)


def _require_project(project: str) -> None:
    if not _PROJECT.fullmatch(project) or ".." in project:
        raise InvalidConfig(
            f"{project[:60]!a} is no name for a project: 1 to 64 letters, digits, . _ or -, no sign first",
            context={"field": "project"},
        )


def _home(root: Path, project: str) -> Path:
    """The project's folder; a link on the way to it could lead anywhere, so there may be none."""
    home = root / project
    for folder in (root, home):
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise InvalidConfig(
                f"{folder} is a link or a file, not a folder; nothing was written",
                context={"folder": str(folder)},
                recovery=[Recovery("move it away, or choose another place with --to")],
            )
        folder.mkdir(mode=0o755, exist_ok=True)
    return home


def _entries(store: Store, build: Build) -> list[dict[str, Any]]:
    """Every file by its path: one folder a step, so that two of one name never meet."""
    found = []
    with store.read() as rows:
        for checkpoint in checkpoints_of(rows, build.build_id):
            if checkpoint.status != "SUCCESS":
                continue
            for output in read_back(checkpoint.outputs):
                found.append(
                    {
                        "path": f"{checkpoint.stage}/{checkpoint.target}/{output.name}",
                        "mode": _MODES.get(output.kind, "0644"),
                        "bytes": output.size,
                        "sha256": output.sha256,
                        "kind": output.kind,
                        "stage": checkpoint.stage,
                        "target": checkpoint.target,
                    }
                )
    if not found and build.state != "SUCCESS":
        raise InvalidConfig(
            f"build {build.build_id} has no output yet", context={"build_id": build.build_id}
        )
    longest = max((len(str(entry["path"]).encode()) for entry in found), default=0)
    if len(found) > MAX_OUTPUT_FILES or longest > MAX_OUTPUT_PATH:
        raise InvalidConfig(
            f"an output has at most {MAX_OUTPUT_FILES} files with paths of {MAX_OUTPUT_PATH} bytes; this one has"
            f" {len(found)}, the longest path with {longest}",
            context={"files": len(found), "path": longest},
        )
    return sorted(found, key=lambda entry: str(entry["path"]))


def _stage(
    artifacts: Artifacts,
    store: Store,
    build: Build,
    entries: list[dict[str, Any]],
    manifest: bytes,
    staging: Path,
) -> None:
    """All of it in a folder beside its place, every byte verified as it is copied, then synced."""
    (staging / "files").mkdir(parents=True)
    for entry in entries:
        path = staging / "files" / entry["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            for piece in artifacts.read(entry["sha256"]):
                file.write(piece)
        path.chmod(int(entry["mode"], 8))
    view = build_view(store, build.build_id)
    sums = "".join(f"{entry['sha256']}  files/{entry['path']}\n" for entry in entries)
    for name, data in (
        ("manifest.json", manifest + b"\n"),
        ("SHA256SUMS", sums.encode()),
        ("HANDOFF.md", as_markdown(view, entries, sha256_hex(manifest)).encode()),
        ("handoff.html", as_html(view, entries, sha256_hex(manifest)).encode()),
    ):
        (staging / name).write_bytes(data)
    sync_all(staging)
    faults.point("output.staged")


def _move(staging: Path, place: Path) -> None:
    staging.rename(place)
    sync_all(place.parent)
    faults.point("output.moved")


def _verify(place: Path, entries: list[dict[str, Any]], manifest: bytes) -> None:
    """Read back what is there: exactly these files, with these bytes."""
    there = sorted(path.relative_to(place / "files").as_posix() for path in _files(place / "files"))
    wrong = [
        entry["path"]
        for entry in entries
        if _digest(place / "files" / entry["path"]) != entry["sha256"]
    ]
    if (
        wrong
        or there != [entry["path"] for entry in entries]
        or (place / "manifest.json").read_bytes() != manifest + b"\n"
    ):
        raise IntegrityFault(
            f"{place} is not what was written: {', '.join(wrong[:5]) or 'files are missing or too many'}",
            context={"folder": str(place)},
            recovery=[Recovery("move that folder away and write it again")],
        )


def _digest(path: Path) -> str:
    said = hashlib.sha256()
    with suppress(OSError), path.open("rb") as file:
        while piece := file.read(1 << 18):
            said.update(piece)
    return said.hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink())


def _point(home: Path, place: Path) -> None:
    """`current` is the newest: swapped in one step."""
    fresh = home / f".current-{os.getpid()}"
    try:
        with suppress(FileNotFoundError):
            fresh.unlink()
        fresh.symlink_to(place.name)
        fresh.replace(home / "current")
        sync_all(home)
    except OSError as error:
        raise StorageError(f"cannot point to {place}: {error.strerror}") from error
    faults.point("output.pointed")
