"""What is signed can be checked by others: DSSE by securesystemslib, bytes by rfc8785; weak keys are refused."""

from __future__ import annotations

import base64
import importlib.util
import json
from pathlib import Path

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st
from securesystemslib.dsse import Envelope as TheirEnvelope
from securesystemslib.signer import SSlibKey

from onceward.errors import InvalidConfig
from onceward.people.signing import (
    ACT,
    PAYLOAD_TYPE,
    Envelope,
    SigningKey,
    encoded,
    fingerprint,
    genuine,
    objection,
    possession,
    read_envelope,
    require_sound,
    statement,
)

P = 2**255 - 19
OTHERS = importlib.util.spec_from_file_location(
    "check_bundle", Path(__file__).parents[2] / "tools" / "check_bundle.py"
)
KEY = SigningKey.generate()


def signed(predicate=None):
    return KEY.sign(statement(ACT, [("thing", "ab" * 32)], predicate or {"é": "ü", "n": 1}))


@pytest.fixture(scope="module")
def other():
    module = importlib.util.module_from_spec(OTHERS)
    OTHERS.loader.exec_module(module)
    return module


@pytest.mark.rule("E-2")
def test_securesystemslib_verifies_our_envelopes():
    document = signed().document()
    theirs = TheirEnvelope.from_dict(document)
    value = {"public": KEY.public.hex()}
    key = SSlibKey(KEY.fingerprint, "ed25519", "ed25519", value)
    assert list(theirs.verify([key], 1)) == [KEY.fingerprint]
    assert theirs.pae() == encoded(PAYLOAD_TYPE, signed().statement)
    said = json.loads(theirs.payload)
    assert said["_type"] == "https://in-toto.io/Statement/v1"
    assert said["subject"] == [{"digest": {"sha256": "ab" * 32}, "name": "thing"}]


@pytest.mark.rule("E-2", "K-1")
def test_statements_are_the_bytes_that_rfc8785_makes():
    said = signed()
    assert rfc8785.dumps(json.loads(said.statement)) == said.statement
    assert said.said() == json.loads(said.statement)


@given(st.integers(0, 10_000), st.integers(0, 7))
def test_any_flipped_bit_of_statement_or_signature_is_found(place, bit):
    envelope = signed()
    whole = bytearray(envelope.statement + envelope.signature)
    whole[place % len(whole)] ^= 1 << bit
    cut = len(envelope.statement)
    assert not genuine(
        KEY.public, Envelope(bytes(whole[:cut]), KEY.fingerprint, bytes(whole[cut:]))
    )


def test_another_key_or_another_kind_of_payload_does_not_verify():
    envelope, stranger = signed(), SigningKey.generate()
    assert genuine(KEY.public, envelope)
    assert not genuine(stranger.public, envelope)
    assert not genuine(
        KEY.public, Envelope(envelope.statement, stranger.fingerprint, envelope.signature)
    )
    bare = KEY._private.sign(envelope.statement)
    assert not genuine(KEY.public, Envelope(envelope.statement, KEY.fingerprint, bare))


@pytest.mark.parametrize(
    "change",
    [
        {"more": 1},
        {"signatures": []},
        {"signatures": [{"keyid": "a", "sig": "b"}] * 2},
        {"payload": "!"},
        {"payloadType": "text/plain"},
        {"payload": base64.b64encode(b"x").decode() + "\n"},
    ],
)
def test_an_envelope_has_one_form(change):
    with pytest.raises(InvalidConfig):
        read_envelope({**signed().document(), **change})
    with pytest.raises(InvalidConfig):
        read_envelope([])


def test_a_statement_that_is_not_canonical_is_not_read():
    loose = KEY.sign(b'{"b": 1, "a": 2}')
    with pytest.raises(InvalidConfig, match="canonical"):
        loose.said()


def order_eight(other):
    """A point of order 8: some point with its large part taken away."""
    for y in range(2, 200):
        try:
            found = other.times(other.ORDER, other.point(y.to_bytes(32, "little")))
        except SystemExit:
            continue
        if not other_is_zero(other, other.times(4, found)):
            return found
    raise AssertionError


def other_is_zero(other, point):
    return point[0] % P == 0 and (point[1] - point[2]) % P == 0


def encode(point):
    inverse = pow(point[2], -1, P)
    x, y = point[0] * inverse % P, point[1] * inverse % P
    return (y | (x & 1) << 255).to_bytes(32, "little")


@pytest.mark.rule("E-4")
def test_all_points_of_small_order_are_refused(other):
    torsion = order_eight(other)
    points = {encode(other.times(number, torsion)) for number in range(8)}
    assert len(points) == 8
    for point in points:
        assert "small order" in objection(point)
        with pytest.raises(InvalidConfig, match="small order"):
            require_sound(point)


@pytest.mark.rule("E-4")
@pytest.mark.parametrize("y", [P, P + 1, P + 2, 2**255 - 1])
@pytest.mark.parametrize("sign", [0, 1])
def test_encodings_that_are_not_canonical_are_refused(y, sign):
    assert "canonical" in objection((y | sign << 255).to_bytes(32, "little"))


@pytest.mark.rule("E-4")
def test_a_zero_with_a_sign_bytes_off_the_curve_and_wrong_lengths_are_refused():
    assert objection((1 | 1 << 255).to_bytes(32, "little"))
    assert objection((P - 1 | 1 << 255).to_bytes(32, "little"))
    assert any("no point" in (objection(y.to_bytes(32, "little")) or "") for y in range(2, 20))
    assert objection(b"") and objection(b"\1" * 33)
    assert objection(KEY.public) is None and fingerprint(KEY.public) == KEY.fingerprint


def test_a_proof_of_possession_is_for_one_workspace_one_principal_and_one_key():
    proof = KEY.proof("wsp_1", "alice")
    for workspace, principal in (("wsp_1", "alice"), ("wsp_2", "alice"), ("wsp_1", "bob")):
        envelope = Envelope(possession(workspace, principal, KEY.public), KEY.fingerprint, proof)
        assert genuine(KEY.public, envelope) == ((workspace, principal) == ("wsp_1", "alice"))


def test_the_independent_verifier_agrees_on_rfc_8032_vectors_and_on_ours(other):
    # RFC 8032, 7.1, test 2.
    public = bytes.fromhex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c")
    signature = bytes.fromhex(
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )
    assert other.signed(public, signature, b"\x72")
    assert not other.signed(public, signature, b"\x73")
    envelope = signed()
    message = encoded(PAYLOAD_TYPE, envelope.statement)
    assert other.signed(KEY.public, envelope.signature, message)
    assert not other.signed(SigningKey.generate().public, envelope.signature, message)


def test_a_private_key_survives_its_file_and_nothing_else_is_one():
    assert SigningKey.read(KEY.pem()).fingerprint == KEY.fingerprint
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        load_pem_private_key,
    )

    theirs = load_pem_private_key(KEY.pem(), None)
    assert theirs.public_key().public_bytes_raw() == KEY.public
    ours = Ed25519PrivateKey.generate()
    written = ours.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    assert SigningKey.read(written).public == ours.public_key().public_bytes_raw()
    foreign = X25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    for pem in (b"", b"-----BEGIN PRIVATE KEY-----\n", foreign):
        with pytest.raises(InvalidConfig, match="Ed25519"):
            SigningKey.read(pem)
