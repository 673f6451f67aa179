"""One commit of exactly what a change touched, with trailers that name who answers for it. What else is in the working
tree, or staged, stays as it is."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from onceward.errors import ExecutionFailed, InvalidConfig

_SECONDS = 120


def require_repository(tree: Path) -> None:
    """Refuse, before anything is done, a tree that no commit can be made in."""
    if _git(tree, "rev-parse", "--is-inside-work-tree", check=False).strip() != "true":
        raise InvalidConfig(f"{tree} is no git working tree, so --git-commit has nothing to commit to")


def commit(tree: Path, paths: Sequence[str], title: str, trailers: Mapping[str, str], key: str) -> str:
    """The commit of these paths; the one there is, where `key` names a trailer that it has already."""
    known = _git(
        tree, "log", "-1", "--format=%H", "--fixed-strings", f"--grep={key}: {trailers[key]}", check=False
    ).strip()
    if known:
        return known
    files = ("--pathspec-from-file=-", "--pathspec-file-nul")
    tracked = set(_git(tree, "ls-files", "-z", "--", *_some(paths)).split("\0"))
    there = [path for path in paths if path in tracked or os.path.lexists(tree / path)]
    _git(tree, "add", "--all", "--force", *files, said=_listed(there))
    # What came and went without ever being committed is nothing to commit.
    known = _git(tree, "rev-parse", "--verify", "--quiet", "HEAD", check=False).strip()
    since = known or _git(tree, "hash-object", "-t", "tree", "/dev/null").strip()
    changed = set(_git(tree, "diff", "--cached", "--name-only", "-z", "--relative", since).split("\0"))
    named = _listed([path for path in paths if path in changed])
    if not named:
        return known
    said = title + "\n\n" + "".join(f"{name}: {value}\n" for name, value in trailers.items())
    message = _git(tree, "rev-parse", "--git-path", "ONCEWARD_MSG").strip()
    place = (tree / message).resolve()
    place.write_text(said, "utf-8")
    try:
        _git(tree, "commit", "--quiet", "--only", "--file", str(place), *files, said=named)
    finally:
        place.unlink(missing_ok=True)
    return _git(tree, "rev-parse", "HEAD").strip()


def _listed(paths: Sequence[str]) -> str:
    return "".join(f"{path}\0" for path in paths)


def _some(paths: Sequence[str]) -> Sequence[str]:
    """So many as fit on a command line; without a path git lists all, which is as true and only slower."""
    return paths if sum(len(path) for path in paths) < 100_000 else ()


def _git(tree: Path, *words: str, said: str = "", check: bool = True) -> str:
    env = {**os.environ, "GIT_LITERAL_PATHSPECS": "1", "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(
            ["git", *words],
            cwd=tree,
            env=env,
            input=said,
            timeout=_SECONDS,
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        raise InvalidConfig("git is not installed here") from None
    except subprocess.TimeoutExpired:
        raise ExecutionFailed(f"git {words[0]} took longer than {_SECONDS} s") from None
    if check and done.returncode != 0:
        why = (done.stderr or done.stdout).strip().splitlines()
        raise ExecutionFailed(f"git {words[0]} failed: {why[-1] if why else f'exit {done.returncode}'}")
    return done.stdout
