"""Which duties are not separated yet: those for which there are too few people to do each by somebody else (G18)."""

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

ROLE_OF: Final[Mapping[str, str]] = {
    "principals.add": "admin",
    "principals.take": "admin",
    "keys.add": "",
    "keys.revoke": "",
    "locks.clear": "operator",
    "outbox.flush": "operator",
    "children.cancel": "operator",
    "builds.confirm": "operator",
    "builds.pause": "operator",
    "settings.note": "",
    "builds.abandon": "operator",
    "builds.approve": "reviewer",
    "seals.add": "operator",
    "grants.draft": "operator|granter",
    "grants.issue": "granter",
    "grants.revoke": "granter",
    "grants.expire": "operator|granter",
    "sagas.abandon": "operator",
    "changes.mark": "operator",
    "changes.sweep": "operator",
    "changes.review": "reviewer",
    "changes.abandon": "admin",
    "tokens.new": "",
    "tokens.revoke": "",
    "builds.run": "operator",
    "builds.resume": "operator",
    "sessions.spawn": "operator",
    "sagas.run": "operator",
    "sagas.resume": "operator",
    "registry.apply": "operator",
    "registry.rollback": "operator",
    "changes.cut": "executor",
    "changes.verify": "verifier",
}
"""The role that each act needs, or any of several; empty where anybody who is known may."""

WORKS: Final = frozenset(
    {
        *("builds.run", "builds.resume", "sessions.spawn", "sagas.run", "sagas.resume"),
        *("registry.apply", "registry.rollback", "changes.cut", "changes.verify"),
    }
)
"""What takes its time: only a kernel that serves takes it from others (K-13)."""

OWN_ACTS: Final = frozenset({"builds.pause", "settings.note"})
"""What a kernel signs for its own principal while it works; nobody asks for it."""

CHILD_ACTS: Final = frozenset({"changes.mark", "children.cancel"})
"""What a child may ask for with its own credential: to propose, and its own end (K-14). To begin work is not among it
while what that spends would not count for the child."""

DUTIES: Final = ("operator", "reviewer", "executor", "verifier")
"""What no one person should do to the same thing."""


def unseparated(may: Mapping[str, Set[str]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The most duties that fewer people share than there are duties, and who they are; both empty where each duty can
    be somebody else's. `may` says who has which role."""
    for size in range(len(DUTIES), 1, -1):
        for some in combinations(DUTIES, size):
            able = {
                name
                for name, roles in may.items()
                if "admin" in roles or not roles.isdisjoint(some)
            }
            if len(able) < size:
                return some, tuple(sorted(able))
    return (), ()
