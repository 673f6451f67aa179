"""The life of a change: marked, reviewed, cut, verified (H-1)."""

from __future__ import annotations

import fnmatch
import re
import unicodedata
from collections.abc import Mapping, Sequence, Set
from typing import Any, Final

import msgspec

from onceward.errors import InvalidConfig
from onceward.kernel.canon import canonical, sha256_hex
from onceward.kernel.changes import ChangeSet, Decision, Entry, PairSignature, Unit
from onceward.kernel.limits import APPROVAL_SECONDS, MAX_UNITS
from onceward.kernel.machine import NEW, Machine
from onceward.kernel.records import Move
from onceward.kernel.sources import Micros

CHANGE = Machine.parse(
    "change",
    """
    new                -> marked                   -            ENTRY_MARKED
    marked             -> review_pending           swept        ENTRY_SWEPT
    review_pending     -> reviewed_approved        approved     ENTRY_APPROVED
    review_pending     -> reviewed_deferred        deferred     ENTRY_DEFERRED
    review_pending     -> reviewed_rejected        rejected     ENTRY_REJECTED
    reviewed_deferred  -> review_pending           swept        ENTRY_SWEPT
    reviewed_approved  -> reviewed_deferred        deferred     ENTRY_DEFERRED
    reviewed_approved  -> cut_in_progress          cut_started  ENTRY_CUT_STARTED
    cut_in_progress    -> cut_applied              cut_done     ENTRY_CUT
    cut_applied        -> verify_in_progress       verify_started  ENTRY_VERIFY_STARTED
    verify_in_progress -> verified_complete        verify_passed   ENTRY_VERIFIED
    verify_in_progress -> verify_failed_escalated  verify_failed   ENTRY_ESCALATED

    marked | review_pending | reviewed_approved | reviewed_deferred | cut_applied -> abandoned abandoned ENTRY_ABANDONED
    reviewed_rejected | verified_complete | verify_failed_escalated -> abandoned abandoned ENTRY_ABANDONED bookkeeping

    terminal reviewed_rejected verified_complete verify_failed_escalated abandoned
    transient cut_in_progress verify_in_progress
    """,
)

CHANGE_SET = Machine.parse(
    "change_set",
    """
    new  -> open     -            CUT_OPENED
    open -> applied  all_there    CUT_APPLIED
    open -> undone   taken_back   CUT_UNDONE
    open -> stuck    not_ours     CUT_STUCK
    stuck -> open    retried      CUT_RETRIED

    terminal applied undone
    """,
)

