"""A step tries to act for people: in every way it is refused, and what a child may ask for it asks as itself (K-14)."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import textwrap
import threading

import pytest

from onceward.people.key_agent import agent_key
from onceward.processes.ancestry import own_ancestry
from typing_in import BIN, Typed, until

TRIES = """
import base64, json, os, socket, subprocess, sys, time

onceward, entry, digest, store, here = sys.argv[1:6]
out = os.path.join(here, "tried")
review = [onceward, "--store", store, "--as", "rob", "change", "review", entry, "--approve", "--digest", digest]
plain = dict(os.environ)
path = {"PATH": os.environ["PATH"]}


def note(name, text):
    with open(out, "a") as file:
        file.write(json.dumps([name, text]) + "\\n")


def tried(name, argv, env, **words):
    done = subprocess.run(argv, cwd=here, env=env, capture_output=True, text=True, **words)
    note(name, [done.returncode, done.stderr])


tried("plain", review, plain)
tried("environment cleared", review, path)
tried("no credential", review, {k: v for k, v in plain.items() if k != "ONCEWARD_CREDENTIAL"})
tried("another mark", review, {**path, "ONCEWARD_CHILD": "chd_other"})
tried("new session", review, path, start_new_session=True)
tried("by a shell", ["sh", "-c", "unset ONCEWARD_CHILD ONCEWARD_CREDENTIAL; exec \\"$@\\"", "sh", *review], plain)
tried("grant", [onceward, "--store", store, "--as", "rob", "grant", "expire"], plain)
tried("role", [onceward, "--store", store, "principals", "add", "eve", "--role", "admin"], plain)
tried("passphrase", [onceward, "--store", store, "--as", "rob", "keys", "passphrase", "--passphrase-stdin"], path, input="x\\n")
hidden = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]
if subprocess.run([*hidden, "true"], capture_output=True).returncode == 0:
    # Only where a mount namespace may be made: there no ancestor is to be seen.
    tried("without /proc", [*hidden, *review], path)
tried("agent", [onceward, "--store", store, "--as", "rob", "keys", "agent"], path)

# A daemon: forked twice, in a session of its own, every descriptor closed, nothing in its environment.
if os.fork() == 0:
    os.setsid()
    first = os.getpid()
    if os.fork() == 0:
        os.closerange(3, 1000)
        while os.getppid() == first:
            time.sleep(0.01)
        tried("daemon", review, path)
        note("done", "")
    os._exit(0)
while '"done"' not in open(out).read():
    time.sleep(0.05)
