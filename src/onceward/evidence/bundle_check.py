"""`verify BUNDLE`: what the file says of itself, and what it proves to whoever has the public
keys."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from onceward.core.canon import canonical, parse
from onceward.core.changes import Entry, PairSignature
from onceward.core.merkle import included
from onceward.core.records import Build
from onceward.core.sagas import Run
from onceward.core.steps import manifest_line
from onceward.errors import IntegrityFault, InvalidConfig
from onceward.evidence.bundle import BundleRecords, Reader
from onceward.evidence.findings import Findings
from onceward.evidence.members import stream_of
from onceward.evidence.seal import SealedHead, read_receipt, seal_said
from onceward.evidence.verify import readable, verify
from onceward.people.signing import BUILD, SAGA, SEAL, read_envelope
from onceward.store.schema import bundled
from onceward.store.tables.artifacts import ArtifactRow, RefRow
from onceward.store.tables.checkpoints import Checkpoint
from onceward.store.tables.children import SessionRow
from onceward.store.tables.keys import KeyRow, Signature

Progress = Callable[[str, int, int], None]
_ARTIFACT = re.compile(r"artifacts/[0-9a-f]{64}")


def verify_bundle(
    path: Path,
    seals: Sequence[Path] = (),
    trusted: Sequence[str] = (),
    progress: Progress | None = None,
) -> Findings:
    """Everything about a bundle, with nothing but the file, the seals and the keys that are
    given."""
    if any(len(key.strip()) < 16 for key in trusted):
        raise InvalidConfig(
            "--key takes a fingerprint, or at least 16 of its letters", context={"field": "key"}
        )
    findings = Findings()
    try:
        reader = Reader(path)
    except InvalidConfig as error:
        findings.fault("bundle", path.name, error.message)
        return findings
    try:
        with readable(findings, path.name):
            for why in (*reader.check_members(), *_strangers(reader)):
                findings.fault("bundle", path.name, why)
            if findings.ok:
                _verify_inside(reader, findings, seals, trusted, progress)
    finally:
        reader.close()
    return findings


def _strangers(reader: Reader) -> list[str]:
    """Members that no bundle has, or has twice, or lacks."""
    names = [member.name for member in reader.page.files]
    wanted = {
        "README.md",
        "events.ndjson",
        *(table.bundle for table in bundled(reader.page.kind)),
    }
    free = {"manifest.ndjson", "seal.json"}
    odd = [name for name in names if name not in wanted | free and not _ARTIFACT.fullmatch(name)]
    faults = [f"{name} does not belong here" for name in odd]
    faults += [f"{name} is missing" for name in sorted(wanted - set(names))]
    if len(set(names)) != len(names):
        faults.append("something is in it twice")
    return faults


def _verify_inside(
    reader: Reader,
    findings: Findings,
    seals: Sequence[Path],
    trusted: Sequence[str],
    progress: Progress | None,
) -> None:
    records = BundleRecords(reader)

    def events(seen: int) -> None:
        if progress is not None:
            progress("events", seen, seen)

    verify(records, progress=events, into=findings)
    _subject(reader, records, findings)
    _artifacts(reader, records, findings)
    _manifest(reader, records, findings)
    keys = {key.fingerprint: key for key in records.all(KeyRow)}
    ends = _signed_ends(reader, records)
    signers = {signature.fingerprint for signature in records.all(Signature)}
    if reader.has("seal.json"):
        sealer = _sealed(reader, records, findings, keys)
        signers.add(sealer)
        ends.add(sealer)
    for seal in seals:
        _held_against(seal, reader, records, findings)
    _trusted(findings, signers, ends, trusted)
    for signer in sorted(ends & keys.keys()):
        findings.notes.append(
            f"its end is signed by {keys[signer].principal} with the key {signer}"
        )
    if not ends:
        findings.notes.append("nobody signed its end")


def _signed_ends(reader: Reader, records: BundleRecords) -> set[str]:
    """The keys whose genuine signature covers the last move of the subject's stream."""
    page = reader.page
    if page.kind == "entry":
        return _signed_change(reader, records)
    if page.kind == "saga":
        stream, kind_of_end = f"saga:{page.subject}", SAGA
    else:
        stream, kind_of_end = stream_of(page.kind, page.subject), BUILD
    signers = set()
    for signature in records.all(Signature):
        statement = parse(signature.statement)
        if statement.get("predicateType") == kind_of_end:
            head = statement["predicate"]["head"]
            moved = records.last_move(stream)
            if (head["stream"], head["seq"]) == (stream, moved):
                signers.add(signature.fingerprint)
    return signers


def _signed_change(reader: Reader, records: BundleRecords) -> set[str]:
    """The key that signed for the last arrow of a change: as an act, a cut or a verification."""
    pairs = {pair.signature_id: pair.fingerprint for pair in records.all(PairSignature)}
    keys = {signature.statement_hash: signature.fingerprint for signature in records.all(Signature)}
    moves = [
        event.facts()
        for event in records.stream(stream_of("entry", reader.page.subject))
        if event.source == "change"
    ]
    last = moves[-1] if moves else {"detail": {}, "context": {}}
    by_pair = pairs.get(last["detail"].get("signature_id", ""))
    signer = by_pair or keys.get(last["context"].get("signed", ""))
    return {signer} if signer else set()


