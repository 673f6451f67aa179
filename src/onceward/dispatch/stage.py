"""A kind of work, as a plan or a saga declares it: what runs, with what, for how long, how often (B-2)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from onceward.core.limits import CHILD_TIMEOUT_SECONDS
from onceward.errors import InvalidConfig

_STAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

_NOTHING: Mapping[str, Any] = {}


class Rate(msgspec.Struct, frozen=True):
    """At most `count` starts within any `seconds`."""

    count: int
    seconds: int


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of work, as a plan says it. Exactly one of `run`, `call`, and `approve` is there."""

    name: str
    needs: tuple[str, ...] = ()
    """Stages whose same-named target each step depends on, and whose value it gets."""
    collect: tuple[str, ...] = ()
    """Stages all of whose targets each step depends on; it gets a mapping by target."""
    after: tuple[str, ...] = ()
    """Stages that must be done before, and that pass nothing on."""
    targets: tuple[str, ...] | None = None
    glob: str = ""
    """Targets are the files that match, each an input of its own step."""
    run: tuple[str, ...] = ()
    call: Callable[[Any], Any] | None = None
    version: str = ""
    """Of the function: a digest of its code and what it reaches, or what somebody said instead."""
    environment: tuple[str, ...] = ()
    """Python and the other packages that the function imports, each with its version."""
    environment_hash: str = ""
    unfollowed: tuple[str, ...] = ()
    """What the function reaches and could change without being noticed, in words."""
    approve: str = ""
    inputs: tuple[str, ...] = ()
    config: Mapping[str, Any] = _NOTHING
    target_config: Mapping[str, Mapping[str, Any]] = _NOTHING
    estimate: Mapping[str, int] = _NOTHING
    timeout: float = CHILD_TIMEOUT_SECONDS
    attempts: int = 3
    on_crash: str = "rerun"
    env: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    jobs: int | None = None
    rate: Rate | None = None
    operation: str = ""
    """The registered operation that it is, as code@version."""
    effect: str = ""
    """The kind of act that it is; the operation must be for it."""

    @property
    def dependencies(self) -> tuple[str, ...]:
        """Every stage that must come before."""
        return (*self.needs, *self.collect, *self.after)

    @property
    def code_version(self) -> str | None:
        """The version of its function; None if it has none."""
        return self.version if self.call is not None else None

    def work(self) -> dict[str, Any]:
        """What is done, as far as it decides what comes out."""
        named = {"operation": self.operation} if self.operation else {}
        if self.run:
            return {
                "run": list(self.run),
                **({"version": self.version} if self.version else {}),
                **named,
            }
        return {"approve": self.approve} if self.approve else {"function": self.version, **named}


def check_stage_name(name: object) -> str:
    if not isinstance(name, str) or not _STAGE.fullmatch(name) or ".." in name:
        raise InvalidConfig(
            f"{str(name)[:60]!a} is no name for a stage: 1 to 64 letters, digits, . _ or -, no sign first",
            context={"field": "name"},
        )
    return name
