"""What a hostile reviewer found once, each tried here so that it stays found."""

from __future__ import annotations

import hashlib
import json
import signal
import ssl
import threading

import pytest

from helpers import count_in_another_mode
from onceward.client import Client
from onceward.errors import OncewardError
from server.browsing import Tab
from server.conftest import Running
from server.test_hostile import certify
from typing_in import until

pytestmark = pytest.mark.parametrize("scene", ["sqlite"], indirect=True)

TWO = """
name = "two"
[[stage]]
name = "zeta"
approve = "DROP EVERYTHING"
[[stage]]
name = "wait"
run = ["sh", "-c", "sleep 3; echo 'Dear all, <b>nothing</b>' > $ONCEWARD_OUT/letter"]
[[stage]]
name = "beside"
run = ["sh", "-c", "echo not asked about > $ONCEWARD_OUT/other"]
[[stage]]
name = "alpha"
needs = ["wait"]
after = ["beside"]
approve = "harmless"
"""


def token_of(running, name="tester"):
    return json.loads(running.cli("--as", name, "tokens", "new", "--json", check=0).stdout)


@pytest.mark.rule("I-3")
def test_over_tls_each_event_is_told_once_however_much_there_is(scene, tmp_path):
    certify(tmp_path / "key.pem", tmp_path / "cert.pem")
    served = Running(
        scene,
        "--name",
        "localhost",
        "--tls-cert",
        tmp_path / "cert.pem",
        "--tls-key",
        tmp_path / "key.pem",
    )
    context = ssl.create_default_context(cafile=tmp_path / "cert.pem")
    token = Client.here(scene.folder).token
    heard = []

    def listen():
        with Client(served.url, token, context=context) as client:
            for event in client.events():
                heard.append(event["id"])
                if event["detail"].get("note") == "the last":
                    return

    listener = threading.Thread(target=listen, daemon=True)
    try:
        listener.start()
        with Client(served.url, token, context=context) as client:
            for number in range(300):
                made = hashlib.sha256(f"tls{number}".encode()).hexdigest()
                client.new_token(
                    token_hash=made, seconds=60, note="the last" if number == 299 else "x" * 400
                )
        listener.join(600)
        assert not listener.is_alive() and heard == list(range(heard[0], heard[0] + len(heard)))
    finally:
        served.client.close()
        served.stop()


@pytest.mark.rule("I-4", "B-15")
def test_what_is_approved_is_what_stands_above_the_button(browser, running):
    (running.cli.folder / "two.toml").write_text(TWO)
    build = running.client.run_build(plan="two.toml")["build_id"]
    tab = Tab(browser, running).sign_in()
    page = tab.visit(f"/builds/{build}")
    page.wait_for_selector(".wanted:has-text('DROP EVERYTHING')")
    page.wait_for_selector(".wanted:has-text('harmless')", timeout=600_000)
    tab.shot("approvals")
    for card in page.locator(".wanted").all():
        step = "zeta" if "DROP" in card.inner_text() else "alpha"
        assert ("Dear all, <b>nothing</b>" in card.inner_text()) == (step == "alpha")
        assert "not asked about" not in card.inner_text()
        assert {
            field.get_attribute("value").split(":")[0]
            for field in card.locator("input[name=step]").all()
        } == {step}
    page.locator(".wanted:has-text('harmless')").get_by_role("button", name="Approve").click()
    until(
        lambda: (
            [
                s["status"]
                for s in running.client.show_build(build)["steps"]
                if s["stage"] == "alpha"
            ]
            == ["SUCCESS"]
        )
    )
    assert [
        s["status"] for s in running.client.show_build(build)["steps"] if s["stage"] == "zeta"
    ] != ["SUCCESS"]
    tab.close()


@pytest.mark.rule("I-4", "K-8")
def test_a_form_whose_answer_was_lost_is_done_once_when_it_is_sent_again(browser, running):
    tab = Tab(browser, running).sign_in()
    page = tab.visit("/do/spawn")
    page.fill("textarea[name=argv]", "true")
    lost = []

    def lose(route):
        if not lost:
            lost.append(route.fetch())
            route.abort()
        else:
            route.continue_()

    page.route("**/api/v1/sessions", lose)
    before = len(running.client.list_sessions())
    page.click("text=Send")
    page.wait_for_selector(".refused:visible")
    page.click("text=Send")
    page.wait_for_selector("#answer:visible")
    assert "idempotent_replay" in page.inner_text("#answer")
    assert len(running.client.list_sessions()) == before + 1
    tab.close()


@pytest.mark.rule("I-3")
@pytest.mark.guarantee("G23")
def test_who_is_revoked_is_out_with_the_browser_and_the_stream(running):
    made = token_of(running)
    with Client(running.url, made["token"], patience=1) as client:
        code = client.new_code()["code"]
        assert client.whoami()["name"] == "tester"
        running.client.revoke_token(made["token_id"])
        with pytest.raises(OncewardError):
            client.whoami()
        with pytest.raises(OncewardError):
            client.sign_in(code=code)
    running.client.take_roles(name="bob", roles=["reviewer"])
    running.client.add_principal(name="nobody", roles=["viewer"])
    token = token_of(running, "nobody")["token"]
    running.client.take_roles(name="nobody", roles=["viewer"])
    with Client(running.url, token, patience=1) as client, pytest.raises(OncewardError) as refused:
        client.list_builds()
    assert refused.value.code == "PERMISSION_DENIED"


