"""Changes as people type them: proposed, looked at, approved, cut, verified by somebody else (H-1 to H-8)."""

from __future__ import annotations

import json
import subprocess

import pytest

from backlog import write
from terminal import TMUX, Terminal
from typing_in import BIN

BASE = {"calc.py": "def add(a, b):\n    return a - b\n", "old.txt": "old\n"}
WANTED = {"calc.py": "def add(a, b):\n    return a + b\n", "docs/new.txt": "new\n"}
CHECK = "python3 -c 'import calc; assert calc.add(1, 2) == 3'"


@pytest.fixture
def folder(place, onceward):
    write(place / "repo", BASE)
    write(place / "wanted", WANTED)
    assert onceward("init").status == 0
    for who, role in (("rob", "reviewer"), ("max", "executor"), ("vic", "verifier")):
        assert onceward("principals", "add", who, "--role", role).status == 0
    return place


def marked(onceward, *words):
    done = onceward("change", "mark", "--tree", "wanted", "--base", "repo", *words, "--json")
    assert done.status == 0, done.err
    return done.json["entry_id"], done.json["manifest"]


@pytest.mark.both_stores
@pytest.mark.rule("H-1", "H-2", "H-4", "H-5", "H-6", "I-1")
def test_a_change_from_proposal_to_proof(folder, onceward):
    shown = onceward(
        "change",
        "mark",
        "--tree",
        "wanted",
        "--base",
        "repo",
        "--reason",
        "add was wrong",
        "--check",
        CHECK,
    )
    assert shown.status == 0, shown.err
    assert "-    return a - b\n+    return a + b\n" in shown.out and "- old.txt" in shown.out
    assert "3 files, 2 lines added, 2 removed" in shown.out
    entry, digest = marked(onceward, "--reason", "add was wrong", "--check", CHECK)
    assert entry in shown.out and digest in shown.out, "the same proposal is the same entry"
    assert onceward("change", "sweep").out.startswith("1 entry queued for review; 1 waiting")
    refused = onceward("change", "review", entry, "--approve", ONCEWARD_AS="rob")
    assert refused.status == 2 and "--digest D" in refused.err
    early = onceward("change", "cut", entry, ONCEWARD_AS="max")
    assert early.status == 2 and "G-CUT-APPROVED" in early.err
    done = onceward(
        "change",
        "review",
        entry,
        "--approve",
        "--digest",
        digest[:12],
        "--reason",
        "yes",
        ONCEWARD_AS="rob",
    )
    assert done.status == 0 and f"next: onceward change cut {entry}" in done.out
    done = onceward("change", "cut", entry, ONCEWARD_AS="max")
    assert (
        done.status == 0
        and "is cut_applied: 3 files" in done.out
        and "recorded and signed" in done.err
    )
    assert (folder / "repo/calc.py").read_text() == WANTED["calc.py"] and not (
        folder / "repo/old.txt"
    ).exists()
    refused = onceward("change", "verify", entry, ONCEWARD_AS="max")
    assert refused.status == 2
    done = onceward("change", "verify", entry, ONCEWARD_AS="vic")
    assert done.status == 0 and "passed" in done.out and "it is verified_complete" in done.out
    again = onceward("change", "verify", entry, "--json", ONCEWARD_AS="vic")
    assert (
        again.status == 0
        and not again.json["fresh"]
        and again.json["status"] == "verified_complete"
    )
    history = onceward("change", "history", entry, "--json").json
    assert [row["to_state"] for row in history][-1] == "verified_complete" and len(history) == 7
    told = onceward("explain", entry)
    assert "vic found it as approved" in told.out
    assert onceward("export", entry, "--out", "proof.tar").status == 0
    proof = onceward("verify", "proof.tar")
    assert proof.status == 0 and "its end is signed by vic" in proof.out + proof.err
    assert onceward("verify").status == 0


