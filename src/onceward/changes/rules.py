"""Rules of changes: every refusal of a proposal, a review, a cut and a verification, from values alone (H-1 to H-8)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence, Set
from typing import Any, Final, NoReturn

import msgspec

from onceward.changes.machine import CHANGE, REVISABLE, VERIFIABLE, WORDS
from onceward.changes.manifest import Manifest, Origin, manifest_of
from onceward.core.canon import sha256_hex
from onceward.core.changes import LINK, ChangeSet, Decision, Entry, PairSignature, Policy, Unit
from onceward.core.limits import MAX_NAMED_PATHS, MAX_UNITS
from onceward.core.sagas import Run
from onceward.core.sources import Micros
from onceward.core.tree_paths import TREE, check_path, check_tree_name
from onceward.errors import (
    CODES,
    BaseDrift,
    ExecutionFailed,
    GuardFailed,
    IllegalTransition,
    IntegrityFault,
    InvalidConfig,
    InvalidResumeState,
    LockConflict,
    NotFound,
    PermissionDenied,
    PermitInvalid,
    Recovery,
    RequestConflict,
)

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


def _show(entry_id: str) -> Recovery:
    return Recovery("see how it stands", f"onceward change show {entry_id}")


# What a manifest says.


def require_manifest(manifest: Manifest) -> Manifest:
    """The manifest in its one form: units by path, each inside the tree and a real change."""
    if not 1 <= len(manifest.unit) <= MAX_UNITS:
        raise InvalidConfig(
            f"a change has 1 to {MAX_UNITS:,} units, not {len(manifest.unit):,}",
            context={"field": "unit"},
        )
    if any("\x00" in word for word in manifest.check) or (manifest.check and not manifest.check[0]):
        raise InvalidConfig(
            "the check of a change is a program and its words", context={"field": "check"}
        )
    if manifest.cutter == TREE:
        check_tree_name(manifest.target)
    if manifest.base and not _DIGEST.fullmatch(manifest.base):
        raise InvalidConfig("the base of a change is a SHA-256", context={"field": "base"})
    units = sorted(manifest.unit, key=lambda unit: unit.path)
    paths: set[str] = set()
    for unit in units:
        check_path(unit.path, in_tree=manifest.cutter == TREE)
        if unit.path in paths:
            raise InvalidConfig(
                f"{unit.path[:80]} stands twice in the change", context={"path": unit.path}
            )
        if (unit.before, unit.before_mode) == (unit.after, unit.after_mode):
            raise InvalidConfig(
                f"{unit.path[:80]} would stay as it is", context={"path": unit.path}
            )
        for digest, mode in ((unit.before, unit.before_mode), (unit.after, unit.after_mode)):
            _require_side(unit.path, digest, mode, manifest.cutter == TREE)
        paths.add(unit.path)
    _require_no_nesting(units)
    if manifest.cutter != TREE and (manifest.origin is not None or manifest.ignores):
        raise InvalidConfig(
            "only a change of a tree has an origin, or rules for what it ignores",
            context={"field": "origin"},
        )
    return msgspec.structs.replace(manifest, unit=tuple(units))


def _require_side(path: str, digest: str | None, mode: int | None, in_tree: bool) -> None:
    if digest is not None and not _DIGEST.fullmatch(digest):
        raise InvalidConfig(f"{path[:80]} needs a SHA-256", context={"path": path})
    if (mode is not None) != (digest is not None and in_tree):
        what = "a SHA-256 and a mode, or neither" if in_tree else "no mode: it is no file of a tree"
        raise InvalidConfig(f"{path[:80]} needs {what}", context={"path": path})
    if mode is not None and mode != LINK and not (mode <= 0o777 and mode & 0o400):
        raise InvalidConfig(
            f"{path[:80]} has the mode {mode:o}: only plain permissions are changed, and its owner can read it",
            context={"path": path},
        )


def _require_no_nesting(units: Sequence[Unit]) -> None:
    """After the change no file may lie inside another."""
    there = {unit.path for unit in units if unit.after is not None}
    for path in there:
        above = path.rpartition("/")[0]
        while above:
            if above in there:
                raise InvalidConfig(
                    f"{path[:80]} would lie inside the file {above[:80]}", context={"path": path}
                )
            above = above.rpartition("/")[0]


def require_manifest_text(text: bytes) -> Manifest:
    """The manifest that these bytes are, in its one form."""
    try:
        manifest = manifest_of(text)
    except msgspec.MsgspecError as error:
        raise InvalidConfig(
            f"this is no manifest: {error}", context={"field": "manifest"}
        ) from None
    if require_manifest(manifest).text().encode() != text:
        raise InvalidConfig("the manifest is not in canonical form", context={"field": "manifest"})
    return manifest


def require_one_plan(manifest: Manifest, plan: tuple[str, str] | None) -> None:
    """A change of the registry is one plan under its own name; `plan` is the name and collection of the plan in it."""
    named = None if len(manifest.unit) != 1 else (manifest.unit[0].path, manifest.target)
    if plan is None or plan != named:
        raise InvalidConfig(
            "a change of the registry is one plan, under its own name",
            context={"field": "unit"},
        )


# What a change is made to.


def require_known_cutter(cutter: str, known: Collection[str]) -> None:
    """A proposal is for a cutter that the settings name."""
    if cutter not in known:
        raise InvalidConfig(f"there is no cutter {cutter[:60]!a} here", context={"field": "cutter"})


def require_named_cutter(name: str, cutters: Mapping[str, str]) -> str:
    """The code of a user's own cutter, as the settings name it."""
    if name not in cutters:
        raise InvalidConfig(
            f"there is no cutter {name[:60]!a} here",
            context={"cutter": name[:128]},
            recovery=[Recovery("name it under [[changes.cutter]] in onceward.toml")],
        )
    return cutters[name]


