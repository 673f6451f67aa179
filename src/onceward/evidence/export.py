"""`export`: the records of one build or session, and of nobody else, as a bundle. Same rows,
same bytes (E-2)."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Final

import msgspec

from onceward.core.canon import canonical
from onceward.core.durable import publish
from onceward.core.steps import manifest_line
from onceward.errors import IntegrityFault, InvalidConfig, NotFound, Recovery
from onceward.evidence.bundle import FORMAT, BundlePage, Member, header, line_of, padding
from onceward.evidence.members import file_of
from onceward.evidence.records import StoreRecords
from onceward.evidence.selection import Selection, selected
from onceward.store.tables.artifacts import ArtifactRow

_README: Final = Path(__file__).parent / "BUNDLE.md"
_CHUNK = 1 << 20
_SPOOLED = 1 << 22


def export(
    rows: StoreRecords,
    subject: str,
    path: Path,
    pieces: Callable[[str], Iterator[bytes]],
    whole: bool,
) -> BundlePage:
    """Write the bundle of a build, saga, session or change into a new file; `pieces` reads an
    artifact."""
    if path.exists():
        raise InvalidConfig(
            f"{path} is already there; an export never overwrites",
            recovery=[Recovery("choose another name with --out")],
        )
    if not path.parent.is_dir():
        raise InvalidConfig(f"{path.parent} is not a folder", context={"field": "out"})
    selection = selected(rows, subject)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(partial, flags, 0o600), "wb") as out:  # noqa: PTH123
            page = _write(selection, out, pieces, whole)
            out.flush()
            os.fsync(out.fileno())
        publish(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return page


def _write(
    selection: Selection, out: IO[bytes], pieces: Callable[[str], Iterator[bytes]], whole: bool
) -> BundlePage:
    members: list[tuple[Member, IO[bytes]]] = []
    artifacts: list[ArtifactRow] = []

    def add(name: str, data: Iterable[bytes]) -> None:
        file = tempfile.SpooledTemporaryFile(max_size=_SPOOLED)  # noqa: SIM115
        made, size = hashlib.sha256(), 0
        for piece in data:
            file.write(piece)
            made.update(piece)
            size += len(piece)
        members.append((Member(name, made.hexdigest(), size), file))

    add("README.md", [_README.read_bytes()])
    add("events.ndjson", (event.line() + b"\n" for event in selection.events()))
    for name, records in selection.records():
        if name == file_of(ArtifactRow):
            artifacts = list(records)  # type: ignore[arg-type]
        add(name, (line_of(record) for record in records))
    if selection.builds and selection.builds[0].state == "SUCCESS":
        add(
            "manifest.ndjson",
            (manifest_line(c.stage, c.target, c.outputs) for c in selection.checkpoints),
        )
    if selection.seal:
        add("seal.json", [selection.seal[0]])
    listed = [member for member, _ in members]
    if whole:
        listed += [Member(f"artifacts/{row.sha256}", row.sha256, row.size) for row in artifacts]
    signed = selection.rows.workspace() if selection.keys else ""
    subject = selection.subject
    page = BundlePage(
        artifacts="whole" if whole else "digests",
        files=listed,
        format=FORMAT,
        kind=selection.kind,
        subject=subject,
        workspace=signed,
    )
    _put(out, "bundle.json", canonical(msgspec.to_builtins(page)))
    for member, file in members:
        file.seek(0)
        out.write(header(member.name, member.size))
        while piece := file.read(_CHUNK):
            out.write(piece)
        out.write(padding(member.size))
        file.close()
    for row in artifacts if whole else ():
        _put_artifact(out, row, pieces)
    out.write(bytes(1024))
    return page


def _put(out: IO[bytes], name: str, data: bytes) -> None:
    out.write(header(name, len(data)) + data + padding(len(data)))


def _put_artifact(
    out: IO[bytes], row: ArtifactRow, pieces: Callable[[str], Iterator[bytes]]
) -> None:
    """Its bytes, which the reader of artifacts verifies; a bundle that lies is not made."""
    out.write(header(f"artifacts/{row.sha256}", row.size))
    try:
        written = sum(out.write(piece) for piece in pieces(row.sha256))
    except (NotFound, IntegrityFault) as error:
        error.recovery = (
            *error.recovery,
            Recovery("export the digests without the bytes", "--digests"),
        )
        raise
    if written != row.size:
        raise IntegrityFault(f"artifact {row.sha256[:16]} has {written:,} bytes, not {row.size:,}")
    out.write(padding(row.size))
