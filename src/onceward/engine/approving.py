"""What a person's word on a step binds: all that flows into it, as text where it is text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from onceward.artifacts.blobs import Artifacts
from onceward.core.canon import canonical
from onceward.core.limits import LONG_LINE, WHOLE_DIFF_BYTES
from onceward.lifecycles.plan import step_name
from onceward.store.tables.approvals import Approval
from onceward.store.tables.checkpoints import Checkpoint

_TEXT: Final = 256 * 1024
_SHORT: Final = 8 * 1024
_FIRST: Final = 5


def to_approve(
    artifacts: Artifacts, build: Mapping[str, Any], *, whole: bool
) -> dict[str, list[dict[str, Any]]]:
    """By step that waits for a person: what flows into it, with its text; not `whole`, of the first few where they are
    short. What is `cut_off` has more to it than is shown."""
    found: dict[str, list[dict[str, Any]]] = {}
    for approval in build.get("approvals", ()):
        stage, _, target = approval["step"].partition(":")
        gathered = build["gathers"].get(stage, ())
        flowing = [
            {"step": step_name(step["stage"], step["target"]), **artifact}
            for need in build["flows_in"].get(stage, ())
            for step in build["steps"]
            if step["stage"] == need and (need in gathered or step["target"] == target)
            for artifact in step.get("artifacts", ())
        ]
        for number, one in enumerate(flowing):
            if whole or (number < _FIRST and one["size"] <= _SHORT):
                seen = shown(artifacts, one["sha256"], WHOLE_DIFF_BYTES if whole else _TEXT)
                one["text"], one["cut_off"] = seen["text"], seen["cut"]
                if not whole and any(
                    len(line) > LONG_LINE for line in (seen["text"] or "").split("\n")
                ):
                    one["cut_off"] = True
            else:
                one["cut_off"] = True
        found[approval["step"]] = flowing
    return found


def shown(artifacts: Artifacts, digest: str, limit: int = _TEXT) -> dict[str, Any]:
    """The beginning of an artifact, if it is text: bytes that are none are only told of."""
    whole, size = artifacts.found(digest)
    data = b""
    for piece in artifacts.read(whole):
        data += piece
        if len(data) > limit:
            break
    text: str | None = None
    if b"\0" not in data[:limit]:
        try:
            text = data[:limit].decode("utf-8")
        except UnicodeDecodeError as error:
            # A letter may be cut in two where we stopped.
            text = (
                data[: error.start].decode("utf-8")
                if size > limit and error.start > limit - 4
                else None
            )
    return {"sha256": whole, "size": size, "text": text, "cut": size > limit}


def decided(approval: Approval) -> Checkpoint:
    """The checkpoint of a step that a person approved or refused."""
    approved = approval.decision == "approved"
    why = f"refused by {approval.actor}{f': {approval.note}' if approval.note else ''}"
    error = canonical({"reason": "refused", "message": why}).decode()
    return Checkpoint(
        build_id=approval.build_id,
        stage=approval.stage,
        target=approval.target,
        context_hash=approval.digest,
        status="SUCCESS" if approved else "FAILED",
        how="approved",
        outputs="[]",
        cost=0,
        tokens=0,
        attempt=1,
        child_id=None,
        origin=None,
        error=None if approved else error,
    )
