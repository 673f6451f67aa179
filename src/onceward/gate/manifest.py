"""Which fixtures are locked for which metric, and what runs of them come to: pure (R-2, R-3)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from onceward.core.canon import digest, parse
from onceward.errors import IntegrityFault, InvalidConfig, Recovery

SCHEMA: Final = "stop_gate.vnext_plus9_manifest@1"
REPORT: Final = "stop_gate_metrics@1"
METRICS: Final[Mapping[str, str]] = {
    "scheduler_dispatch_replay_determinism_pct": "who runs next, and in which order, follows from the record alone",
    "orphan_lease_recovery_determinism_pct": "what a dead kernel left comes to the one end that its phase says",
    "concurrent_budget_cancel_stability_pct": "debits and cancels that race come to the same end in the same order",
}
"""Each metric with its meaning."""
THRESHOLD: Final = 100.0
RUNS: Final = 3
HASH: Final = "vnext_plus9_manifest_hash"


class LockedFixture(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A locked fixture: its file, the file's digest, and the hash that every run must come to."""

    fixture: str
    file_sha256: str
    sha256: str


class GateManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema: str
    metrics: dict[str, list[LockedFixture]]
    vnext_plus9_manifest_hash: str
    runs: int = RUNS

    def entries(self) -> list[tuple[str, LockedFixture]]:
        return [(metric, entry) for metric in METRICS for entry in self.metrics.get(metric, [])]


def manifest_hash(metrics: Mapping[str, Sequence[LockedFixture]], runs: int = RUNS) -> str:
    """The hash of what a manifest says, without the hash itself."""
    return digest({"metrics": msgspec.to_builtins(metrics), "runs": runs, "schema": SCHEMA})


def read_manifest(data: bytes, what: str, expected: str = "", whole: bool = True) -> GateManifest:
    """A manifest whose hash is its own and, where somebody kept it elsewhere, the one that was
    kept. One that is not `whole` may still lack fixtures for a metric."""
    try:
        found = msgspec.convert(parse(data), GateManifest)
    except (msgspec.ValidationError, InvalidConfig) as error:
        raise InvalidConfig(f"{what} is no manifest: {error}", context={"field": what}) from None
    if found.schema != SCHEMA:
        raise InvalidConfig(
            f"{what} is no {SCHEMA} but {found.schema[:60]!a}", context={"field": "schema"}
        )
    made = manifest_hash(found.metrics, found.runs)
    for wanted, whose in (
        (found.vnext_plus9_manifest_hash, "it names itself"),
        (expected or made, "was expected"),
    ):
        if wanted != made:
            raise IntegrityFault(
                f"the hash of {what} is {made}, not {wanted[:64]}, which {whose}: no metric is computed",
                context={HASH: made, "expected": wanted[:64]},
                recovery=[
                    Recovery(
                        "see what was locked, in the history of the file", f"git log -p {what}"
                    )
                ],
            )
    _check(found, what, whole)
    return found


def _check(found: GateManifest, what: str, whole: bool) -> None:
    if found.runs != RUNS:
        raise InvalidConfig(
            f"{what}: every fixture is run {RUNS} times, not {found.runs}",
            context={"field": "runs"},
        )
    odd = found.metrics.keys() - METRICS.keys()
    empty = [metric for metric in METRICS if whole and not found.metrics.get(metric)]
    if odd or empty:
        which = (
            f"there is no metric {min(odd)[:60]!a}"
            if odd
            else f"no fixture is listed for {empty[0]}"
        )
        raise InvalidConfig(
            f"{what}: {which}; the run would mean nothing", context={"field": "metrics"}
        )
    names = [entry.fixture for _, entry in found.entries()]
    if len(set(names)) != len(names) or any("/" in name or name.startswith(".") for name in names):
        raise InvalidConfig(
            f"{what}: each fixture is a file beside it, listed once", context={"field": "fixture"}
        )


def written(metrics: Mapping[str, Sequence[LockedFixture]]) -> bytes:
    """The text of a manifest, for people and for git: sorted, with its hash."""
    listed = {
        metric: sorted(metrics.get(metric, []), key=lambda entry: entry.fixture)
        for metric in METRICS
    }
    document = {
        "schema": SCHEMA,
        "runs": RUNS,
        "metrics": msgspec.to_builtins(listed),
        HASH: manifest_hash(listed),
    }
    return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """One run of one fixture, in a process of its own."""

    sha256: str = ""
    lines: list[str] = []
    wrong: str = ""
    """The fault that replay or verify found in the records it left."""
    error: str = ""
    """Why it did not come to an end."""


