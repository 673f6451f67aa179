"""kill -9 of cuts, verifications and takings-back at every arrival at every fault point; then call again (H-5)."""

from __future__ import annotations

import json
import os
import random
import signal

import pytest

from backlog import Backlog, write
from onceward.artifacts.trees import scan
from onceward.changes.machine import CHANGE
from onceward.store.tables.changes import Changes
from onceward.workspace import Workspace

VICTIM = "changes_victim.py"
SEED = int(os.environ.get("ONCEWARD_SEED", "1"))
SHARE = int(os.environ.get("ONCEWARD_CHANGE_DEATHS", "4"))
"""How many deaths of each act are tried on each store; 0 for all of them."""
FILES = int(os.environ.get("ONCEWARD_CHANGE_FILES", "20"))
OURS = (
    "child.",
    "process.",
    "artifact.",
    "stream.",
    "move.",
    "commit.",
    "write.",
    "lock.",
    "target.",
    "cut.",
)


class Trial:
    """A tree that changes over and over, each time by another entry, killed each time elsewhere."""

    def __init__(self, folder, store_url, executioner):
        self.workspace = Workspace(folder / ".onceward", store_url=store_url, principal="tester")
        self.workspace.create()
        self.backlog = Backlog(self.workspace)
        self.executioner, self.number = executioner, 0
        self.plain = {
            "folder": str(self.workspace.folder),
            "store": store_url,
            "fault": "",
            "nth": 0,
            "counted": False,
        }
        write(self.backlog.tree, {f"f{n}.txt": f"{n}\n" for n in range(FILES)})

    def approved(self):
        """Every third file changes, some go, some come, some become a program."""
        self.number += 1
        names = sorted(path.name for path in self.backlog.tree.iterdir() if path.is_file())
        files: dict[str, str | None] = {name: f"{self.number} {name}\n" for name in names[::2]}
        files |= {names[1]: None, f"new/{self.number}.txt": "new\n", f"g{self.number}.txt": "x\n"}
        if self.backlog.kernel.principal != "tester":
            self.backlog.become("tester")
        entry = self.backlog.approved(files)
        self.backlog.kernel.close()
        return entry

    def order(self, act, entry, **words):
        return self.executioner(**{**self.plain, "act": act, "entry": entry, **words})

    def deaths(self, act, before):
        """Every arrival at every fault point of a whole act."""
        entry = before()
        assert self.order(act, entry, counted=True) == 0
        counts = json.loads((self.workspace.folder.parent / "counts").read_text())
        found = [
            (name, nth)
            for name, many in counts.items()
            if name.startswith(OURS)
            for nth in range(1, many + 1)
        ]
        dice = random.Random(f"{SEED} {act} {self.plain['store'] == 'sqlite'}")
        self.finish(entry)
        return found if SHARE == 0 else dice.sample(found, min(SHARE, len(found)))

    def finish(self, entry):
        """Whatever it was about: let it be over, so that the next one may touch the same files."""
        self.backlog.become("tester")
        if self.backlog.status(entry) == "cut_applied":
            self.backlog.verify(entry)
            self.backlog.become("tester")

    def status(self, entry):
        with self.workspace.reading() as store, store.read() as rows:
            found = Changes(rows)
            return found.get(entry).status, found.live_set(entry)


@pytest.fixture
def trial(tmp_path, store_url, executioner):
    made = Trial(tmp_path, store_url, executioner)
    yield made
    made.backlog.kernel.close()


def tree(trial):
    return scan(trial.backlog.tree)


@pytest.mark.rule("H-5")
@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G17")
@pytest.mark.timeout(7200)
def test_a_cut_is_there_whole_or_not_at_all_wherever_it_is_killed(trial):
    killed = 0
    for death in trial.deaths("cut", trial.approved):
        entry, prior = trial.approved(), tree(trial)
        with trial.workspace.reading() as store, store.read() as rows:
            units = json.loads(Changes(rows).envelope(entry).body)["unit"]
        ending = trial.order("cut", entry, fault=death[0], nth=death[1])
        killed += ending == -signal.SIGKILL
        assert ending in (0, -signal.SIGKILL), death
        assert not list(trial.backlog.tree.glob(".onceward*")), death
        assert trial.status(entry)[0] in CHANGE.persistent
        assert trial.order("cut", entry) == 0, death
        status, live = trial.status(entry)
        now = tree(trial)
        wanted = {
            path: file for path, file in prior.items() if path not in {u["path"] for u in units}
        }
        wanted |= {u["path"]: (u["after"], u["after_mode"]) for u in units if u.get("after")}
        if status == "cut_applied":
            assert live.status == "applied" and now == wanted, death
        else:
            assert status == "reviewed_approved" and live is None and now == prior, death
        assert not list(trial.backlog.tree.glob(".onceward*")), death
        trial.finish(entry)
    trial.backlog.sound()
    assert killed


@pytest.mark.rule("H-6")
@pytest.mark.guarantee("G1")
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("good", [True, False], ids=["passes", "fails"])
def test_a_verification_says_one_thing_wherever_it_is_killed(trial, good):
    def before():
        entry = trial.approved()
        trial.prior = tree(trial)
        assert trial.order("cut", entry) == 0
        trial.cut = tree(trial)
        if not good:
            (trial.backlog.tree / f"g{trial.number}.txt").unlink()
        return entry

    for death in trial.deaths("verify", before):
        entry = before()
        ending = trial.order("verify", entry, fault=death[0], nth=death[1])
        assert ending in (0, -signal.SIGKILL), death
        assert trial.status(entry)[0] in CHANGE.persistent
        assert trial.order("verify", entry) == 0, death
        assert trial.status(entry)[0] == (
            "verified_complete" if good else "verify_failed_escalated"
        ), death
        assert tree(trial) == (trial.cut if good else trial.prior), death
        with trial.workspace.reading() as store, store.read() as rows:
            found = Changes(rows)
            (result,) = found.results(found.live_set(entry).change_set_id)
            assert bool(result.passed) == good and len(found.escalations(entry)) == (not good)
            undo = found.undoing(result.change_set_id)
            assert (undo is None) if good else undo.status == "applied"
        trial.finish(entry)
    trial.backlog.sound()
