"""The server as programs meet it: who is let in, what is refused and how, events without gap or repeat."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
from itertools import product

import pytest

import onceward.client
from onceward.core.acts import all_acts
from onceward.ui.http.api import ROUTES
from onceward.ui.web.pages import PAGES
from typing_in import Typed, start, until


class Client:
    """Speaks HTTP to one server, as whoever has a token."""

    def __init__(self, url, token):
        self.host, self.token = url.removeprefix("http://"), token

    def __call__(self, method, path, body=None, **headers):
        line = http.client.HTTPConnection(self.host, timeout=600)
        sent = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        if isinstance(body, dict):
            body, sent["Content-Type"] = json.dumps(body), "application/json"
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        line.request(
            method,
            f"/api/v1{path}",
            body,
            {name: value for name, value in sent.items() if value is not None},
        )
        answer = line.getresponse()
        data = answer.read()
        line.close()
        return answer.status, json.loads(data) if data else None, answer.headers


def serve(cli, lasting=False):
    process = start(cli, "serve", "--port", "0", "--json", lasting=lasting)
    said = json.loads(process.stdout.readline() or process.communicate()[1])
    token = onceward.client.Client.here(cli.folder / ".onceward").token
    return process, Client(said["url"], token)


@pytest.fixture
def cli(store_url, tmp_path):
    typed = Typed(tmp_path, store_url)
    typed("init", check=0)
    return typed


@pytest.fixture
def server(cli):
    process, client = serve(cli)
    yield client
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=600)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A server for those who only are refused: nobody of them changes anything."""
    typed = Typed(tmp_path_factory.mktemp("shared"), "sqlite")
    typed("init", check=0)
    process, client = serve(typed, lasting=True)
    yield client
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=600)


def asking(request_id, **body):
    return {"client_request_id": request_id, **body}


@pytest.mark.both_stores
@pytest.mark.rule("I-3", "K-8")
def test_work_is_taken_once_however_often_it_is_asked(server):
    order = asking("one", argv=["echo", "hello"])
    status, first, _ = server("POST", "/sessions", order)
    assert status == 202
    status, again, _ = server("POST", "/sessions", order)
    assert status == 202 and again == {**first, "idempotent_replay": True}
    session = until(
        lambda: (
            (found := server("GET", f"/sessions/{first['session_id']}")[1])["children"] and found
        )
    )
    assert [child["child_id"] for child in session["children"]] == first["children"]
    status, refused, _ = server("POST", "/sessions", asking("one", argv=["echo", "other"]))
    assert (status, refused["code"]) == (409, "URM_IDEMPOTENCY_KEY_CONFLICT")


@pytest.mark.rule("I-3")
@pytest.mark.guarantee("G23")
def test_only_those_who_are_known_and_come_from_here_are_let_in(cli, server):
    """Every route, with every credential, name and origin: whatever is not right is 401 or 403, and nothing else is."""
    expired = json.loads(cli("tokens", "new", "--for", "1s", "--json", check=0).stdout)["token"]
    cli("principals", "add", "vera", "--role", "viewer", check=0)
    viewer = json.loads(cli("--as", "vera", "tokens", "new", "--json", check=0).stdout)["token"]
    tokens = {
        "none": "",
        "wrong": "owt_wrong",
        "viewer": viewer,
        "right": server.token,
        "expired": expired,
    }
    until(lambda: Client(server.host, expired)("GET", "/whoami")[0] == 401)
    hosts = {
        "good": server.host,
        "foreign": "evil.example",
        "rebound": f"evil.example:{server.host.split(':')[1]}",
    }
    origins = {
        "none": None,
        "same": f"http://{server.host}",
        "foreign": "http://evil.example",
        "null": "null",
    }
    wrong, line = [], http.client.HTTPConnection(server.host, timeout=600)
    for route, who, host, origin in product((*ROUTES, *PAGES), tokens, hosts, origins):
        from_here = host == "good" and origin in ("none", "same")
        known = who in ("viewer", "right") or route.public
        if route.kind == "stream" and known and from_here:
            continue
        path = route.path
        for name in route.parameters:
            path = path.replace(f"{{{name}}}", "absent")
        headers = {"Host": hosts[host]}
        if tokens[who]:
            headers["Authorization"] = f"Bearer {tokens[who]}"
        if origins[origin] is not None:
            headers["Origin"] = origins[origin]
        if route.method != "GET":
            # Without a body it cannot be carried out: whoever may ask learns that, and nobody changes anything.
            headers["Content-Type"] = "application/json"
        line.request(route.method, path, None, headers)
        answer = line.getresponse()
        answer.read()
        expected = {403} if not from_here else {401} if not known else {200, 400, 404}
        if answer.status not in expected:
            wrong.append((route.method, route.path, who, host, origin, answer.status))
    line.close()
    assert wrong == []
    status, refused, _ = Client(server.host, viewer)(
        "POST", "/sessions", asking("v", argv=["true"])
    )
    assert (status, refused["code"]) == (403, "PERMISSION_DENIED")


@pytest.mark.rule("I-3")
def test_every_act_has_its_route():
    asked = {name for name, declared in all_acts().items() if not declared.own}
    assert {route.verb for route in ROUTES if route.verb} == asked - OF_THEIR_OWN
    assert all(
        route.method == "GET" or route.body is not None or route.kind == "upload"
        for route in ROUTES
    )
    assert len({route.name for route in ROUTES}) == len(ROUTES)