class Judged(msgspec.Struct, frozen=True, omit_defaults=True):
    """A fixture, and whether it passed: all runs agree with each other and with what is locked."""

    metric: str
    fixture: str
    passed: bool
    locked: str
    runs: list[str]
    about: str = ""
    reason: str = ""
    where: str = ""


def judge(
    metric: str,
    entry: LockedFixture,
    data: bytes,
    expected: Sequence[str],
    outcomes: Sequence[Outcome],
    about: str = "",
) -> Judged:
    """The verdict on a fixture, with its reason: the first of these that holds."""
    runs = [outcome.sha256 for outcome in outcomes]

    def failed(reason: str, where: str) -> Judged:
        return Judged(
            metric=metric,
            fixture=entry.fixture,
            passed=False,
            locked=entry.sha256,
            runs=runs,
            about=about,
            reason=reason,
            where=where,
        )

    if hashlib.sha256(data).hexdigest() != entry.file_sha256:
        return failed(
            "fixture_changed",
            "its file is not the one that is locked: restore it, or record it again",
        )
    for number, outcome in enumerate(outcomes, 1):
        if outcome.error:
            return failed("did_not_end", f"run {number}: {outcome.error}")
    if len(set(runs)) != 1:
        first, other = _two(outcomes)
        return failed("runs_disagree", apart(first.lines, other.lines))
    for number, outcome in enumerate(outcomes, 1):
        if outcome.wrong:
            return failed("records_disagree", f"run {number}: {outcome.wrong}")
    if runs[0] != entry.sha256:
        return failed("not_as_locked", apart(expected, outcomes[0].lines))
    return Judged(
        metric=metric,
        fixture=entry.fixture,
        passed=True,
        locked=entry.sha256,
        runs=runs,
        about=about,
    )


def _two(outcomes: Sequence[Outcome]) -> tuple[Outcome, Outcome]:
    other = next(outcome for outcome in outcomes if outcome.sha256 != outcomes[0].sha256)
    return outcomes[0], other


def apart(one: Sequence[str], other: Sequence[str]) -> str:
    """The first place at which two transcripts differ: which line, which field, and both values."""
    for number in range(max(len(one), len(other))):
        first = one[number] if number < len(one) else ""
        second = other[number] if number < len(other) else ""
        if first != second:
            return _told(number + 1, first, second)
    return "the transcripts are the same, and their hashes are not"


def _told(number: int, first: str, second: str) -> str:
    values = [json.loads(text) if text else {} for text in (first, second)]
    if not all(isinstance(value, dict) for value in values):
        return f"line {number}"
    flat = [_flat(value) for value in values]
    place = next(
        (f"{v['stream_id']}#{v['seq']}" for v in flat if "stream_id" in v), f"line {number}"
    )
    name = next((str(v["event"]) for v in flat if "event" in v), "")
    for key in sorted(flat[0].keys() | flat[1].keys()):
        if flat[0].get(key) != flat[1].get(key) and key not in ("hash", "prev_hash"):
            found = [json.dumps(v.get(key)) for v in flat]
            return f"{place}{' ' + name if name else ''}, {key}: {found[0]} is now {found[1]}"
    return place


def _flat(value: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, inner in value.items():
        if isinstance(inner, dict):
            found |= _flat(inner, f"{path}{key}.")
        else:
            found[f"{path}{key}"] = inner
    return found


def report(
    manifest: GateManifest, judged: Sequence[Judged], runs: Sequence[Mapping[str, str]], store: str
) -> dict[str, Any]:
    """`stop_gate_metrics@1`: the same for the same code and fixtures, whenever and wherever it
    is made."""
    metrics = {}
    for metric in METRICS:
        own = [row for row in judged if row.metric == metric]
        metrics[metric] = 100.0 * sum(row.passed for row in own) / len(own)
    return {
        "schema": REPORT,
        HASH: manifest.vnext_plus9_manifest_hash,
        "valid": True,
        "metrics": metrics,
        "thresholds": dict.fromkeys(METRICS, THRESHOLD),
        "all_passed": all(value >= THRESHOLD for value in metrics.values()),
        "store": store,
        "runs": [dict(run) for run in runs],
        "fixtures": [msgspec.to_builtins(row) for row in judged],
    }
