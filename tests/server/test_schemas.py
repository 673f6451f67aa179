"""What the API answers validates against the schemas it names."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest

from schemas import violations


@pytest.mark.rule("C-1", "C-6", "I-3")
@pytest.mark.parametrize("scene", ["sqlite"], indirect=True)
def test_events_and_children_of_the_api_validate_against_the_schemas_they_name(running):
    client = running.client
    found: Counter[str] = Counter()
    wrong: list[str] = []
    for name in ("approved", "failed", "saga stuck"):
        session = client.show_session(running.ids[name])
        wrong += violations(session, f"session {name}", found)
        for child in session["children"]:
            wrong += violations(client.show_child(child["child_id"]), child["child_id"], found)
    total = sum(stream["events"] for stream in client.list_streams())
    for event in islice(client.events(), total):
        # The id of the feed comes beside the event, not in it: the client puts them together.
        del event["id"]
        wrong += violations(event, event["stream_id"], found)
    assert wrong == []
    assert found["urm-events@1"] == total and found["scheduler_dispatch_token@1"] > 10
