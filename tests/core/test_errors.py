from __future__ import annotations

import pytest

from onceward import errors
from onceward.errors import CODES, OncewardError, Recovery, StoredError


def tree(kind: type[OncewardError]) -> list[type[OncewardError]]:
    return [kind, *(found for below in kind.__subclasses__() for found in tree(below))]


@pytest.mark.rule("K-7")
def test_every_class_of_the_tree_has_a_known_code():
    for kind in tree(OncewardError):
        if kind is not StoredError:
            assert kind.code in CODES, kind


@pytest.mark.rule("K-7")
def test_exactly_the_codes_the_contract_calls_retryable_are():
    build_codes = {code for code, facts in CODES.items() if facts.retryable}
    assert build_codes == {
        "STORAGE_ERROR_RETRY",
        "TRANSFORM_RATE_LIMIT",
        "NETWORK_ERROR",
        "NEED_MORE_CONTEXT",
    }


@pytest.mark.rule("K-7", "I-1")
def test_exit_statuses_are_those_of_the_command_line():
    assert {facts.exit_status for facts in CODES.values()} == {1, 2, 3, 4, 5}
    assert CODES["LOCK_CONFLICT"].exit_status == 4
    assert CODES["INTEGRITY_FAULT"].exit_status == 5
    assert CODES["URM_IDEMPOTENCY_KEY_CONFLICT"].http_status == 409


@pytest.mark.rule("K-7")
def test_an_error_survives_being_stored_as_an_answer():
    made = errors.PermissionDenied(
        "no", context={"a": 1}, recovery=[Recovery("ask", "do it", "low"), Recovery("wait")]
    )
    again = StoredError(made.document())
    assert again.document() == made.document()
    assert again.exit_status == made.exit_status
