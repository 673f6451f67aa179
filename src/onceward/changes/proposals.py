"""Proposals: a manifest and the contents it names, from a folder, a patch, a build's outputs, or content by path
(H-2)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import msgspec

from onceward.artifacts.bases import Base, base_of
from onceward.artifacts.blobs import Artifacts
from onceward.artifacts.file_names import os_path, recorded_path
from onceward.artifacts.outputs import VALUES, read_back
from onceward.artifacts.tree_state import drift_digest, named, rules_of, state_of
from onceward.artifacts.trees import ODD, File, Tree, difference, scan, unit_of
from onceward.changes import rules
from onceward.changes.cutters import Place
from onceward.changes.manifest import Manifest, Origin
from onceward.changes.patches import Patched, read_patch
from onceward.core.canon import canonical, sha256_hex
from onceward.core.changes import LINK, Policy, Unit
from onceward.core.tree_paths import REGISTRY, TREE, check_path
from onceward.registry.machine import RegistryPlan
from onceward.store.port import Reads
from onceward.store.tables.builds import Builds, plan_body
from onceward.store.tables.checkpoints import checkpoints_of

Contents = dict[str, Callable[[], Iterable[bytes]]]
"""Bytes by their digest, read when they are needed."""
_CHUNK = 1 << 20


class Proposal(msgspec.Struct, frozen=True):
    """A manifest in its one form, and every content that it names, before and after."""

    manifest: Manifest
    contents: Contents

    def bring(self, artifacts: Artifacts) -> str:
        """Put manifest and contents where a kernel can adopt them; answers the manifest's hash."""
        text = self.manifest.text().encode()
        wanted: Contents = {**self.contents, sha256_hex(text): given(text)}
        artifacts.offer({digest: pieces() for digest, pieces in wanted.items()})
        return sha256_hex(text)


class Wish(msgspec.Struct, frozen=True):
    """What every proposal of a tree needs: the tree, the check, the policy."""

    root: Path
    target: str
    check: tuple[str, ...] = ()
    policy: Policy = Policy()
    links: bool = False
    base: Base | None = None
    """What the tree was before the work, where a build took that."""
    accepted: str = ""
    """The digest of drift under the proposal that somebody accepts."""

    def proposal(self, units: Sequence[Unit], contents: Contents) -> Proposal:
        if not units:
            self.require_untouched()
        rules.require_units(units)
        gone = {unit.path for unit in units if unit.after is None}
        with Tree(self.root) as tree:
            for unit in units:
                above = tree.file_above(unit.path) if unit.after is not None else ""
                rules.require_not_inside(unit.path, above, gone)
        whole = self.policy.drift == "tree"
        manifest = Manifest(
            cutter=TREE,
            target=self.target,
            unit=tuple(units),
            check=self.check,
            ignores=rules_of(self.root, self.policy.ignore).digest(),
            base=state_of(self.root, self.policy.ignore).digest() if whole else "",
            origin=self._origin({unit.path for unit in units}),
        )
        return Proposal(rules.require_manifest(manifest), contents)

    def require_untouched(self) -> None:
        """BASE_DRIFT where the tree was changed since the work began: then the work was done in place."""
        drift = self.base.drift(self.root) if self.base is not None else []
        if drift and self.base is not None:
            rules.require_not_in_place(
                self.base.build_id, [unit.path for unit in drift], named(drift)
            )

    def _origin(self, own: Set[str]) -> Origin | None:
        """The base of the proposal; refused where others changed a file that it proposes."""
        if self.base is None:
            return None
        rules.require_base_of_tree(self.base.build_id, self.base.tree, self.target)
        drift = self.base.drift(self.root)
        under = [unit for unit in drift if unit.path in own]
        if under:
            rules.require_drift_shown(
                self.base.build_id,
                [unit.path for unit in under],
                named(under),
                digest=drift_digest(under),
                accepted=self.accepted,
            )
        return Origin(build=self.base.build_id, base=self.base.sha256, drift=tuple(drift))


def from_folder(wish: Wish, folder: Path) -> Proposal:
    """What makes the tree equal to a folder."""
    ignore, links = wish.policy.ignore, wish.links
    base, tree = scan(wish.root, ignore, links), scan(folder, ignore, links)
    units = difference(base, tree)
    contents: Contents = {}
    for unit in units:
        if unit.before is not None:
            contents[unit.before] = reader(wish.root / os_path(unit.path), unit.before_mode)
        if unit.after is not None:
            contents[unit.after] = reader(folder / os_path(unit.path), unit.after_mode)
    return wish.proposal(units, contents)


def from_patch(wish: Wish, data: bytes) -> Proposal:
    """What a unified diff makes of the tree; refused unless every line fits."""
    files = read_patch(data)
    with Tree(wish.root) as tree:
        made: dict[str, tuple[bytes, int] | None] = {}
        for file in files:
            _patch(tree, wish.root, file, made)
        return _from_contents(wish, tree, made)


def _patch(
    tree: Tree, root: Path, file: Patched, made: dict[str, tuple[bytes, int] | None]
) -> None:
    for path in filter(None, (file.old, file.new)):
        check_path(path)
    data, mode = b"", 0o644
    if file.old is not None:
        found = tree.look(file.old)
        there = found is not None and found != ODD and found.mode != LINK
        rules.require_patched_file(file.old, there)
        assert found is not None
        data, mode = (root / os_path(file.old)).read_bytes(), found.mode
    fresh = file.new is not None and file.new != file.old
    if fresh and file.new is not None:
        there = tree.look(file.new) is not None and made.get(file.new, b"") is not None
        rules.require_new_file(file.new, there)
    touched = {file.new} if file.copied else {file.old, file.new}
    twice = any(
        path in made and not (fresh and path == file.new and made[path] is None)
        for path in touched
        if path
    )
    rules.require_patched_once(file.new or file.old, twice)
    data = file.applied(data)
    rules.require_emptied(file.old, file.new is None and bool(data))
    if file.old is not None and file.old != file.new and not file.copied:
        made[file.old] = None
    if file.new is not None:
        made[file.new] = (data, mode if file.new_mode is None else file.new_mode)