@pytest.mark.rule("H-6")
def test_what_fails_is_taken_back_and_comes_up_again(folder, onceward):
    entry, digest = marked(onceward, "--check", "false")
    onceward("change", "sweep")
    onceward("change", "review", entry, "--approve", "--digest", digest, ONCEWARD_AS="rob")
    assert onceward("change", "cut", entry, ONCEWARD_AS="max").status == 0
    failed = onceward("change", "verify", entry, ONCEWARD_AS="vic")
    assert (
        failed.status == 1
        and "its check failed" in failed.out
        and "files it had changed are restored" in failed.out
    )
    assert (folder / "repo/calc.py").read_text() == BASE["calc.py"] and (
        folder / "repo/old.txt"
    ).exists()
    (escalation,) = onceward("change", "show", entry, "--json").json["escalations"]
    told = onceward("change", "show", escalation)
    assert f"follows {entry}" in told.out and "next: onceward change sweep" in told.out
    listed = onceward("change", "list", "--status", "marked", "--json").json
    assert [one["entry_id"] for one in listed] == [escalation]
    assert onceward("status", "--json").json["changes"][0]["entry_id"] == escalation
    assert onceward("verify").status == 0


@pytest.mark.rule("H-5")
def test_drift_is_refused_with_its_code_and_nothing_changed(folder, onceward):
    entry, digest = marked(onceward)
    onceward("change", "sweep")
    onceward("change", "review", entry, "--approve", "--digest", digest, ONCEWARD_AS="rob")
    write(folder / "repo", {"calc.py": "edited\n"})
    refused = onceward("change", "cut", entry, "--json", ONCEWARD_AS="max")
    assert refused.status == 1 and json.loads(refused.err)["error"]["code"] == "BASE_DRIFT"
    assert (folder / "repo/calc.py").read_text() == "edited\n" and (
        folder / "repo/old.txt"
    ).exists()
    assert onceward("change", "abandon", entry, "--reason", "stale").status == 0
    assert onceward("change", "show", entry, "--json").json["status"] == "abandoned"


@pytest.mark.rule("H-5")
def test_a_commit_names_who_answers_for_it_and_holds_nothing_else(folder, onceward):
    repo = folder / "repo"

    def git(*words):
        done = subprocess.run(["git", *words], cwd=repo, capture_output=True, text=True, check=True)
        return done.stdout

    git("init", "-q")
    for name, value in (("user.name", "x"), ("user.email", "x@example.org")):
        git("config", name, value)
    git("add", "-A")
    git("commit", "-qm", "first")
    write(repo, {"wip.txt": "mine\n", "staged.txt": "never committed\n"})
    write(folder / "wanted", {"wip.txt": "mine\n"})
    git("add", "wip.txt", "staged.txt")
    entry, digest = marked(onceward, "--reason", "add was wrong\n\nlong story")
    onceward("change", "sweep")
    onceward("change", "review", entry, "--approve", "--digest", digest, ONCEWARD_AS="rob")
    assert onceward("change", "cut", entry, ONCEWARD_AS="max").status == 0
    done = onceward("change", "verify", entry, "--git-commit", "--json", ONCEWARD_AS="vic")
    assert done.status == 0, done.err
    said = git("log", "-1", "--format=%H%n%B")
    assert (
        said.startswith(done.json["commit"] + "\nadd was wrong\n")
        and f"Onceward-Entry: {entry}\n" in said
    )
    for trailer in (
        "Onceward-Review: dec_",
        "by rob",
        "Onceward-Executor: max",
        "Onceward-Verifier: vic",
    ):
        assert trailer in said
    assert set(git("show", "--name-only", "--format=").split()) == {
        "calc.py",
        "docs/new.txt",
        "old.txt",
    }
    assert git("status", "--porcelain") == "A  wip.txt\n"
    again = onceward("change", "verify", entry, "--git-commit", "--json", ONCEWARD_AS="vic")
    assert again.json["commit"] == done.json["commit"], "one commit"
    write(folder / "bare", {"a": "1"})
    write(folder / "other", {"a": "2"})
    done = onceward("change", "mark", "--tree", "other", "--base", "bare", "--json")
    refused = onceward("change", "cut", done.json["entry_id"], "--git-commit", ONCEWARD_AS="max")
    assert refused.status == 2 and "no git working tree" in refused.err