def require_place(place: object) -> None:
    """A user's own place has the three methods of one."""
    if not all(callable(getattr(place, word, None)) for word in ("paths", "read", "write")):
        raise InvalidConfig("a cutter must have paths(), read(path) and write(path, data)")


def require_not_machinery(target: str, machinery: bool) -> None:
    """A workspace's own files, and what git keeps, are not changed."""
    if machinery:
        raise InvalidConfig(
            f"{target[:80]} is nothing that is changed", context={"field": "target"}
        )


def require_own_name(target: str, real: str, own: bool) -> None:
    """A tree goes by one name, without a link on the way."""
    if not own:
        raise InvalidConfig(
            f"{target[:80]} is not the tree's own name", context={"field": "target", "tree": real}
        )


def require_folder(target: str, folder: bool) -> None:
    """A tree is a folder."""
    if not folder:
        raise InvalidConfig(f"{target[:80]} is no folder", context={"field": "target"})


# Making a proposal.


def require_units(units: Collection[Unit]) -> None:
    """A proposal changes something."""
    if not units:
        raise InvalidConfig(
            "there is nothing to change: all of it is there already", context={"field": "unit"}
        )


def require_not_inside(path: str, above: str, gone: Set[str]) -> None:
    """A file does not lie inside another, unless that one goes; `above` is the file above it, if there is one."""
    if above and above not in gone:
        raise InvalidConfig(
            f"{path} would lie inside the file {above}",
            context={"path": path},
        )


def require_removable(path: str, there: bool) -> None:
    """What is to go is there."""
    if not there:
        raise InvalidConfig(f"{path} is to go, and is not there", context={"path": path})


def require_plain(path: str, odd: bool) -> None:
    """What is changed is a file or a link."""
    if odd:
        raise InvalidConfig(f"{path} is there, and is no file", context={"path": path})


def require_same_ignores(manifest: Manifest, digest: str) -> None:
    """The tree's `.gitignore` files are those that the change was proposed under."""
    if digest != manifest.ignores:
        raise BaseDrift(
            f"a .gitignore of {manifest.target} was changed while the change was being marked; mark it again",
            context={"tree": manifest.target},
        )


