"""A canary in every secret: whatever a workspace, its bundles, backups and messages hold, it is not among it (G24)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import apsw
import pytest

SECRET = 'k3y-"canary"-\u00e9-7f'
TOKEN = "canary-of-the-outbox-4411"
PLAN = """
name = "leaky"
[budget]
usd = "0.02"
[config]
depth = 1
[[stage]]
name = "leak"
targets = ["out", "err", "file", "note", "fail", "slow"]
secrets = ["API_KEY"]
attempts = 1
run = ["sh", "leak.sh", "{target}"]
[[stage]]
name = "py"
targets = ["raise", "print", "return"]
secrets = ["API_KEY"]
python = "leaks:leak"
"""
SHELL = """
case $1 in
out) printf 'a%sb' "$API_KEY"; printf '%s' "$API_KEY" | cut -c1-5; echo "$API_KEY";;
err) echo "$API_KEY" >&2; exit 3;;
file) cd $ONCEWARD_OUT; echo "$API_KEY" > key.txt; head -c 200000 /dev/zero > big; echo "$API_KEY" >> big;;
note) python3 - <<'PY'
import json, os
with os.fdopen(int(os.environ["ONCEWARD_REPORT_FD"]), "w") as out:
    out.write(json.dumps({"progress": 10, "note": os.environ["API_KEY"], "spend": {"usd": "0.01"}}) + "\\n")
PY
;;
fail) echo "cannot use $API_KEY" >&2; exit 1;;
slow) echo "$API_KEY"; echo begun > slow.begun; sleep 30;;
esac
"""
PYTHON = """
import os, sys

def leak(task):
    key = os.environ["API_KEY"]
    if task.target == "raise":
        raise RuntimeError(f"the key {key} was refused")
    if task.target == "print":
        print(key); print(key, file=sys.stderr)
        return None
    return {"key": key, "list": [key]}
"""


def onceward(folder, *words):
    environ = {**os.environ, "API_KEY": SECRET, "HOOK_SECRET": TOKEN, "ONCEWARD_TRACEBACK": "1"}
    program = [sys.executable, "-m", "onceward", *words]
    return subprocess.Popen(
        program,
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def said(process, seconds=60):
    return process.communicate(timeout=seconds)[0]


@pytest.mark.rule("E-4")
@pytest.mark.guarantee("G24", "G16")
def test_no_byte_that_is_kept_or_said_holds_a_secret(tmp_path, store_url, request):
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "plan.toml").write_text(PLAN)
    (folder / "leak.sh").write_text(SHELL)
    (folder / "leaks.py").write_text(PYTHON)
    settings = '[[sink]]\nname = "hook"\nkind = "webhook"\nurl = "http://127.0.0.1:9/none"\nsecret_env = "HOOK_SECRET"\n'
    (folder / "onceward.toml").write_text(settings + f'[store]\nurl = "{store_url}"\n')
    heard = [said(onceward(folder, "init"))]
    running = onceward(folder, "run", "plan.toml", "--jobs", "8")
    deadline = time.monotonic() + 40
    while not (folder / "slow.begun").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    spool = folder / ".onceward" / "running"
    while not any(b"[redacted API_KEY]" in path.read_bytes() for path in spool.glob("*")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    # The log of the step that runs, its spool and the write-ahead log are looked at as they are; what a step puts into
    # its own folder is the step's own until it is collected.
    held = scan(folder, store_url, apart=folder / ".onceward" / "work")
    os.killpg(running.pid, signal.SIGKILL)
    heard.append(said(running))
    heard.append(said(onceward(folder, "status", "--json")))
    build = json.loads(said(onceward(folder, "list", "--json")))[0]["build_id"]
    (folder / "leak.sh").write_text(SHELL.replace("sleep 30", "true"))
    heard.append(said(onceward(folder, "resume", build, "--fork")))
    heard.append(said(onceward(folder, "run", "plan.toml", "--jobs", "1")))
    heard.append(said(onceward(folder, "run", "plan.toml", "--json")))
    newest = json.loads(said(onceward(folder, "list", "--json")))[0]["build_id"]
    for command in ("status", "explain", "logs", "events"):
        heard.append(said(onceward(folder, command, newest)))
    for step in ("leak:err", "py:raise", "py:print"):
        heard.append(said(onceward(folder, "logs", newest, step)))
    heard.append(said(onceward(folder, "seal", "--out", "kept.seal")))
    heard.append(said(onceward(folder, "backup", "rows.db")))
    heard.append(said(onceward(folder, "export", newest, "--out", "b.tar")))
    heard.append(said(onceward(folder, "doctor")))
    heard.append(said(onceward(folder, "verify")))
    assert b"sound" in heard[-1]
    assert any(b"[redacted API_KEY]" in text for text in heard)
    held |= scan(folder, store_url)
    held |= {f"said {number}": text for number, text in enumerate(heard)}
    forms = {SECRET, json.dumps(SECRET)[1:-1], json.dumps(SECRET, ensure_ascii=False)[1:-1], TOKEN}
    for name, data in held.items():
        for form in forms:
            assert form.encode() not in data, name
    assert any(b"[redacted API_KEY]" in data for data in held.values())


def scan(folder, store_url, apart=None):
    """Every byte there is: files as they are, and the rows of a database elsewhere."""
    found = {}
    for base, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if Path(base, name) != apart]
        for path in (Path(base, name) for name in names if not name.endswith(".pyc")):
            with contextlib.suppress(FileNotFoundError):
                found[str(path)] = path.read_bytes()
    if store_url != "sqlite":
        import psycopg

        bare, _, schema = store_url.rpartition("schema=")
        with psycopg.connect(bare.rstrip("?&")) as connection:
            connection.execute(f"SET search_path TO {schema}")
            tables = connection.execute(
                "SELECT tablename FROM pg_tables WHERE schemaname = %s", (schema,)
            ).fetchall()
            for (table,) in tables:
                rows = connection.execute(f"SELECT * FROM {table}").fetchall()
                text = repr(rows) + " ".join(str(value) for row in rows for value in row)
                raw = b" ".join(value for row in rows for value in row if isinstance(value, bytes))
                found[table] = text.encode() + raw
    else:
        database = folder / ".onceward" / "onceward.db"
        if database.exists():
            connection = apsw.Connection(str(database), apsw.SQLITE_OPEN_READONLY)
            for (table,) in list(
                connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            ):
                values = [
                    value for row in connection.execute(f"SELECT * FROM {table}") for value in row
                ]
                found[f"{table} "] = b" ".join(
                    v if isinstance(v, bytes) else str(v).encode() for v in values
                )
            connection.close()
    return found
