"""The API against its own description, by somebody who knows nothing else of it (I-3)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from onceward.client import snake
from onceward.ui.http.api import ROUTES
from onceward.ui.http.openapi import document

ST = Path(sys.executable).parent / "st"
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,"
    "response_headers_conformance,negative_data_rejection,ignored_auth,unsupported_method"
)
FUZZ = int(os.environ.get("ONCEWARD_FUZZ", "2"))
ENDLESS = "events$|/signout$"
"""What does not end by itself, or ends the way in."""


def names_in(running):
    """Things that are there, for each name that a path can have."""
    client, ids = running.client, running.ids
    children = client.show_session(ids["approved"])["children"]
    return {
        "build": ids["paused"],
        "session": ids["approved"],
        "child": children[0]["child_id"],
        "subject": ids["failed"],
        "saga": ids["saga done"],
        "grant": client.list_grants()[0]["grant_id"],
        "value": client.list_registry()[0]["values"][0]["value"],
        "entry": ids["change done"],
        "sha256": client.list_artifacts()[0]["sha256"],
        "step": "write:a",
        "stream": "workspace",
        "name": "bob",
        "token": client.list_tokens()[0]["token_id"],
        "key": client.list_keys()[0]["key"],
    }


@pytest.mark.long
@pytest.mark.rule("I-3")
@pytest.mark.timeout(300)
@pytest.mark.thorough
def test_nothing_that_fits_or_does_not_fit_the_description_breaks_the_server(running, tmp_path):
    token = running.client.token
    lines = [f"{name} = {json.dumps(value)}" for name, value in names_in(running).items()]
    (tmp_path / "schemathesis.toml").write_text("[parameters]\n" + "\n".join(lines) + "\n")
    command = [
        ST,
        "--config-file",
        tmp_path / "schemathesis.toml",
        "run",
        f"{running.url}/api/v1/openapi.json",
    ]
    # Everything the description allows and forbids on one store; on the other some of it, unless there is time.
    much = running.scene.settings.store.url == "sqlite" or FUZZ > 4
    phases = "examples,coverage,fuzzing" if much else "fuzzing"
    options = (
        f"--checks {CHECKS} --phases {phases} --max-examples {FUZZ} --workers 2 --seed 1 --no-color"
    )
    done = subprocess.run(
        [
            *command,
            "-H",
            f"Authorization: Bearer {token}",
            "--exclude-path-regex",
            ENDLESS,
            *options.split(),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, re.sub(r"(?s)=+ WARNINGS.*?=+ SUMMARY", "== SUMMARY", done.stdout)[
        -6000:
    ]
    tested = int(re.search(r"Tested: (\d+)", done.stdout)[1])
    # All but the description itself, which it leaves out.
    assert tested == len([route for route in ROUTES if not re.search(ENDLESS, route.path)]) - 1
    assert running.process.poll() is None and running.client.health()["status"] == "ok"


@pytest.mark.rule("I-3")
def test_everything_there_is_is_answered_as_it_is_described(running):
    """Every look at every thing of the scene, held against the shape that the table says."""
    client, known = running.client, names_in(running)
    every = {
        "build": [v for k, v in running.ids.items() if not k.startswith(("saga", "change"))],
        "saga": [v for k, v in running.ids.items() if k.startswith("saga")],
        "entry": [v for k, v in running.ids.items() if k.startswith("change")],
    }
    for route in ROUTES:
        if route.method != "GET" or route.kind != "json" or route.name == "describe":
            continue
        places = {name: every.get(name, [known.get(name)]) for name in route.parameters}
        if None in [value for values in places.values() for value in values]:
            continue
        query = {"of": running.ids["paused"]} if route.name in ("explain", "replay") else {}
        for number in range(max([len(values) for values in places.values()], default=1)):
            words = {name: values[number % len(values)] for name, values in places.items()}
            said = getattr(client, snake(route.name))(**words, **query)
            msgspec.convert(said, route.answer)


@pytest.mark.rule("I-3")
def test_the_description_is_of_every_route_and_names_every_answer():
    said = document(ROUTES)
    told = {
        (m.upper(), path): one
        for path, methods in said["paths"].items()
        for m, one in methods.items()
    }
    assert told.keys() == {(route.method, route.path) for route in ROUTES}
    for route in ROUTES:
        operation = told[route.method, route.path]
        assert ("security" in operation) == route.public
        if route.method == "POST" and (
            route.verb or route.name in ("seal", "clearLock", "runGate")
        ):
            name = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rsplit(
                "/", 1
            )[1]
            assert "client_request_id" in said["components"]["schemas"][name]["required"]
