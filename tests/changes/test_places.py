"""Changes that are no file trees: the registry, and places of the user's own (H-5)."""

from __future__ import annotations

import hashlib
import json
import uuid

import msgspec
import pytest

from backlog import Backlog
from onceward.changes.cut import own_place
from onceward.changes.manifest import Manifest
from onceward.changes.proposals import for_place, for_registry
from onceward.core import faults
from onceward.core.changes import Unit
from onceward.errors import BaseDrift, InvalidConfig, PermitInvalid
from onceward.registry import machine as registry
from onceward.registry.assembly import Assembly
from onceward.registry.rules import require_plan
from onceward.settings import TEMPLATE
from onceward.store.tables.changes import Changes
from onceward.store.tables.grants import Grants
from onceward.store.tables.registry import Registry
from onceward.workspace import Workspace

FLAGS = '''
import json, pathlib

class Flags:
    """Flags of a service, each a key of a JSON file."""

    def __init__(self, target):
        self.file = pathlib.Path(__file__).parent / f"{target}.json"

    def _all(self):
        return json.loads(self.file.read_text()) if self.file.exists() else {}

    def paths(self):
        return self._all().keys()

    def read(self, path):
        found = self._all().get(path)
        return None if found is None else found.encode()

    def write(self, path, data):
        flags = {k: v for k, v in self._all().items() if k != path}
        self.file.write_text(json.dumps(flags if data is None else {**flags, path: data.decode()}))
'''
SETTINGS = """
[[changes.cutter]]
name = "flags"
python = "MODULE:Flags"
"""


@pytest.fixture
def flags(store_url, tmp_path):
    module = f"flags_{uuid.uuid4().hex}"
    (tmp_path / f"{module}.py").write_text(FLAGS)
    (tmp_path / "live.json").write_text('{"dark": "off", "old": "1"}')
    (tmp_path / "onceward.toml").write_text(TEMPLATE + SETTINGS.replace("MODULE", module))
    workspace = Workspace(tmp_path / ".onceward", store_url=store_url, principal="tester")
    workspace.create()
    found = Backlog(workspace)
    found.live = tmp_path / "live.json"
    yield found
    found.kernel.close()


def proposed(backlog, made, target="live"):
    place, _ = own_place(backlog.kernel.cutters, "flags", target, backlog.home)
    proposal = for_place(place, "flags", target, (), made)
    proposal.bring(backlog.kernel.artifacts)
    return proposal.manifest


@pytest.mark.rule("H-5", "H-6")
def test_a_place_of_ones_own_is_cut_verified_and_restored(flags):
    entry = flags.approved(what=proposed(flags, {"dark": b"on", "new": b"yes", "old": None}))
    assert flags.cut(entry).status == "applied"
    assert json.loads(flags.live.read_text()) == {"dark": "on", "new": "yes"}
    assert flags.verify(entry).result.passed
    flags.become("tester")
    second = flags.approved(what=proposed(flags, {"dark": b"dim"}))
    flags.cut(second)
    flags.live.write_text(json.dumps({**json.loads(flags.live.read_text()), "sneaked": "in"}))
    with pytest.raises(BaseDrift, match="sneaked"):
        flags.verify(second)
    flags.live.write_text(json.dumps({"dark": "dim", "sneaked": "in"}))
    accepted = json.loads(flags.live.read_text())
    assert accepted == {"dark": "dim", "sneaked": "in"}
    with pytest.raises(BaseDrift, match=r"new \(removed\), sneaked \(added\)"):
        flags.verify(second)
    flags.live.write_text(json.dumps({"new": "yes"}))
    done = flags.verify(second)
    assert (
        json.loads(done.result.detail)["missing"]["paths"] == ["dark"]
        and done.undo.status == "stuck"
    )
    flags.live.write_text(json.dumps({"dark": "dim", "new": "yes"}))
    assert flags.verify(second).undo.status == "applied"
    assert json.loads(flags.live.read_text()) == {"dark": "on", "new": "yes"}
    with flags.store.read() as rows:
        tools = {s.role: s.tool_revision for s in Changes(rows).signatures(entry)}
    assert tools["executor"] != tools["verifier"]
    flags.sound()


