"""Artifacts: whole or absent, verified when read, collected only when nobody refers to them (B-12)."""

from __future__ import annotations

import hashlib
import os
import tracemalloc

import pytest

from onceward.artifacts.blobs import Artifacts
from onceward.artifacts.redaction import Redactor, check_secret
from onceward.artifacts.views import artifact_list
from onceward.core import faults
from onceward.core.limits import ARTIFACT_INLINE_BYTES
from onceward.core.views import document
from onceward.errors import IntegrityFault, InvalidConfig, NotFound, StorageError

pytestmark = pytest.mark.rule("B-12")
SMALL, LARGE = b"small", b"large" * ARTIFACT_INLINE_BYTES


@pytest.fixture
def artifacts(store, tmp_path):
    return Artifacts(tmp_path / "artifacts", store)


def keep(artifacts, data, owner="chd_1", name="out"):
    blob = artifacts.keep(data)
    artifacts.store.write(lambda tx: artifacts.record(tx, owner, name, "log", blob))
    return blob.sha256


def content(artifacts, digest):
    return b"".join(artifacts.read(digest))


@pytest.mark.parametrize("data", [b"", SMALL, LARGE])
def test_what_was_kept_is_read_back_by_its_digest_or_the_beginning_of_it(artifacts, data):
    digest = keep(artifacts, data)
    assert digest == hashlib.sha256(data).hexdigest()
    assert content(artifacts, digest) == content(artifacts, digest[:8]) == data
    assert artifacts.intact(digest)


def test_small_ones_ride_in_the_commit_and_are_spilled_without_anybody_noticing(artifacts):
    digest = keep(artifacts, SMALL)
    assert not artifacts.path_of(digest).exists()
    assert artifacts.spill() == 1
    assert artifacts.path_of(digest).read_bytes() == SMALL
    assert content(artifacts, digest) == SMALL
    assert artifacts.spill() == 0


def test_a_crash_while_spilling_loses_nothing(artifacts):
    digests = [keep(artifacts, bytes([n]) * 10, name=str(n)) for n in range(5)]
    for point in ("artifact.written", "artifact.placed", "artifact.spilled", "commit.before"):
        with faults.armed(point, 1, faults.crash), pytest.raises(faults.SimulatedCrash):
            artifacts.spill()
        assert all(artifacts.intact(digest) for digest in digests)
    artifacts.spill()
    assert all(
        artifacts.intact(digest) and artifacts.path_of(digest).exists() for digest in digests
    )


@pytest.mark.guarantee("G20")
def test_bytes_that_changed_are_never_handed_out_as_if_they_had_not(artifacts):
    digest = keep(artifacts, LARGE)
    path = artifacts.path_of(digest)
    for wrong in (LARGE[:-1] + b"x", LARGE[:-1], LARGE + b"x", b""):
        path.chmod(0o600)
        path.write_bytes(wrong)
        with pytest.raises(IntegrityFault, match="its bytes changed"):
            content(artifacts, digest)
        assert not artifacts.intact(digest)
    path.unlink()
    with pytest.raises(NotFound, match="its file is gone"):
        content(artifacts, digest)


@pytest.mark.guarantee("G20")
@pytest.mark.parametrize(
    "digest", ["", "../../etc/passwd", "ab/cd", "ABCDEF12", "abc", "g" * 64, "0" * 65, "a\0b"]
)
def test_no_path_leaves_the_root(artifacts, digest):
    with pytest.raises((InvalidConfig, NotFound)):
        list(artifacts.read(digest))
    with pytest.raises(InvalidConfig):
        artifacts.path_of(digest)


def test_an_artifact_that_is_too_large_is_refused_and_leaves_nothing(store, tmp_path):
    artifacts = Artifacts(tmp_path / "artifacts", store, limit=100)
    big = tmp_path / "big"
    big.write_bytes(b"x" * 101)
    for attempt in (lambda: artifacts.keep(b"x" * 101), lambda: artifacts.keep_file(big)):
        with pytest.raises(InvalidConfig, match="may have 100 bytes"):
            attempt()
    assert not (tmp_path / "artifacts").exists()


def test_a_file_is_kept_a_piece_at_a_time(artifacts, tmp_path):
    big = tmp_path / "big"
    big.write_bytes(os.urandom(1 << 20) * 20)
    tracemalloc.start()
    blob = artifacts.keep_file(big)
    artifacts.store.write(lambda tx: artifacts.record(tx, "chd_1", "big", "output", blob))
    for _ in artifacts.read(blob.sha256):
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20