def require_kept_base(target: str, origin: Origin, base: tuple[str, str, str] | None) -> None:
    """The build kept the state that a proposal says it was made on; `base` is its build, digest and tree."""
    if base != (origin.build, origin.base, target):
        raise InvalidConfig(
            f"build {origin.build} kept no such state of {target}",
            context={"field": "origin"},
        )


def require_same_drift(target: str, origin: Origin, drift: Sequence[Unit]) -> None:
    """What a proposal says was changed since its base is all that was."""
    if tuple(drift) != origin.drift:
        raise BaseDrift(
            f"{target} was changed while the change was being marked; mark it again",
            context={"tree": target},
        )


def require_base_of_tree(build_id: str, tree: str, target: str) -> None:
    """The base of a proposal is a state of the same tree."""
    if tree != target:
        raise InvalidConfig(
            f"build {build_id} kept the state of {tree}, not of {target}",
            context={"field": "tree", "tree": tree},
            recovery=[Recovery(f"propose it for {tree}")],
        )


def require_not_in_place(build_id: str, paths: Sequence[str], named: str) -> None:
    """Where there is nothing to propose, nothing was changed in place either; `named` are the paths in words."""
    if paths:
        raise BaseDrift(
            f"there is nothing to propose, and {named} changed in place after build"
            f" {build_id} began: nobody has reviewed that",
            context={"paths": list(paths[:100])},
            recovery=[
                Recovery("put the tree back as it was, and mark what the build left"),
                Recovery("have the agent work on a copy: propose it by --tree COPY --since BUILD"),
            ],
        )


def require_drift_shown(
    build_id: str, paths: Sequence[str], named: str, *, digest: str, accepted: str
) -> None:
    """A proposal hides no change by others of its own files, unless somebody accepts exactly these."""
    if paths and digest != accepted:
        raise BaseDrift(
            f"{named} changed after build {build_id} began, and not by a recorded cut: the"
            " proposal would hide that",
            context={"paths": list(paths[:100]), "drift": digest},
            recovery=[
                Recovery("put it back as it was, then mark the change again"),
                Recovery(
                    "or accept what was changed; the reviewer is shown that it was",
                    f"--accept-drift {digest}",
                    "medium",
                ),
            ],
        )


def require_fitting_hunk(path: str, line: int, fits: bool) -> None:
    """The lines of a patch are where it says they are."""
    if not fits:
        raise BaseDrift(
            f"{path} is not what the patch was made on, at line {line}", context={"paths": [path]}
        )


def require_patched_file(path: str, there: bool) -> None:
    """What a patch changes is a file."""
    if not there:
        raise BaseDrift(f"{path} is not there, and the patch changes it", context={"paths": [path]})


def require_new_file(path: str, there: bool) -> None:
    """What a patch makes is not there yet."""
    if there:
        raise BaseDrift(
            f"{path} is there already, and the patch makes it", context={"paths": [path]}
        )


def require_patched_once(path: str | None, twice: bool) -> None:
    """A patch names a file once."""
    if twice:
        raise InvalidConfig(f"{path} stands twice in the patch", context={"path": path})


def require_emptied(path: str | None, left: bool) -> None:
    """A patch that removes a file removes every line of it."""
    if left:
        raise BaseDrift(f"{path} has more in it than the patch removes", context={"paths": [path]})


def require_finished_build(build_id: str, state: str) -> None:
    """Only what a build finished is proposed."""
    if state != "SUCCESS":
        raise InvalidConfig(f"build {build_id} is {state}; only what it finished can be proposed")


def require_stages(stages: Sequence[str], known: Sequence[str]) -> None:
    """The stages whose files are proposed are stages of the build."""
    odd = [stage for stage in stages if stage not in known]
    if odd:
        raise InvalidConfig(f"the build has no stage {odd[0][:60]!a}; it has {', '.join(known)}")


