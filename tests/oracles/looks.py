"""Everything that can be seen of one kept workspace: API answers, pages, command lines, bundles, a backup.

The workspace is `fixtures/oracles/scene.tar.xz`: rows, artifacts and stream files of `tests/scene.py`, without keys."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import tarfile
from pathlib import Path

import msgspec

from onceward.core.views import document
from onceward.kernel.views import stream_list
from onceward.maintenance.backup import backup
from onceward.serving import Service
from onceward.store.schema import TABLES
from onceward.ui.cli.main import run as run_command
from onceward.ui.http.access import Caller, Doors
from onceward.ui.http.api import ROUTES
from onceward.ui.http.feed import Feed
from onceward.ui.http.routes import Call, query_of
from onceward.ui.web.answering import Web
from onceward.ui.web.pages import PAGES
from scene import files_of

KEPT = Path(__file__).resolve().parents[2] / "fixtures" / "oracles"
SCENE = KEPT / "scene.tar.xz"
NOW = 2_000_000_000_000_000
"""When everything is looked at: long after it happened, so that whatever runs out has run out."""
PLACE = re.compile(r"\{(\w+)\}")


class Kept:
    """The kept workspace in a folder of its own, and a server of it that is nobody's kernel."""

    def __init__(self, folder, workspace):
        self.folder, self.workspace = folder, workspace
        self.ids = json.loads((folder / "ids.json").read_text())
        self.service = Service(workspace)
        self.doors = Doors(self.service, 1)
        self.web = Web(Feed(self.service), self.doors, secure=False)

    def places(self):
        """For each name in a path, what there is under it."""
        ids = self.ids
        saga = [ids[name] for name in ("saga done", "saga undone", "saga stuck")]
        grants = self.json("/api/v1/grants")
        artifacts = self.json("/api/v1/artifacts")
        return {
            "build": [ids[name] for name in ("approved", "reused", "failed", "paused")],
            "session": [ids["approved"], ids["paused"], *saga],
            "child": [
                self.json(f"/api/v1/sessions/{ids['failed']}")["children"][-1]["child_id"],
                self.json(f"/api/v1/sessions/{saga[1]}")["children"][0]["child_id"],
            ],
            "saga": saga,
            "entry": [entry["entry_id"] for entry in self.json("/api/v1/changes")],
            "grant": [grant["grant_id"] for grant in grants],
            "sha256": [artifact["sha256"] for artifact in artifacts[:3]],
            "stream": [stream["stream"] for stream in document(stream_list(self.service.store))][
                :8
            ],
            "step": ["write:a", "join:all"],
            "value": ["pay@1.9.0", "pay@1.10.0"],
            "act": [row.name for row in ROUTES if row.verb],
            "target": [],
        }

    def json(self, path):
        return next(
            self.answer(row, values)
            for row in ROUTES
            if row.method == "GET" and (values := matches(row.path, path)) is not None
        )

    def call(self, row, values):
        caller = None if row.public else Caller("tester")
        return Call(
            service=self.service,
            doors=self.doors,
            caller=caller,
            path=values,
            query=query_of(row.query, []),
            body=None,
            headers={},
            route=row,
        )

    def answer(self, row, values):
        return msgspec.json.decode(msgspec.json.encode(row.read(self.call(row, values))))

    def page(self, row, values):
        path = PLACE.sub(lambda found: values[found[1]], row.path)
        return self.web._rendered(self.call(row, values), path)

    def typed(self, *argv):
        """What a command prints, and its exit status."""
        # Some write bytes below their text.
        out = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
        err = io.StringIO()
        with contextlib.chdir(self.folder):
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                status = run_command([*argv, "--workspace", str(self.folder / ".onceward")])
        said = out.buffer.getvalue().decode() + (
            f"[stderr]\n{err.getvalue()}" if err.getvalue() else ""
        )
        return f"$ onceward {' '.join(argv)}\n{said}[exit {status}]\n".replace(
            str(self.folder), "FOLDER"
        )


