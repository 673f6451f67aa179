"""Changes as stored: what is proposed, who decided, what was cut, what was found (H-1 to H-8)."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from onceward.core.canon import digest
from onceward.core.limits import APPROVAL_SECONDS, PERMIT_SECONDS
from onceward.core.sources import Micros

IGNORED_NAMES: Final = (
    "__pycache__",
    "*.pyc",
    ".venv",
    "node_modules",
    ".pytest_cache",
    ".mypy_cache",
    ".ruff_cache",
    ".hypothesis",
)
"""What programs leave in a tree without being asked: no part of it, unless a workspace says
otherwise."""

LINK: Final = 0o120000
"""The mode of a unit that is a symbolic link: its bytes are where it leads."""


class Entry(msgspec.Struct, frozen=True):
    """A proposed change as stored. Only its status, with its version, ever changes."""

    entry_id: str
    idempotency_key: str
    author: str
    cutter: str
    """What carries it out: `tree`, `registry`, or one of the user's own."""
    target: str
    """What it is done to, relative to the workspace's own folder."""
    reason: str
    escalates: str | None
    """The entry whose failure it is about, if it is an escalation."""
    status: str
    version: int
    created_at: Micros = 0
    updated_at: Micros = 0


class Unit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One thing that becomes another: a file of a tree, by what it was and what it is to be. Nothing is None."""

    path: str
    before: str | None = None
    after: str | None = None
    before_mode: int | None = None
    after_mode: int | None = None


class ManifestEnvelope(msgspec.Struct, frozen=True):
    """What exactly an entry proposes, as stored: a changed proposal is another row."""

    manifest_id: str
    entry_id: str
    revision: int
    content_hash: str
    body: str
    """The manifest, as canonical text: what its hash is over."""
    author: str
    made_at: Micros


class Decision(msgspec.Struct, frozen=True):
    """A person's word on exactly one manifest."""

    decision_id: str
    entry_id: str
    content_hash: str
    reviewer: str
    decision: str
    """`approve`, `defer` or `reject`."""
    reason: str
    statement_hash: str | None
    decided_at: Micros
    entry_version: int
    """Where in its life the entry was."""


class ChangeSet(msgspec.Struct, frozen=True):
    """One carrying-out of an approval, or the undoing of one."""

    change_set_id: str
    entry_id: str
    decision_id: str
    kind: str
    """`cut`, or `undo` of one whose verification failed."""
    of_change_set: str | None
    executor: str
    status: str
    """`open` while it is under way; then `applied`, `undone` or `stuck`."""
    version: int
    created_at: Micros = 0
    updated_at: Micros = 0


class Affected(msgspec.Struct, frozen=True):
    """One thing that a change set touched: what was there, and what is there after it."""

    change_set_id: str
    path: str
    place: str
    """The same as seen from the workspace's own folder."""
    before: str | None
    after: str | None
    before_mode: int | None
    after_mode: int | None


class VerifyResult(msgspec.Struct, frozen=True):
    """What somebody else found to be really there."""

    verify_result_id: str
    change_set_id: str
    prior_verify_result_id: str | None
    passed: int
    detail: str
    verifier: str
    verified_at: Micros


class PairSignature(msgspec.Struct, frozen=True):
    """Who signed a cut, or a verification: exactly one of them."""

    signature_id: str
    entry_id: str
    role: str
    change_set_id: str | None
    verify_result_id: str | None
    principal: str
    fingerprint: str
    tool_revision: str
    statement_hash: str


class HistoryRow(msgspec.Struct, frozen=True):
    """One arrow of an entry's life, for ever."""

    history_id: str
    entry_id: str
    from_state: str | None
    to_state: str
    actor: str
    reason: str
    at: Micros
    detail: str
    signature_ref: str | None
    seq: int
    """Which of the entry's arrows it is."""


DECISIONS: Final = {
    "ENTRY_APPROVED": "approve",
    "ENTRY_DEFERRED": "defer",
    "ENTRY_REJECTED": "reject",
}
"""The decision that each event of a review tells of; others say it in their detail."""


class PathRule(msgspec.Struct, frozen=True):
    """What changes to some paths need beside: approvals by different people, one of them with a role."""

    glob: str
    approvals: int = 1
    role: str = ""


class Policy(msgspec.Struct, frozen=True):
    """What a workspace wants of its changes, as its settings say."""

    authors_may_review: bool = False
    approvals: int = 1
    approval_seconds: int = APPROVAL_SECONDS
    drift: Literal["files", "tree"] = "files"
    ignore: tuple[str, ...] = IGNORED_NAMES
    path: tuple[PathRule, ...] = ()

    def rules(self, places: Sequence[str]) -> list[PathRule]:
        """What these places need, as seen from the workspace's own folder; the general rule
        first."""
        some = [rule for rule in self.path if any(_fits(place, rule.glob) for place in places)]
        return [PathRule("*", self.approvals), *some]

    def with_recorded(self, recorded: Mapping[str, Any]) -> Policy:
        """The policy that satisfies both these settings and those signed last."""
        signed = [msgspec.convert(rule, PathRule) for rule in recorded["path"]]
        return msgspec.structs.replace(
            self,
            approval_seconds=min(self.approval_seconds, recorded["approval_seconds"]),
            approvals=max(self.approvals, recorded["approvals"]),
            authors_may_review=self.authors_may_review and recorded["authors_may_review"],
            path=(*self.path, *(rule for rule in signed if rule not in self.path)),
        )


def recorded_policy(policy: Policy, confirmation_seconds: int = PERMIT_SECONDS) -> dict[str, Any]:
    """What of the settings says who may do what and for how long, as it is recorded."""
    return {
        "confirmation_seconds": confirmation_seconds,
        "approval_seconds": policy.approval_seconds,
        "approvals": policy.approvals,
        "authors_may_review": policy.authors_may_review,
        "path": [msgspec.to_builtins(rule) for rule in policy.path],
    }


def said_of_pair(
    row: PairSignature, change_set: ChangeSet, result: VerifyResult | None
) -> dict[str, Any]:
    """The fields that a signed statement on a change must have."""
    fields: dict[str, Any] = {
        "signature_id": row.signature_id,
        "entry_id": row.entry_id,
        "role": row.role,
        "principal": row.principal,
        "key": row.fingerprint,
        "tool_revision": row.tool_revision,
        "change_set_id": change_set.change_set_id,
        "decision_id": change_set.decision_id,
    }
    if result is not None:
        fields |= {"verify_result_id": result.verify_result_id, "result": result_digest(result)}
        fields |= {"passed": bool(result.passed)}
    return fields


def _fits(place: str, glob: str) -> bool:
    """A glob is for a place however deep it lies: whoever marks a change chooses the tree, and
    must not choose the rules with it."""
    parts = place.split("/")
    return any(fnmatch.fnmatchcase("/".join(parts[at:]), glob) for at in range(len(parts)))


def result_digest(result: VerifyResult) -> str:
    """One digest of everything a result states."""
    return digest(msgspec.to_builtins(result))
