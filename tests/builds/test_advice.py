"""What people are told to do next is what works."""

from __future__ import annotations

import pytest

from onceward.core import faults
from onceward.core.views import document
from onceward.maintenance.doctor import examine_store
from onceward.overview import overview
from onceward.subjects import subject_named


@pytest.mark.rule("I-4", "H-5")
def test_the_start_page_advises_what_goes_on_with_an_interrupted_cut(backlog):
    entry = backlog.approved()
    backlog.become("max")
    with faults.armed("commit.before", 6, faults.crash):
        with pytest.raises(faults.SimulatedCrash):
            backlog.cut(entry)
    backlog.become("max")
    found = document(overview(backlog.store).waiting)
    assert [one["next"] for one in found if one["kind"] == "saga"] == [
        f"onceward change cut {entry}"
    ]
    assert backlog.cut(entry).status == "applied"
    assert not [one for one in overview(backlog.store).waiting if one.kind == "saga"]


@pytest.mark.rule("E-1", "I-1")
def test_the_doctor_finds_what_verify_finds(workspace, kernel):
    kernel.streams.seal()
    stream = next(workspace.folder.glob("streams/*.ndjson"))
    stream.write_bytes(stream.read_bytes().replace(b"tester", b"forger"))
    faults_found = workspace.verify([], None).faults
    assert faults_found
    with workspace.reading() as store:
        checks = examine_store(store, [], verify=lambda: workspace.verify([], None))
    (evidence,) = [check for check in checks if check.name == "evidence"]
    assert evidence.status == "fail" and "onceward verify" in evidence.fix


@pytest.mark.rule("E-2", "E-5")
def test_the_newest_change_has_a_name_of_its_own(backlog):
    entry = backlog.mark()
    assert subject_named(backlog.store, "change:latest") == entry
