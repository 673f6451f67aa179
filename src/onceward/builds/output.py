"""What a build made, as a folder to hand on: staged, verified, moved into place whole, then pointed at (B-13)."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from onceward.artifacts.blobs import Artifacts
from onceward.artifacts.outputs import read_back
from onceward.builds import rules
from onceward.builds.handoff import as_html, as_markdown
from onceward.builds.views import build_view
from onceward.core import faults
from onceward.core.canon import canonical, sha256_hex
from onceward.core.durable import sync_all
from onceward.core.records import Build
from onceward.errors import InvalidConfig, StorageError
from onceward.store.store import Store
from onceward.store.tables.builds import Builds
from onceward.store.tables.checkpoints import checkpoints_of

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
    rules.require_project_name(project)
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
        rules.require_new_folder(str(to), os.path.lexists(to), home.is_dir())
    written = Written(str(place), sha256, len(entries), sum(entry["bytes"] for entry in entries))
    _sweep(home)
    if not place.is_dir():
        staging = home / f".new-{os.getpid()}-{store.sources.new_id('out')}"
        try:
            _stage(artifacts, build, entries, manifest, staging)
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
    rules.require_real_folder(str(home), str(real), real == Path(os.path.normpath(home)))
    rules.require_outside_workspace(str(home), real.is_relative_to(workspace.resolve()))


def _sweep(home: Path) -> None:
    """Remove what somebody who was killed had staged."""
    for path in home.glob(".new-*"):
        pid = path.name.split("-")[1]
        if pid.isdecimal() and not Path("/proc", pid).exists():
            shutil.rmtree(path, ignore_errors=True)


def _home(root: Path, project: str) -> Path:
    """The project's folder; a link on the way to it could lead anywhere, so there may be none."""
    home = root / project
    for folder in (root, home):
        usable = not folder.is_symlink() and (folder.is_dir() or not folder.exists())
        rules.require_folder(str(folder), usable)
        folder.mkdir(mode=0o755, exist_ok=True)
    return home


def _entries(store: Store, build: Build) -> list[dict[str, Any]]:
    """Every file by its path: one folder a step, so that two of one name never meet."""
    entries = []
    with store.read() as rows:
        for checkpoint in checkpoints_of(rows, build.build_id):
            if checkpoint.status != "SUCCESS":
                continue
            for output in read_back(checkpoint.outputs):
                entries.append(
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
    rules.require_output(build, len(entries))
    rules.require_output_size([str(entry["path"]) for entry in entries])
    return sorted(entries, key=lambda entry: str(entry["path"]))


def _stage(
    artifacts: Artifacts,
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
    view = build_view(artifacts.store, build.build_id)
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
    complete = not wrong and there == [entry["path"] for entry in entries]
    manifest_kept = complete and (place / "manifest.json").read_bytes() == manifest + b"\n"
    rules.require_written(str(place), wrong, manifest_kept)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with suppress(OSError), path.open("rb") as file:
        while piece := file.read(1 << 18):
            digest.update(piece)
    return digest.hexdigest()


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
