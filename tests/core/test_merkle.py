"""The tree of RFC 9162 on the vectors that certificate transparency's own tests use (RFC 6962's reference log)."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.core.merkle import (
    MerkleTree,
    consistency_proof,
    consistent,
    included,
    inclusion_proof,
    root_of,
)

LEAVES = [
    bytes.fromhex(leaf)
    for leaf in (
        *("", "00", "10", "2021", "3031", "40414243", "5051525354555657"),
        "606162636465666768696a6b6c6d6e6f",
    )
]
ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
PATHS = {
    (0, 1): [],
    (0, 8): [
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    ],
    (5, 8): [
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ],
    (2, 3): ["fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"],
    (1, 5): [
        "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
    ],
}
STEPS = {
    (1, 1): [],
    (1, 8): [
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    ],
    (6, 8): [
        "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ],
    (2, 5): [
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
    ],
}
SIZED = st.integers(1, 40).flatmap(lambda size: st.tuples(st.just(size), st.integers(0, size - 1)))


@pytest.mark.rule("E-3")
def test_roots_are_those_of_the_published_vectors():
    assert root_of([]) == hashlib.sha256().digest()
    assert [root_of(LEAVES[:size]).hex() for size in range(1, 9)] == ROOTS


@pytest.mark.rule("E-3")
@pytest.mark.parametrize("place", PATHS)
def test_inclusion_proofs_are_those_of_the_published_vectors(place):
    index, size = place
    proof = inclusion_proof(LEAVES[:size], index)
    assert [step.hex() for step in proof] == PATHS[place]
    assert included(LEAVES[index], index, size, proof, bytes.fromhex(ROOTS[size - 1]))


@pytest.mark.rule("E-3")
@pytest.mark.parametrize("sizes", STEPS)
def test_consistency_proofs_are_those_of_the_published_vectors(sizes):
    old, new = sizes
    proof = consistency_proof(LEAVES[:new], old)
    assert [step.hex() for step in proof] == STEPS[sizes]
    assert consistent(old, new, bytes.fromhex(ROOTS[old - 1]), bytes.fromhex(ROOTS[new - 1]), proof)


@pytest.mark.rule("E-3")
@given(SIZED, st.data())
def test_every_leaf_is_shown_to_be_in_its_tree_and_in_no_other(place, data):
    size, index = place
    leaves = [bytes([number]) for number in range(size)]
    root, proof = root_of(leaves), inclusion_proof(leaves, index)
    assert included(leaves[index], index, size, proof, root)
    assert not included(b"other", index, size, proof, root)
    assert not included(leaves[index], index, size, [*proof, b"\0" * 32], root)
    if proof:
        wrong = data.draw(st.integers(0, len(proof) - 1))
        assert not included(leaves[index], index, size, [*proof[:wrong], *proof[wrong + 1 :]], root)
        turned = [
            *proof[:wrong],
            bytes([proof[wrong][0] ^ 1]) + proof[wrong][1:],
            *proof[wrong + 1 :],
        ]
        assert not included(leaves[index], index, size, turned, root)
    elsewhere = data.draw(st.integers(0, size + 1))
    assert included(leaves[index], elsewhere, size, proof, root) == (elsewhere == index)


@pytest.mark.rule("E-3")
@given(SIZED, st.data())
def test_a_tree_is_shown_to_be_the_beginning_of_another_only_if_it_is(place, data):
    new, index = place
    old = index + 1
    leaves = [bytes([number]) for number in range(new)]
    proof = consistency_proof(leaves, old)
    assert consistent(old, new, root_of(leaves[:old]), root_of(leaves), proof)
    forged = [b"\xff", *leaves[1:]]
    assert not consistent(old, new, root_of(forged[:old]), root_of(leaves), proof)
    assert old == new or not consistent(old, new, root_of(leaves[:old]), root_of(forged), proof)
    assert not consistent(old, new, root_of(leaves[:old]), root_of(leaves), [*proof, b"\0" * 32])


def test_a_tree_that_grows_has_the_same_root():
    tree = MerkleTree()
    for size, leaf in enumerate(LEAVES, 1):
        tree.add(leaf)
        assert (tree.size, tree.root().hex()) == (size, ROOTS[size - 1])
