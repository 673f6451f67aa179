"""Tokens as a person makes, lists and revokes them."""

from __future__ import annotations

import pytest

from onceward.people.authority import Authority
from onceward.people.tokens import bearer_of
from onceward.settings import FOLDER
from onceward.workspace import Workspace
from typing_in import until


@pytest.fixture
def bearer(place, store_url):
    def find(token):
        with Workspace(place / FOLDER, store_url=store_url).reading() as store:
            return bearer_of(store, Authority(), token)

    return find


@pytest.mark.both_stores
@pytest.mark.guarantee("G23")
def test_a_token_lets_its_bearer_act_until_it_is_revoked(onceward, place, bearer):
    assert onceward("init").status == 0
    made = onceward("--as", "root", "tokens", "new", "--note", "ci", "--for", "2h", "--json").json
    assert made["principal"] == "root" and bearer(made["token"]) == "root"
    assert bearer(made["token"] + "x") is None and bearer("") is None
    (listed,) = onceward("tokens", "list", "--json").json
    assert listed["state"] == "good" and listed["note"] == "ci" and "token" not in listed
    assert onceward("--as", "root", "tokens", "revoke", made["token_id"]).status == 0
    assert bearer(made["token"]) is None
    assert onceward("verify").status == 0


def test_the_token_itself_is_kept_nowhere(onceward, place):
    onceward("init")
    token = onceward("--as", "root", "tokens", "new").out.strip()
    assert token.startswith("owt_") and "\n" not in token
    kept = [
        path
        for path in place.rglob("*")
        if path.is_file() and token[4:].encode() in path.read_bytes()
    ]
    assert kept == []


@pytest.mark.parametrize(
    "words",
    [
        ("tokens", "new", "--for", "0s"),
        ("tokens", "new", "--for", "never"),
        ("tokens", "new", "--for", "9000d"),
        ("tokens", "revoke", "tok_nothing"),
    ],
)
def test_bad_words_exit_2_and_nothing_is_made(onceward, words):
    onceward("init")
    done = onceward("--as", "root", *words)
    assert done.status == 2, done.err
    assert onceward("tokens", "list", "--json").json == []


def test_a_token_runs_out_and_others_may_not_revoke_it(onceward, bearer):
    onceward("init")
    made = onceward("--as", "root", "tokens", "new", "--for", "1s", "--json").json
    onceward("--as", "root", "principals", "add", "eve", "--role", "submitter")
    assert onceward("--as", "eve", "tokens", "revoke", made["token_id"]).status == 2
    until(lambda: bearer(made["token"]) is None)
    assert onceward("tokens", "list", "--json").json[0]["state"] == "expired"
