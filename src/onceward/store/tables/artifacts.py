"""Content-addressed blobs and who refers to them (B-12)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from onceward.core.sources import Micros
from onceward.errors import NotFound
from onceward.store.port import Reads, Row, Writes
from onceward.store.table import Table


class Ref(msgspec.Struct, frozen=True):
    """A name that an owner gave to an artifact."""

    owner: str
    name: str
    kind: str
    sha256: str
    size: int
    created_at: Micros


class Link(Ref, frozen=True):
    """A reference with the step it belongs to."""

    build_id: str
    stage: str
    target: str


class RefRow(msgspec.Struct, frozen=True):
    """Who calls which artifact what."""

    owner: str
    name: str
    kind: str
    sha256: str


class ArtifactRow(msgspec.Struct, frozen=True):
    """An artifact that is kept."""

    sha256: str
    size: int


ARTIFACTS: Final = Table(
    ArtifactRow,
    "artifacts",
    key=("sha256",),
    bundle="artifacts.ndjson",
    not_evidence={
        "created_at": "when it was kept; `gc` spares what is new",
        "mark": "how its file looked when it was last read whole; `verify` reads it again",
    },
)
REFS: Final = Table(
    RefRow,
    "artifact_refs",
    key=("owner", "name", "kind"),
    bundle="refs.ndjson",
    not_evidence={"created_at": "when it was referred to; `gc` spares what is new"},
)
_REF = (
    "SELECT r.owner, r.name, r.kind, r.sha256, a.size, r.created_at FROM artifact_refs r"
    " JOIN artifacts a ON a.sha256 = r.sha256"
)


def refs_of(rows: Reads, owner: str) -> list[Ref]:
    return [
        Ref(*row)
        for row in rows.read(f"{_REF} WHERE r.owner = ? ORDER BY r.owner, r.name, r.kind", (owner,))
    ]


def links_of(rows: Reads, build_id: str) -> list[Link]:
    """Everything that the steps of a build refer to, what they reused included."""
    found = rows.read(
        "SELECT l.owner, l.name, l.kind, l.sha256, a.size, l.created_at, l.build_id, l.stage,"
        " l.target"
        " FROM artifact_links l JOIN artifacts a ON a.sha256 = l.sha256 WHERE l.build_id = ?"
        " ORDER BY l.stage, l.target, l.owner, l.name, l.kind",
        (build_id,),
    )
    return [Link(*row) for row in found]


def newest_refs(rows: Reads, limit: int) -> list[Ref]:
    found = rows.read(
        f"{_REF} ORDER BY r.created_at DESC, r.owner, r.name, r.kind LIMIT ?", (limit,)
    )
    return [Ref(*row) for row in found]


def find(rows: Reads, prefix: str) -> tuple[str, int, bytes | None]:
    """Digest, size and, if it is still there, the row copy of the one artifact whose digest
    begins so."""
    found = rows.read(
        "SELECT sha256, size, data FROM artifacts WHERE sha256 >= ? AND sha256 < ?"
        " ORDER BY sha256 LIMIT 2",
        (prefix, prefix + "g"),
    )
    if len(found) != 1:
        why = "more than one artifact begins" if found else "no artifact begins"
        raise NotFound(f"{why} with {prefix}", context={"artifact": prefix})
    return found[0][0], found[0][1], found[0][2]


def digests_named(rows: Reads, prefix: str) -> list[str]:
    """Up to two artifacts whose digests begin so."""
    found = rows.read(
        "SELECT sha256 FROM artifacts WHERE sha256 >= ? AND sha256 < ? ORDER BY sha256 LIMIT 2",
        (prefix, prefix + "g"),
    )
    return [sha256 for (sha256,) in found]


def owners_of(rows: Reads, sha256: str) -> tuple[int, list[tuple[str, str, str]]]:
    """The size of an artifact, and who calls it what."""
    ((size,),) = rows.read("SELECT size FROM artifacts WHERE sha256 = ?", (sha256,))
    found = rows.read(
        "SELECT owner, name, kind FROM artifact_refs WHERE sha256 = ? ORDER BY owner, name, kind",
        (sha256,),
    )
    return size, [(owner, name, kind) for owner, name, kind in found]


BAD = "bad"
"""The mark of an artifact that was found changed or gone: the next one who makes it again heals
it."""


def put(
    tx: Writes,
    sha256: str,
    size: int,
    data: bytes | None,
    mark: str | None,
    now: Micros,
    fileless: bool,
) -> None:
    """A new artifact, or one that is known; `fileless` says that it has no file, so its bytes
    must be in the row."""
    tx.write(
        "INSERT INTO artifacts (sha256, size, created_at, data, mark) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (sha256) DO UPDATE SET"
        f" data = CASE WHEN artifacts.mark = 'bad' THEN excluded.data"
        f" ELSE coalesce(artifacts.data{', excluded.data' if fileless else ''},"
        " artifacts.data) END,"
        " mark = CASE WHEN artifacts.mark = 'bad' THEN excluded.mark"
        " ELSE coalesce(excluded.mark, artifacts.mark) END",
        (sha256, size, now, data, mark),
    )


def find_many(rows: Reads, digests: Sequence[str]) -> dict[str, Row]:
    """Digest, size, row copy and mark of many artifacts."""
    found = rows.read(
        "SELECT sha256, size, data, mark FROM artifacts"
        f" WHERE sha256 IN ({', '.join('?' * len(digests))})",
        digests,
    )
    return {row[0]: row for row in found}


def set_marks(tx: Writes, marks: Mapping[str, str]) -> None:
    for digest, mark in sorted(marks.items()):
        tx.write("UPDATE artifacts SET mark = ? WHERE sha256 = ?", (mark, digest))


def bytes_in_rows(rows: Reads) -> int:
    ((held,),) = rows.read(
        "SELECT CAST(coalesce(sum(size), 0) AS BIGINT) FROM artifacts WHERE data IS NOT NULL"
    )
    return int(held)


def refer(tx: Writes, owner: str, name: str, kind: str, sha256: str, now: Micros) -> None:
    tx.write(
        "INSERT INTO artifact_refs (owner, name, kind, sha256, created_at) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (owner, name, kind) DO UPDATE SET sha256 = excluded.sha256",
        (owner, name, kind, sha256, now),
    )


def unspilled(rows: Reads, limit: int) -> list[Row]:
    return rows.read(
        "SELECT sha256, data FROM artifacts WHERE data IS NOT NULL ORDER BY sha256 LIMIT ?",
        (limit,),
    )


def drop_copies(tx: Writes, marks: Mapping[str, str]) -> None:
    """Their files are safe, and marked as they are."""
    for digest, mark in sorted(marks.items()):
        tx.write("UPDATE artifacts SET data = NULL, mark = ? WHERE sha256 = ?", (mark, digest))


def unreferred(rows: Reads, before: Micros, after: str, limit: int) -> list[str]:
    """Digests that nobody refers to, older than a moment."""
    found = rows.read(
        "SELECT a.sha256 FROM artifacts a WHERE a.created_at < ? AND a.sha256 > ? AND NOT EXISTS"
        " (SELECT 1 FROM artifact_refs r WHERE r.sha256 = a.sha256) ORDER BY a.sha256 LIMIT ?",
        (before, after, limit),
    )
    return [digest for (digest,) in found]


def forget(tx: Writes, digest: str) -> bool:
    """Delete the row of an artifact if still nobody refers to it; whether it is gone."""
    if tx.read("SELECT 1 FROM artifact_refs WHERE sha256 = ? LIMIT 1", (digest,)):
        return False
    tx.write("DELETE FROM artifacts WHERE sha256 = ?", (digest,))
    return True


def known(rows: Reads, digest: str) -> bool:
    return bool(rows.read("SELECT 1 FROM artifacts WHERE sha256 = ?", (digest,)))