OF_THEIR_OWN = {"locks.clear", "seals.add"}
"""What an act of more than one verb asks for."""


@pytest.mark.rule("I-3")
@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status"),
    [
        ("POST", "/sessions", "{", {"Content_Type": "application/json"}, 400),
        ("POST", "/sessions", "[]", {"Content_Type": "application/json"}, 400),
        ("POST", "/sessions", '{"argv":["true"]}', {"Content_Type": "application/json"}, 400),
        (
            "POST",
            "/sessions",
            '{"client_request_id":"a","argv":"true"}',
            {"Content_Type": "application/json"},
            400,
        ),
        ("POST", "/sessions", '{"a":1,"a":2}', {"Content_Type": "application/json"}, 400),
        ("POST", "/sessions", "[" * 5000, {"Content_Type": "application/json"}, 400),
        (
            "POST",
            "/sessions",
            "argv=true",
            {"Content_Type": "application/x-www-form-urlencoded"},
            415,
        ),
        ("POST", "/sessions", "{}", {"Content_Type": "text/plain"}, 415),
        (
            "POST",
            "/sessions",
            '"' + "x" * (1 << 20) + '"',
            {"Content_Type": "application/json"},
            413,
        ),
        ("DELETE", "/sessions", None, {}, 405),
        ("GET", "/../../etc/passwd", None, {}, 404),
        ("GET", "/builds/..%2f..%2fetc%2fpasswd", None, {}, 404),
        ("GET", "/builds?limit=many", None, {}, 400),
        ("GET", "/builds?limit=99999999999999999999", None, {}, 400),
        ("GET", "/builds?limit=-1", None, {}, 400),
        ("GET", "/events?after=99999999999999999999", None, {}, 400),
        ("GET", "/builds?limit=1&limit=2", None, {}, 400),
        ("GET", "/builds?colour=blue", None, {}, 400),
        ("GET", "/builds", None, {"Authorization": "Basic cm9vdDpyb290"}, 401),
        ("GET", "/builds", None, {"Sec_Fetch_Site": "cross-site"}, 403),
        ("GET", "/builds", None, {"Cookie": "onceward_7423=guessed", "Authorization": None}, 401),
        ("GET", "/events", None, {"Last_Event_ID": "soon"}, 400),
    ],
)
def test_what_does_not_fit_is_refused_with_its_code(shared, method, path, body, headers, status):
    found, said, kept = shared(method, path, body, **headers)
    assert found == status
    assert (
        kept["Content-Type"] == "application/problem+json"
        and said["status"] == status
        and said["code"]
    )
    assert (
        "default-src 'none'" in kept["Content-Security-Policy"]
        and "Access-Control-Allow-Origin" not in kept
    )


@pytest.mark.rule("I-3")
def test_whoever_is_refused_before_their_body_was_read_learns_why(server):
    stranger = Client(server.host, "owt_wrong")
    for _ in range(20):
        assert stranger("POST", "/sessions", asking("a", argv=["x" * 300_000]))[0] == 401
        assert (
            server("POST", "/sessions", asking("a", argv=["x" * 300_000]), Origin="null")[0] == 403
        )


def events(client, after, count):
    line = http.client.HTTPConnection(client.host, timeout=600)
    line.request(
        "GET",
        "/api/v1/events",
        headers={"Authorization": f"Bearer {client.token}", "Last-Event-ID": str(after)},
    )
    answer, found = line.getresponse(), []
    while len(found) < count:
        told = answer.readline().decode()
        if told.startswith("id: "):
            found.append(int(told[4:]))
    line.close()
    return found


@pytest.mark.both_stores
@pytest.mark.rule("I-3")
@pytest.mark.guarantee("G24")
def test_a_reader_of_events_goes_on_where_it_was_without_gap_or_repeat_though_the_server_was_killed(
    cli,
):
    process, client = serve(cli)
    for number in range(3):
        client(
            "POST", "/tokens", asking(f"t{number}", token_hash="0" * 63 + str(number), seconds=60)
        )
    first = events(client, 0, 4)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    process, client = serve(cli)
    client("POST", "/tokens", asking("t3", token_hash="0" * 63 + "3", seconds=60))
    rest = events(client, first[-1], 2)
    both = first + rest
    assert both == sorted(set(both)) and both == list(range(both[0], both[0] + len(both)))
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=600)
    assert process.returncode == 0
    assert not (cli.folder / ".onceward" / "serve.json").exists()


@pytest.mark.rule("I-3")
def test_a_server_is_only_for_this_machine_unless_somebody_means_it(cli):
    refused = cli("serve", "--host", "0.0.0.0")
    assert refused.returncode == 2 and "--without-tls" in refused.stderr
    taken = socket.create_server(("127.0.0.1", 0))
    refused = cli("serve", "--port", str(taken.getsockname()[1]))
    taken.close()
    assert refused.returncode == 2 and "--port 0" in refused.stderr


@pytest.mark.guarantee("G23")
def test_the_note_that_lets_its_owner_in_can_be_read_by_nobody_else(cli, server):
    assert (cli.folder / ".onceward" / "serve.json").stat().st_mode & 0o777 == 0o600
