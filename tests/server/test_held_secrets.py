"""What a server holds is out of its children's reach, or out of what they leave (K-14, G24)."""

from __future__ import annotations

import json
import sys

import pytest

from onceward.client import Client
from onceward.errors import NotFound
from server.conftest import Running
from typing_in import until

HOOK_SECRET = "hook-9c1f6d2e77"
TRIES = """
import glob, os, sys
for path in [".onceward/serve.json", *glob.glob(".onceward/keys/*.pem")]:
    print(path, open(path).read())
for pid in (os.getppid(), *map(int, sys.argv[1:])):
    try:
        print(open(f"/proc/{pid}/environ").read().replace("\\0", "\\n"))
    except OSError as error:
        print(error)
print(os.environ)
try:
    from onceward.client import Client
    print("let in", Client.here(".onceward").token)
except Exception as error:
    print("refused", type(error).__name__, error)
"""


@pytest.mark.rule("K-14")
@pytest.mark.guarantee("G24")
def test_a_command_finds_no_credential_of_the_server_and_leaves_none_in_its_log(scene, monkeypatch):
    (scene.folder.parent / "onceward.toml").write_text(
        '[[sink]]\nname = "hook"\nkind = "webhook"\nurl = "http://127.0.0.1:9/"\n'
        'secret_env = "HOOK_SECRET"\n'
    )
    monkeypatch.setenv("HOOK_SECRET", HOOK_SECRET)
    served = Running(scene)
    try:
        token = served.client.token
        assert token not in (scene.folder / "serve.json").read_text()
        argv = [sys.executable, "-c", TRIES, str(served.process.pid)]
        session = served.client.spawn(argv=argv)["session_id"]

        def ended():
            (child,) = served.client.show_session(session)["children"]
            return child if child["phase"] == "terminal" else None

        until(ended)
        log = served.cli("logs", ended()["child_id"]).stdout
        assert "refused PermissionDenied" in log and "let in" not in log, log[-2000:]
        assert token not in log and HOOK_SECRET not in log and "[redacted HOOK_SECRET]" in log
        inside = [
            line
            for path in (scene.folder / "keys").glob("*.pem")
            for line in path.read_text().splitlines()[1:]
            if line and not line.startswith("-----")
        ]
        assert inside and not any(line in log for line in inside)
        assert "[redacted KEY_" in log
        (folder := scene.folder.parent / "keep.toml").write_text(
            'name = "keep"\n[[stage]]\nname = "keep"\n'
            'run = ["sh", "-c", "cat .onceward/keys/*.pem > $ONCEWARD_OUT/keys"]\n'
        )
        served.cli("run", folder.name, check=0)
        kept = served.cli("artifacts", "cat", "latest", "keep:main", "keys")
        listed = json.loads(served.cli("status", "latest", "--json", check=0).stdout)
        ((artifact,),) = [step["artifacts"] for step in listed["steps"]]
        data = served.cli("artifacts", "cat", artifact["sha256"], check=0).stdout
        assert "[redacted KEY_" in data + kept.stdout and not any(line in data for line in inside)
        note = json.loads((scene.folder / "serve.json").read_text())
        assert sorted(note) == ["pid", "socket", "url"]
    finally:
        served.stop()
    with pytest.raises(NotFound):
        Client.here(scene.folder)
