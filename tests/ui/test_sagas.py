"""Sagas, grants and the registry as people type them (S-1 to S-8)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from onceward.registry.rollback import CODES, VALID
from typing_in import until

SAGA = """
from pathlib import Path
from onceward import Saga

saga = Saga("order"GRANTED)

def put_back(task):
    if Path("stick").exists():
        raise ValueError("the shelf is full")
    Path("taken").unlink(missing_ok=True)

@saga.action(compensate=put_back)
def take(task):
    Path("taken").write_text(task.input["item"])
    return task.input["item"]

@saga.action
def send(task):
    while Path("wait").exists():
        task.check()
    if Path("lost").exists():
        raise ValueError("it was lost")
    task.spend(usd="0.10")

if __name__ == "__main__":
    print(saga.run({"item": "tea"}, root="from-python")["standing"])
"""
PLAN = """
plan_id = "pay"
revision = 1
collection = "pay"
[[value]]
operation_code = "refund"
protocol_version = "1.0.0"
act_type = "WRITE"
governing_authority_ref = "council"
[[value]]
operation_code = "credit"
protocol_version = "1.0.0"
act_type = "WRITE"
governing_authority_ref = "council"
[[value]]
operation_code = "look"
protocol_version = "1.0.0"
act_type = "READ"
governing_authority_ref = "council"
"""
INPUT = '{"item": "tea"}'


@pytest.fixture
def saga(place, onceward):
    (place / "order.py").write_text(SAGA.replace("GRANTED", ""))
    onceward("init")
    return lambda *words: onceward("saga", *words)


@pytest.mark.rule("S-1", "S-8", "I-1")
@pytest.mark.both_stores
def test_a_saga_from_run_to_retry(place, onceward, saga):
    done = saga("run", "order.py", "--input", INPUT, "--root", "one")
    assert done.status == 0 and "DONE: order" in done.err and "spent: usd 0.10" in done.err
    (place / "lost").touch()
    stopped = saga("run", "order.py", "--input", INPUT, "--root", "two", "--json")
    lines = [json.loads(line) for line in stopped.out.splitlines()]
    assert stopped.status == 1 and not (place / "taken").exists()
    assert lines[0]["type"] == "saga" and lines[-1]["type"] == "result"
    assert (lines[-1]["state"], lines[-1]["standing"]) == ("COMP_SEND", "stopped")
    (place / "stick").touch()
    stuck = saga("run", "order.py", "--input", INPUT, "--root", "three")
    assert stuck.status == 3 and "undo take: ValueError: the shelf is full" in stuck.err
    refused = saga("resume", "three")
    assert refused.status == 2 and "onceward saga retry" in refused.err
    shown = saga("show", "three", "--json").json
    assert (
        shown["standing"] == "stuck"
        and shown["lease_held"]
        and shown["next"].startswith("onceward saga retry")
    )
    (place / "stick").unlink()
    assert saga("retry", "three").status == 1 and not (place / "taken").exists()
    assert [(s["root"], s["standing"]) for s in saga("list", "--json").json] == [
        *(("three", "stopped"), ("two", "stopped"), ("one", "done"))
    ]
    assert saga("retry", "three").status == 2 and saga("resume", "one").status == 2
    explained = onceward("explain", "three")
    assert (
        "send failed: ValueError: it was lost" in explained.out and "undone: take" in explained.out
    )
    bundle = onceward("export", "two", "--out", "two.tar")
    assert bundle.status == 0 and "its end is signed by" in onceward("verify", "two.tar").out
    assert onceward("replay", "two").status == 0 and onceward("verify").status == 0


@pytest.mark.rule("S-1", "I-1")
def test_what_makes_no_sense_is_refused_and_nothing_is_written(place, onceward, saga):
    (place / "none.py").write_text("x = 1\n")
    (place / "broken.py").write_text("from onceward import Saga\nsaga = Saga('s')\n1/0\n")
    (place / "empty.py").write_text("from onceward import Saga\nsaga = Saga('s')\n")
    for words, why in [
        (("run", "absent.py"), "is not there"),
        (("run", "none.py"), "makes 0 sagas"),
        (("run", "broken.py"), "line 3"),
        (("run", "empty.py"), "1 to 100 actions"),
        (("run", "order.py", "--input", "{"), "--input"),
        (("run", "order.py", "--input", "1.5"), "--input"),
        (("run", "order.py", "--input", "@absent.json"), "cannot read"),
        (("run", "order.py", "--root", " x"), "root"),
        (("run", "order.py", "--grant", "grt_none"), "there is no grant"),
        (("run", "order.py", "--budget", "usd"), "LANE=N"),
        (("show", "nobody"), "there is no run"),
        (("abandon", "nobody"), "there is no run"),
    ]:
        done = saga(*words)
        assert done.status == 2 and why in done.err, (words, done.err)
    assert saga("list").out == "No sagas yet.\n"
    assert saga("run", "order.py", "--input", INPUT, "--root", "one").status == 0
    other = saga("run", "order.py", "--input", '{"item": "milk"}', "--root", "one")
    assert other.status == 2 and "URM_IDEMPOTENCY_KEY_CONFLICT" in other.err


@pytest.mark.rule("S-8")
def test_a_run_that_was_killed_is_shown_and_goes_on(place, onceward, saga):
    (place / "wait").touch()
    clean = {k: v for k, v in os.environ.items() if not k.startswith("ONCEWARD_")}
    words = [
        sys.executable,
        "-m",
        "onceward",
        "saga",
        "run",
        "order.py",
        "--input",
        INPUT,
        "--root",
        "one",
    ]
    victim = subprocess.Popen(words, cwd=place, env=clean, stderr=subprocess.DEVNULL)
    while (
        not (place / "taken").exists() or saga("show", "one", "--json").json.get("state") != "send"
    ):
        time.sleep(0.05)
    assert saga("show", "one", "--json").json["standing"] == "running"
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    (place / "wait").unlink()
    (place / "taken").write_text("untouched")
    gone_on = saga("resume", "one")
    assert gone_on.status == 0 and "(resumed)" in gone_on.err
    assert (place / "taken").read_text() == "untouched", "what was done is not done again"


@pytest.mark.rule("S-8")
def test_a_run_is_given_up_from_another_process(place, onceward, saga):
    (place / "wait").touch()
    clean = {k: v for k, v in os.environ.items() if not k.startswith("ONCEWARD_")}
    words = [
        sys.executable,
        "-m",
        "onceward",
        "saga",
        "run",
        "order.py",
        "--input",
        INPUT,
        "--root",
        "one",
    ]
    running = subprocess.Popen(words, cwd=place, env=clean, stderr=subprocess.PIPE, text=True)
    while (
        not (place / "taken").exists() or saga("show", "one", "--json").json.get("state") != "send"
    ):
        time.sleep(0.05)
    asked = saga("abandon", "one", "--json")
    assert asked.json["state"] == "COMP_SEND" and asked.json["undo"] == "take"
    _, err = running.communicate(timeout=600)
    assert running.returncode == 1 and "done undo take" in err and not (place / "taken").exists()
    assert onceward("verify").status == 0


def test_a_saga_runs_from_python(place, onceward, saga):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("ONCEWARD_")}
    words = [sys.executable, "order.py"]
    assert (
        subprocess.run(words, cwd=place, env=clean, capture_output=True, text=True).stdout
        == "done\n"
    )
    (place / "lost").touch()
    again = subprocess.run(words, cwd=place, env=clean, capture_output=True, text=True)
    assert again.stdout == "done\n", "the same root is the same run"
    (place / "order.py").write_text(SAGA.replace("GRANTED", "").replace("from-python", "another"))
    stopped = subprocess.run(words, cwd=place, env=clean, capture_output=True, text=True)
    assert (
        stopped.returncode == 1
        and "SagaStopped: run sga_" in stopped.stderr
        and "COMP_SEND" in stopped.stderr
    )


@pytest.mark.rule("S-3")
@pytest.mark.guarantee("G16")
def test_a_saga_that_needs_a_grant_runs_under_one_once(place, onceward, saga):
    (place / "order.py").write_text(SAGA.replace("GRANTED", ", granted=True"))
    bare = saga("run", "order.py", "--input", INPUT)
    assert bare.status == 2 and "only under a grant" in bare.err
    issued = onceward("grant", "issue", "order.py", "--input", INPUT, "--json").json["grant_id"]
    other = saga("run", "order.py", "--input", '{"item": "gold"}', "--grant", issued)
    assert other.status == 2 and "another manifest_digest" in other.err
    assert onceward("grant", "show", issued, "--json").json["status"] == "active"
    assert saga("run", "order.py", "--input", INPUT, "--grant", issued, "--root", "one").status == 0
    second = saga("run", "order.py", "--input", INPUT, "--grant", issued, "--root", "two")
    assert second.status == 2 and "the grant is consumed" in second.err
    assert saga("run", "order.py", "--input", INPUT, "--grant", issued, "--root", "one").status == 0
    assert len(saga("list", "--json").json) == 1, "who was refused wrote nothing"
    assert onceward("verify").status == 0


@pytest.mark.rule("S-3")
def test_grants_are_given_by_granters_and_taken_back(place, onceward, saga):
    (place / "pay.toml").write_text(PLAN)
    onceward("principals", "add", "ann", "--role", "operator")
    onceward("principals", "add", "gil", "--role", "granter")
    drafted = onceward("grant", "draft", "pay.toml", "--as", "ann", "--json").json["grant_id"]
    refused = onceward("grant", "issue", drafted, "--as", "ann")
    assert refused.status == 2 and "PERMISSION_DENIED" in refused.err
    assert "have it done by gil, who may" in refused.err
    shown = onceward("grant", "show", drafted)
    assert "+ refund@1.0.0  WRITE  council" in shown.out, (
        "whoever issues it can read what it is for"
    )
    for nobody in ("zoe", "gil"):
        assert onceward("grant", "draft", "pay.toml", "--executor", nobody).status == 2
    issued = onceward("grant", "issue", drafted, "--as", "gil", "--for", "1h")
    assert issued.status == 0 and "executor         ann" in issued.out
    assert "gil issued it" in onceward("explain", drafted).out
    mine = onceward("registry", "apply", "pay.toml", "--grant", drafted)
    assert mine.status == 1 and "the grant is for ann, not for" in mine.err
    short = onceward("grant", "draft", "pay.toml", "--as", "ann", "--json").json["grant_id"]
    assert onceward("grant", "issue", short, "--as", "gil", "--for", "1s").status == 0
    until(lambda: onceward("grant", "show", short, "--json").json["status"] == "expired")
    late = onceward("registry", "apply", "pay.toml", "--grant", short, "--as", "ann")
    assert late.status == 1 and "the grant is expired" in late.err
    assert onceward("grant", "expire", "--as", "ann").out == "No grant has expired.\n", (
        "the run has said so"
    )
    assert onceward("grant", "list", "--json").json[0]["status"] == "expired"
    second = onceward("grant", "issue", "pay.toml", "--json").json["grant_id"]
    assert "revoked" in onceward("grant", "revoke", second, "--why", "no").out
    taken = onceward("registry", "apply", "pay.toml", "--grant", second)
    assert (
        taken.status == 1 and "the grant is revoked" in taken.err and "(active, by" not in taken.err
    )
    assert onceward("grant", "issue", second).status == 2
    for text in ("0s", "8d", "soon", "-1h"):
        assert onceward("grant", "issue", "pay.toml", "--for", text).status == 2, text
    assert onceward("registry", "list", "--json").json == []
    assert onceward("verify").status == 0


@pytest.mark.thorough
@pytest.mark.rule("S-2", "S-5", "S-6", "S-7")
@pytest.mark.both_stores
def test_the_registry_from_plan_to_rollback(place, onceward, saga):
    (place / "pay.toml").write_text(PLAN)
    planned = onceward("registry", "plan", "pay.toml", "--json")
    assert (
        planned.status == 0
        and planned.json["objections"] == []
        and planned.json["collection_is"] == "new"
    )
    assert "onceward grant issue pay.toml" in onceward("registry", "apply", "pay.toml").err
    grant = onceward("grant", "issue", "pay.toml", "--json").json["grant_id"]
    assert onceward("registry", "apply", "pay.toml", "--grant", grant, "--dry-run").status == 0
    assert onceward("registry", "list", "--json").json == [], "nothing was done"
    assert onceward("registry", "apply", "pay.toml", "--grant", grant).status == 0
    (collection,) = onceward("registry", "list", "--json").json
    assert [v["value"] for v in collection["values"]] == [
        "credit@1.0.0",
        "look@1.0.0",
        "refund@1.0.0",
    ]
    assert onceward("registry", "apply", "pay.toml", "--grant", grant, "--json").status == 0
    against = onceward("registry", "plan", "pay.toml")
    assert against.status == 1 and "is in the registry already" in against.out

    (place / "back.toml").write_text(
        _rollback("supersede", "refund@1.0.0", "credit@1.0.0", "incident-7")
    )
    assert onceward("registry", "rollback", "check", "back.toml").out.startswith(VALID)
    assert {v["status"] for v in onceward("registry", "list", "--json").json[0]["values"]} == {
        "active"
    }
    wrong = onceward("registry", "rollback", "run", "back.toml", "--grant", grant)
    assert wrong.status == 1 and "the grant is consumed" in wrong.err
    grant = onceward("grant", "issue", "back.toml", "--json").json["grant_id"]
    assert onceward("registry", "rollback", "run", "back.toml", "--grant", grant).status == 0
    assert (
        onceward("registry", "show", "refund@1.0.0", "--json").json["successor"] == "credit@1.0.0"
    )
    assert "credit@1.0.0 follows it" in onceward("explain", "refund@1.0.0").out

    for operation, effect, code in [
        ("refund@1.0.0", "WRITE", "CANONICAL_OPERATION_RETIRED_FOR_NEW_USE"),
        ("none@1.0.0", "WRITE", "CANONICAL_OPERATION_VALUE_ABSENT"),
        ("look@1.0.0", "WRITE", "WRONG_CANONICAL_OPERATION_FOR_EFFECT"),
        ("look@1.0.0", "READ", ""),
    ]:
        words = f'name = "p"\n[[stage]]\nname = "s"\noperation = "{operation}"\neffect = "{effect}"\nrun = ["true"]\n'
        (place / "plan.toml").write_text(words)
        done = onceward("run", "plan.toml")
        assert (done.status, code in done.err) == (2 if code else 0, True), (operation, done.err)
        ran = onceward("spawn", "--operation", operation, "--", "true")
        assert ran.status == (2 if code and "WRONG" not in code else 0), (operation, ran.err)
    assert len(onceward("list", "--json").json) == 1, "what was refused left no build"
    (place / "onceward.toml").write_text("[registry]\nrequire = true\n")
    (place / "plan.toml").write_text('name = "q"\n[[stage]]\nname = "s"\nrun = ["true"]\n')
    for done in (onceward("run", "plan.toml"), onceward("spawn", "true")):
        assert (
            done.status == 2
            and "CANONICAL_OPERATION_VALUE_ABSENT" in done.err
            and "requires one" in done.err
        )
    assert onceward("spawn", "--operation", "credit@1.0.0", "true").status == 0
    assert onceward("verify").status == 0


def _rollback(action, target, successor="", ref="", extra=""):
    step = f'[[step]]\naction = "{action}"\ntarget = "{target}"\nsuccessor = "{successor}"\nrollback_ref = "{ref}"\n'
    return f'plan_id = "back"\ncollection = "pay"\n{extra}{step}'


@pytest.mark.rule("S-6")
def test_every_bad_rollback_has_exactly_its_code(place, onceward, saga):
    (place / "pay.toml").write_text(PLAN)
    (place / "far.toml").write_text(
        PLAN.replace('"pay"', '"far"')
        .replace("refund", "far")
        .replace("credit", "away")
        .replace("look", "see")
    )
    (place / "other.toml").write_text(
        PLAN.partition("[[value]]")[0].replace("revision = 1", "revision = 2")
        + '[[value]]\noperation_code = "weak"\nprotocol_version = "1.0.0"\nact_type = "WRITE"\n'
        'governing_authority_ref = "anybody"\n'
        '[[value]]\noperation_code = "refund"\nprotocol_version = "1.10.0"\nact_type = "WRITE"\n'
        'governing_authority_ref = "council"\nsupersedes = "refund@1.0.0"\n'
    )
    for name in ("pay.toml", "far.toml", "other.toml"):
        grant = onceward("grant", "issue", name, "--json").json["grant_id"]
        assert onceward("registry", "apply", name, "--grant", grant).status == 0
    before = onceward("registry", "list", "--json").out
    good = ("supersede", "refund@1.10.0", "credit@1.0.0", "incident-7")
    plans = [
        _rollback(*good, extra="execute = true\n"),
        'plan_id = "back"\ncollection = "pay"\n',
        _rollback("delete", "refund@1.10.0"),
        _rollback("retire", "refund@1.10.0"),
        _rollback("rewrite", "events"),
        _rollback("change", "refund@1.10.0"),
        _rollback("supersede", "refund@1.10.0", "weak@1.0.0", "incident-7"),
        _rollback("supersede", "refund@1.10.0", "", "incident-7"),
        _rollback("supersede", "refund@1.10.0", "look@1.0.0", "incident-7"),
        _rollback("supersede", "refund@1.10.0", "credit@1.0.0", ""),
        _rollback("supersede", "refund@1.10.0", "away@1.0.0", "incident-7"),
    ]
    for code, text in zip(CODES, plans, strict=True):
        (place / "back.toml").write_text(text)
        done = onceward("registry", "rollback", "check", "back.toml", "--json")
        assert (done.status, done.json["code"]) == (1, code), done.out + done.err
    (place / "back.toml").write_text(_rollback(*good))
    assert onceward("registry", "rollback", "check", "back.toml", "--json").json["code"] == VALID
    (place / "back.toml").write_text(_rollback("burn", "x"))
    assert onceward("registry", "rollback", "check", "back.toml").status == 2
    assert onceward("registry", "list", "--json").out == before, "asking changed nothing"
