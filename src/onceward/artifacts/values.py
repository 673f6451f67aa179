"""Python values as JSON: what a step returns, made into what is recorded and what a later step
gets.

Dataclasses, msgspec, attrs and pydantic objects become objects, a set a sorted list, a datetime
ISO text, a key that is no text its JSON text. What has no such form raises ValueError or
TypeError, with the path to it."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Set
from numbers import Integral, Real
from typing import Any

import msgspec

_DEEPEST = 100


def to_json(value: Any, path: str = "result", depth: int = 0) -> Any:
    """`value` as None, bool, int, finite float, str, list and dict with text keys."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        # The text itself: a class of its own, such as an Enum, may show itself differently.
        return _text(str.__str__(value), path)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real) and not hasattr(value, "numerator"):
        return _finite(float(value), path)
    if depth >= _DEEPEST:
        raise ValueError(f"{path} is nested deeper than {_DEEPEST} levels")
    if isinstance(value, Mapping):
        return _object(value, path, depth)
    if isinstance(value, list | tuple):
        return [to_json(item, f"{path}[{n}]", depth + 1) for n, item in enumerate(value)]
    if isinstance(value, Set):
        items = [to_json(item, f"{path}{{}}", depth + 1) for item in value]
        return sorted(items, key=lambda item: json.dumps(item, sort_keys=True))
    return to_json(_converted(value, path, depth), path, depth + 1)


def _converted(value: Any, path: str, depth: int) -> Any:
    """One step towards JSON for an object: its fields, or its text."""
    dump = getattr(type(value), "model_dump", None)
    if callable(dump):
        return dump(value, mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}

    def convert(inner: Any) -> Any:
        if inner is value:
            raise TypeError(f"{path} is a {type(value).__name__}, which has no JSON form")
        return to_json(inner, f"{path} (in a {type(value).__name__})", depth + 1)

    return msgspec.to_builtins(value, str_keys=True, enc_hook=convert)


def _object(value: Mapping[Any, Any], path: str, depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, item in value.items():
        name = _key(key, path)
        if name in found:
            raise ValueError(f"{path} has two keys that both become {name!r}")
        found[name] = to_json(item, f"{path}.{name}", depth + 1)
    return found


def _key(key: Any, path: str) -> str:
    if isinstance(key, str):
        return _text(str.__str__(key), path)
    plain = to_json(key, f"{path} (a key)")
    if isinstance(plain, list | dict):
        raise TypeError(f"{path} has a key of type {type(key).__name__}, which has no text form")
    return plain if isinstance(plain, str) else json.dumps(plain)


def _text(text: str, path: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{path} holds a lone surrogate, which is no text") from None
    return text


def _finite(number: float, path: str) -> float:
    if not math.isfinite(number):
        raise ValueError(f"{path} is {number}, which JSON cannot say")
    return number
