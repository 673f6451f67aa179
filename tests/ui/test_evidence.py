"""Proof on the command line: verify, seal, export, keys (I-1)."""

from __future__ import annotations

import json

import apsw
import pytest

PLAN = 'name = "p"\n[[stage]]\nname = "s"\ntargets = ["a", "b"]\nrun = ["sh", "-c", "echo {target} > $ONCEWARD_OUT/x"]\n'


@pytest.fixture
def ran(onceward, place):
    (place / "plan.toml").write_text(PLAN)
    assert onceward("run", "plan.toml").status == 0
    return onceward


@pytest.mark.rule("E-1", "I-1")
@pytest.mark.both_stores
def test_verify_says_what_it_looked_at_or_exits_5_with_rule_and_place(ran, place):
    found = ran("verify", "--json")
    assert found.status == 0 and found.json["ok"] is True and found.json["faults"] == []
    assert found.json["checked"]["builds"] == 1 and found.json["checked"]["files"] >= 3
    assert ran("verify").out.startswith("sound: ")
    (stream,) = (place / ".onceward" / "streams").glob("session:*.ndjson")
    stream.write_bytes(stream.read_bytes().replace(b"BUILD_STARTED", b"BUILD_STOPPED"))
    broken = ran("verify", "--json")
    assert broken.status == 5 and not broken.json["ok"]
    assert broken.json["faults"] == [
        {"rule": "file", "subject": stream.stem, "detail": "line 3 is not what was recorded"}
    ]
    said = ran("verify")
    assert said.status == 5 and "file" in said.out and "1 fault in" in said.out


@pytest.mark.rule("E-2", "I-1")
def test_a_bundle_is_exported_and_verified_with_nothing_else(ran, place, tmp_path_factory):
    made = ran("export", "latest", "--json")
    assert made.status == 0 and made.json["kind"] == "build"
    path = place / f"{made.json['subject']}.bundle.tar"
    assert path.exists() and ran("export", "latest").status == 2
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    moved = elsewhere / "b.tar"
    path.rename(moved)
    (place / ".onceward").rename(elsewhere / "gone")
    (place / "onceward.toml").unlink(missing_ok=True)
    assert ran("verify", str(moved)).status == 0
    key = ran("verify", str(moved), "--key", "0" * 64, "--json")
    assert key.status == 5 and {fault["rule"] for fault in key.json["faults"]} == {"signature"}
    moved.write_bytes(moved.read_bytes()[:-600])
    broken = ran("verify", str(moved), "--json")
    assert broken.status == 5 and broken.json["faults"][0]["rule"] == "bundle"
    assert ran("verify", "nothing.tar").status == 2
    assert ran("verify", "--key", "ab").status == 2


@pytest.mark.rule("R-1", "R-6", "I-1")
@pytest.mark.both_stores
def test_replay_says_identical_or_exits_5_with_the_first_difference(ran, place, tmp_path_factory):
    whole = ran("replay", "--json")
    assert whole.status == 0 and whole.json["identical"] is True and whole.json["runs"] == 1
    assert whole.json["children"] == 2 and "first_difference" not in whole.json
    assert ran("replay", "--runs", "3", "--json").json == {**whole.json, "runs": 3}
    said = ran("replay", "latest")
    assert (
        said.status == 0 and said.out.startswith("identical: ") and whole.json["sha256"] in said.out
    )
    bundle = tmp_path_factory.mktemp("elsewhere") / "b.tar"
    assert ran("export", "latest", "--out", str(bundle)).status == 0
    (place / ".onceward").rename(bundle.parent / "gone")
    (place / "onceward.toml").unlink(missing_ok=True)
    assert ran("replay", str(bundle), "--json").json == whole.json
    data = bundle.read_bytes()
    bundle.write_bytes(data[:-2000])
    broken = ran("replay", str(bundle))
    assert (
        broken.status == 5
        and "INTEGRITY_FAULT" in broken.err
        and f"onceward verify {bundle.name}" in broken.err
    )
    assert ran("replay", "nothing.tar").status == 2


@pytest.mark.rule("R-1", "I-1")
def test_a_session_may_have_dots_in_its_name(ran, place):
    assert ran("spawn", "--session", "rel-1.2", "--new", "--", "true").status == 0
    assert ran("replay", "rel-1.2", "--json").json["identical"] is True
    missing = ran("replay", "nothing.tar")
    assert missing.status == 2 and "there is no file nothing.tar" in missing.err