def oldest_base(rows: Reads, artifacts: Artifacts, name: str) -> Base | None:
    """The state of the tree before the build, and before every build whose results it took over. None if one of
    them kept no state."""
    build_id = Builds(rows).named(name).build_id
    origins = {one.origin for one in checkpoints_of(rows, build_id) if one.origin is not None}
    found = [base_of(rows, artifacts, origin) for origin in (build_id, *sorted(origins))]
    known = [base for base in found if base is not None]
    return min(known, key=lambda base: base.position) if len(known) == len(found) else None


def from_build(wish: Wish, artifacts: Artifacts, name: str, stages: Sequence[str]) -> Proposal:
    """The files that some stages of a build made, each at the path that is its name; by default of the stages that
    no other needs."""
    with artifacts.store.read() as rows:
        build = Builds(rows).named(name)
        body = msgspec.json.decode(plan_body(rows, build.plan_hash) or '{"stages":[]}')
        checkpoints = list(checkpoints_of(rows, build.build_id))
    rules.require_finished_build(build.build_id, build.state)
    known = [stage["name"] for stage in body["stages"]]
    needed = {
        need for stage in body["stages"] for need in (*stage["needs"], *stage.get("collect", ()))
    }
    rules.require_stages(stages, known)
    wanted = set(stages) or {stage for stage in known if stage not in needed}
    found: dict[str, tuple[str, int]] = {}
    for checkpoint in checkpoints:
        for output in read_back(checkpoint.outputs) if checkpoint.stage in wanted else ():
            if VALUES.get(output.kind) == output.name:
                # What a step returned without a name has no place in a tree.
                continue
            made = (output.sha256, 0o755 if output.kind == "program" else 0o644)
            path = recorded_path(output.name)
            rules.require_one_maker(path, found.setdefault(path, made) == made, wanted)
    if not found:
        wish.require_untouched()
    rules.require_made_files(build.build_id, found, wanted)
    with Tree(wish.root) as tree:
        units, contents = [], Contents()
        for path, (sha256, mode) in sorted(found.items()):
            check_path(path)
            was = _there(tree, path)
            # A file that is there keeps its mode: a build does not say which its files should have.
            will = File(sha256, was.mode if was is not None and mode == 0o644 else mode)
            if was != will:
                units.append(unit_of(path, was, will))
                contents[sha256] = _artifact(artifacts, sha256)
                if was is not None:
                    contents[was.sha256] = reader(wish.root / os_path(path), was.mode)
    return wish.proposal(units, contents)


def from_contents(wish: Wish, made: Mapping[str, tuple[bytes, int] | None]) -> Proposal:
    """Content and mode by path; None for what is to go."""
    with Tree(wish.root) as tree:
        for path in made:
            check_path(path)
        return _from_contents(wish, tree, made)


def _from_contents(
    wish: Wish, tree: Tree, made: Mapping[str, tuple[bytes, int] | None]
) -> Proposal:
    units, contents = [], Contents()
    for path, now in sorted(made.items()):
        was = _there(tree, path)
        will = None if now is None else File(sha256_hex(now[0]), now[1])
        rules.require_removable(path, was is not None or will is not None)
        if was == will:
            continue
        units.append(unit_of(path, was, will))
        if was is not None:
            contents[was.sha256] = reader(wish.root / os_path(path), was.mode)
        if now is not None:
            contents[sha256_hex(now[0])] = given(now[0])
    return wish.proposal(units, contents)


def _there(tree: Tree, path: str) -> File | None:
    found = tree.look(path)
    rules.require_plain(path, found == ODD)
    return found


def for_place(
    place: Place, cutter: str, target: str, check: Sequence[str], made: Mapping[str, bytes | None]
) -> Proposal:
    """A proposal for a user's own place, from content by path; None removes."""
    units, contents = [], Contents()
    for path, data in sorted(made.items()):
        was = place.read(path)
        if was == data:
            continue
        before, after = (None if one is None else sha256_hex(one) for one in (was, data))
        units.append(Unit(path, before, after))
        contents |= {sha256_hex(one): given(one) for one in (was, data) if one is not None}
    rules.require_units(units)
    manifest = Manifest(cutter, target, tuple(units), tuple(check))
    return Proposal(rules.require_manifest(manifest), contents)


def for_registry(plan: RegistryPlan, check: Sequence[str] = ()) -> Proposal:
    """A proposal of a plan for the registry: what is approved is the plan, byte for byte."""
    data = canonical(msgspec.to_builtins(plan))
    unit = Unit(plan.ref, None, sha256_hex(data))
    manifest = Manifest(REGISTRY, plan.collection, (unit,), tuple(check))
    return Proposal(rules.require_manifest(manifest), {sha256_hex(data): given(data)})


def given(data: bytes) -> Callable[[], Iterable[bytes]]:
    return lambda: [data]


def reader(path: Path, mode: int | None) -> Callable[[], Iterable[bytes]]:
    """A file's bytes, or where a link leads, when somebody wants them."""

    def read() -> Iterable[bytes]:
        if mode == LINK:
            yield os.fsencode(os.readlink(path))  # noqa: PTH115
            return
        with path.open("rb") as file:
            while piece := file.read(_CHUNK):
                yield piece

    return read


def _artifact(artifacts: Artifacts, sha256: str) -> Callable[[], Any]:
    return lambda: artifacts.read(sha256)
