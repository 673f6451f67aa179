"""One commit of exactly what a change touched, with trailers that name who is responsible. Everything else in the
working tree or the index stays as it is."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from onceward.artifacts.file_names import os_path
from onceward.artifacts.trees import Tree, after
from onceward.changes import rules
from onceward.core.changes import Unit
from onceward.errors import ExecutionFailed, InvalidConfig

_SECONDS = 120
_DIFF = ("diff", "--name-only", "--no-renames", "-z", "--relative")
_OURS = (
    "GIT_AUTHOR_NAME",
    "GIT_AUTHOR_EMAIL",
    "GIT_COMMITTER_NAME",
    "GIT_COMMITTER_EMAIL",
    "GIT_SSH_COMMAND",
)


def require_repository(tree: Path) -> None:
    """Refuse a tree that no commit can be made in, before anything is done."""
    if _git(tree, ["rev-parse", "--is-inside-work-tree"], check=False).strip() != "true":
        raise InvalidConfig(
            f"{tree} is no git working tree, so --git-commit has nothing to commit to"
        )


def commit(
    tree: Path, units: Sequence[Unit], title: str, trailers: Mapping[str, str], key: str
) -> str:
    """Commit exactly these units; answers the commit there is where one has the trailer `key` already. Refused
    where the files, or the commit that a hook changed, are not what was approved."""
    paths = [os_path(unit.path) for unit in units]
    trailer = f"--grep={key}: {trailers[key]}"
    known = _git(
        tree, ["log", "-1", "--format=%H", "--fixed-strings", trailer], check=False
    ).strip()
    if known:
        return known
    _require_as_approved(tree, units, "it is not committed")
    files = ("--pathspec-from-file=-", "--pathspec-file-nul")
    tracked = set(_git(tree, ["ls-files", "-z", "--", *_some(paths)]).split("\0"))
    there = [path for path in paths if path in tracked or os.path.lexists(tree / path)]
    _git(tree, ["add", "--all", "--force", *files], said=_listed(there))
    # What came and went without ever being committed is nothing to commit.
    known = _git(tree, ["rev-parse", "--verify", "--quiet", "HEAD"], check=False).strip()
    since = known or _git(tree, ["hash-object", "-t", "tree", "/dev/null"]).strip()
    shown = _git(tree, [*_DIFF, "--cached", since])
    changed = set(shown.split("\0"))
    named = _listed([path for path in paths if path in changed])
    if not named:
        return known
    said = title + "\n\n" + "".join(f"{name}: {value}\n" for name, value in trailers.items())
    message = _git(tree, ["rev-parse", "--git-path", "ONCEWARD_MSG"]).strip()
    place = (tree / message).resolve()
    place.write_text(said, "utf-8")
    try:
        _git(tree, ["commit", "--quiet", "--only", "--file", str(place), *files], said=named)
    finally:
        place.unlink(missing_ok=True)
    made = _git(tree, ["rev-parse", "HEAD"]).strip()
    _require_as_approved(
        tree, units, f"the commit {made[:12]} was made, and a hook made something else of it"
    )
    left = set(_git(tree, [*_DIFF, "HEAD"]).split("\0"))
    if left & {path for path in paths if path in changed}:
        raise ExecutionFailed(
            f"the commit {made[:12]} was made, and does not hold what was approved"
        )
    return made


def _require_as_approved(tree: Path, units: Sequence[Unit], what: str) -> None:
    with Tree(tree) as found:
        wrong = [unit.path for unit in units if found.look(unit.path) != after(unit)]
    rules.require_as_approved(wrong, what)


def _listed(paths: Sequence[str]) -> str:
    return "".join(f"{path}\0" for path in paths)


def _some(paths: Sequence[str]) -> Sequence[str]:
    """The paths that fit on a command line; without a path git lists all files, which is only slower."""
    return paths if sum(len(path) for path in paths) < 100_000 else ()


def _git(tree: Path, words: Sequence[str], *, said: str = "", check: bool = True) -> str:
    # Variables that lead git to another repository or index are somebody else's affair.
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GIT_") or name in _OURS
    }
    env = {**kept, "GIT_LITERAL_PATHSPECS": "1", "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(
            ["git", *words],
            cwd=tree,
            env=env,
            input=os.fsencode(said),
            timeout=_SECONDS,
            capture_output=True,
            check=False,
        )
    except FileNotFoundError:
        raise InvalidConfig("git is not installed here") from None
    except subprocess.TimeoutExpired:
        raise ExecutionFailed(f"git {words[0]} took longer than {_SECONDS} s") from None
    if check and done.returncode != 0:
        why = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines()
        raise ExecutionFailed(
            f"git {words[0]} failed: {why[-1] if why else f'exit {done.returncode}'}"
        )
    return os.fsdecode(done.stdout)
