"""kill -9 of a build at every named fault point and at random moments, on both stores; then resume, then look."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from helpers import assert_sound
from onceward.core import faults
from onceward.kernel.views import stream_lines
from onceward.store.tables.budgets import spent_by
from onceward.store.tables.checkpoints import checkpoints_of
from onceward.store.tables.children import Tokens
from onceward.workspace import Workspace

VICTIM = "builds_victim.py"
HERE = Path(__file__).parent
SEED = int(os.environ.get("ONCEWARD_SEED", "1"))
MOMENTS = int(os.environ.get("ONCEWARD_BUILD_MOMENTS", "4"))
TARGETS = int(os.environ.get("ONCEWARD_BUILD_TARGETS", "3"))
"""The long campaign has 13: forty steps."""
KINDS = (
    "child.",
    "process.",
    "artifact.",
    "stream.",
    "move.",
    "commit.",
    "write.",
    "lock.",
    "target.",
    "build.",
)
POINTS = [
    name
    for name in faults.POINTS
    if name.startswith(KINDS)
    and name not in ("artifact.forgotten", "artifact.placed", "artifact.spilled")
]
PLAN = """
name = "forty"
[config]
witness = "{folder}/witness"
[[stage]]
name = "fetch"
targets = [{targets}]
python = "build_steps:fetch"
[[stage]]
name = "shape"
needs = ["fetch"]
run = ["sh", "shape.sh"]
inputs = ["shape.sh"]
env = ["PATH"]
[[stage]]
name = "pack"
needs = ["shape"]
python = "build_steps:pack"
[[stage]]
name = "bind"
collect = ["shape"]
python = "build_steps:bind"
"""
SHAPE = """
say() { echo "$1 $ONCEWARD_BUILD $ONCEWARD_STAGE:$ONCEWARD_TARGET $ONCEWARD_CHILD" >> FOLDER/witness; }
say asking
echo '{"spend":{"usd":"0.03","tokens":5}}' >&3
read answer <&4 || exit 1
say paid
tr a-z A-Z < "$ONCEWARD_INPUTS/fetch/$ONCEWARD_TARGET/value.json" > "$ONCEWARD_OUT/out.txt"
"""
COSTS = {"fetch": 10_000, "shape": 30_000, "pack": 20_000, "bind": 20_000}


@pytest.fixture
def scene(store_url, tmp_path):
    shutil.copy(HERE / "build_steps.py", tmp_path)
    (tmp_path / "shape.sh").write_text(SHAPE.replace("FOLDER", str(tmp_path)))
    targets = ", ".join(f'"t{n:02d}"' for n in range(TARGETS))
    (tmp_path / "plan.toml").write_text(PLAN.format(folder=tmp_path, targets=targets))
    workspace = Workspace(tmp_path / ".onceward", store_url=store_url, principal="victim")
    workspace.create()
    return workspace


@pytest.mark.rule("B-4", "B-5", "B-7", "L-23", "C-20")
@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G7")
@pytest.mark.guarantee("G8")
@pytest.mark.guarantee("G9")
@pytest.mark.guarantee("G15")
@pytest.mark.timeout(7200)
def test_a_build_comes_to_the_same_end_wherever_it_is_killed(
    scene, store_url, tmp_path, executioner
):
    dice = random.Random(SEED)
    plain = {"folder": str(scene.folder), "store": store_url, "plan": str(tmp_path / "plan.toml")}
    plain |= {
        "begun": str(tmp_path / "begun"),
        "build": "",
        "fault": "",
        "nth": 0,
        "after_micros": 0,
    }
    started = time.monotonic()
    assert executioner(**plain) == 0
    lasted = time.monotonic() - started
    whole = digest_of(scene, begun(tmp_path))
    # By default every other point on either store; the long campaign has all on both.
    points = POINTS if TARGETS > 3 else POINTS[(SEED + (store_url == "sqlite")) % 2 :: 2]
    deaths = [{"fault": point, "nth": often(point, dice)} for point in points]
    deaths += [
        {"after_micros": int(dice.uniform(0.02, 0.9 * lasted) * 1e6)} for _ in range(MOMENTS)
    ]
    dice.shuffle(deaths)
    killed = Counter()
    for number, death in enumerate(deaths):
        (tmp_path / "begun").unlink(missing_ok=True)
        (tmp_path / "witness").unlink(missing_ok=True)
        ending = executioner(**{**plain, **death})
        assert ending in (0, -signal.SIGKILL), death
        killed[ending] += 1
        build = begun(tmp_path)
        if build is None or ending == 0:
            continue
        if dice.random() < 0.4:
            # Killed again while it resumes.
            finished = done(scene, build)
            ran_since(tmp_path)
            again = deaths[(number * 7 + 3) % len(deaths)]
            assert executioner(**{**plain, **again, "build": build}) in (0, 1, -signal.SIGKILL), (
                again
            )
            assert not finished & ran_since(tmp_path)
        if state(scene, build) == "SUCCESS":
            continue
        finished = done(scene, build)
        ran_since(tmp_path)
        assert executioner(**{**plain, "build": build}) == 0, death
        assert not finished & ran_since(tmp_path), death
        examine(scene, build, whole)
    assert killed[-signal.SIGKILL] > len(deaths) / 2


def often(point, dice):
    many = point.startswith(("move.", "commit.", "write."))
    return dice.randint(1, 12 * TARGETS if many else 3 if not point.startswith("lock.") else 1)


def begun(tmp_path):
    file = tmp_path / "begun"
    return file.read_text() if file.exists() else None


_seen: dict[Path, int] = {}


def ran_since(tmp_path):
    """The steps that began since this was last asked."""
    file = tmp_path / "witness"
    lines = file.read_text().splitlines() if file.exists() else []
    if _seen.get(file, 0) > len(lines):
        _seen[file] = 0
    new = lines[_seen.get(file, 0) :]
    _seen[file] = len(lines)
    return {line.split()[2] for line in new if line.startswith("asking")}


def state(workspace, build):
    """As the next kernel finds it."""
    kernel = workspace.kernel()
    try:
        with kernel.store.read() as rows:
            return rows.read("SELECT state FROM builds WHERE build_id = ?", (build,))[0][0]
    finally:
        kernel.close()


def done(workspace, build):
    store = workspace.store()
    try:
        with store.read() as rows:
            return {
                f"{c.stage}:{c.target}"
                for c in checkpoints_of(rows, build)
                if c.status == "SUCCESS"
            }
    finally:
        store.close()


def digest_of(workspace, build):
    import json

    store = workspace.store()
    try:
        events = [json.loads(line) for line in stream_lines(store, f"session:{build}")]
    finally:
        store.close()
    return next(e["detail"]["outputs"] for e in events if e["event"] == "BUILD_SUCCEEDED")


def examine(workspace, build, whole):
    """The same results, the true cost, and a record that agrees with itself."""
    assert digest_of(workspace, build) == whole
    lines = (workspace.folder.parent / "witness").read_text().splitlines()
    asked = {
        line.split()[3]: line.split()[2].split(":")[0]
        for line in lines
        if line.startswith("asking")
    }
    paid = {line.split()[3] for line in lines if line.startswith("paid")}
    kernel = workspace.kernel()
    try:
        with kernel.store.read() as rows:
            assert_sound(rows, build)
            total = 0
            for token in Tokens(rows).of_session(build):
                spent = spent_by(rows, token.child_id).get("usd_micros", 0)
                once = COSTS[asked[token.child_id]] if token.child_id in asked else 0
                assert spent == once if token.child_id in paid else spent in (0, once)
                total += spent
            ((recorded,),) = rows.read(
                "SELECT total FROM budget_totals WHERE parent_session_id = ? AND budget_lane = 'usd_micros'",
                (build,),
            )
            assert recorded == total
            digests = [digest for (digest,) in rows.read("SELECT sha256 FROM artifacts")]
        assert kernel.artifacts.broken(digests) == set()
        assert not list(workspace.folder.glob("work/*"))
    finally:
        kernel.close()
