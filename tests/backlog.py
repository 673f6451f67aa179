"""A workspace with people in it, a tree, and everything that can be asked of changes, by whoever it is asked of."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import pytest

from helpers import assert_sound, count
from onceward.changes.cut import cut
from onceward.changes.proposals import Wish, from_folder
from onceward.changes.verify import verify
from onceward.core.records import Request
from onceward.kernel.asker import sign_for
from onceward.store.tables.changes import Changes
from onceward.workspace import Workspace

PEOPLE = {
    "ann": ["operator"],
    "rob": ["reviewer"],
    "eva": ["reviewer", "granter"],
    "max": ["executor"],
    "vic": ["verifier"],
    "ro": ["viewer"],
}
TABLES = (
    *(
        "decision_backlog_entry",
        "decision_backlog_history",
        "decision_backlog_dependency",
        "manifest_envelope",
    ),
    *(
        "manifest_unit",
        "review_decision",
        "cut_change_set",
        "cut_affected_row",
        "verify_result",
        "dot_pair_signature",
    ),
)


def write(folder: Path, files: dict[str, str | None]) -> Path:
    """Files with these texts; None for none."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = folder / name
        if text is None:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o644)
    return folder


class Backlog:
    """One act a line. `kernel` belongs to tester, who is admin; others sign what they ask of it."""

    def __init__(self, workspace):
        self.workspace = workspace
        self.kernel = workspace.kernel()
        self.kernel.processes.grace = 0.3
        self.home = workspace.folder.parent
        self.tree = self.home / "repo"
        self.policy = {}
        for name, roles in PEOPLE.items():
            self.kernel.ask(
                Request("principals.add", name, {"name": name, "roles": roles}, "tester")
            )

    @property
    def store(self):
        return self.kernel.store

    def ask(self, who, verb, request_id=None, **payload):
        """Something that somebody signs and asks of the kernel."""
        kernel = self.kernel
        request = Request(verb, request_id or uuid.uuid4().hex, payload, who)
        return kernel.ask(sign_for(kernel.store, self.workspace.keyring, request)).value

    def become(self, who):
        """Let somebody else hold the workspace."""
        self.kernel.close()
        acting = Workspace(
            self.workspace.folder, store_url=self.workspace.settings.store.url, principal=who
        )
        self.kernel = acting.kernel()
        self.kernel.processes.grace = 0.3
        return self.kernel

    def wish(self, **words):
        return Wish(self.tree, "repo", policy=self.kernel.policy, **words)

    def propose(self, files, **words):
        """A change of the tree that makes these files have these texts, brought and ready to be marked."""
        wanted = self.home / f"wanted-{uuid.uuid4().hex[:8]}"
        shutil.copytree(self.tree, wanted, symlinks=True)
        write(wanted, files)
        try:
            proposal = from_folder(self.wish(**words), wanted)
            proposal.bring(self.kernel.artifacts)
        finally:
            shutil.rmtree(wanted)
        return proposal.manifest

    def mark(
        self, files=None, who="ann", key=None, what=None, depends_on=(), reason="why not", **words
    ):
        manifest = what or self.propose(files or {"a.txt": f"new {uuid.uuid4()}"}, **words)
        payload = {
            "manifest": manifest.content_hash(),
            "key": key or uuid.uuid4().hex,
            "reason": reason,
        }
        return self.ask(who, "changes.mark", **payload, depends_on=list(depends_on))["entry_id"]

    def sweep(self, who="ann"):
        return self.ask(who, "changes.sweep")

    def review(self, entry, word, who="rob", digest=None, reason=""):
        digest = digest or self.envelope(entry).content_hash
        return self.ask(
            who, "changes.review", entry=entry, decision=word, digest=digest, reason=reason
        )

    def approved(self, files=None, **words):
        entry = self.mark(files, **words)
        self.sweep()
        self.review(entry, "approve")
        return entry

    def abandon(self, entry, why="enough", who="tester"):
        return self.ask(who, "changes.abandon", entry=entry, reason=why)

    def cut(self, entry, who="max", **words):
        if self.kernel.principal != who:
            self.become(who)
        return cut(self.kernel, self.kernel.actor, entry, **words)

    def verify(self, entry, who="vic", **words):
        if self.kernel.principal != who:
            self.become(who)
        return verify(self.kernel, self.kernel.actor, entry, **words)

    def get(self, entry):
        with self.store.read() as rows:
            return Changes(rows).get(entry)

    def status(self, entry):
        return self.get(entry).status

    def envelope(self, entry):
        with self.store.read() as rows:
            return Changes(rows).envelope(entry)

    def history(self, entry):
        with self.store.read() as rows:
            return [
                (row.from_state, row.to_state, row.actor) for row in Changes(rows).history(entry)
            ]

    def rows(self):
        return {table: count(self.store, table) for table in TABLES}

    def sound(self):
        with self.store.read() as rows:
            assert_sound(rows)


@pytest.fixture
def backlog(workspace):
    found = Backlog(workspace)
    write(found.tree, {"a.txt": "one\n", "b.txt": "two\n", "sub/c.txt": "three\n"})
    yield found
    found.kernel.close()