def matches(pattern, path):
    names = PLACE.findall(pattern)
    found = re.fullmatch(PLACE.sub(r"([^/]+)", pattern), path)
    return None if found is None else dict(zip(names, found.groups(), strict=True))


def filled(row, places):
    """A row's path with every combination of what there is under its names."""
    combinations = [{}]
    for name in PLACE.findall(row.path):
        combinations = [{**one, name: value} for one in combinations for value in places[name]]
    return combinations


def titled(row, values):
    return " ".join([row.name, *values.values()])


# What takes a query, is no document, or tells of this machine and moment.
_NO_DOCUMENT = {"describe", "metrics", "doctor", "health", "explain", "listErrorCodes"}


def api(kept):
    places = kept.places()
    return {
        titled(row, values): kept.answer(row, values)
        for row in ROUTES
        if row.method == "GET" and row.kind == "json" and row.name not in _NO_DOCUMENT
        for values in filled(row, places)
    }


def pages(kept):
    places = kept.places()
    return {
        titled(row, values): kept.page(row, values)
        for row in PAGES
        if row.kind == "page" and not row.public
        for values in filled(row, places)
    }


def commands(kept):
    """What a person reads: every command that only looks."""
    places = kept.places()
    asked = [
        ("list",),
        ("status",),
        ("spend", "--by", "build"),
        ("spend", "--by", "stage"),
        ("outbox", "status"),
        ("events",),
        ("principals", "list"),
        ("keys", "list"),
        ("tokens", "list"),
        ("saga", "list"),
        ("grant", "list"),
        ("registry", "list"),
        ("change", "list"),
        ("verify",),
        ("verify", "--json"),
        ("replay",),
        ("machines",),
        ("artifacts", "list", "--json"),
    ]
    asked += [("status", build) for build in (*places["build"], *places["saga"])]
    asked += [("status", build, "--json") for build in places["build"]]
    asked += [("why", build, step) for build in places["build"] for step in places["step"]]
    asked += [("saga", "show", saga) for saga in places["saga"]]
    asked += [("grant", "show", grant) for grant in places["grant"]]
    for entry in places["entry"]:
        asked += [("change", verb, entry) for verb in ("show", "diff", "history")]
    explained = [
        value
        for name in ("build", "saga", "entry", "grant", "child", "sha256")
        for value in places[name]
    ]
    asked += [("explain", value) for value in explained]
    asked += [("explain", f"{build}", "join:all") for build in places["build"]]
    asked += [("events", stream) for stream in places["stream"]]
    return {" ".join(argv): kept.typed(*argv) for argv in asked}


def bundles(kept):
    """What each member of a bundle of each kind of subject hashes to, and the whole."""
    subjects = [*kept.places()["build"][:2], kept.ids["saga done"], kept.ids["saga stuck"]]
    subjects += [kept.ids["change done"], kept.ids["change failed"]]
    found = {}
    for subject in subjects:
        path = kept.folder / "bundle.tar"
        kept.workspace.export(subject, path, whole=True)
        found[subject] = {
            "bundle.tar": hashlib.sha256(path.read_bytes()).hexdigest(),
            **{name: hashlib.sha256(data).hexdigest() for name, data in files_of(path).items()},
        }
        path.unlink()
    return found


def copied_rows(kept):
    """What a backup holds, table by table."""
    path = kept.folder / "backup.db"
    backup(kept.service.store, path, kept.workspace.new_file, kept.workspace.old_file)
    database = kept.workspace.old_file(path)
    session = database.connect()
    try:
        return {
            table: hashlib.sha256(
                repr(sorted(map(repr, session.read(f"SELECT * FROM {table}")))).encode()
            ).hexdigest()
            for table in sorted(table.name for table in TABLES)
        }
    finally:
        session.close()
        path.unlink()


def unpack(folder):
    with tarfile.open(SCENE) as tar:
        tar.extractall(folder, filter="data")
