"""Seals: the heads of all streams as one Merkle root (RFC 9162), signed, so that a cut tail is
found too (E-3, X60)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from onceward.core.canon import canonical, parse
from onceward.core.merkle import (
    MerkleTree,
    consistency_proof,
    consistent,
    included,
    inclusion_proof,
    root_of,
)
from onceward.errors import IntegrityFault, InvalidConfig
from onceward.evidence.findings import Findings
from onceward.evidence.walk import Anchor
from onceward.people.signing import SEAL, Envelope, genuine, read_envelope, statement
from onceward.store.port import Reads

FORMAT: Final = "onceward-seal@1"
_PAGE = 1000


class SealedHead(msgspec.Struct, frozen=True):
    """Where a stream ended when it was sealed."""

    stream: str
    seq: int
    hash: str

    def leaf(self) -> bytes:
        return canonical({"hash": self.hash, "seq": self.seq, "stream": self.stream})


def heads_at(rows: Reads, position: int) -> Iterator[SealedHead]:
    """The head of every stream as of a place in the order of all events, by name."""
    after = ""
    while True:
        page = rows.read(
            "SELECT s.stream, (SELECT e.seq FROM events e"
            " WHERE e.stream_no = s.stream_no AND e.position <= ?"
            " ORDER BY e.seq DESC LIMIT 1), (SELECT e.hash FROM events e"
            " WHERE e.stream_no = s.stream_no"
            " AND e.position <= ? ORDER BY e.seq DESC LIMIT 1) FROM streams s WHERE s.stream > ?"
            " ORDER BY s.stream LIMIT ?",
            (position, position, after, _PAGE),
        )
        yield from (
            SealedHead(stream, seq, hash_.hex()) for stream, seq, hash_ in page if seq is not None
        )
        if len(page) < _PAGE:
            return
        after = page[-1][0]


def seal_statement(
    workspace: str,
    principal: str,
    key: str,
    position: int,
    size: int,
    root: bytes,
    before: Sequence[str],
) -> bytes:
    """The statement to sign. `before` are the statement hashes of all earlier seals."""
    leaves = [bytes.fromhex(one) for one in before]
    predicate = {
        "key": key,
        "log": {"root": root_of(leaves).hex(), "size": len(leaves)},
        "position": position,
        "principal": principal,
        "root": root.hex(),
        "streams": size,
        "workspace": workspace,
    }
    return statement(SEAL, [(f"workspace:{workspace}", root.hex())], predicate)


class _Log(msgspec.Struct, frozen=True):
    root: str
    size: int


class _Said(msgspec.Struct, frozen=True):
    key: str
    log: _Log
    position: int
    principal: str
    root: str
    streams: int
    workspace: str


def seal_said(predicate: Any) -> dict[str, Any]:
    """The fields of a seal's predicate; INVALID_CONFIG if one is missing."""
    try:
        said = msgspec.convert(predicate, _Said)
        if len(bytes.fromhex(said.root)) != 32 or len(bytes.fromhex(said.log.root)) != 32:
            raise ValueError
    except (msgspec.ValidationError, ValueError):
        raise InvalidConfig("this is not what a seal says", context={"rule": "seal"}) from None
    found: dict[str, Any] = msgspec.to_builtins(said)
    return found


class Since(msgspec.Struct, frozen=True):
    """That an older seal is one of those this one knows of, and that what the older knew is the
    beginning of it."""

    index: int
    inclusion: list[str]
    consistency: list[str]


class Receipt(msgspec.Struct, frozen=True):
    """A seal as it is kept elsewhere: the signed statement, its key, the heads, and the way from
    an older one."""

    envelope: Envelope
    public: bytes
    heads: Sequence[SealedHead] = ()
    since: Since | None = None

    @property
    def said(self) -> Mapping[str, Any]:
        return seal_said(self.envelope.said().get("predicate"))

    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "envelope": self.envelope.document(),
            "format": FORMAT,
            "public": self.public.hex(),
        }
        if self.heads:
            found["heads"] = [[head.stream, head.seq, head.hash] for head in self.heads]
        if self.since is not None:
            found["since"] = msgspec.to_builtins(self.since)
        return found