def require_one_maker(path: str, same: bool, stages: Collection[str]) -> None:
    """No two steps made different files of one name."""
    if not same:
        raise InvalidConfig(
            f"two steps made a {path}; choose between their stages with --stage",
            context={"path": path, "stages": sorted(stages)},
        )


def require_made_files(build_id: str, made: Collection[str], stages: Collection[str]) -> None:
    """The stages made something."""
    if not made:
        raise InvalidConfig(f"build {build_id} made no files in {', '.join(sorted(stages))}")


# Marking and revising.


def require_same_mark(
    known: Entry,
    key: str,
    *,
    author: str,
    manifest: str,
    proposed: Set[str],
    needs: Sequence[str],
    known_needs: Sequence[str],
) -> None:
    """One key is one entry: by the same author, with the same dependencies, and one of the manifests it `proposed`."""
    same = (author, list(needs)) == (known.author, list(known_needs))
    if manifest not in proposed or not same:
        raise RequestConflict(
            f"the key {key[:80]} is that of {known.entry_id}, which proposes something else",
            context={"entry_id": known.entry_id},
            recovery=[Recovery("choose another", "--key KEY")],
        )


def require_revisable(entry: Entry) -> None:
    """What is proposed can be changed until it is approved."""
    if entry.status in REVISABLE:
        return
    defer = Recovery("have it deferred first", f"onceward change review {entry.entry_id} --defer")
    raise IllegalTransition(
        f"the entry is {entry.status}; what it proposes cannot be changed now",
        context={"entry_id": entry.entry_id, "state": entry.status},
        recovery=[defer] if entry.status == "reviewed_approved" else [],
    )


def require_same_place(entry: Entry, manifest: Manifest) -> None:
    """A change stays one of the same place, whatever it proposes."""
    if (manifest.cutter, manifest.target) != (entry.cutter, entry.target):
        raise InvalidConfig(
            "a revision must have the same target", context={"entry_id": entry.entry_id}
        )


def require_paths_of_change(unknown: Sequence[str]) -> None:
    """Only paths that a change is about have a difference; `unknown` are the others."""
    if unknown:
        raise NotFound(
            f"the change has nothing to do with {unknown[0][:80]}",
            context={"path": unknown[0][:200]},
        )


# Reviewing and abandoning.


def require_decision(decision: str) -> None:
    """A review is one of three words."""
    if decision not in WORDS:
        raise InvalidConfig(
            "the decision must be approve, defer or reject", context={"field": "decision"}
        )


def require_current_manifest(entry_id: str, proposed: str, reviewed: str) -> None:
    """A review is of exactly what the entry proposes now."""
    if proposed != reviewed:
        raise PermitInvalid(
            "this is not the digest of what the entry proposes now",
            context={"entry_id": entry_id, "manifest": proposed},
            recovery=[Recovery("look at it again", f"onceward change show {entry_id}")],
        )


def require_other_author(
    entry_id: str, reviewer: str, decision: str, authors: Set[str], policy: Policy
) -> None:
    """Nobody approves their own change, unless the settings allow it."""
    if reviewer in authors and decision == "approve" and not policy.authors_may_review:
        raise PermissionDenied(
            f"{reviewer} proposed it, and authors do not approve their own changes here",
            context={"entry_id": entry_id},
            recovery=[
                Recovery(
                    "have somebody else review it, or, working alone, set authors_may_review under [changes]"
                )
            ],
        )


def require_decidable(entry: Entry, decision: str, said: bool) -> None:
    """The table lets the entry be decided so, or somebody said the same already and it still stands."""
    arrow = f"reviewed_{WORDS[decision]}"
    approved = entry.status == "reviewed_approved" == arrow
    if said or approved or CHANGE.allows(entry.status, arrow):
        return
    sweep = Recovery("bring it up first", "onceward change sweep")
    raise IllegalTransition(
        f"the entry is {entry.status}; it cannot be {WORDS[decision]} now",
        context={"entry_id": entry.entry_id, "state": entry.status},
        recovery=[sweep] if entry.status in ("marked", "reviewed_deferred") else [],
    )


