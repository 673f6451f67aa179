"""Children and sessions in plain words."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from onceward.engine import child_budget
from onceward.engine.cut_off import step_of
from onceward.engine.explanation import Explanation, Kind, cost_of, story, who_may
from onceward.engine.reading import session_status
from onceward.lifecycles.plan import step_name
from onceward.store.port import Reads
from onceward.store.store import Store
from onceward.store.tables.children import Sessions, Tokens, resolve


def _find_child(rows: Reads, name: str) -> str | None:
    return resolve(rows, name)[0] if name.startswith("chd_") else None


def _child(store: Store, child_id: str) -> Explanation:
    status = session_status(store, child_id)
    child = status["children"][0]
    with store.read() as rows:
        token = Tokens(rows).get(child_id)
        step = step_of(token)
        lanes = child_budget.lanes(rows, token.parent_session_id).values()
        moves = story(rows, f"child:{child_id}", "child")
        who = who_may(rows, "operator") if token.phase != "terminal" else []
    work = child["work"]
    what = (
        [f"attempt {child['attempt']} at step {step_name(step.stage, step.target)}"] if step else []
    )
    what.append(
        f"runs {shlex.join(work['argv'])}"
        if "argv" in work
        else f"calls {work.get('function', 'a function')}"
    )
    what.append(f"in {'build' if step else 'session'} {token.parent_session_id}")
    spent = [
        {"lane": lane, "total": total, "limit": None} for lane, total in child["spent"].items()
    ]
    left = [
        {"lane": lane.lane, "total": lane.total, "limit": lane.limit}
        for lane in lanes
        if lane.limit is not None
    ]
    detail = child.get("detail", {})
    why = [f"{child['reason']}{_told(detail)}"] if child.get("reason") else []
    if "cancel_request_id" in child:
        why.append("somebody asked it to end")
    return Explanation(
        *(child_id, "child", what, child["phase"]),
        why=why,
        story=moves,
        waits_for={"queued": ["a free slot"], "leased": ["its process to say that it stands"]}.get(
            child["phase"], []
        ),
        who=who,
        cost=cost_of(spent) + (f" (its session: {cost_of(left)})" if left else ""),
        next=[f"onceward logs {child_id}"]
        + ([] if child["phase"] == "terminal" else [f"onceward cancel {child_id}"]),
    )


def _told(detail: Mapping[str, Any]) -> str:
    exit_ = f", exit {detail['exit']}" if detail.get("exit") is not None else ""
    return exit_ + (f": {detail['message']}" if detail.get("message") else "")


def _find_session(rows: Reads, name: str) -> str | None:
    found = Sessions(rows).named(name) if name else []
    return found[0] if len(found) == 1 and not found[0].startswith("bld_") else None


def _session(store: Store, session_id: str) -> Explanation:
    found = session_status(store, session_id)
    open_ = [child for child in found["children"] if child["phase"] != "terminal"]
    failed = sum(child.get("reason") not in (None, "completed") for child in found["children"])
    with store.read() as rows:
        who = who_may(rows, "operator")
    return Explanation(
        *(session_id, "session", [f"children run by hand, {found['max_active_children']} at once"]),
        "open" if open_ else "quiet",
        who=who,
        made=[
            f"children: {len(found['children']):,}, open {len(open_):,}, not succeeded {failed:,}"
        ],
        cost=cost_of(found["lanes"]),
        next=[f"onceward status {session_id}", f"onceward export {session_id}"],
    )


KINDS = (
    Kind("child", _find_child, _child),
    Kind("session", _find_session, _session),
)
