"""Canonical bytes: the one way a value becomes bytes, digests and hash links (K-1, K-5)."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, NoReturn

import msgspec

from onceward.core.limits import MAX_DEPTH, MAX_INTEGER, MAX_PAYLOAD_BYTES
from onceward.errors import InvalidConfig

ZERO_HASH: Final = bytes(32)

_encoder = msgspec.json.Encoder(order="sorted")


class _Refused:
    """Stands in a parsed value where the text held something canonical bytes cannot."""

    __slots__ = ("why",)

    def __init__(self, why: str) -> None:
        self.why = why


def canonical(value: Any) -> bytes:
    """RFC 8785 bytes of `value`; refuses whatever could mean two things to two readers."""
    check(value)
    return _encoder.encode(value)


def canonical_of_checked(value: Any) -> bytes:
    """The same for a value whose every part was checked before: for what is hashed thousands of
    times."""
    return _encoder.encode(value)


def canonical_config(value: Any) -> bytes:
    """The same for config, which is no record and may hold finite floats: each as RFC 8785
    writes it."""
    check(_mapped(value, lambda number: 0 if math.isfinite(number) else number))
    return _encoder.encode(_mapped(value, lambda number: msgspec.Raw(_number(number).encode())))


def _mapped(value: Any, convert: Callable[[float], Any]) -> Any:
    """A value with its floats converted."""
    if isinstance(value, float):
        return convert(value)
    if isinstance(value, dict):
        return {key: _mapped(item, convert) for key, item in value.items()}
    return [_mapped(item, convert) for item in value] if isinstance(value, list | tuple) else value


def _number(number: float) -> str:
    """A float as ECMAScript writes it: the shortest digits, an exponent only beyond 21 places or
    below six zeros."""
    if number == 0:
        return "0"
    sign = "-" if number < 0 else ""
    digits, exponent = Decimal(repr(abs(number))).normalize().as_tuple()[1:]
    text = "".join(map(str, digits))
    point = len(text) + int(exponent)
    if 0 < point <= 21:
        whole, fraction = text[:point].ljust(point, "0"), text[point:]
        return sign + whole + (f".{fraction}" if fraction else "")
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{text}"
    mantissa = text[0] + (f".{text[1:]}" if len(text) > 1 else "")
    return f"{sign}{mantissa}e{'+' if point > 0 else '-'}{abs(point - 1)}"


def check(value: Any, depth: int = 0) -> None:
    """Refuse, with the path to it, what has no canonical bytes; `depth` is how deep it will
    stand."""
    _check(value, depth)


def digest(value: Any) -> str:
    """SHA-256 of the canonical bytes, in lower-case hex."""
    return sha256_hex(canonical(value))


_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


def holds_nul(text: bytes) -> bool:
    """Whether a JSON text has a NUL in it; one that only speaks of it, behind a backslash of its
    own, has not."""
    return _NUL.search(text) is not None


def sha256_hex(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def bounded(value: Any, what: str) -> bytes:
    """Canonical bytes of a record's payload, refused when over long."""
    return bounded_bytes(canonical(value), what)


def bounded_bytes(data: bytes, what: str) -> bytes:
    if len(data) > MAX_PAYLOAD_BYTES:
        raise InvalidConfig(
            f"{what} is {len(data):,} bytes; at most {MAX_PAYLOAD_BYTES:,} fit in a record. "
            "Store it as an artifact and name its digest instead.",
            context={"what": what, "bytes": len(data), "limit": MAX_PAYLOAD_BYTES},
        )
    return data


def parse(text: bytes | str) -> Any:
    """A JSON text as a value that `canonical` accepts; floats and repeated keys are refused with
    their path."""
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        value = json.loads(
            text,
            parse_float=lambda literal: _Refused(f"{literal} is a float; write it as a string"),
            parse_constant=lambda literal: _Refused(f"{literal} is not a JSON number"),
            parse_int=_parse_int,
            object_pairs_hook=_object,
        )
    except UnicodeDecodeError as error:
        raise InvalidConfig(
            f"not UTF-8: byte {error.start} cannot be decoded", context={"path": "$"}
        ) from None
    except json.JSONDecodeError as error:
        raise InvalidConfig(
            f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}",
            context={"path": "$", "line": error.lineno, "column": error.colno},
        ) from None
    except RecursionError:
        raise InvalidConfig(
            f"nested deeper than {MAX_DEPTH} levels", context={"path": "$"}
        ) from None
    _check(value, 0)
    return value


def _parse_int(literal: str) -> Any:
    # Python refuses to convert absurdly long digits; so do we, before it has to.
    return int(literal) if len(literal) <= 17 else _Refused(f"{literal[:20]}… is beyond ±(2^53−1)")


def _object(pairs: list[tuple[str, Any]]) -> Any:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        return _Refused(f"the key {repeated!r} stands twice")
    return value


def _check(value: Any, depth: int) -> None:
    kind = type(value)
    if kind is str:
        if not value.isascii():
            _check_text(value)
    elif kind is int:
        if not -MAX_INTEGER <= value <= MAX_INTEGER:
            _refuse(
                f"a number of {value.bit_length()} bits is beyond ±(2^53−1); write it as a string"
            )
    elif kind is dict:
        if depth >= MAX_DEPTH:
            _refuse(f"nested deeper than {MAX_DEPTH} levels")
        for key, item in value.items():
            if type(key) is not str:
                _refuse(f"a key is a {type(key).__name__}, not a string")
            if not key.isascii():
                _check_key(key)
            try:
                _check(item, depth + 1)
            except _Path as error:
                raise error.under(f".{key}") from None
    elif kind is list or kind is tuple:
        if depth >= MAX_DEPTH:
            _refuse(f"nested deeper than {MAX_DEPTH} levels")
        for index, item in enumerate(value):
            try:
                _check(item, depth + 1)
            except _Path as error:
                raise error.under(f"[{index}]") from None
    elif value is None or kind is bool:
        return
    elif kind is _Refused:
        _refuse(value.why)
    elif isinstance(value, float):
        _refuse(f"{value!r} is a float; write it as a string")
    else:
        _refuse(f"a {kind.__name__} has no canonical form")


class _Path(InvalidConfig):
    """A refusal on its way up, collecting the path to the value."""

    def __init__(self, why: str, path: str = "") -> None:
        self.why, self.path = why, path
        super().__init__(f"${path}: {why}", context={"path": f"${path}"})

    def under(self, step: str) -> _Path:
        return _Path(self.why, step + self.path)


def _refuse(why: str) -> NoReturn:
    raise _Path(why)


def _check_text(text: str) -> None:
    if any("\ud800" <= char <= "\udfff" for char in text):
        _refuse("a lone surrogate is not text")


def _check_key(key: str) -> None:
    _check_text(key)
    if any(char > "\uffff" for char in key):
        _refuse(
            f"the key {key!r} holds a character outside the BMP, where readers sort differently"
        )
