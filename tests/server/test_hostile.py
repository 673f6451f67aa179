"""Callers who mean no good, or are only slow: each is refused with a code, and nobody else waits for them (G23)."""

from __future__ import annotations

import hashlib
import http.client
import json
import socket
import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from onceward.client import Client
from onceward.errors import InvalidConfig, OncewardError
from scene import copied
from server.conftest import Running

SQLITE = pytest.mark.parametrize("scene", ["sqlite"], indirect=True)


@pytest.fixture(scope="module")
def shared(template, tmp_path_factory):
    """A server for those who only are refused."""
    served = Running(copied(template, tmp_path_factory.mktemp("shared"), "sqlite"), lasting=True)
    yield served
    served.stop()


def place(running):
    host, port = running.url.removeprefix("http://").split(":")
    return host, int(port)


def raw(running, data, wait=15.0):
    """What comes back for bytes that no client would send."""
    with socket.create_connection(place(running), timeout=wait) as line:
        line.sendall(data)
        answer = b""
        try:
            while piece := line.recv(65536):
                answer += piece
        except TimeoutError:
            pass
    return answer


def request(running, *more, path="/api/v1/health", method="GET", body=b""):
    host, port = place(running)
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}:{port}", "Connection: close", *more]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@pytest.mark.rule("I-3")
@pytest.mark.guarantee("G23")
@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (["Host: evil.example"], b"400"),
        (["Origin: null"], b"403"),
        (["Origin: http://evil.example", "Origin: null"], b"403"),
        (["Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate"], b"403"),
        (["Transfer-Encoding: chunked", "Content-Length: 5"], b"400"),
        (["Content-Length: 5", "Content-Length: 6"], b"400"),
        (["Content-Length: -1"], b"400"),
        (["X-Bad : folded"], b"400"),
        (["X-Bad: a\rX-Worse: b"], b"400"),
        (["X-Long: " + "a" * 70_000], b"431"),
        ([f"X-{number}: a" for number in range(5000)], b"431"),
        (
            [
                "X-Forwarded-Host: evil.example",
                "X-Forwarded-For: 10.0.0.1",
                "Forwarded: host=evil.example",
            ],
            b"200",
        ),
    ],
)
def test_tricks_with_headers_come_to_nothing(shared, sent, status):
    answer = raw(shared, request(shared, *sent))
    assert answer.split(b" ")[1] == status
    assert b"Access-Control" not in answer and b"evil" not in answer


@pytest.mark.rule("I-3")
@pytest.mark.parametrize(
    "path",
    ["/static/../pages.py", "/static/%2e%2e%2fpages.py", "/static/..%5cpages.py", "//etc/passwd"],
)
def test_no_path_leads_out(shared, path):
    answer = raw(shared, request(shared, path=path))
    assert answer.split(b" ")[1] in (b"404", b"400") and b"import" not in answer


@SQLITE
@pytest.mark.rule("I-3")
@pytest.mark.guarantee("G23")
def test_who_is_slow_is_hung_up_on_and_nobody_waits_for_them(running):
    """One says half of what they want and no more, one sends half a body, one nothing: all are let go of in time."""
    token = running.client.token
    lines = [socket.create_connection(place(running), timeout=600) for _ in range(30)]
    sent = request(
        running,
        f"Authorization: Bearer {token}",
        "Content-Type: application/json",
        method="POST",
        path="/api/v1/sessions",
        body=b'{"client',
    )
    for number, line in enumerate(lines):
        half = sent.replace(b"Connection: close", b"Content-Length: 500")
        line.sendall((b"GET /api/v1/health HT", half, b"")[number % 3])
    assert running.client.health()["status"] == "ok"
    answers = []
    for line in lines:
        got = b""
        while piece := line.recv(65536):
            got += piece
        answers.append(got)
        line.close()
    assert {answer.split(b" ")[1] for answer in answers} == {b"408"}
    assert sum(b"INVALID_CONFIG" in answer for answer in answers) == 10


