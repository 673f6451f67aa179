"""Validates everything that names a schema against the file of that name in `spec/`."""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import cache
from pathlib import Path

from jsonschema import Draft202012Validator

SPEC = Path(__file__).resolve().parents[1] / "spec"
_NAME = re.compile(r"[a-z][a-z0-9._-]*(@|\.v)[0-9]+")
_NAMED_BY = ("schema", "format")
"""The fields by which a document says which schema it follows."""


@cache
def validator(name: str) -> Draft202012Validator:
    path = SPEC / f"{name}.schema.json"
    # What has no file in spec/ is a name that nobody can look up: nothing is valid under it.
    if not path.exists():
        return Draft202012Validator(False)
    schema = json.loads(path.read_text("utf-8"))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def violations(value: object, where: str, found: Counter[str]) -> list[str]:
    """What in a document is not as its schema says, however deep it stands; `found` counts what was validated."""
    wrong: list[str] = []
    if isinstance(value, list):
        for item in value:
            wrong += violations(item, where, found)
    if not isinstance(value, dict):
        return wrong
    for field in _NAMED_BY:
        name = value.get(field)
        if isinstance(name, str) and _NAME.fullmatch(name):
            found[name] += 1
            wrong += [
                f"{where}: {name} at {error.json_path}: {error.message[:200]}"
                for error in validator(name).iter_errors(value)
            ]
    for inner in value.values():
        wrong += violations(inner, where, found)
    return wrong


def violations_in_lines(data: bytes | str, where: str, found: Counter[str]) -> list[str]:
    """The same for NDJSON, or for one document."""
    lines = data.splitlines()
    return [
        message
        for number, line in enumerate(lines, 1)
        if line.strip()
        for message in violations(json.loads(line), f"{where} line {number}", found)
    ]
