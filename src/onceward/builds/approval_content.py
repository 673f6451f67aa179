"""What a person's word on a step binds: all that flows into it, as text where it is text."""

from __future__ import annotations

from typing import Final

import msgspec

from onceward.artifacts.blobs import Artifacts
from onceward.builds.views import BuildView, OutputView
from onceward.core.limits import LONG_LINE, WHOLE_DIFF_BYTES
from onceward.core.views import View

_TEXT: Final = 256 * 1024
_SHORT: Final = 8 * 1024
_FIRST: Final = 5


class Flowing(View, frozen=True):
    """An artifact that flows into a step which waits for a person."""

    step: str
    name: str
    kind: str
    sha256: str
    size: int
    cut_off: bool
    """Whether there is more to it than `text` shows."""
    text: str | None = None
    """Its contents, where they are text and were read."""
    looked_at: bool = True


class Content(View, frozen=True):
    """The beginning of an artifact; its text is None where it is none."""

    sha256: str
    size: int
    text: str | None
    cut: bool


def to_approve(artifacts: Artifacts, build: BuildView, *, whole: bool) -> dict[str, list[Flowing]]:
    """By step that waits for a person: what flows into it, with its text; not `whole`, of the first few where they are
    short."""
    found: dict[str, list[Flowing]] = {}
    for approval in build.approvals:
        stage, _, target = approval.step.partition(":")
        gathered = build.gathers.get(stage, ())
        flowing = [
            (step.name, output)
            for need in build.flows_in.get(stage, ())
            for step in build.steps
            if step.stage == need and (need in gathered or step.target == target)
            for output in step.outputs()
        ]
        found[approval.step] = [
            _flowing(artifacts, step, output, whole=whole, first=number < _FIRST)
            for number, (step, output) in enumerate(flowing)
        ]
    return found


def _flowing(
    artifacts: Artifacts, step: str, output: OutputView, *, whole: bool, first: bool
) -> Flowing:
    found = Flowing(
        step=step,
        name=output.name,
        kind=output.kind,
        sha256=output.sha256,
        size=output.size,
        cut_off=True,
        looked_at=False,
    )
    if not (whole or (first and output.size <= _SHORT)):
        return found
    seen = shown(artifacts, output.sha256, WHOLE_DIFF_BYTES if whole else _TEXT)
    lines = (seen.text or "").split("\n")
    long = not whole and any(len(line) > LONG_LINE for line in lines)
    return msgspec.structs.replace(found, text=seen.text, cut_off=seen.cut or long, looked_at=True)


def shown(artifacts: Artifacts, digest: str, limit: int = _TEXT) -> Content:
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
    return Content(sha256=whole, size=size, text=text, cut=size > limit)
