"""Tells people that they are needed: a build paused or failed, a step waits for approval or is in
doubt, a saga is stuck, changes wait for review, one failed its verification.

A notice is an event like any other on its way out: it commits with what it tells of, and goes
out at least once."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from onceward.builds.rules import why_paused
from onceward.core.canon import canonical
from onceward.core.limits import LEAVING_SECONDS, NOTICE_SECONDS, WEBHOOK_TIMEOUT_SECONDS
from onceward.errors import NetworkError
from onceward.kernel.sinks import Deadline, WebhookSink
from onceward.store.store import Store
from onceward.store.tables.builds import Builds
from onceward.store.tables.outbox import Parcel
from onceward.store.tables.sagas import Runs

EVENTS: Final = {
    "pause": ("BUILD_PAUSED",),
    "failure": ("BUILD_FAILED", "SAGA_SETTLED"),
    "approval": ("APPROVAL_WANTED",),
    "in_doubt": ("STEP_IN_DOUBT",),
    "stuck": ("SAGA_STUCK", "CUT_STUCK"),
    "review": ("REVIEW_WANTED",),
    "escalation": ("ENTRY_ESCALATED",),
}
"""The kinds of notices, each with the events that cause it."""


def notice(store: Store, parcel: Parcel) -> dict[str, Any]:
    """A notice: what happened in words, and the next command."""
    facts = parcel.event.facts()
    kind, _, subject = parcel.event.stream.partition(":")
    about, name = _about(store, kind, subject)
    text = _text(name, subject, facts["event"], facts["detail"])
    plain = "".join(char if char.isprintable() else " " for char in text)
    why = facts["detail"].get("why")
    step = facts["detail"].get("step") or (why.get("step") if isinstance(why, Mapping) else None)
    also = {"step": step} if step else {}
    return {
        "text": plain,
        "event": facts["event"],
        **about,
        **also,
        "dedupe_key": parcel.dedupe_key.hex(),
    }


def _about(store: Store, kind: str, subject: str) -> tuple[dict[str, str], str]:
    """The ids of a notice's subject, and its name."""
    if kind == "entry":
        return {"entry_id": subject}, f"the change {subject}"
    if kind == "workspace":
        return {}, "the backlog of changes"
    with store.read() as rows:
        if kind == "saga":
            name = Runs(rows).get(subject).name
            return {"saga": name, "saga_id": subject}, name
        name = Builds(rows).get(subject).name
        return {"plan": name, "build_id": subject}, name


def _text(name: str, subject: str, event: str, detail: Mapping[str, Any]) -> str:
    if event == "REVIEW_WANTED":
        return (
            f"{detail.get('waiting')} change(s) wait for a review."
            " Next: onceward change list --status review_pending"
        )
    what = _what_happened(event, detail)
    stop = "" if what.endswith((".", "?", "!")) else "."
    return f"{name} {what}{stop} Next: onceward explain {subject}"


def _what_happened(event: str, detail: Mapping[str, Any]) -> str:
    step = detail.get("step", "")
    match event:
        case "BUILD_PAUSED":
            return f"is paused: {why_paused(detail)}"
        case "BUILD_FAILED":
            return f"failed at {step}" if step else "failed"
        case "APPROVAL_WANTED":
            return f"waits for a person at {step}: {detail.get('text', '')}"
        case "STEP_IN_DOUBT":
            return f"was cut off, and nobody can say whether {step} had its effect"
        case "SAGA_SETTLED":
            return f"stopped at {detail.get('to')}"
        case "SAGA_STUCK":
            why = detail.get("why", {}) if isinstance(detail.get("why"), Mapping) else {}
            reason = why.get("message") or why.get("last_line") or why.get("reason")
            return (
                f"is stuck at {detail.get('to')}: {why.get('step')} could not be undone ({reason})"
            )
        case "CUT_STUCK":
            return f"is stuck: {detail.get('why') or 'somebody else changed its files'}"
        case "ENTRY_ESCALATED":
            return f"failed its verification; {detail.get('escalation')} asks what to do"
    raise KeyError(event)


class CommandNotice:
    """Runs a command for each notice: the text in ONCEWARD_NOTICE, all of it as JSON on its
    standard input."""

    def __init__(self, name: str, argv: Sequence[str], folder: Path, store: Store) -> None:
        self.name, self._argv, self._folder, self._store = name, list(argv), folder, store
        self.deadline = Deadline(NOTICE_SECONDS, LEAVING_SECONDS)

    def send(self, parcel: Parcel) -> None:
        message = notice(self._store, parcel)
        env = {**os.environ, "ONCEWARD_NOTICE": message["text"]}
        with tempfile.TemporaryFile() as body:
            body.write(canonical(message) + b"\n")
            body.seek(0)
            try:
                process = subprocess.Popen(
                    self._argv,
                    stdin=body,
                    cwd=self._folder,
                    env=env,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError as error:
                raise NetworkError(f"the notify command cannot be run: {error.strerror}") from None
        self._wait(process)

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        """Until it has ended; a kernel that leaves does not wait for long."""
        started = time.monotonic()
        try:
            while process.poll() is None:
                if self.deadline.passed(started):
                    seconds = time.monotonic() - started
                    raise NetworkError(
                        f"the notify command took too long ({seconds:.0f} s) and was ended"
                    )
                time.sleep(0.02)
        finally:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if process.returncode != 0:
            raise NetworkError(f"the notify command ended with {process.returncode}")

    def settle(self) -> None:
        """Its end has already settled each."""


class WebhookNotice(WebhookSink):
    """POSTs each notice; `text` is where chat programs look."""

    content_type = "application/json"

    def __init__(self, name: str, url: str, secret: str | None, store: Store) -> None:
        super().__init__(name, url, secret, workspace_id="", sources=store.sources)
        self.deadline = Deadline(WEBHOOK_TIMEOUT_SECONDS, LEAVING_SECONDS)
        self._store = store

    def body(self, parcel: Parcel) -> bytes:
        return canonical(notice(self._store, parcel))
