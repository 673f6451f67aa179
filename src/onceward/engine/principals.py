"""Who may do what: roles are checked here, not at the edges (H-9)."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from onceward.errors import InvalidConfig, PermissionDenied, Recovery
from onceward.kernel.records import ROLES, Principal, check_name
from onceward.store.port import Reads
from onceward.store.tables.principals import Principals, add_principal
from onceward.store.transaction import Transaction


def authorize(rows: Reads, name: str, role: str) -> Principal:
    """The principal, if it may act in this role; else PERMISSION_DENIED saying who could help."""
    known = Principals(rows)
    principal = known.find(name)
    if principal is not None and principal.may(role):
        return principal
    admins = [p.name for p in known.all() if p.may("admin")]
    why = f"has only {', '.join(sorted(principal.roles)) or 'no role'}" if principal else "is not known here"
    raise PermissionDenied(
        f"{name} {why}; this needs the role {role}",
        context={"principal": name, "needs": role, "admins": admins},
        recovery=[
            Recovery(
                f"ask {' or '.join(admins)}",
                f"onceward principals add {shlex.quote(name)} --role {role}",
                "high" if role == "admin" else "low",
            )
        ],
    )


def add(tx: Transaction, name: str, roles: Sequence[str], by: str) -> None:
    """Make a principal known, or give it more roles; recorded in the workspace's stream."""
    check_name(name, "principal")
    unknown = [role for role in roles if role not in ROLES]
    if unknown or not roles:
        raise InvalidConfig(
            f"roles must be among {', '.join(ROLES)}, not {', '.join(unknown) or 'none'}",
            context={"field": "role"},
        )
    known = tx.principals.find(name)
    new = sorted(set(roles) - (known.roles if known else frozenset()))
    if new:
        add_principal(tx, name, new, by, tx.now)
        tx.append("workspace", "PRINCIPAL_ADDED", by, {"principal": name, "roles": new})


def welcome(tx: Transaction, name: str) -> None:
    """The first person to open a workspace is its admin."""
    if not tx.principals.all():
        add(tx, name, ["admin"], name)
