"""`verify` of a whole workspace: its rows, its files, and the seals it is held against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from onceward.core.canon import parse
from onceward.evidence.files import StreamFiles, verify_artifacts
from onceward.evidence.findings import Findings
from onceward.evidence.records import StoreRecords
from onceward.evidence.seal import Against, Receipt, seal_said
from onceward.evidence.verify import readable, verify
from onceward.store.store import Store
from onceward.store.tables.events import last_position
from onceward.store.tables.keys import find_key, find_signature, newest_seal

Progress = Callable[[str, int, int], None]
"""Told what is looked at, how many were, and how many there are."""


def verify_workspace(
    store: Store,
    folder: Path,
    receipts: Sequence[tuple[str, Receipt]] = (),
    progress: Progress | None = None,
) -> Findings:
    findings = Findings()
    files = StreamFiles(folder / "streams", findings)
    with store.read() as rows:
        newest = last_position(rows)
        held = [Against(name, receipt.said, receipt.heads) for name, receipt in receipts]
        with readable(findings, "the newest seal"):
            own = newest_seal(rows)
            signed = find_signature(rows, own.statement_hash) if own is not None else None
            if own is not None and signed is not None:
                held.append(
                    Against(f"seal {own.seal_no}", seal_said(parse(signed.statement)["predicate"]))
                )

        def events(seen: int) -> None:
            if progress is not None:
                progress("events", seen, newest)

        found = verify(
            StoreRecords(rows),
            anchors=[against.anchor() for against in held],
            line=files.line,
            progress=events,
            into=findings,
        )
        for against in held:
            against.judge(found, newest)
        with readable(findings, "the seals"):
            for name, receipt in receipts:
                _same_workspace(
                    rows_of=StoreRecords(rows), name=name, receipt=receipt, findings=found
                )
        files.finish()
        ((artifacts,),) = rows.read("SELECT count(*) FROM artifacts")

        def blobs(seen: int) -> None:
            if progress is not None:
                progress("artifacts", seen, artifacts)

        with readable(findings, "the artifacts"):
            verify_artifacts(rows, folder / "artifacts", found, blobs)
    return found


def _same_workspace(rows_of: StoreRecords, name: str, receipt: Receipt, findings: Findings) -> None:
    """A seal of another workspace, or by a key that this one never knew, proves nothing here."""
    if receipt.said["workspace"] != rows_of.workspace():
        findings.fault("seal", name, "it is the seal of another workspace")
    elif find_key(rows_of.rows, receipt.envelope.fingerprint) is None:
        findings.fault(
            "seal", name, f"its key {receipt.envelope.fingerprint[:16]} is not known here any more"
        )