_PATH: Final = re.compile(r"[^\x00-\x1f\x7f]{1,1024}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
WORDS: Final = {"approve": "approved", "defer": "deferred", "reject": "rejected"}


class PathRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What changes to some paths need beside."""

    glob: str
    approvals: int = 1
    """How many different people must approve."""
    role: str = ""
    """A role that at least one of them must have."""


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who may decide on changes, and for how long."""

    authors_may_review: bool = False
    approvals: int = 1
    approval_seconds: int = APPROVAL_SECONDS
    path: tuple[PathRule, ...] = ()

    def rules(self, paths: Sequence[str]) -> list[PathRule]:
        """What these paths need, the general rule first."""
        some = [rule for rule in self.path if any(fnmatch.fnmatchcase(path, rule.glob) for path in paths)]
        return [PathRule("*", self.approvals), *some]


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Exactly what is proposed: what an approval is for."""

    cutter: str
    target: str
    unit: tuple[Unit, ...]
    check: tuple[str, ...] = ()
    """The entry's own verification command."""

    def text(self) -> str:
        return canonical(msgspec.to_builtins(self)).decode()

    def content_hash(self) -> str:
        return sha256_hex(self.text().encode())

    def paths(self) -> list[str]:
        return [unit.path for unit in self.unit]


def manifest_of(text: str) -> Manifest:
    return msgspec.json.decode(text, type=Manifest)


def checked(manifest: Manifest) -> Manifest:
    """The manifest in its one form: units by path, each inside the tree and a real change; refused otherwise."""
    if not 1 <= len(manifest.unit) <= MAX_UNITS:
        raise InvalidConfig(
            f"a change has 1 to {MAX_UNITS:,} units, not {len(manifest.unit):,}", context={"field": "unit"}
        )
    units = sorted(manifest.unit, key=lambda unit: unit.path)
    paths: set[str] = set()
    for unit in units:
        _check_path(unit.path)
        if unit.path in paths:
            raise InvalidConfig(f"{unit.path[:80]} stands twice in the change", context={"path": unit.path})
        if (unit.before, unit.before_mode) == (unit.after, unit.after_mode):
            raise InvalidConfig(f"{unit.path[:80]} would stay as it is", context={"path": unit.path})
        for digest, mode in ((unit.before, unit.before_mode), (unit.after, unit.after_mode)):
            if (digest is None) != (mode is None) or (digest is not None and not _DIGEST.fullmatch(digest)):
                raise InvalidConfig(
                    f"{unit.path[:80]} needs a SHA-256 and a mode, or neither", context={"path": unit.path}
                )
            if mode is not None and not 0 <= mode <= 0o777:
                raise InvalidConfig(f"{unit.path[:80]} has no mode {mode:o}", context={"path": unit.path})
        paths.add(unit.path)
    _check_nesting(units)
    return msgspec.structs.replace(manifest, unit=tuple(units))


def _check_path(path: str) -> None:
    parts = path.split("/")
    safe = _PATH.fullmatch(path) and all(part not in ("", ".", "..") for part in parts)
    if not safe or not unicodedata.is_normalized("NFC", path) or len(path.encode()) > 1024:
        raise InvalidConfig(f"{path[:80]!a} is no path inside a tree", context={"path": path[:200]})
    if any(is_machinery(part) for part in parts):
        raise InvalidConfig(
            f"{path[:80]} belongs to the machinery, and is never part of a change", context={"path": path}
        )


def is_machinery(name: str) -> bool:
    """What is never part of a change: ours, and git's."""
    return name == ".git" or name.startswith(".onceward")


def _check_nesting(units: Sequence[Unit]) -> None:
    """After the change no file may lie inside another."""
    there = {unit.path for unit in units if unit.after is not None}
    for path in there:
        above = path.rpartition("/")[0]
        while above:
            if above in there:
                raise InvalidConfig(f"{path[:80]} would lie inside the file {above[:80]}", context={"path": path})
            above = above.rpartition("/")[0]


def mark(entry_id: str, key: str, manifest: Manifest, author: str, reason: str, escalates: str | None = None) -> Move:
    """Something is proposed."""
    known = {"idempotency_key": key, "author": author, "cutter": manifest.cutter, "target": manifest.target}
    columns = {**known, "reason": reason, "escalates": escalates}
    said = {**known, "manifest": manifest.content_hash(), **({"escalates": escalates} if escalates else {})}
    return Move(CHANGE, entry_id, NEW, "marked", 0, author, detail=said, columns=columns)


def sweep(entry: Entry, actor: str, sweep_id: str) -> Move:
    return _move(entry, "review_pending", "swept", actor, {"sweep_id": sweep_id})


def decide(entry: Entry, decision: str, actor: str, said: Mapping[str, Any]) -> Move:
    """A decision that counts."""
    word = WORDS[decision]
    return _move(entry, f"reviewed_{word}", word, actor, said)


def abandon(entry: Entry, actor: str, why: str) -> Move:
    return _move(entry, "abandoned", "abandoned", actor, {"why": why})


def start_cut(entry: Entry, actor: str, change_set_id: str) -> Move:
    return _move(entry, "cut_in_progress", "cut_started", actor, {"change_set_id": change_set_id})


def end_cut(entry: Entry, actor: str, said: Mapping[str, Any]) -> Move:
    return _move(entry, "cut_applied", "cut_done", actor, said)


def start_verify(entry: Entry, actor: str, change_set_id: str) -> Move:
    return _move(entry, "verify_in_progress", "verify_started", actor, {"change_set_id": change_set_id})


def end_verify(entry: Entry, actor: str, passed: bool, said: Mapping[str, Any]) -> Move:
    if passed:
        return _move(entry, "verified_complete", "verify_passed", actor, said)
    return _move(entry, "verify_failed_escalated", "verify_failed", actor, said)


def open_set(change_set_id: str, entry_id: str, decision_id: str, executor: str, undoes: str | None = None) -> Move:
    """Something is about to be carried out, or undone."""
    columns: dict[str, Any] = {"entry_id": entry_id, "decision_id": decision_id, "executor": executor}
    columns |= {"kind": "undo" if undoes else "cut", "of_change_set": undoes}
    said = {key: value for key, value in columns.items() if value is not None}
    return Move(CHANGE_SET, change_set_id, NEW, "open", 0, executor, detail=said, columns=columns)


def move_set(change_set: ChangeSet, target: str, reason: str, actor: str, said: Mapping[str, Any]) -> Move:
    CHANGE_SET.follow(change_set.status, target, reason)
    return Move(
        *(CHANGE_SET, change_set.change_set_id, change_set.status, target, change_set.version, actor, reason, said)
    )


class Objection(msgspec.Struct, frozen=True):
    """Why something may not be, by its code."""

    code: str
    why: str


def approved(
    decisions: Sequence[Decision],
    content_hash: str,
    policy: Policy,
    paths: Sequence[str],
    roles: Mapping[str, Set[str]],
) -> str:
    """What approvals of exactly these bytes still lack, in words; empty if they are enough. Of every reviewer the last
    word counts; `roles` says who has which."""
    last: dict[str, Decision] = {}
    for decision in sorted(decisions, key=lambda one: (one.decided_at, one.decision_id)):
        if decision.content_hash == content_hash:
            last[decision.reviewer] = decision
    for_it = {reviewer for reviewer, decision in last.items() if decision.decision == "approve"}
    for rule in policy.rules(paths):
        if len(for_it) < rule.approvals:
            return f"{rule.glob} needs {rule.approvals} approvals, and has {len(for_it)}"
        if rule.role and not any(rule.role in roles.get(reviewer, ()) for reviewer in for_it):
            return f"{rule.glob} needs an approval by somebody with the role {rule.role}"
    return ""


def cut_objection(
    entry: Entry, decision: Decision | None, content_hash: str, open_deps: Sequence[str], policy: Policy, now: Micros
) -> Objection | None:
    """Why an entry may not be cut (G-CUT-APPROVED, G-CUT-DEPS)."""
    if entry.status != "reviewed_approved" or decision is None:
        return Objection("G-CUT-APPROVED", f"the entry is {entry.status}, not approved")
    if decision.content_hash != content_hash:
        return Objection("G-CUT-APPROVED", "what was approved is not what the entry says now")
    if decision.decided_at + policy.approval_seconds * 1_000_000 <= now:
        return Objection("APPROVAL_EXPIRED", "the approval is too old")
    if open_deps:
        return Objection("G-CUT-DEPS", f"it depends on {', '.join(open_deps[:5])}, not verified yet")
    return None


def verify_objection(
    executor: PairSignature | None, principal: str, fingerprint: str, tool_revision: str
) -> Objection | None:
    """Why somebody may not verify a cut (G-VERIFY-CUT, G-VERIFY-SOD)."""
    if executor is None:
        return Objection("G-VERIFY-CUT", "there is no cut to verify")
    if executor.principal == principal:
        return Objection("G-VERIFY-SOD", f"{principal} carried it out; somebody else must verify it")
    if executor.fingerprint == fingerprint:
        return Objection("G-VERIFY-SOD", "the key that signed the cut must not sign its verification")
    if executor.tool_revision == tool_revision:
        return Objection("G-VERIFY-SOD", "what carried it out must not be what verifies it")
    return None


def _move(entry: Entry, target: str, reason: str, actor: str, said: Mapping[str, Any]) -> Move:
    CHANGE.follow(entry.status, target, reason)
    return Move(CHANGE, entry.entry_id, entry.status, target, entry.version, actor, reason, said)
