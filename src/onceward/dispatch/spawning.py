"""Commands to run as children of a session, from what somebody asked for (C-9)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from onceward.artifacts.redaction import check_secret
from onceward.core.orders import seconds_of
from onceward.core.vocabulary import key_of
from onceward.dispatch import rules
from onceward.dispatch.acts import Spawn
from onceward.dispatch.work import Command
from onceward.locks.claims import check_target

USUAL: Final = (
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TERM",
    "COLORTERM",
    "NO_COLOR",
    "XDG_CONFIG_HOME",
    "VIRTUAL_ENV",
)
"""What a command started by hand expects to find; nothing secret is among them by habit."""


def commands_of(
    order: Spawn, folder: Path, brought: Mapping[str, str] | None = None
) -> list[Command]:
    """One command a value, or one; refused where it could not be run as asked. `brought` are the variables of who
    asked, where that is not this process: nobody's command sees another's variable of the same name."""
    rules.require_program(order.argv)
    rules.require_place_for_values(order.argv, order.each)
    variables: Mapping[str, str] = os.environ if brought is None else brought
    asked = (*order.env, *order.secrets)
    rules.require_variables(asked, variables.keys(), of_server=brought is not None)
    for name in order.secrets:
        check_secret(name, variables[name])
    values: tuple[str | None, ...] = order.each or (None,)
    rules.require_targets_apart(order.target, len(values))
    return [
        Command(
            argv=[_filled(word, value) for word in order.argv],
            cwd=folder,
            target=None if order.target is None else check_target(_filled(order.target, value)),
            timeout=seconds_of(order.timeout, "timeout"),
            attempts=order.attempts,
            env=(*USUAL, *(order.env if brought is None else ())),
            given={} if brought is None else {name: brought[name] for name in order.env},
            secrets=order.secrets,
            secret_values=None
            if brought is None
            else {name: brought[name] for name in order.secrets},
            operation=str(key_of(order.operation)) if order.operation else "",
            effect=order.effect,
        )
        for value in values
    ]


def _filled(word: str, value: str | None) -> str:
    return word if value is None else word.replace("{}", value)
