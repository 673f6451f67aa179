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


class ErrorCode(TypedDict):
    code: str
    meaning: str
    status: int
    retryable: bool


class Curve(TypedDict):
    """A lane over time: moments in seconds since 1970, and its total at each. No limit is null; money is in millionths."""

    lane: str
    limit: int | None
    total: int
    at: list[float]
    totals: list[int]


class Logs(TypedDict):
    """What a child said: the end of each of its logs, as text; what is no text is shown as a question mark."""

    child_id: str
    over: bool
    logs: dict[str, str]
    bytes: dict[str, int]


class SpendGroup(TypedDict):
    key: str
    name: str
    lanes: dict[str, int]
    cost_usd: str


class Spending(TypedDict):
    by: str
    groups: list[SpendGroup]
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


class SubjectExplanation(TypedDict):
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


class AccessToken(TypedDict):
    token_id: str
    principal: str
    note: str
    expires_at: str
    state: str


class VerifyReport(TypedDict):
    ok: bool
    checked: dict[str, int]
    faults: list[Said]


class ReplayReport(TypedDict):
    identical: bool
    sha256: str
    events: int
    children: int
    sessions: int
    first_difference: NotRequired[Said]


class DoctorCheck(TypedDict):
    name: str
    status: str
    detail: str
    fix: str


class Doctor(TypedDict):
    ok: bool
    checks: list[DoctorCheck]


class MachineTable(TypedDict):
    name: str
    states: list[str]
    terminal: list[str]
    transient: list[str]
    arrows: list[Said]


class GateReport(TypedDict):
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


class EnvironmentNames(TypedDict):
    request_id: str
    names: list[str]


class SignInCode(TypedDict):
    code: str
    seconds: int
    url: str


class Upload(TypedDict):
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
