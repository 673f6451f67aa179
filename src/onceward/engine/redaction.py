"""Secrets leave no trace in what is stored: their values are replaced, wherever they stand (E-4)."""

from __future__ import annotations

import json
from collections.abc import Mapping

_SHORTEST = 4


def redact(data: bytes, secrets: Mapping[str, str]) -> bytes:
    """`data` with every declared secret's value replaced by its name; longest first, so that none hides in another."""
    for name, value in sorted(secrets.items(), key=lambda item: -len(item[1])):
        if len(value) >= _SHORTEST:
            mark = f"[redacted {name}]".encode()
            # As it is, as it stands inside JSON, and line by line where it has several.
            forms = {value, json.dumps(value)[1:-1], *(line for line in value.splitlines() if len(line) >= _SHORTEST)}
            for form in sorted(forms, key=lambda text: -len(text)):
                data = data.replace(form.encode(), mark)
    return data
