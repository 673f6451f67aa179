"""What the API answers, as its description tells it (I-3). More may come beside what is named; what is named stays."""

# No `from __future__ import annotations`: which keys may be missing is read when the class is made.
from typing import Any, NotRequired, TypedDict

Said = dict[str, Any]


class Health(TypedDict):
    """Whether the server is there: as the kernel of its workspace, or as a standby of the one that lives."""

    status: str
    version: str
    state: str
    failure: NotRequired[str]


class Principal(TypedDict):
    name: str
    roles: list[str]
    key: NotRequired[str]


class Code(TypedDict):
    code: str
    meaning: str
    status: int
    retryable: bool


class Lane(TypedDict):
    """What was spent in a lane, and what may be; no limit is null. Money is in millionths."""

    lane: str
    limit: int | None
    total: int


class Curve(Lane):
    """A lane over time: moments in seconds since 1970, and its total at each."""

    at: list[float]
    totals: list[int]


class ArtifactOf(TypedDict):
    name: str
    kind: str
    sha256: str
    size: int


class Artifact(ArtifactOf):
    owner: str
    created_at: str
    build_id: NotRequired[str]
    stage: NotRequired[str]
    target: NotRequired[str]


class Step(TypedDict):
    stage: str
    target: str
    status: str
    child_id: NotRequired[str | None]
    context_hash: NotRequired[str]
    cost_usd: NotRequired[str]
    tokens: NotRequired[int]
    attempts: NotRequired[int]
    error: NotRequired[Said]
    artifacts: NotRequired[list[ArtifactOf]]
    started_at: NotRequired[str]
    seconds: NotRequired[float]


class Build(TypedDict):
    build_id: str
    name: str
    state: str
    cost_usd: str
    tokens: int
    created_at: str
    updated_at: str
    reason: NotRequired[str]
    why: NotRequired[Said]
    plan_file: NotRequired[str]
    choices: NotRequired[Any]
    parent_build_id: NotRequired[str]
    orphaned: NotRequired[bool]
    next: NotRequired[str | None]


class Wanted(TypedDict):
    """What waits for somebody's word: for exactly the content of this digest."""

    step: str
    digest: str
    text: str


class BuildInFull(Build):
    steps: list[Step]
    lanes: list[Lane]
    needs: dict[str, list[str]]
    gathers: dict[str, list[str]]
    approvals: NotRequired[list[Wanted]]


class Session(TypedDict):
    session_id: str
    children: int
    open: int
    failed: int
    created_at: str


class DebitedLane(TypedDict):
    budget_lane: str
    accounting_mode: str
    debited: int


class BudgetSnapshot(TypedDict):
    """What was debited for a child: a projection, never above the totals of its session."""

    schema: str
    child_id: str
    parent_session_id: str
    lanes: list[DebitedLane]


class Child(TypedDict):
    child_id: str
    phase: str
    kind: str
    work: Any
    attempt: int
    target: NotRequired[str]
    reason: NotRequired[str]
    code: NotRequired[str]
    started_at: NotRequired[str]
    ended_at: NotRequired[str]
    detail: NotRequired[Said]
    spent: NotRequired[dict[str, int]]
    budget: NotRequired[BudgetSnapshot]


class SessionInFull(TypedDict):
    session_id: str
    max_active_children: int
    created_at: str
    lanes: list[Lane]
    children: list[Child]


class Logs(TypedDict):
    """What a child said: the end of each of its logs, as text; what is no text is shown as a question mark."""

    child_id: str
    over: bool
    logs: dict[str, str]
    bytes: dict[str, int]


class Permit(TypedDict):
    """A confirmation token of a pause, by its id; the token itself is nowhere."""

    permit_id: str
    build_id: str
    state: str
    expires_at: str


class Group(TypedDict):
    key: str
    name: str
    lanes: dict[str, int]
    cost_usd: str


class Spending(TypedDict):
    by: str
    groups: list[Group]
    lanes: dict[str, int]
    limits: dict[str, int | None]


class Lock(TypedDict):
    target: str
    liveness: str
    here: bool
    why: str


class Cleared(TypedDict):
    target: str
    outcome: str


class Stream(TypedDict):
    stream: str
    events: int


class Explanation(TypedDict):
    id: str
    kind: str
    what: list[str]
    state: str
    why: NotRequired[list[str]]
    story: NotRequired[list[str]]
    waits_for: NotRequired[list[str]]
    who: NotRequired[list[str]]
    cost: NotRequired[str]
    made: NotRequired[list[str]]
    next: NotRequired[list[str]]


class Token(TypedDict):
    token_id: str
    principal: str
    note: str
    expires_at: str
    state: str


class Key(TypedDict):
    key: str
    principal: str
    added_seq: int
    here: bool
    revoked_seq: NotRequired[int]


class Sink(TypedDict):
    sink: str
    configured: bool
    waiting: int
    parked: int
    oldest: NotRequired[str]
    last_error: NotRequired[str]


class Item(TypedDict):
    """Something that runs, waits or failed, and where it is."""

    kind: str
    id: str
    name: str
    state: str
    since: str
    why: NotRequired[str]
    next: NotRequired[str | None]


class Overview(TypedDict):
    running: list[Item]
    waiting: list[Item]
    failed: list[Item]
    counts: dict[str, dict[str, int]]
    today: Said
    kernel: bool


class Findings(TypedDict):
    ok: bool
    checked: dict[str, int]
    faults: list[Said]


class Replayed(TypedDict):
    identical: bool
    sha256: str
    events: int
    children: int
    sessions: int
    first_difference: NotRequired[Said]


class Check(TypedDict):
    name: str
    status: str
    detail: str
    fix: str


class Doctor(TypedDict):
    ok: bool
    checks: list[Check]


class Machine(TypedDict):
    name: str
    states: list[str]
    terminal: list[str]
    transient: list[str]
    arrows: list[Said]


class Report(TypedDict):
    """A run of the gate: its metrics against their thresholds, and every fixture."""

    report: str
    manifest: str
    all_passed: bool
    metrics: dict[str, float]
    thresholds: dict[str, float]
    fixtures: list[Said]


class Signed(TypedDict):
    """A browser was let in: its cookie is in the answer's header, and this goes with whatever it changes."""

    principal: str
    csrf: str


class BroughtNames(TypedDict):
    request_id: str
    names: list[str]


class SignInCode(TypedDict):
    code: str
    seconds: int
    url: str


class Brought(TypedDict):
    sha256: str
    size: int


class Problem(TypedDict):
    """Why something was refused (RFC 9457), with its code and what to do."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    retryable: bool
    context: NotRequired[Said]
    recovery: NotRequired[list[Said]]