"""


@pytest.fixture
def cli(store_url, tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    typed = Typed(folder, store_url)
    typed("init", check=0)
    for name, role in (("rob", "reviewer"), ("vic", "verifier")):
        typed("principals", "add", name, "--role", role, check=0)
    (folder / "repo").mkdir()
    (folder / "repo/a.txt").write_text("one\n")
    (folder / "wanted").mkdir()
    (folder / "wanted/a.txt").write_text("two\n")
    return typed


@pytest.fixture
def marked(cli):
    said = cli("change", "mark", "--tree", "wanted", "--base", "repo", "--json", check=0)
    found = json.loads(said.stdout)
    cli("change", "sweep", check=0)
    return found["entry_id"], found["manifest"]


def plan(cli, script, *argv):
    (cli.folder / "tries.py").write_text(script)
    words = [sys.executable, "tries.py", *argv]
    (cli.folder / "plan.toml").write_text(
        f'name = "tries"\n[[stage]]\nname = "try"\nrun = {json.dumps(words)}\n'
        'env = ["HOME"]\ntimeout = "5m"\n'
    )


@pytest.mark.rule("K-14")
@pytest.mark.guarantee("G18")
def test_a_command_approves_nothing_however_it_hides(cli, marked, store_url):
    entry, digest = marked
    plan(cli, TRIES, str(BIN / "onceward"), entry, digest, store_url, str(cli.folder))
    done = cli("run", "plan.toml", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    tried = dict(json.loads(line) for line in (cli.folder / "tried").read_text().splitlines())
    # One more where a mount namespace may be made.
    assert len(tried) == 12 + ("without /proc" in tried)
    for name, said in tried.items():
        if name != "done":
            assert said[0] != 0 and "PERMISSION_DENIED" in said[1], (name, said)
    status = json.loads(cli("change", "show", entry, "--json", check=0).stdout)
    assert status["status"] == "review_pending" and "decisions" not in status
    # Whoever stands outside may.
    cli("--as", "rob", "change", "review", entry, "--approve", "--digest", digest, check=0)
    cli("verify", check=0)


@pytest.mark.rule("K-14")
def test_a_child_proposes_in_its_own_name_and_is_recorded_as_the_one(cli, store_url):
    script = """
    import subprocess, sys
    words = ["--store", sys.argv[2], "change", "mark", "--tree", "wanted", "--base", "repo", "--json"]
    sys.exit(subprocess.run([sys.argv[1], *words]).returncode)
    """
    plan(cli, textwrap.dedent(script), str(BIN / "onceward"), store_url)
    done = cli("run", "plan.toml", "--json")
    assert done.returncode == 0, (
        done.stdout + done.stderr + cli("logs", "latest", "try:main").stdout
    )
    (change,) = json.loads(cli("change", "list", "--json", check=0).stdout)
    assert change["author"] == "tester" and change["status"] == "marked"
    events = cli("events", f"entry:{change['entry_id']}", "--json", check=0).stdout
    said = json.loads(events.splitlines()[0])
    step = json.loads(cli("status", "latest", "--json", check=0).stdout)["steps"][0]
    assert said["detail"]["child"] == step["child_id"]
    cli("verify", check=0)
    assert f"proposed by its child {step['child_id']}" in cli("change", "show", "latest").stdout


@pytest.mark.rule("K-14", "H-2")
def test_a_proposal_of_a_step_is_made_on_the_base_of_its_own_build(cli, store_url):
    script = """
    import subprocess, sys
    open("repo/evil.py", "w").write("x")
    words = ["--store", sys.argv[2], "change", "mark", "--tree", "wanted", "--base", "repo"]
    sys.exit(subprocess.run([sys.argv[1], *words]).returncode)
    """
    plan(cli, textwrap.dedent(script), str(BIN / "onceward"), store_url)
    text = (cli.folder / "plan.toml").read_text()
    (cli.folder / "plan.toml").write_text(f'tree = "repo"\n{text}')
    (cli.folder / "wanted/evil.py").write_text("x")
    cli("run", "plan.toml", check=0)
    said = json.loads(cli("change", "show", "latest", "--json", check=0).stdout)
    assert [unit["path"] for unit in said["origin"]["drift"]] == ["evil.py"]


@pytest.mark.rule("K-14")
def test_a_child_is_not_told_how_to_end_its_kernel(cli, marked, store_url):
    entry, _ = marked
    script = """
    import subprocess, sys
    done = subprocess.run([sys.argv[1], "--store", sys.argv[2], "change", "cut", sys.argv[3]], capture_output=True, text=True)
    open("said", "w").write(done.stderr)
    """
    plan(cli, textwrap.dedent(script), str(BIN / "onceward"), store_url, entry)
    cli("run", "plan.toml", check=0)
    said = (cli.folder / "said").read_text()
    assert "PERMISSION_DENIED" in said and "kill" not in said


@pytest.mark.rule("K-14")
def test_a_childs_credential_is_in_no_log(cli):
    plan(cli, "import os\nprint('mine is', os.environ['ONCEWARD_CREDENTIAL'])\n")
    cli("run", "plan.toml", check=0)
    log = cli("logs", "latest", "try:main", check=0).stdout
    assert "mine is chd_" in log and ":[redacted ONCEWARD_CREDENTIAL]:" in log, log


@pytest.mark.rule("K-14")
@pytest.mark.parametrize("begin", ["thread", "executor", "to_thread"])
def test_a_thread_that_a_step_begins_signs_for_nobody(cli, marked, begin):
    entry, digest = marked
    how = {
        "thread": "t = threading.Thread(target=go); t.start(); t.join()",
        "executor": "concurrent.futures.ThreadPoolExecutor(1).submit(go).result()",
        "to_thread": "asyncio.run(asyncio.to_thread(go))",
    }[begin]
    (cli.folder / "plan.py").write_text(
        textwrap.dedent(f"""
        import asyncio, concurrent.futures, threading, uuid
        from pathlib import Path
        from onceward import Plan
        from onceward.errors import OncewardError
        from onceward.core.records import Request
        from onceward.settings import FOLDER
        from onceward.workspace import Workspace

        plan = Plan("tries")

        @plan.stage
        def attempt(task):
            said = []
            def go():
                workspace = Workspace(Path.cwd() / FOLDER, store_url={cli.env["ONCEWARD_STORE"]!r}, principal="rob")
                asker = workspace.asker()
                payload = dict(entry={entry!r}, decision="approve", digest={digest!r}, reason="")
                try:
                    said.append(repr(asker.ask(Request("changes.review", uuid.uuid4().hex, payload, "rob"), 20)))
                except OncewardError as error:
                    said.append(error.code)
                finally:
                    asker.close()
            {how}
            Path("said").write_text(said[0])
        """)
    )
    done = cli("run", "plan.py", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (cli.folder / "said").read_text() == "PERMISSION_DENIED"
    status = json.loads(cli("change", "show", entry, "--json", check=0).stdout)
    assert "decisions" not in status


@pytest.mark.rule("K-14")
def test_a_key_with_a_passphrase_signs_by_its_agent_and_not_from_inside(cli, marked, store_url):
    entry, digest = marked
    done = cli("--as", "rob", "keys", "passphrase", "--passphrase-stdin", input="open sesame\n")
    assert done.returncode == 0, done.stderr
    review = ("--as", "rob", "change", "review", entry, "--approve", "--digest", digest)
    locked = cli(*review)
    assert locked.returncode == 2 and "keys agent" in locked.stderr, locked.stderr
    (file,) = [
        path
        for path in (cli.folder / ".onceward/keys").glob("*.pem")
        if path.read_text().startswith("Onceward key of rob")
    ]
    assert "ENCRYPTED" in file.read_text() and file.stat().st_mode & 0o777 == 0o600
    wrong = cli("--as", "rob", "keys", "agent", "--passphrase-stdin", input="no\n")
    assert wrong.returncode == 2 and "passphrase is not" in wrong.stderr
    agent = subprocess.Popen(
        [BIN / "onceward", "--as", "rob", "keys", "agent", "--passphrase-stdin"],
        cwd=cli.folder,
        env=cli.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        agent.stdin.write("open sesame\n")
        agent.stdin.close()
        assert "holding" in agent.stdout.readline()
        note = json.loads((cli.folder / ".onceward/agent.json").read_text())
        script = """
        import base64, json, socket, sys
        line = socket.socket(socket.AF_UNIX)
        line.connect(sys.argv[1])
        line.sendall(json.dumps({"op": "sign", "fingerprint": sys.argv[2],
                                 "statement": base64.b64encode(b"{}").decode()}).encode() + b"\\n")
        open(sys.argv[3], "wb").write(line.recv(65536))
        """
        answer = cli.folder / "answer"
        plan(cli, textwrap.dedent(script), note["socket"], file.stem, str(answer))
        cli("run", "plan.toml", check=0)
        said = json.loads(answer.read_text())
        assert "acts for nobody" in said["refused"], said
        # One that connects for us and goes leaves nobody to look up.
        ghost = """
        import base64, json, os, socket, sys
        line = socket.socket(socket.AF_UNIX)
        if os.fork() == 0:
            line.connect(sys.argv[1])
            os._exit(0)
        os.wait()
        line.sendall(json.dumps({"op": "sign", "fingerprint": sys.argv[2],
                                 "statement": base64.b64encode(b"{}").decode()}).encode() + b"\\n")
        open(sys.argv[3], "wb").write(line.recv(65536))
        """
        plan(cli, textwrap.dedent(ghost), note["socket"], file.stem, str(answer))
        cli("run", "plan.toml", "--no-reuse", check=0)
        said = json.loads(answer.read_text())
        assert "not who connected" in said["refused"], said
        assert cli(*review).returncode == 0
        status = json.loads(cli("change", "show", entry, "--json", check=0).stdout)
        assert status["status"] == "reviewed_approved"
    finally:
        agent.terminate()
        agent.wait()
        agent.stdout.close()
        agent.stderr.close()
    until(lambda: not (cli.folder / ".onceward/agent.json").exists(), 20)
    removed = cli(
        "--as", "rob", "keys", "passphrase", "--remove", "--passphrase-stdin", input="open sesame\n"
    )
    assert removed.returncode == 0 and "ENCRYPTED" not in file.read_text()
    cli("verify", check=0)


@pytest.mark.rule("K-14")
@pytest.mark.parametrize("how", ["a command", "an empty context"])
def test_what_a_function_begins_approves_nothing(cli, marked, how):
    entry, digest = marked
    words = ["--store", cli.env["ONCEWARD_STORE"], "--as", "rob", "change", "review", entry]
    words += ["--approve", "--digest", digest]
    run = f"subprocess.run([{str(BIN / 'onceward')!r}, *words], capture_output=True, text=True).stderr"
    if how == "an empty context":
        run = "contextvars.Context().run(inside)"
    (cli.folder / "plan.py").write_text(
        textwrap.dedent(f"""
        import contextvars, subprocess
        from pathlib import Path
        from onceward import Plan
        from onceward.errors import OncewardError
        from onceward.settings import FOLDER
        from onceward.workspace import Workspace

        plan = Plan("tries")
        words = {words!r}

        def inside():
            workspace = Workspace(Path.cwd() / FOLDER, store_url={cli.env["ONCEWARD_STORE"]!r}, principal="rob")
            with workspace.reading() as store, store.read() as rows:
                try:
                    return str(workspace.keyring.signer(rows, "rob"))
                except OncewardError as error:
                    return error.code

        @plan.stage
        def attempt(task):
            Path("said").write_text({run})
        """)
    )
    cli("run", "plan.py", check=0)
    assert "PERMISSION_DENIED" in (cli.folder / "said").read_text()
    status = json.loads(cli("change", "show", entry, "--json", check=0).stdout)
    assert "decisions" not in status


@pytest.mark.rule("K-14")
def test_a_refused_act_leaves_no_key_behind(cli, store_url):
    script = """
    import subprocess, sys
    env = {"PATH": "/usr/bin:/bin"}
    for words in (["principals", "add", "eve", "--role", "admin"], ["keys", "new"], ["--as", "rob", "keys", "new"]):
        subprocess.run([sys.argv[1], "--store", sys.argv[2], *words])
        subprocess.run([sys.argv[1], "--store", sys.argv[2], *words], env=env)
    """
    keys = sorted((cli.folder / ".onceward/keys").iterdir())
    plan(cli, textwrap.dedent(script), str(BIN / "onceward"), store_url)
    cli("run", "plan.toml", check=0)
    assert sorted((cli.folder / ".onceward/keys").iterdir()) == keys


@pytest.mark.parametrize(
    "said", [b'{"keys":[]}', b"[]", b"5", b"{}", b'{"keys":{"FP":"zz"}}', b"", b"\xff"]
)
def test_an_agent_that_answers_oddly_is_none(tmp_path, said):
    fingerprint = "a" * 64
    line = socket.socket(socket.AF_UNIX)
    line.bind(str(tmp_path / "s"))
    line.listen()
    (tmp_path / "agent.json").write_text(json.dumps({"socket": str(tmp_path / "s")}))

    def answer():
        asker, _ = line.accept()
        asker.recv(1000)
        asker.sendall(said.replace(b"FP", fingerprint.encode()) + b"\n")
        asker.close()

    thread = threading.Thread(target=answer)
    thread.start()
    assert agent_key(tmp_path, fingerprint) is None
    thread.join()
    line.close()


def test_passphrases_that_are_none_are_refused(cli):
    for typed in ("", "x" * 2000):
        done = cli("--as", "rob", "keys", "passphrase", "--passphrase-stdin", input=f"{typed}\n")
        assert done.returncode == 2 and "INVALID_CONFIG" in done.stderr, done.stderr
    for path in (cli.folder / ".onceward/keys").glob("*.pem"):
        path.with_suffix(".new").touch()
    cli("--as", "rob", "keys", "passphrase", "--passphrase-stdin", input="long enough\n", check=0)
    assert "with a passphrase" in cli("keys", "list", check=0).stdout


def test_nobody_is_inside_a_child_who_is_not():
    found = own_ancestry()
    assert not found.kernels and not found.witnesses
