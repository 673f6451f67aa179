"""Steps: their names, their locks and their outputs."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from onceward.core.canon import canonical_of_checked, digest, sha256_hex
from onceward.core.limits import MAX_TARGET_CHARS
from onceward.errors import InvalidConfig

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_-]+")


class Output(msgspec.Struct, frozen=True, gc=False):
    """One thing that a step left: a value (`json`, `text`, `bytes`, `path`), a `file`, or a `program`."""

    name: str
    kind: str
    sha256: str
    size: int


def fill(word: str, target: str) -> str:
    """A word of a command or an input with its target put in."""
    return word.replace("{target}", target)


def step_name(stage: str, target: str) -> str:
    return f"{stage}:{target}"


def check_target_name(name: object) -> str:
    """A target may be any text that is also a safe relative path."""
    fits = (
        isinstance(name, str)
        and 1 <= len(name) <= MAX_TARGET_CHARS
        and name.isprintable()
        and name == name.strip()
    )
    if not fits or any(
        part in ("", ".", "..") or len(part.encode()) > 255 for part in str(name).split("/")
    ):
        raise InvalidConfig(
            f"{str(name)[:60]!a} is no name for a target: 1 to {MAX_TARGET_CHARS} printable characters that make a"
            " relative path, without . and .. in it",
            context={"field": "targets"},
        )
    return str(name)


def lock_target(plan: str, stage: str, target: str) -> str:
    """The target lock of a step: its name where that is one, else a slug and a digest."""
    parts = (plan, stage, target)
    name = ".".join(parts)
    if all(_PLAIN.fullmatch(part) for part in parts) and len(name) <= 128:
        return name
    slug = ".".join(_NOT_PLAIN.sub("-", part).strip("-_")[:30] or "x" for part in parts)
    return f"{slug}-{digest(list(parts))[:16]}"


def manifest_line(stage: str, target: str, outputs: str) -> bytes:
    """A step in the list of what a build made: which, and its outputs as its checkpoint holds
    them."""
    return canonical_of_checked([stage, target])[:-1] + b"," + outputs.encode() + b"]\n"


def result_digest(outputs: Sequence[Output]) -> str:
    """One digest of a step's outputs: names, kinds and contents."""
    return sha256_hex(canonical_of_checked([[out.name, out.kind, out.sha256] for out in outputs]))