@pytest.mark.rule("R-1")
def test_a_difference_is_told_with_its_event_and_field(ran, place):
    connection = apsw.Connection(str(place / ".onceward" / "onceward.db"))
    for (name,) in list(
        connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")
    ):
        connection.execute(f"DROP TRIGGER {name}")
    connection.execute("UPDATE urm_dispatch_token SET worker_run_id = 'ab' WHERE dispatch_seq = 1")
    connection.close()
    found = ran("replay", "--json")
    assert found.status == 5 and not found.json["identical"]
    told = found.json["first_difference"]
    assert (
        told["where"].startswith("child chd_")
        and told["field"] == "worker_run_id"
        and told["stored"] == "ab"
    )
    said = ran("replay")
    assert said.status == 5 and "worker_run_id" in said.out and 'stored    "ab"' in said.out
    assert "next: onceward verify" in said.out


@pytest.mark.rule("E-3", "I-1")
def test_a_seal_is_kept_and_held_against(ran, place):
    made = ran("seal", "--out", "kept.seal")
    assert made.status == 0 and "sealed" in made.out and "root " in made.out
    assert ran("verify", "--against", "kept.seal").status == 0
    assert ran("verify", "kept.seal").out.endswith("sound: 1 seal, 4 heads\n")
    assert ran("verify", "kept.seal", "--key", "a" * 64).status == 5
    printed = ran("seal", "--json").json
    assert printed["seal"] == 2 and printed["receipt"]["format"] == "onceward-seal@1"
    (place / "printed.seal").write_text(json.dumps(printed["receipt"]))
    assert ran("verify", "--against", "printed.seal").status == 0
    (place / "kept.seal").write_text("{}")
    assert ran("verify", "--against", "kept.seal").status == 2
    assert ran("verify", "--against", "none.seal").status == 2
    assert ran("seal", "--out", "no/where.seal").status == 2


@pytest.mark.rule("E-4", "I-1")
def test_keys_are_made_shown_offered_and_revoked(onceward, place):
    onceward("init")
    (mine,) = onceward("keys", "list", "--json").json
    shown = onceward("keys", "show", "--json").json
    assert (shown["key"], shown["state"], shown["here"]) == (mine["key"], "in force", True)
    assert shown["offer"].startswith("ed25519:")
    offered = onceward("--as", "carol", "keys", "new", "--json")
    assert offered.status == 3 and offered.json["status"] == "offered"
    told = onceward("--as", "dave", "keys", "new")
    assert (
        told.status == 3 and "onceward principals add dave --role ROLE --key ed25519:" in told.out
    )
    added = onceward(
        "principals", "add", "carol", "--role", "reviewer", "--key", offered.json["offer"], "--json"
    )
    assert added.status == 0
    assert onceward("--as", "carol", "keys", "show", "--json").json["key"] == offered.json["key"]
    assert onceward("keys", "new").status == 0
    assert onceward("keys", "revoke", mine["key"][:16], "--reason", "old").status == 0
    states = {k["key"]: "revoked_seq" in k for k in onceward("keys", "list", "--json").json}
    assert states[mine["key"]] and sum(states.values()) == 1 and len(states) == 3
    assert onceward("keys", "revoke", "ffffffff").status == 2
    assert onceward("keys", "show", "zz").status == 2
    assert onceward("--as", "nobody", "keys", "show").status == 2
    assert onceward("principals", "add", "eve", "--role", "viewer", "--key", "nonsense").status == 2
    assert onceward("principals", "add", "eve").status == 2
    assert onceward("verify").status == 0


@pytest.mark.rule("I-1", "H-9")
def test_roles_are_told_given_and_taken(onceward):
    onceward("init")
    assert "approve or refuse" in onceward("principals", "roles").out
    assert onceward("principals", "roles", "--json").json[0]["role"] == "viewer"
    onceward("principals", "add", "bob", "--role", "operator", "--role", "reviewer")
    assert onceward("principals", "roles", "bob").out == "bob: operator, reviewer\n"
    assert onceward("principals", "roles", "bob", "--take", "operator", "--json").json["roles"] == [
        "reviewer"
    ]
    assert onceward("principals", "roles", "nobody").status == 2
    assert onceward("principals", "roles", "--take", "viewer").status == 2
    assert "Not separated yet: only bob and" in onceward("principals", "list").out


@pytest.mark.rule("E-5", "I-1")
def test_principals_keys_artifacts_and_seals_are_explained(ran):
    ran("seal")
    (key,) = ran("keys", "list", "--json").json
    (build,) = ran("list", "--json").json
    artifact = ran("artifacts", "list", "--json").json[0]["sha256"]
    for word, kind, state in (
        (key["principal"], "principal", "acts with a key"),
        (key["key"][:10], "key", "in force"),
        (artifact[:10], "artifact", "kept"),
        ("seal:1", "seal", "signed"),
        (build["build_id"], "build", "SUCCESS"),
        ("s:a", "step", "SUCCESS"),
    ):
        found = ran("explain", word, "--json").json
        assert (found["kind"], found["state"]) == (kind, state) and found["next"]
    told = ran("explain", build["build_id"]).out
    assert "BUILD_SUCCEEDED (normal_completion) by" in told
    assert ran("explain", "seal:9").status == 2
