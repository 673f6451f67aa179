"""Merkle trees as RFC 9162 (section 2.1) defines them: roots, inclusion and consistency proofs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence


def leaf_hash(data: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + data).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


class MerkleTree:
    """The root of leaves that come one at a time, in memory that grows with their logarithm."""

    def __init__(self) -> None:
        self.size = 0
        self._peaks: list[bytes] = []

    def add(self, data: bytes) -> None:
        found, size = leaf_hash(data), self.size
        while size & 1:
            found, size = _node(self._peaks.pop(), found), size >> 1
        self._peaks.append(found)
        self.size += 1

    def root(self) -> bytes:
        if not self._peaks:
            return hashlib.sha256().digest()
        *lower, found = self._peaks
        for peak in reversed(lower):
            found = _node(peak, found)
        return found


def root_of(leaves: Iterable[bytes]) -> bytes:
    tree = MerkleTree()
    for leaf in leaves:
        tree.add(leaf)
    return tree.root()


def inclusion_proof(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """What, beside leaf `index`, is needed to come to the root."""
    if not 0 <= index < len(leaves):
        raise IndexError("there is no such leaf")
    if len(leaves) == 1:
        return []
    cut = _cut(len(leaves))
    if index < cut:
        return [*inclusion_proof(leaves[:cut], index), root_of(leaves[cut:])]
    return [*inclusion_proof(leaves[cut:], index - cut), root_of(leaves[:cut])]


def included(data: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> bool:
    """Whether `data` is leaf `index` of the tree of `size` leaves with this root."""
    if not 0 <= index < size:
        return False
    found, at, last = leaf_hash(data), index, size - 1
    for beside in proof:
        if last == 0:
            return False
        if at & 1 or at == last:
            found = _node(beside, found)
            while not at & 1 and at:
                at, last = at >> 1, last >> 1
        else:
            found = _node(found, beside)
        at, last = at >> 1, last >> 1
    return last == 0 and found == root


def consistency_proof(leaves: Sequence[bytes], old: int) -> list[bytes]:
    """What shows that the tree of the first `old` leaves is the beginning of this one."""
    if not 0 < old <= len(leaves):
        raise IndexError("there was no such tree")
    return _subproof(leaves, old, whole=True)


def _subproof(leaves: Sequence[bytes], old: int, *, whole: bool) -> list[bytes]:
    if old == len(leaves):
        return [] if whole else [root_of(leaves)]
    cut = _cut(len(leaves))
    if old <= cut:
        return [*_subproof(leaves[:cut], old, whole=whole), root_of(leaves[cut:])]
    return [*_subproof(leaves[cut:], old - cut, whole=False), root_of(leaves[:cut])]


def consistent(
    old: int, new: int, old_root: bytes, new_root: bytes, proof: Sequence[bytes]
) -> bool:
    """Whether the tree of `new` leaves begins with the tree of `old` leaves."""
    if not 0 < old <= new:
        return False
    if old == new:
        return not proof and old_root == new_root
    path = list(proof) if old & (old - 1) else [old_root, *proof]
    if not path:
        return False
    at, last = old - 1, new - 1
    while at & 1:
        at, last = at >> 1, last >> 1
    first = second = path[0]
    for beside in path[1:]:
        if last == 0:
            return False
        if at & 1 or at == last:
            first, second = _node(beside, first), _node(beside, second)
            while not at & 1 and at:
                at, last = at >> 1, last >> 1
        else:
            second = _node(second, beside)
        at, last = at >> 1, last >> 1
    return last == 0 and first == old_root and second == new_root


def _cut(size: int) -> int:
    """The largest power of two below `size`."""
    return 1 << (size - 1).bit_length() - 1