def require_no_cut(entry_id: str, live: ChangeSet | None) -> None:
    """What a cut has begun is finished or undone before anything else."""
    if live is not None and live.status in ("open", "stuck"):
        raise LockConflict(
            f"a cut of {entry_id} is {'stuck' if live.status == 'stuck' else 'under way'}; it must be over first",
            context={"entry_id": entry_id, "change_set_id": live.change_set_id},
            recovery=[Recovery("go on with it", f"onceward change cut {entry_id}")],
        )


def require_reason(reason: str) -> None:
    """Whoever gives a change up says why."""
    if not reason.strip():
        raise InvalidConfig("a reason is required to give up a change", context={"field": "reason"})


# Approvals.


def approved(
    decisions: Sequence[Decision],
    content_hash: str,
    policy: Policy,
    places: Sequence[str],
    roles: Mapping[str, Set[str]],
) -> str:
    """What approvals of exactly these bytes still lack, in words; empty if they are enough. Of every reviewer the last
    word counts, as they came; `roles` says who has which."""
    last: dict[str, Decision] = {}
    for decision in decisions:
        if decision.content_hash == content_hash:
            last[decision.reviewer] = decision
    for_it = {reviewer for reviewer, decision in last.items() if decision.decision == "approve"}
    for rule in policy.rules(places):
        if len(for_it) < rule.approvals:
            return f"{rule.glob} needs {rule.approvals} approvals, and has {len(for_it)}"
        if rule.role and not any(rule.role in roles.get(reviewer, ()) for reviewer in for_it):
            return f"{rule.glob} needs an approval by somebody with the role {rule.role}"
    return ""


class Approvals(msgspec.Struct, frozen=True):
    """What there is to say for an entry: who approved what, and what the workspace wants."""

    decisions: Sequence[Decision]
    """Since the entry last came up, of people whose word still counts."""
    content_hash: str
    """Of what it proposes now."""
    places: Sequence[str]
    policy: Policy
    roles: Mapping[str, Set[str]]

    def lack(self, since: Micros = 0) -> str:
        """What is missing for it to be approved, of what was said since; empty if nothing is."""
        counting = [one for one in self.decisions if one.decided_at > since]
        return approved(counting, self.content_hash, self.policy, self.places, self.roles)

    def last(self) -> Decision | None:
        """The approval that made it so."""
        found = [
            one
            for one in self.decisions
            if one.decision == "approve" and one.content_hash == self.content_hash
        ]
        return found[-1] if found else None


# Cutting.


def require_cuttable(
    entry: Entry, approvals: Approvals, waits: Sequence[str], now: Micros, doubt: str = ""
) -> Decision:
    """The decision that lets an entry be cut (G-CUT-APPROVED, APPROVAL_EXPIRED, G-CUT-DEPS). `waits` are the entries
    that must be verified first, `doubt` is why an approval does not count."""
    also = f"; {doubt}" if doubt else ""
    if entry.status != "reviewed_approved":
        why = f"the entry is {entry.status}, not approved{also}"
        raise GuardFailed("G-CUT-APPROVED", why, entry.entry_id, [_show(entry.entry_id)])
    lack, decision = approvals.lack(), approvals.last()
    if lack or decision is None:
        why = f"it is not approved as it is now: {lack or 'nobody approved these bytes'}{also}"
        raise GuardFailed("G-CUT-APPROVED", why, entry.entry_id, [_show(entry.entry_id)])
    if approvals.lack(now - approvals.policy.approval_seconds * 1_000_000):
        again = Recovery(
            "have it approved again", f"onceward change review {entry.entry_id} --approve"
        )
        raise GuardFailed("APPROVAL_EXPIRED", "its approval is too old", entry.entry_id, [again])
    if waits:
        why = f"{', '.join(waits[:5])} must be verified first"
        raise GuardFailed("G-CUT-DEPS", why, entry.entry_id, [_show(entry.entry_id)])
    return decision