def _subject(reader: Reader, records: BundleRecords, findings: Findings) -> None:
    """A bundle is about the one thing it says."""
    page = reader.page
    subjects = {
        "build": [row.build_id for row in records.all(Build)],
        "saga": [row.saga_id for row in records.all(Run)],
        "entry": [row.entry_id for row in records.all(Entry)],
        "session": [row.session_id for row in records.all(SessionRow)],
    }
    others = [kind for kind in ("build", "saga", "entry") if subjects[kind] and kind != page.kind]
    if subjects[page.kind] != [page.subject] or others:
        findings.fault("bundle", page.subject, f"it is not a bundle of this {page.kind}")
    alike = ("session:",) if page.kind != "entry" else ("session:", "entry:ent_")
    streams = {stream for stream in records.heads if stream.startswith(alike)}
    if streams != {stream_of(page.kind, page.subject)}:
        findings.fault("bundle", page.subject, "its stream is not there, or there are others")


def _artifacts(reader: Reader, records: BundleRecords, findings: Findings) -> None:
    known = {}
    for artifact in records.all(ArtifactRow):
        findings.count("artifacts")
        known[artifact.sha256] = artifact.size
    members = {m.name: m for m in reader.page.files if m.name.startswith("artifacts/")}
    for sha256, size in known.items():
        member = members.pop(f"artifacts/{sha256}", None)
        if (member is None) == (reader.page.artifacts == "whole"):
            findings.fault(
                "artifact",
                sha256[:16],
                "its bytes are missing, or here though the first page says no",
            )
        elif member is not None and (member.sha256, member.size) != (sha256, size):
            findings.fault("artifact", sha256[:16], "its bytes are not what its digest says")
    for name in members:
        findings.fault("bundle", name, "nothing tells of it")
    for ref in records.all(RefRow):
        if ref.sha256 not in known:
            findings.fault("ref", f"{ref.owner} {ref.name}", "what it refers to is not known")


def _manifest(reader: Reader, records: BundleRecords, findings: Findings) -> None:
    """The list of what was made is the one that the last event and its signature speak of."""
    made = hashlib.sha256()
    for checkpoint in records.all(Checkpoint):
        made.update(manifest_line(checkpoint.stage, checkpoint.target, checkpoint.outputs))
    done = any(build.state == "SUCCESS" for build in records.all(Build))
    listed = hashlib.sha256()
    for piece in reader.pieces("manifest.ndjson") if reader.has("manifest.ndjson") else ():
        listed.update(piece)
    if reader.has("manifest.ndjson") != done or (done and listed.digest() != made.digest()):
        findings.fault(
            "manifest", reader.page.subject, "the list of what was made is not what the steps made"
        )


def _sealed(
    reader: Reader, records: BundleRecords, findings: Findings, keys: dict[str, KeyRow]
) -> str:
    """The stream of the subject is among those that were sealed."""
    from onceward.people.signing import genuine

    stream = stream_of(reader.page.kind, reader.page.subject)
    data = b"".join(itertools.islice(reader.pieces("seal.json"), 4))
    try:
        document = parse(data)
        envelope = read_envelope(document["envelope"])
        if envelope.said().get("predicateType") != SEAL:
            raise ValueError
        seal = seal_said(envelope.said()["predicate"])
        head = SealedHead(*document["head"])
        proof = document["proof"]
        if canonical(document) != data:
            raise ValueError
        is_sealed = included(
            head.leaf(),
            index=proof["index"],
            size=seal["streams"],
            proof=[bytes.fromhex(step) for step in proof["path"]],
            root=bytes.fromhex(seal["root"]),
        )
    except (InvalidConfig, KeyError, TypeError, ValueError):
        findings.fault("seal", stream, "the seal cannot be read")
        return ""
    findings.count("seals")
    key = keys.get(envelope.fingerprint)
    if (
        key is None
        or not genuine(key.public_key, envelope)
        or seal["workspace"] != records.workspace()
    ):
        findings.fault("seal", stream, "the seal is not genuine")
    elif seal["principal"] != key.principal:
        findings.fault("seal", stream, "the seal is signed for somebody else")
    seq, hash_ = records.heads.get(stream, (0, b""))
    if (head.stream, head.seq, head.hash) != (stream, seq, hash_.hex()):
        findings.fault("seal", stream, "what was sealed is not where the stream ends here")
    elif not is_sealed:
        findings.fault(
            "seal", stream, "nothing shows that it is one of the streams that were sealed"
        )
    return envelope.fingerprint


def _held_against(path: Path, reader: Reader, records: BundleRecords, findings: Findings) -> None:
    """A seal that was kept elsewhere knows this stream as it is here, or as it was."""
    try:
        receipt = read_receipt(path.read_bytes(), path.name)
    except IntegrityFault as error:
        findings.fault("seal", path.name, error.message)
        return
    findings.count("seals")
    stream = stream_of(reader.page.kind, reader.page.subject)
    if records.workspace() and receipt.said["workspace"] != records.workspace():
        findings.fault("seal", path.name, "it is the seal of another workspace")
        return
    sealed = next((head for head in receipt.heads if head.stream == stream), None)
    if sealed is None:
        findings.fault(
            "seal",
            path.name,
            f"it does not know {stream}: it is older, or was kept without its heads",
        )
        return
    for event in records.events():
        if (event.stream, event.seq) == (stream, sealed.seq):
            if event.hash.hex() != sealed.hash:
                findings.fault(
                    "seal", path.name, f"{stream} is not what it was at event {sealed.seq}"
                )
            return
    findings.fault(
        "seal", path.name, f"{stream} had {sealed.seq} events and has {records.heads[stream][0]}"
    )


def _trusted(findings: Findings, signers: set[str], ends: set[str], trusted: Sequence[str]) -> None:
    wanted = tuple(key.strip().lower() for key in trusted)
    if wanted and not any(signer.startswith(wanted) for signer in ends):
        findings.fault("signature", "bundle", "nobody who is trusted signed its end")
    for signer in sorted(signers):
        if wanted and not signer.startswith(wanted):
            findings.fault(
                "signature",
                signer[:16],
                "it signed something, and is none of the keys that are trusted",
            )