def read_receipt(data: bytes, name: str) -> Receipt:
    """A seal from its file; INTEGRITY_FAULT if it does not agree with itself."""
    try:
        found = parse(data)
        envelope, public = read_envelope(found["envelope"]), bytes.fromhex(found["public"])
        heads = [SealedHead(*head) for head in found.get("heads", ())]
        since = msgspec.convert(found["since"], Since) if "since" in found else None
        receipt = Receipt(envelope, public, heads, since)
        if found["format"] != FORMAT or canonical(receipt.document()) != canonical(found):
            raise ValueError
        said = receipt.said
    except (InvalidConfig, KeyError, TypeError, ValueError):
        raise InvalidConfig(
            f"{name} is not a seal that this Onceward can read", context={"file": name}
        ) from None
    if not genuine(public, envelope) or envelope.said().get("predicateType") != SEAL:
        raise IntegrityFault(
            f"the signature of the seal {name} is not genuine", context={"rule": "seal"}
        )
    if heads and root_of(head.leaf() for head in heads).hex() != said["root"]:
        raise IntegrityFault(
            f"the heads of the seal {name} are not those that were signed", context={"rule": "seal"}
        )
    return receipt


def since(older: Receipt, before: Sequence[str]) -> Since:
    """The way from an older seal to the log of all seals until now; INTEGRITY_FAULT if it is not
    among them."""
    leaves = [bytes.fromhex(one) for one in before]
    size = older.said["log"]["size"]
    if size >= len(before) or before[size] != older.envelope.statement_hash:
        raise IntegrityFault(
            "the older seal is not one of this workspace: what it sealed is not what is here"
        )
    consistency = consistency_proof(leaves, size) if size else []
    return Since(size, _texts(inclusion_proof(leaves, size)), _texts(consistency))


def follows(older: Receipt, newer: Receipt) -> bool:
    """Whether a newer seal knows of an older one, and of all that the older knew: shown by the
    two files alone."""
    way, old, new = newer.since, older.said["log"], newer.said["log"]
    if (
        way is None
        or way.index != old["size"]
        or older.said["workspace"] != newer.said["workspace"]
    ):
        return False
    old_root, new_root = bytes.fromhex(old["root"]), bytes.fromhex(new["root"])
    leaf = bytes.fromhex(older.envelope.statement_hash)
    if not included(
        leaf, index=way.index, size=new["size"], proof=_bytes(way.inclusion), root=new_root
    ):
        return False
    return way.index == 0 or consistent(
        old=old["size"],
        new=new["size"],
        old_root=old_root,
        new_root=new_root,
        proof=_bytes(way.consistency),
    )


def _texts(steps: Sequence[bytes]) -> list[str]:
    return [step.hex() for step in steps]


def _bytes(steps: Sequence[str]) -> list[bytes]:
    return [bytes.fromhex(step) for step in steps]


class Against:
    """Takes the heads of a pass over the events as they come and holds them against a seal."""

    def __init__(
        self, name: str, said: Mapping[str, Any], heads: Sequence[SealedHead] = ()
    ) -> None:
        self.name, self.said = name, said
        self._tree = MerkleTree()
        self._sealed = {head.stream: head for head in heads}
        self._wrong: list[str] = []

    def anchor(self) -> Anchor:
        return Anchor(self.said["position"], self._take)

    def _take(self, stream: str, seq: int, hash_: bytes) -> None:
        found = SealedHead(stream, seq, hash_.hex())
        self._tree.add(found.leaf())
        sealed = self._sealed.pop(stream, None)
        if sealed is None:
            return
        if sealed.seq > seq:
            self._wrong.append(f"{stream} had {sealed.seq} events and has {seq}")
        elif sealed != found:
            self._wrong.append(f"{stream} is not what it was at event {sealed.seq}")

    def judge(self, findings: Findings, newest: int) -> None:
        """Say what is not as it was sealed."""
        findings.count("seals")
        if self._tree.size == self.said["streams"] and self._tree.root().hex() == self.said["root"]:
            return
        wrong = [*self._wrong, *(f"{stream} is gone" for stream in sorted(self._sealed))]
        for why in wrong:
            findings.fault("seal", self.name, why)
        if newest < self.said["position"]:
            made = (
                f"it was made after event {self.said['position']:,}, and here are only {newest:,}"
            )
            findings.fault(
                "seal", self.name, f"{made}: a tail is cut off, or this is an older copy"
            )
        elif not wrong:
            findings.fault(
                "seal",
                self.name,
                f"what happened up to event {self.said['position']:,} was written anew",
            )
