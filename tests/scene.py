"""A workspace in which much happened: approved, reused, failed and paused builds, keys that came and went, seals."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import uuid
from pathlib import Path

import apsw
import msgspec
import psycopg

from backlog import Backlog, write
from onceward.core.canon import canonical
from onceward.core.records import Request
from onceward.evidence.bundle import header, padding
from onceward.maintenance.backup import backup, restore
from onceward.registry import machine as registry
from onceward.registry.lifecycle import supersede
from onceward.sagas.declaration import Saga
from onceward.sagas.lifecycle import Wanted, begin
from onceward.sagas.run import SagaRun, run_saga
from onceward.store.tables.registry import MetaRow, Registry, note_meta
from onceward.workspace import Workspace
from sites import Site

OTHERS = Path(__file__).parents[1] / "tools" / "check_bundle.py"
_SPEND = """echo '{"spend":{"usd":"0.01","tokens":3}}' >&$ONCEWARD_REPORT_FD"""
PLAN = f'''
name = "tiny"
[budget]
usd = "BUDGET"
[[stage]]
name = "write"
targets = ["a", "b"]
run = ["sh", "-c", """echo hello {{target}} | tee $ONCEWARD_OUT/x.txt; {_SPEND}"""]
[[stage]]
name = "join"
collect = ["write"]
targets = ["all"]
run = ["sh", "-c", "LAST"]
'''
ASKING = (
    PLAN
    + '\n[[stage]]\nname = "ok"\ncollect = ["join"]\ntargets = ["all"]\napprove = "is it good?"\n'
)


def plan(text=PLAN, budget="5.00", last="echo done"):
    return text.replace("BUDGET", budget).replace("LAST", last)


def ask(workspace, verb, principal="tester", **payload):
    acting = Workspace(
        workspace.folder, store_url=workspace.settings.store.url, principal=principal
    )
    engine = acting.engine()
    try:
        return engine.ask(Request(verb, uuid.uuid4().hex, payload, principal), 20).value
    finally:
        engine.close()


def seal(workspace):
    receipt = workspace.prepare_seal(None)
    ask(workspace, "seals.add", envelope=receipt.envelope.document())
    return receipt


def happen(workspace, folder):
    """Everything that leaves evidence, once; answers the builds by what became of them."""
    site = Site(workspace, folder)
    workspace.kernel().close()
    ask(workspace, "principals.add", name="bob", roles=["reviewer", "viewer"])
    ask(workspace, "principals.take", name="bob", roles=["viewer"])
    ids = {}
    with site.waiting(plan(ASKING), jobs=1):
        (wanted,) = site.status()["approvals"]
        told = {"step": "ok:all", "digest": wanted["digest"], "note": "fine"}
        ask(workspace, "builds.approve", "bob", build=site.build_id, **told)
    ids["approved"] = site.build_id
    assert site.run(plan(), jobs=1)["steps"]["reused"] == 3
    ids["reused"] = site.build_id
    assert site.run(plan(last="echo oh no; exit 1"), jobs=1)["state"] == "FAILED"
    ids["failed"] = site.build_id
    assert (
        site.run(plan(budget="0.01", last="echo more"), jobs=1, force=True)["state"]
        == "BUDGET_PAUSE"
    )
    ids["paused"] = site.build_id
    ask(workspace, "builds.confirm", build=site.build_id, token_hash="ab" * 32)
    _fill_registry(workspace)
    ids |= _run_sagas(workspace)
    ids |= _change(workspace)
    for number in range(2):
        made = ask(
            workspace,
            "tokens.new",
            token_hash=f"{number}" * 64,
            seconds=3600,
            note=f"number {number}",
        )
    ask(workspace, "tokens.revoke", token=made["token_id"])
    rotated = workspace.keyring.make("tester", _workspace_id(workspace), another=True)
    with workspace.reading() as store, store.read() as rows:
        old = workspace.keyring.signer(rows, "tester").key.fingerprint
    ask(workspace, "keys.add", key=rotated.offer())
    ask(workspace, "keys.revoke", key=old)
    seal(workspace)
    return ids


def _fill_registry(workspace):
    """A collection with a value that gave way to another."""

    def fill(tx):
        schema = registry.schema_digest("ops")
        note_meta(tx, MetaRow(name="ops", schema_digest=schema, root="root-1", created_at=tx.now))
        tx.move(registry.create("col_1", "ops", "root-1", "tester"))
        old, new = (
            registry.Meaning("pay", version, "WRITE", "council") for version in ("1.9.0", "1.10.0")
        )
        tx.move(registry.admit("voc_1", "col_1", old, "root-1", "tester"))
        supersede(
            tx,
            Registry(tx).value(old.key),
            new.key,
            actor="tester",
            root="root-1",
            state="S4_VALUES",
            ref="plan@2",
        )
        tx.move(registry.admit("voc_2", "col_1", new, "root-1", "tester"))

    kernel = workspace.kernel()
    kernel.store.write(fill)
    kernel.close()
    scope = {
        "plan_id": "p",
        "revision": 1,
        "manifest_digest": "ab" * 32,
        "schema_digest": "cd" * 32,
    }
    scope |= {"environment": "prod", "executor": "tester", "actions": ["S4_VALUES"]}
    grant = ask(workspace, "grants.draft", scope=scope)["grant_id"]
    ask(workspace, "grants.issue", grant=grant, scope=scope, seconds=600)


def _run_sagas(workspace):
    """One that is done under a grant, one that is undone, and one that is stuck."""
    ids = {}
    for name, fails in (("done", ()), ("undone", ("act",)), ("stuck", ("act", "undo"))):
        saga = Saga(f"scene-{name}", budget={"usd": "1.00"}, folder=workspace.folder)
        slip = {what: RuntimeError(f"{what} fails") for what in fails}
        saga.action(
            lambda task: [task.spend(usd="0.10"), {"first": 1}][1],
            name="first",
            compensate=lambda task: "undone",
        )
        saga.action(
            lambda task, slip=slip: _or_raise("second", slip.get("act")),
            name="second",
            compensate=lambda task, slip=slip: _or_raise("back", slip.get("undo")),
        )
        grant = None
        if name == "done":
            scope = msgspec.to_builtins(saga.scope({"order": 7}, "test", "tester"))
            grant = ask(workspace, "grants.draft", scope=scope)["grant_id"]
            ask(workspace, "grants.issue", grant=grant, scope=scope, seconds=600)
        kernel = workspace.kernel()
        run, lease = begin(
            kernel, kernel.actor, Wanted(saga, name, {"order": 7}, "tester", "test", grant)
        )
        run_saga(kernel, SagaRun(kernel, kernel.actor, saga, run.saga_id, lease, lambda said: None))
        kernel.close()
        ids[f"saga {name}"] = run.saga_id
    return ids


def _change(workspace):
    """A change that was deferred once, revised, approved, cut and verified, one that failed and was taken back, and
    what was opened for it."""
    backlog = Backlog(workspace)
    write(backlog.tree, {"a.txt": "one\n", "b.txt": "two\n"})
    good = backlog.mark({"a.txt": "1\n", "c.txt": "3\n"}, reason="because")
    backlog.sweep()
    backlog.review(good, "defer", reason="later")
    backlog.sweep()
    again = backlog.propose({"a.txt": "1\n", "c.txt": "4\n"})
    backlog.ask("ann", "changes.mark", manifest=again.content_hash(), revises=good, reason="better")
    backlog.review(good, "approve", reason="fine")
    backlog.cut(good)
    backlog.verify(good)
    backlog.verify(good, again=True)
    backlog.become("tester")
    bad = backlog.approved({"b.txt": None, "d.txt": "5\n"}, depends_on=[good])
    backlog.cut(bad)
    (backlog.tree / "d.txt").unlink()
    backlog.verify(bad)
    backlog.become("tester")
    backlog.abandon(backlog.mark(), "enough")
    backlog.kernel.close()
    return {"change done": good, "change failed": bad}


def _pay(task):
    task.spend(usd="0.10")
    return {"first": 1}


def _or_raise(value, error):
    if error is not None:
        raise error
    return value


def _workspace_id(workspace):
    with workspace.reading() as store, store.read() as rows:
        return rows.read("SELECT workspace_id FROM workspace")[0][0]


def template(root):
    """The scene, made once by whichever test process is first: its folder, and the builds by what became of them."""
    folder = root / "scene-template"
    with (root / "scene.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done.json").exists():
            folder.mkdir()
            workspace = Workspace(folder / ".onceward", store_url="sqlite", principal="tester")
            workspace.create()
            ids = happen(workspace, folder)
            with workspace.reading() as store:
                backup(store, folder / "rows.db", workspace.new_file, workspace.old_file)
            (folder / "done.json").write_text(json.dumps(ids))
    return folder, json.loads((folder / "done.json").read_text())


def copied(made, folder, url):
    """The scene again, in a folder and on a store of its own."""
    source, ids = made
    workspace = Workspace(folder / ".onceward", store_url=url, principal="tester")
    if url == "sqlite":
        shutil.copytree(source / ".onceward", folder / ".onceward")
    else:
        restore(source / "rows.db", workspace.old_file, workspace.empty_store)
        for part in ("artifacts", "keys", "streams"):
            shutil.copytree(
                source / ".onceward" / part, folder / ".onceward" / part, dirs_exist_ok=True
            )
    workspace.ids = ids
    return workspace


class Bare:
    """The rows of a store with nothing that protects them: what somebody with the database's password has."""

    def __init__(self, workspace, postgres_url=None):
        url = workspace.settings.store.url
        self.kind = "sqlite" if url == "sqlite" else "postgresql"
        if self.kind == "sqlite":
            self._open = apsw.Connection(":memory:")
            with self._open.backup(
                "main", apsw.Connection(str(workspace.folder / "onceward.db")), "main"
            ) as copy:
                copy.step()
            for (name,) in self.read("SELECT name FROM sqlite_master WHERE type = 'trigger'"):
                self._open.execute(f"DROP TRIGGER {name}")
            self._open.execute("PRAGMA foreign_keys = OFF")
            self._open.execute("PRAGMA ignore_check_constraints = ON")
        else:
            bare, _, schema = url.rpartition("schema=")
            self._open = psycopg.connect(bare.rstrip("?&"), autocommit=True)
            self._open.execute(f"SET search_path TO {schema}")
            self._open.execute("SET session_replication_role = replica")

    def read(self, sql, params=()):
        if self.kind == "sqlite":
            return list(self._open.execute(sql, tuple(params)))
        return self._open.execute(
            sql.replace("%", "%%").replace("?", "%s"), tuple(params)
        ).fetchall()

    def write(self, sql, params=()):
        if self.kind == "postgresql":
            sql = sql.replace("%", "%%").replace("?", "%s")
        self._open.execute(sql, tuple(params))

    def __enter__(self):
        """What is done here is undone at the end."""
        self._open.execute("BEGIN")
        return self

    def __exit__(self, *failure):
        self._open.execute("ROLLBACK")

    def keys(self, table, key):
        return self.read(f"SELECT {', '.join(key)} FROM {table} ORDER BY {', '.join(key)}")

    def columns(self, table):
        if self.kind == "sqlite":
            return [row[1] for row in self.read(f"SELECT * FROM pragma_table_info('{table}')")]
        found = self.read(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = current_schema()"
            " AND table_name = ? ORDER BY ordinal_position",
            (table,),
        )
        return [name for (name,) in found]

    def close(self):
        self._open.close()


def files_of(path):
    with tarfile.open(path) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}


def packed(path, files, page=None):
    """A bundle whose first page agrees with what is in it, whatever that is."""
    files = dict(files)
    old = json.loads(files.pop("bundle.json"))
    listed = [
        {"name": n, "sha256": hashlib.sha256(d).hexdigest(), "size": len(d)}
        for n, d in files.items()
    ]
    first = canonical({**old, "files": listed, **(page or {})})
    with path.open("wb") as out:
        for name, data in {"bundle.json": first, **files}.items():
            out.write(header(name, len(data)) + data + padding(len(data)))
        out.write(bytes(1024))
    return path


def others_say(path, *trusted):
    found = subprocess.run(
        [sys.executable, "-I", OTHERS, path, *trusted],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return found.returncode, found.stdout + found.stderr