@SQLITE
@pytest.mark.rule("I-3")
def test_contents_are_brought_by_their_digest_and_read_by_range(running):
    client = running.client
    data = b"0123456789" * 1000
    digest = client.bring(data)
    assert client.bring(data) == digest == hashlib.sha256(data).hexdigest()
    known = client.list_artifacts()[0]
    line = http.client.HTTPConnection(*place(running), timeout=600)

    def ask(method, path, body=None, **headers):
        token = {"Authorization": f"Bearer {client._token}"}
        line.request(
            method,
            f"/api/v1{path}",
            body,
            token | {k.replace("_", "-"): v for k, v in headers.items()},
        )
        answer = line.getresponse()
        return answer.status, answer.read(), answer.headers

    whole = ask("GET", f"/artifacts/{known['sha256']}")
    assert whole[0] == 200 and hashlib.sha256(whole[1]).hexdigest() == known["sha256"]
    assert (
        whole[2]["ETag"] == f'"{known["sha256"]}"'
        and whole[2]["Content-Type"] == "application/octet-stream"
    )
    part = ask("GET", f"/artifacts/{known['sha256']}", Range="bytes=1-3")
    assert (
        part[:2] == (206, whole[1][1:4])
        and part[2]["Content-Range"] == f"bytes 1-3/{known['size']}"
    )
    assert ask("GET", f"/artifacts/{known['sha256']}", Range="bytes=-2")[1] == whole[1][-2:]
    assert ask("GET", f"/artifacts/{known['sha256']}", Range="bytes=999999-")[0] == 416
    assert ask("GET", f"/artifacts/{known['sha256']}", Range="lines=1-2")[0] == 200
    assert ask("PUT", f"/uploads/{'0' * 64}", b"something else")[0] == 400
    assert ask("PUT", f"/uploads/{digest[:10]}", data)[0] == 400
    assert ask("PUT", f"/uploads/{digest}", b"x" * (26 << 20))[0] == 413
    line.close()


@SQLITE
@pytest.mark.rule("I-3", "H-9")
def test_who_may_only_look_brings_nothing(running):
    token = running.cli("--as", "ro", "tokens", "new", "--json", check=0).stdout
    looker = Client(running.url, json.loads(token)["token"], patience=2)
    assert looker.list_builds()
    for act in (
        lambda: looker.bring(b"x"),
        lambda: looker.seal(),
        lambda: looker.run_gate(manifest="m.json"),
    ):
        with pytest.raises(OncewardError) as refused:
            act()
        assert refused.value.code == "PERMISSION_DENIED"
    looker.close()


def certify(key, certificate):
    """A certificate for this machine that nobody signed but its own key."""
    secret = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, secret.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(secret, hashes.SHA256())
    )
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = (
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    key.write_bytes(secret.private_bytes(*form))


@SQLITE
@pytest.mark.rule("I-3")
@pytest.mark.guarantee("G23")
def test_a_server_for_others_speaks_tls_and_goes_by_its_names_only(scene, tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    certify(key, certificate)
    served = Running(
        scene,
        "--host",
        "0.0.0.0",
        "--name",
        "localhost",
        "--tls-cert",
        certificate,
        "--tls-key",
        key,
    )
    try:
        assert served.url.startswith("https://localhost:")
        context = ssl.create_default_context(cafile=certificate)
        token = Client.here(scene.folder).token
        with Client(served.url, token, context=context) as client:
            assert client.whoami()["name"] == "tester"
            line = http.client.HTTPSConnection(
                "localhost", int(served.url.rsplit(":", 1)[1]), context=context
            )
            line.request(
                "POST",
                "/api/v1/signin",
                json.dumps({"code": served.link.split("code=")[1]}),
                {"Content-Type": "application/json"},
            )
            cookie = line.getresponse().headers["Set-Cookie"]
            assert "Secure" in cookie and "HttpOnly" in cookie and "SameSite=strict" in cookie
            line.close()
            line.request("GET", "/api/v1/health", headers={"Host": "127.0.0.1"})
            assert line.getresponse().status == 403
            line.close()
    finally:
        served.client.close()
        served.stop()


@SQLITE
@pytest.mark.rule("I-3")
@pytest.mark.guarantee("G23")
def test_who_guesses_codes_is_told_to_wait(running):
    statuses = []
    for number in range(12):
        line = http.client.HTTPConnection(*place(running), timeout=600)
        line.request(
            "POST",
            "/api/v1/signin",
            json.dumps({"code": f"guess{number}"}),
            {"Content-Type": "application/json"},
        )
        statuses.append(line.getresponse().status)
        line.close()
    assert statuses == [401] * 10 + [429] * 2
    # Whoever has something good is not kept out by who guesses.
    line = http.client.HTTPConnection(*place(running), timeout=600)
    good = json.dumps({"code": running.link.split("code=")[1]})
    line.request("POST", "/api/v1/signin", good, {"Content-Type": "application/json"})
    assert line.getresponse().status == 200
    line.close()


@SQLITE
@pytest.mark.rule("I-3")
def test_a_client_says_what_it_does_not_know_before_it_asks(running):
    with pytest.raises(TypeError, match="not colour"):
        running.client.run_build(plan="p.toml", colour="blue")
    with pytest.raises(AttributeError, match="run_build"):
        running.client.make_coffee()
    with pytest.raises(InvalidConfig):
        Client("ftp://elsewhere", "t")