@pytest.mark.rule("H-5")
def test_what_drifted_there_is_refused_and_a_cut_off_cut_is_finished(flags):
    what = proposed(flags, {"dark": b"on", "new": b"yes"})
    entry = flags.approved(what=what)
    flags.live.write_text('{"dark": "dim"}')
    with pytest.raises(BaseDrift, match="dark is not what"):
        flags.cut(entry)
    flags.live.write_text('{"dark": "off"}')
    with pytest.raises(InvalidConfig, match="no cutter"):
        own_place(flags.kernel.cutters, "other", "live", flags.home)
    flags.become("max")
    with pytest.raises(faults.SimulatedCrash), faults.armed("commit.before", 9, faults.crash):
        flags.cut(entry)
    flags.become("tester")
    assert (
        flags.cut(entry).status == "applied" and json.loads(flags.live.read_text())["new"] == "yes"
    )
    flags.sound()


def plan(*values, plan_id="p"):
    one = {"protocol_version": "1.0.0", "act_type": "WRITE", "governing_authority_ref": "council"}
    said = [{"operation_code": code, **one} for code in values]
    return require_plan({"plan_id": plan_id, "revision": 1, "collection": "ops", "value": said})


def granted(backlog, plan, executor="max"):
    scope = msgspec.to_builtins(Assembly(plan, "local").scope(None, "local", executor))
    backlog.ask("tester", "principals.add", name=executor, roles=["operator"])
    grant = backlog.ask("tester", "grants.draft", scope=scope)["grant_id"]
    backlog.ask("eva", "grants.issue", grant=grant, scope=scope, seconds=600)
    return grant


@pytest.mark.rule("H-5", "S-2")
def test_values_reach_the_registry_as_they_were_approved(backlog):
    what = plan("pay", "refund")
    proposal = for_registry(what)
    proposal.bring(backlog.kernel.artifacts)
    entry = backlog.approved(what=proposal.manifest)
    with pytest.raises(PermitInvalid, match="needs a grant"):
        backlog.cut(entry)
    backlog.become("tester")
    other = granted(backlog, plan("pay", "other"))
    grant = granted(backlog, what)
    with pytest.raises(PermitInvalid):
        backlog.cut(entry, grant=other)
    assert backlog.cut(entry, grant=grant).status == "applied"
    with backlog.store.read() as rows:
        assert {
            str(v.key)
            for v in Registry(rows).values(Registry(rows).collection("ops").collection_id)
        } == {
            "pay@1.0.0",
            "refund@1.0.0",
        }
        assert (
            Grants(rows).named(grant).status == "consumed"
            and Grants(rows).named(other).status == "active"
        )
    assert backlog.cut(entry, grant=grant).status == "applied"
    assert backlog.verify(entry).result.passed
    backlog.sound()


@pytest.mark.rule("H-5", "H-6")
def test_values_that_are_not_as_approved_are_retired(backlog):
    what = plan("pay")
    proposal = for_registry(what)
    proposal.bring(backlog.kernel.artifacts)
    entry = backlog.approved(what=proposal.manifest, reason="x")
    grant = granted(backlog, what)
    backlog.cut(entry, grant=grant)

    def withdraw(tx):
        (value,) = Registry(tx).of_root(f"registry:{Changes(tx).live_set(entry).change_set_id}")
        tx.move(registry.retire(value, "withdrawn", "max"))

    backlog.store.write(withdraw)
    done = backlog.verify(entry)
    assert (
        json.loads(done.result.detail)["missing"]["paths"] == ["pay@1.0.0"]
        and done.undo.status == "applied"
    )
    backlog.sound()


@pytest.mark.rule("H-2")
def test_a_plan_that_is_none_is_refused(backlog):
    data = b'{"plan_id":"p"}'
    digest = hashlib.sha256(data).hexdigest()
    for units in ([Unit("p@1", None, digest)], [Unit("a", None, digest), Unit("b", None, digest)]):
        manifest = Manifest("registry", "ops", tuple(units))
        backlog.kernel.artifacts.offer(
            {digest: [data], manifest.content_hash(): [manifest.text().encode()]}
        )
        with pytest.raises(InvalidConfig):
            backlog.mark(what=manifest)