def require_not_cut_before(entry: Entry, known: ChangeSet) -> None:
    """What failed its verification, or was given up, is not cut again (G-CUT-ONCE)."""
    if known.status == "applied" and entry.status in ("verify_failed_escalated", "abandoned"):
        why = f"it was cut, and is {entry.status}: it is not cut again"
        raise GuardFailed("G-CUT-ONCE", why, entry.entry_id, [_show(entry.entry_id)])


def require_approved_text(entry_id: str, bodies: Sequence[str], content_hash: str) -> str:
    """The text that was approved; `bodies` are the entry's proposals that say they have its digest."""
    if not bodies or sha256_hex(bodies[-1].encode()) != content_hash:
        raise IntegrityFault(
            f"what is proposed in {entry_id} is not what was approved: somebody edited it",
            context={"rule": "backlog", "entry_id": entry_id},
            recovery=[Recovery("see what was edited", "onceward verify")],
        )
    return bodies[-1]


def require_believed_approval(entry_id: str, doubt: str) -> None:
    """A cut that was begun goes on by an approval that somebody signed."""
    if doubt:
        why = f"what is said to have been approved does not count: {doubt}"
        raise GuardFailed("G-CUT-APPROVED", why, entry_id, [_show(entry_id)])


def require_key(principal: str, has_key: bool) -> None:
    """Whoever cuts or verifies has a key to sign with."""
    if not has_key:
        raise PermissionDenied(f"{principal} has no key here to sign with")


def require_unchanged_base(drifted: Sequence[str]) -> None:
    """Every file is what the change was made on; `drifted` are those that are not."""
    if drifted:
        raise BaseDrift(
            f"{', '.join(drifted[:5])} {'is' if len(drifted) == 1 else 'are'} not what the change was made on",
            context={"paths": list(drifted[:100])},
        )


def require_unchanged_tree(same: bool) -> None:
    """The whole tree is what the change was made on, where the workspace wants that."""
    if not same:
        raise BaseDrift(
            "the tree is not what the change was made on: something else in it has changed"
        )


def require_not_changed_meanwhile(path: str, same: bool) -> None:
    """A file is as it was when the cut began, or as the cut makes it."""
    if not same:
        raise BaseDrift(f"{path} was changed by somebody else meanwhile", context={"paths": [path]})


def require_readable(broken: Collection[str]) -> None:
    """Every new content can be read before any of them is put in its place."""
    if broken:
        raise InvalidConfig(f"{len(broken)} of the new contents cannot be read")


def require_restored(foreign: Sequence[str]) -> None:
    """Everything was given back as it was; `foreign` is what somebody else has changed."""
    if foreign:
        raise InvalidResumeState(
            f"somebody else changed {', '.join(foreign[:5])} meanwhile, and it is left alone: put it back as it was"
            " before the change, or as the change made it",
            context={"paths": list(foreign[:100])},
        )


def require_as_approved(wrong: Sequence[str], what: str) -> None:
    """What is committed is what was approved; `wrong` are the paths that differ."""
    if wrong:
        raise BaseDrift(
            f"{', '.join(wrong[:5])} is not what was approved: {what}",
            context={"paths": list(wrong[:100])},
        )


def refuse_taken_back(
    change_set: ChangeSet, why: Mapping[str, Any], saga_id: str | None
) -> NoReturn:
    """A cut that was undone says why, by the code of what stopped it; `why` is what its saga recorded."""
    code = str(why.get("error", ""))
    show = Recovery("see how it went", f"onceward explain {saga_id}")
    raise GuardFailed(
        code if code in CODES else "EXECUTION_FAILED",
        f"nothing was changed: {why.get('message') or why.get('reason') or 'it was given up'}",
        change_set.entry_id,
        [show] if saga_id is not None else [],
    )


def require_tree(manifest: Manifest) -> None:
    """Only a change of a tree is committed to git."""
    if manifest.cutter != TREE:
        raise InvalidConfig(
            "--git-commit is for changes of a file tree", context={"field": "--git-commit"}
        )


# Cutting a change of the registry.


