"""What people and programs see, held against what is kept in `fixtures/oracles/`: a move of code changes none of it.

`ONCEWARD_ORACLES=1` writes the expected answers anew; `ONCEWARD_ORACLES=scene` makes the kept workspace anew as well,
after a change of format. Look at what changed before it is committed."""

from __future__ import annotations

import json
import os
import re
import shutil
import tarfile
import time
from contextlib import contextmanager

import pytest

import scene as scenes
from onceward.core.sources import LiveSources
from onceward.workspace import Workspace
from oracles import looks
from oracles.happened import happened
from oracles.looks import KEPT, NOW, SCENE, Kept

RECORD = os.environ.get("ONCEWARD_ORACLES", "")


@contextmanager
def looking():
    """The surroundings of whoever looks: a clock that stands still, a width, a zone. Nothing is made in them."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(LiveSources, "now", lambda self: NOW)
        patched.setenv("COLUMNS", "110")
        patched.setenv("TZ", "UTC")
        patched.setenv("ONCEWARD_AS", "tester")
        time.tzset()
        yield
    time.tzset()


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    if RECORD == "scene":
        make_scene(tmp_path_factory.mktemp("made"))
    folder = tmp_path_factory.mktemp("oracles") / "place"
    folder.mkdir()
    looks.unpack(folder)
    with looking():
        workspace = Workspace(folder / ".onceward", store_url="sqlite", principal="tester")
        found = Kept(folder, workspace)
    yield found
    found.service.store.close()


@pytest.fixture
def kept(opened):
    with looking():
        yield opened


def make_scene(base):
    """The workspace that is kept, without its keys and whatever belongs to a running kernel."""
    folder, ids = scenes.template(base)
    place = base / "place"
    (place / ".onceward").mkdir(parents=True)
    (place / "ids.json").write_text(json.dumps(ids))
    shutil.copy(folder / "rows.db", place / ".onceward" / "onceward.db")
    for part in ("artifacts", "streams", "trust.json", ".gitignore"):
        source = folder / ".onceward" / part
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, place / ".onceward" / part)
    shutil.copy(folder / "onceward.toml", place / "onceward.toml")
    shutil.copytree(folder / "repo", place / "repo")
    KEPT.mkdir(parents=True, exist_ok=True)
    with tarfile.open(SCENE, "w:xz") as tar:
        for path in sorted(place.rglob("*")):
            tar.add(path, path.relative_to(place), recursive=False)


def same(name, found, suffix="json"):
    """What is there now is what was there before."""
    path = KEPT / f"{name}.{suffix}"
    text = found if isinstance(found, str) else json.dumps(found, indent=1, sort_keys=True) + "\n"
    text = re.sub(r"\?v=[0-9a-f]{12}", "?v=STAMP", text)
    if RECORD:
        path.write_text(text)
    if text != path.read_text():
        path.with_suffix(f".new.{suffix}").write_text(text)
        pytest.fail(f"{name} is different now: compare {path.name} with its .new beside it")


def test_the_api_answers_as_before(kept):
    same("api", looks.api(kept))


def test_pages_are_drawn_as_before(kept):
    found = looks.pages(kept)
    same("pages", "".join(f"=== {name}\n{text}\n" for name, text in found.items()), "txt")


def test_commands_print_as_before(kept):
    same("commands", "\n".join(looks.commands(kept).values()), "txt")


def test_bundles_have_the_same_bytes(kept):
    same("bundles", looks.bundles(kept))


def test_a_backup_holds_the_same_rows(kept):
    same("backup", looks.copied_rows(kept))


def test_the_same_acts_leave_the_same_events_and_rows(template):
    folder, _ = template
    place = Workspace(folder / ".onceward", store_url="sqlite", principal="tester")
    same("happened", happened(place.old_file(folder / "rows.db")), "txt")