@pytest.mark.rule("K-13")
def test_a_module_that_exits_is_refused_and_the_kernel_goes_on(running):
    (running.cli.folder / "leaves.py").write_text("import sys\nsys.exit(3)\n")
    (running.cli.folder / "leaves.toml").write_text(
        'name = "l"\n[[stage]]\nname = "s"\npython = "leaves:main"\n'
    )
    for _ in range(2):
        with pytest.raises(OncewardError):
            running.client.run_build(plan="leaves.toml")
    running.cli("principals", "add", "zoe", "--role", "viewer", check=0)
    assert running.client.health() == {**running.client.health(), "status": "ok", "state": "kernel"}


@pytest.mark.rule("K-13")
def test_work_asked_of_a_standby_whose_kernel_dies_is_taken_by_the_standby(running):
    standby = Running(running.scene)
    token = token_of(running)["token"]
    running.process.send_signal(signal.SIGKILL)
    running.process.communicate()
    with Client(standby.url, token, patience=40) as client:
        said = client.spawn(argv=["true"], client_request_id="after-death")
        assert said["session_id"] and client.health()["state"] == "kernel"
        until(lambda: client.show_session(said["session_id"])["children"][0]["phase"] == "terminal")
    standby.stop()
    assert not (running.scene.folder / "serve.json").exists()


@pytest.mark.rule("I-3")
@pytest.mark.guarantee("G23")
def test_who_sends_no_body_though_they_have_their_answer_is_hung_up_on(running):
    import socket

    host, port = running.url.removeprefix("http://").split(":")
    line = socket.create_connection((host, int(port)), timeout=600)
    line.sendall(
        f"GET /api/v1/health HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 9\r\n\r\n".encode()
    )
    assert b"200" in line.recv(65536)
    line.sendall(b"x")
    while line.recv(65536):
        pass
    line.close()
    head = socket.create_connection((host, int(port)), timeout=600)
    said = f"HEAD /api/v1/events HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {running.client._token}\r\n"
    head.sendall(f"{said}Connection: close\r\n\r\n".encode())
    answer = b""
    while piece := head.recv(65536):
        answer += piece
    assert b"text/event-stream" in answer and answer.endswith(b"\r\n\r\n")
    head.close()


@pytest.mark.rule("I-3")
def test_names_with_a_slash_and_texts_that_speak_of_a_nul_are_taken(running):
    client = running.client
    client.add_principal(name="team/bob", roles=["viewer"])
    assert client.take_roles(name="team/bob", roles=["viewer"])["roles"] == []
    assert client.spawn(argv=["printf", "\\u0000 is written so"])["session_id"]
    with pytest.raises(OncewardError, match="NUL"):
        client.spawn(argv=["printf", "\0"])
    made = hashlib.sha256(b"twice").hexdigest()
    client.new_token(token_hash=made, seconds=60)
    with pytest.raises(OncewardError, match="known already"):
        client.new_token(token_hash=made, seconds=60)


@pytest.mark.rule("C-30")
def test_the_server_spawns_nothing_in_a_session_counted_in_another_mode(running):
    client = running.client
    session = client.spawn(argv=["true"], budget={"tokens": 5})["session_id"]
    until(lambda: client.show_session(session)["children"][0]["phase"] == "terminal")
    count_in_another_mode(running.scene.database, session)
    before = client.show_session(session)
    with pytest.raises(OncewardError) as refused:
        client.spawn(argv=["true"], session=session)
    assert refused.value.code == "URM_DISPATCH_ACCOUNTING_MODE_INVALID"
    assert client.show_session(session) == before


@pytest.mark.rule("I-3", "H-9")
@pytest.mark.guarantee("G23")
@pytest.mark.thorough
@pytest.mark.timeout(120)
def test_a_live_stream_ends_soon_after_its_role_is_taken(running):
    made = token_of(running, "ro")
    heard, ended = [], threading.Event()

    def listen():
        try:
            with Client(running.url, made["token"]) as client:
                for event in client.events():
                    heard.append(event)
        except OncewardError:
            pass
        ended.set()

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    running.client.add_principal(name="first", roles=["viewer"])
    until(lambda: heard)
    running.client.take_roles(name="ro", roles=["viewer"])
    assert ended.wait(20), "it may hear nothing more"


@pytest.mark.rule("H-9", "E-1")
def test_what_was_denied_is_an_event(running):
    made = token_of(running, "ro")
    with Client(running.url, made["token"]) as client, pytest.raises(OncewardError) as denied:
        client.sweep_changes()
    assert denied.value.code == "PERMISSION_DENIED"
    assert any("ask tester" in way.action for way in denied.value.recovery)
    told = [
        json.loads(line) for line in running.cli("events", "workspace", check=0).stdout.splitlines()
    ]
    (refused,) = [event["detail"] for event in told if event["event"] == "REQUEST_REFUSED"]
    assert (refused["principal"], refused["verb"], refused["code"]) == (
        "ro",
        "changes.sweep",
        "PERMISSION_DENIED",
    )


@pytest.mark.rule("I-3", "K-11")
def test_a_server_may_run_no_commands_for_others(scene, browser):
    (scene.folder.parent / "onceward.toml").write_text("[server]\nspawn = false\n")
    served = Running(scene)
    try:
        with pytest.raises(OncewardError) as refused:
            served.client.spawn(argv=["cat", ".onceward/serve.json"])
        assert refused.value.code == "PERMISSION_DENIED"
        assert "does not run commands" in refused.value.message
        tab = Tab(browser, served).sign_in()
        assert "does not run commands" in tab.visit("/do/spawn").inner_text("main")
        tab.close()
        (served.cli.folder / "plan.toml").write_text(
            'name = "p"\n[[stage]]\nname = "a"\nrun = ["true"]\n'
        )
        build = served.client.run_build(plan="plan.toml")["build_id"]
        until(lambda: served.client.show_build(build)["state"] == "SUCCESS")
    finally:
        served.stop()