def require_unopposed(against: Sequence[str]) -> None:
    """The registry is what the plan was made for."""
    if against:
        raise BaseDrift("; ".join(against[:5]), context={"objections": list(against[:50])})


def require_grant(grant_id: str | None) -> str:
    """The grant that a change of the registry is cut under."""
    if grant_id is None:
        raise PermitInvalid(
            "a change of the registry needs a grant for exactly its plan",
            recovery=[
                Recovery("ask for one", "onceward grant draft PLAN"),
                Recovery("name it", "--grant GRANT"),
            ],
        )
    return grant_id


def require_carried_out(plan: str, run: Run) -> None:
    """The run of a plan came to its end."""
    if run.state != "DONE":
        raise ExecutionFailed(
            f"the plan {plan} stopped at {run.state}",
            context={"saga_id": run.saga_id},
            recovery=[Recovery("see why", f"onceward saga show {run.saga_id}")],
        )


# Verifying.


def require_verifiable(
    entry: Entry,
    executor: PairSignature | None,
    hands: Set[str],
    *,
    principal: str,
    fingerprint: str,
    tool_revision: str,
) -> PairSignature:
    """The signature of the cut that somebody may verify (G-VERIFY-CUT, G-VERIFY-SOD); `hands` are all who had one in
    it."""
    if executor is None or entry.status not in VERIFIABLE:
        why = f"the entry is {entry.status}; there is no cut to verify"
        raise GuardFailed("G-VERIFY-CUT", why, entry.entry_id, [_show(entry.entry_id)])
    if principal in (executor.principal, *hands):
        why = f"{principal} carried it out; somebody else must verify it"
    elif executor.fingerprint == fingerprint:
        why = "the key that signed the cut must not sign its verification"
    elif executor.tool_revision == tool_revision:
        why = "what carried it out must not be what verifies it"
    else:
        return executor
    other = Recovery("act as somebody else", f"onceward --as NAME change verify {entry.entry_id}")
    raise GuardFailed("G-VERIFY-SOD", why, entry.entry_id, [other])


def require_believed_cut(entry_id: str, doubt: str) -> None:
    """What is verified was approved and cut by people who signed for it."""
    if doubt:
        raise GuardFailed(
            "G-VERIFY-CUT",
            f"the recorded approval and cut are not valid: {doubt}",
            entry_id,
            [Recovery("see what was edited", "onceward verify")],
        )


def require_nothing_else_cut(entry_id: str, others: Sequence[str]) -> None:
    """Nothing else is being cut, or taken back, in the same place."""
    if others:
        raise LockConflict(
            f"{others[0]} is being cut or restored in the same place; verify again when that is done",
            context={"entry_id": entry_id, "others": list(others[:10])},
            recovery=[_show(others[0])],
        )


def require_drift_accepted(
    entry: Entry, paths: Sequence[str], named: str, *, digest: str, accepted: str, principal: str
) -> None:
    """Nothing else in the tree was changed since the cut, or somebody accepted exactly that. `paths` are those that
    were, `named` the same in words, `digest` what identifies them."""
    if not paths or digest == accepted:
        return
    first = entry.status == "cut_applied"
    again = f"onceward --as {shlex.quote(principal)} change verify {entry.entry_id}"
    again += "" if first else " --again"
    what = "it is not verified, and stays" if first else "nothing new is said of it, and it stays"
    raise BaseDrift(
        f"{named}: not as it was after the cut of {entry.entry_id}, and not by a recorded cut;"
        f" {what} {entry.status}",
        context={
            "entry_id": entry.entry_id,
            "paths": list(paths[:MAX_NAMED_PATHS]),
            "count": len(paths),
            "drift": digest,
        },
        recovery=[
            Recovery("put it back as it was, then verify again", again),
            Recovery("or accept exactly this", f"{again} --accept-drift {digest}", "medium"),
        ],
    )


def require_check_ended(stopped: bool) -> None:
    """The entry's own check ran to its end."""
    if stopped:
        raise LockConflict("the check was stopped before it ended; there is no result")
