from __future__ import annotations

import json
import math

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from onceward.core.canon import bounded, canonical, canonical_config, digest, parse
from onceward.core.limits import MAX_DEPTH, MAX_PAYLOAD_BYTES
from onceward.errors import InvalidConfig

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
KEYS = st.text(st.characters(exclude_categories=["Cs"], max_codepoint=0xFFFF))
INTEGERS = st.integers(-(2**53 - 1), 2**53 - 1)
ACCEPTED = st.recursive(
    st.none() | st.booleans() | INTEGERS | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner),
    max_leaves=30,
)


@pytest.mark.rule("K-1")
@given(ACCEPTED)
def test_canonical_bytes_agree_with_the_rfc8785_library(value):
    assert canonical(value) == rfc8785.dumps(value)


@pytest.mark.rule("K-1")
@given(ACCEPTED)
def test_canonical_bytes_come_back_as_themselves(value):
    assert canonical(parse(canonical(value))) == canonical(value)


@pytest.mark.rule("K-1")
@given(st.dictionaries(KEYS, INTEGERS, min_size=2))
def test_key_order_of_the_input_does_not_matter(value):
    assert canonical(dict(reversed(value.items()))) == canonical(value)


# The control-character and key-sorting examples of RFC 8785, section 3.2, within what we accept.
@pytest.mark.rule("K-1")
def test_published_examples():
    text = '{"string":"\\u20ac$\\u000F\\u000aA\'\\u0042\\u0022\\u005c\\\\\\"\\/","literals":[null,true,false]}'
    wanted = '{"literals":[null,true,false],"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    assert canonical(parse(text)) == wanted.encode()
    keys = '{"\\u20ac":1,"\\r":2,"1":3,"\\u0080":4,"\\u00f6":5,"\\ufb33":6}'
    assert list(json.loads(canonical(parse(keys)))) == ["\r", "1", "\u0080", "ö", "€", "\ufb33"]


@pytest.mark.rule("K-1")
@pytest.mark.parametrize(
    ("value", "path"),
    [
        (1.5, "$"),
        (math.nan, "$"),
        (math.inf, "$"),
        ({"a": [0, {"b": 2.0}]}, "$.a[1].b"),
        (2**53, "$"),
        (-(2**53), "$"),
        ({"a": 2**53}, "$.a"),
        ({1: "a"}, "$"),
        ({None: "a"}, "$"),
        ({"😀": 1}, "$"),
        ({"a": {"😀": 1}}, "$.a"),
        ("\ud800", "$"),
        ({"a": "\udfff"}, "$.a"),
        ({"\ud800": 1}, "$"),
        (b"bytes", "$"),
        ({"a": {1, 2}}, "$.a"),
        (object(), "$"),
    ],
)
def test_what_could_mean_two_things_is_refused_with_its_path(value, path):
    with pytest.raises(InvalidConfig) as refused:
        canonical(value)
    assert refused.value.context["path"] == path
    assert refused.value.exit_status == 2


def nested(depth: int, opening: object = None) -> object:
    value = opening
    for level in range(depth):
        value = [value] if level % 2 else {"k": value}
    return value


@pytest.mark.rule("K-1")
def test_nesting_ends_at_the_limit():
    canonical(nested(MAX_DEPTH))
    with pytest.raises(InvalidConfig, match="deeper than 100"):
        canonical(nested(MAX_DEPTH + 1))


@pytest.mark.rule("K-1")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1.0", "float"),
        ("1e3", "float"),
        ('{"a":-0.0}', "float"),
        ("NaN", "not a JSON number"),
        ("-Infinity", "not a JSON number"),
        ("9007199254740992", "beyond"),
        ("1" * 5000, "beyond"),
        ('{"a":1,"a":2}', "stands twice"),
        ('{"x":{"a":1,"b":2,"a":3}}', r"\$\.x: the key 'a' stands twice"),
        ('"\\ud83d"', "surrogate"),
        ("[" * 100_000 + "]" * 100_000, "deeper"),
        ("[1,]", "not JSON"),
        ("", "not JSON"),
        (b"\xff", "UTF-8"),
        ("\ufeff1", "not JSON"),
    ],
)
def test_text_that_readers_take_differently_is_refused(text, words):
    with pytest.raises(InvalidConfig, match=words):
        parse(text)


@pytest.mark.rule("K-1")
def test_the_digest_is_sha256_in_lower_case_hex():
    # Published: SHA-256 of the two bytes "{}".
    assert digest({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


def test_a_payload_over_the_limit_is_refused():
    bounded("x" * (MAX_PAYLOAD_BYTES - 2), "it")
    with pytest.raises(InvalidConfig, match="artifact"):
        bounded("x" * (MAX_PAYLOAD_BYTES - 1), "it")


@pytest.mark.rule("K-1")
@pytest.mark.parametrize(
    "value", [10**5000, -(10**5000), {10**5000: 1}], ids=["large", "small", "key"]
)
def test_absurdly_long_numbers_are_refused_like_any_other(value):
    with pytest.raises(InvalidConfig):
        canonical(value)


@pytest.mark.rule("K-1")
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_of_a_config_are_written_as_rfc_8785_writes_them(number):
    value = {"temperature": [number, {"deep": number}]}
    assert canonical_config(value) == rfc8785.dumps(value)
    with pytest.raises(InvalidConfig, match="is a float"):
        canonical(value)


@pytest.mark.rule("K-1")
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_config_holds_no_number_that_json_cannot_say(number):
    with pytest.raises(InvalidConfig):
        canonical_config({"a": number})