@pytest.mark.rule("H-2", "K-11")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give exactly one of"),
        (("--tree", "wanted", "--patch", "x"), "give exactly one of"),
        (("--tree", "absent", "--base", "repo"), "no folder"),
        (("--tree", "wanted", "--base", "wanted"), "must not contain each other"),
        (("--tree", "wanted", "--base", "."), "must not contain each other"),
        (("--tree", "wanted", "--base", ".onceward"), "workspace's own"),
        (("--tree", "repo2", "--base", "repo"), "nothing to change"),
        (("--patch", "absent.patch", "--base", "repo"), "absent.patch"),
        (("--patch", "-", "--base", "repo"), "no patch"),
        (("--build", "bld_none", "--into", "repo"), "no build"),
        (("--registry", "absent.toml"), "absent.toml"),
        (("--cutter", "flags", "--tree", "wanted"), "no cutter"),
        (("--tree", "wanted", "--base", "repo", "--check", "'"), "--check cannot be read"),
        (("--tree", "wanted", "--base", "repo", "--depends-on", "ent_none"), "no change ent_none"),
        (("--tree", "wanted", "--base", "repo", "--revise", "ent_none"), "no change ent_none"),
        (("--tree", "wanted", "--base", "repo", "--key", "x" * 200), "idempotency_key"),
        (("--delete", "../x", "--base", "repo"), "no path inside"),
    ],
    ids=str,
)
def test_what_cannot_be_proposed_is_refused_and_nothing_is_written(folder, onceward, words, said):
    write(folder / "repo2", BASE)
    done = onceward("change", "mark", *words, stdin="")
    assert done.status == 2 and said in done.err and "Traceback" not in done.err, done.err
    assert onceward("change", "list", "--json").json == []


@pytest.mark.rule("H-4", "H-7", "K-11")
def test_careless_words_are_refused_with_the_right_status(folder, onceward):
    entry, digest = marked(onceward)
    onceward("change", "sweep")
    for who, words, said in (
        ("rob", ("review", entry, "--digest", digest), "--approve, --defer or --reject"),
        ("rob", ("review", entry, "--approve", "--digest", "abcd"), "PERMIT_INVALID"),
        ("rob", ("review", "ent_none", "--approve", "--digest", digest), "no change"),
        ("max", ("review", entry, "--approve", "--digest", digest), "PERMISSION_DENIED"),
        ("max", ("verify", entry), "PERMISSION_DENIED"),
        ("rob", ("abandon", entry, "--reason", "x"), "PERMISSION_DENIED"),
        ("rob", ("abandon", entry), "--reason"),
        ("rob", ("list", "--status", "open"), "is not a status"),
        ("rob", ("sweep", "--every", "soon"), "is a time"),
        ("vic", ("verify", entry), "G-VERIFY-CUT"),
    ):
        done = onceward("change", *words, ONCEWARD_AS=who)
        assert done.status == 2 and said in done.err, (words, done.err)
    assert onceward("change", "show", entry, "--json").json["status"] == "review_pending"


@pytest.mark.rule("H-2")
def test_a_dry_run_only_shows_and_a_patch_does_the_same(folder, onceward):
    done = onceward("change", "mark", "--tree", "wanted", "--base", "repo", "--dry-run", "--json")
    assert done.status == 0 and {f["path"]: f["what"] for f in done.json["files"]} == {
        **{"calc.py": "changed", "docs/new.txt": "added", "old.txt": "removed"}
    }
    assert onceward("change", "list", "--json").json == []
    diff = subprocess.run(
        ["diff", "-ruN", "repo", "wanted"], cwd=folder, capture_output=True, text=True, check=False
    )
    patched = onceward(
        "change", "mark", "--patch", "-", "--base", "repo", "--dry-run", "--json", stdin=diff.stdout
    )
    assert patched.status == 0 and patched.json["manifest"] == done.json["manifest"]


@pytest.mark.skipif(TMUX is None, reason="tmux is not installed: no terminal to look at")
@pytest.mark.rule("H-4")
def test_on_a_terminal_the_difference_is_shown_and_its_digest_typed_back(folder, onceward):
    entry, digest = marked(onceward)
    onceward("change", "sweep")
    with Terminal(folder) as terminal:
        terminal.start(f"{BIN}/onceward --as rob change review {entry}")
        screen = terminal.until("approve, defer or reject")
        assert "+    return a + b" in screen and digest in screen
        terminal.keys("-l", "approve")
        terminal.keys("Enter")
        terminal.until("type the first 8 letters")
        terminal.keys("-l", "00000000")
        terminal.keys("Enter")
        assert "nothing was decided" in terminal.end()
        terminal.start(f"{BIN}/onceward --as rob change review {entry} --approve")
        terminal.until("type the first 8 letters")
        terminal.keys("-l", digest[:8])
        terminal.keys("Enter")
        assert "is reviewed_approved" in terminal.end()
