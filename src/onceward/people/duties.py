"""Which duties are not separated yet: those for which there are too few people to do each by
somebody else (G18)."""

from __future__ import annotations

from collections.abc import Mapping, Set
from itertools import combinations
from typing import Final

ALLOWS: Final[Mapping[str, str]] = {
    "viewer": "look, and nothing else",
    "operator": "run, resume, cancel and abandon builds and sagas, run commands, mark and sweep changes, draft grants,"
    " clear locks, seal",
    "reviewer": "approve or refuse what waits for a person, steps and changes",
    "executor": "cut approved changes",
    "verifier": "verify what was cut",
    "granter": "issue and revoke grants",
    "admin": "everything, and say who may what",
}
"""What each role may do, in words."""

DUTIES: Final = ("operator", "reviewer", "executor", "verifier")
"""What no one person should do to the same thing."""


def unseparated(may: Mapping[str, Set[str]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The most duties that fewer people share than there are duties, and who they are; both
    empty where each duty can be somebody else's. `may` says who has which role."""
    for size in range(len(DUTIES), 1, -1):
        for duties in combinations(DUTIES, size):
            able = {
                name
                for name, roles in may.items()
                if "admin" in roles or not roles.isdisjoint(duties)
            }
            if len(able) < size:
                return duties, tuple(sorted(able))
    return (), ()