def test_a_file_that_cannot_be_written_is_an_error_and_leaves_nothing(artifacts, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        artifacts.keep(LARGE)
    monkeypatch.undo()
    assert [path for path in artifacts.root.rglob("*") if path.is_file()] == []


def test_gc_removes_what_nobody_refers_to_and_nothing_else(artifacts):
    kept = keep(artifacts, LARGE)
    orphan = artifacts.keep(LARGE + b"1")
    artifacts.store.write(lambda tx: artifacts.record(tx, "chd_1", "was", "log", orphan))
    artifacts.store.write(lambda tx: tx.write("DELETE FROM artifact_refs WHERE name = 'was'"))
    never_committed = artifacts.keep(LARGE + b"2")
    assert artifacts.gc(grace=3600) == (0, 0), "what is young is left alone"
    for blob in (orphan, never_committed):
        os.utime(artifacts.path_of(blob.sha256), (0, 0))
    artifacts.store.write(lambda tx: tx.write("UPDATE artifacts SET created_at = 0"))
    count, freed = artifacts.gc(grace=3600)
    assert (count, freed) == (2, 2 * len(LARGE) + 2)
    assert artifacts.intact(kept)
    with pytest.raises(NotFound):
        content(artifacts, orphan.sha256)


def test_gc_spares_what_somebody_has_just_kept_again(artifacts):
    blob = artifacts.keep(LARGE)
    os.utime(artifacts.path_of(blob.sha256), (0, 0))
    artifacts.store.write(lambda tx: artifacts.record(tx, "chd_1", "was", "log", blob))
    artifacts.store.write(lambda tx: tx.write("DELETE FROM artifact_refs"))
    artifacts.store.write(lambda tx: tx.write("UPDATE artifacts SET created_at = 0"))
    again = artifacts.keep(LARGE)
    assert artifacts.gc(grace=3600) == (0, 0)
    artifacts.store.write(lambda tx: artifacts.record(tx, "chd_2", "out", "log", again))
    assert artifacts.intact(again.sha256)


@pytest.mark.rule("E-4")
@pytest.mark.parametrize(
    ("text", "secrets", "left"),
    [
        ("key=hunter2!", {"KEY": "hunter2!"}, "key=[redacted KEY]"),
        ('{"k":"a\\"b\\\\c"}', {"KEY": 'a"b\\c'}, '{"k":"[redacted KEY]"}'),
        (
            "abcdefgh abcd",
            {"SHORT": "abcd", "LONG": "abcdefgh"},
            "[redacted LONG] [redacted SHORT]",
        ),
        ("first line\nsecond", {"PEM": "first line\nsecond line"}, "[redacted PEM]\nsecond"),
        ("nothing here", {}, "nothing here"),
    ],
)
def test_secrets_are_replaced_wherever_they_stand(text, secrets, left):
    assert Redactor(secrets).clean(text.encode()) == left.encode()


@pytest.mark.rule("E-4")
@pytest.mark.parametrize("cut", range(1, 30))
def test_a_secret_that_comes_in_pieces_is_replaced_all_the_same(cut):
    text = b"key is hunter2hunter3, really"
    redactor = Redactor({"KEY": "hunter2hunter3"})
    shown = b"".join(
        redactor.piece("out", piece) for piece in (text[:cut], text[cut:])
    ) + redactor.rest("out")
    assert shown == b"key is [redacted KEY], really"


@pytest.mark.rule("E-4")
@pytest.mark.parametrize(
    ("secrets", "text", "left"),
    [
        ({"A": "abcd", "B": "abcdefgh"}, b"<abcdefgh>", b"<[redacted B]>"),
        ({"A": "bcde", "B": "abcdefg"}, b"<abcdefg>", b"<[redacted B]>"),
        ({"A": "abcX", "B": "Xyz1"}, b"<abcXyz1>", b"<[redacted A]>"),
        ({"A": "line1\nzz\nline3"}, b"<line1\nzz\nline3>", b"<[redacted A]>"),
        ({"A": 'é"xx'}, '<é\\"xx>'.encode(), b"<[redacted A]>"),
        ({"A": "a.*b"}, b"<a.*b> aXXb", b"<[redacted A]> aXXb"),
        ({"A": "aaaa"}, b"<aaaaaaa>", b"<[redacted A]>"),
    ],
)
def test_secrets_that_touch_or_contain_each_other_go_whole_wherever_they_are_cut(
    secrets, text, left
):
    assert Redactor(secrets).clean(text) == left
    for one in range(len(text)):
        for two in range(one, len(text)):
            redactor = Redactor(secrets)
            pieces = (text[:one], text[one:two], text[two:])
            assert (
                b"".join(redactor.piece("out", piece) for piece in pieces) + redactor.rest("out")
                == left
            )


@pytest.mark.rule("E-4")
def test_a_secret_too_short_to_be_told_from_text_is_refused():
    with pytest.raises(InvalidConfig, match="fewer than 4"):
        check_secret("PIN", "123")


STEPS = """
name = "linked"
[[stage]]
name = "extract"
targets = ["a", "b"]
run = ["sh", "-c", "echo said; test $ONCEWARD_TARGET = a -o -e free || exit 3; echo x > $ONCEWARD_OUT/o"]
"""


@pytest.mark.rule("B-12")
def test_a_reference_is_linked_to_its_build_stage_and_target(site):
    """Also that of an attempt that failed, and of a step that was taken over from another build."""

    def links(build_id):
        with site.workspace.reading() as store:
            return {
                (entry["build_id"], entry["stage"], entry["target"], entry["name"])
                for entry in document(artifact_list(store, build_id))
            }

    site.run(STEPS, jobs=1)
    failed = site.build_id
    assert links(failed) == {
        (failed, "extract", "a", "o"),
        (failed, "extract", "a", "stdout"),
        (failed, "extract", "b", "stdout"),
    }
    (site.folder / "free").touch()
    site.run(STEPS, jobs=1)
    assert site.build_id != failed
    assert links(site.build_id) == {
        (site.build_id, "extract", target, name) for target in "ab" for name in ("o", "stdout")
    }
