"""Principals and their roles."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from onceward.core.records import Principal
from onceward.core.sources import Micros
from onceward.store.port import Reads, Writes
from onceward.store.table import Table


class PrincipalRow(msgspec.Struct, frozen=True):
    """A principal, and who added it."""

    name: str
    added_at: Micros
    added_by: str


class RoleRow(msgspec.Struct, frozen=True):
    """A role that a principal has."""

    name: str
    role: str


PRINCIPALS: Final = Table(PrincipalRow, "principals", key=("name",))
PRINCIPAL_ROLES: Final = Table(RoleRow, "principal_roles", key=("name", "role"))


class Principals:
    def __init__(self, rows: Reads) -> None:
        self._rows = rows

    def find(self, name: str) -> Principal | None:
        if not self._rows.read("SELECT 1 FROM principals WHERE name = ?", (name,)):
            return None
        roles = self._rows.read("SELECT role FROM principal_roles WHERE name = ?", (name,))
        return Principal(name, frozenset(role for (role,) in roles))

    def all(self) -> list[Principal]:
        roles: dict[str, set[str]] = {
            name: set() for (name,) in self._rows.read("SELECT name FROM principals")
        }
        for name, role in self._rows.read("SELECT name, role FROM principal_roles"):
            roles[name].add(role)
        return [Principal(name, frozenset(roles[name])) for name in sorted(roles)]


def add_principal(tx: Writes, name: str, roles: Iterable[str], by: str, now: int) -> None:
    """A new principal, or more roles for a known one."""
    tx.write(
        "INSERT INTO principals (name, added_at, added_by) VALUES (?, ?, ?)"
        " ON CONFLICT (name) DO NOTHING",
        (name, now, by),
    )
    for role in sorted(roles):
        tx.write(
            "INSERT INTO principal_roles (name, role) VALUES (?, ?)"
            " ON CONFLICT (name, role) DO NOTHING",
            (name, role),
        )


def remove_roles(tx: Writes, name: str, roles: Iterable[str]) -> None:
    for role in sorted(roles):
        tx.write("DELETE FROM principal_roles WHERE name = ? AND role = ?", (name, role))
