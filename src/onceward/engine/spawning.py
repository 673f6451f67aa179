"""Commands to run as children of a session, from what somebody asked for (C-9)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from onceward.engine.redaction import check_secret
from onceward.engine.work import Command
from onceward.engine.work_orders import Spawn
from onceward.errors import InvalidConfig
from onceward.kernel.vocabulary import key_of
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


def commands_of(order: Spawn, folder: Path) -> list[Command]:
    """One command a value, or one; refused where it could not be run as asked."""
    if not order.argv or not order.argv[0]:
        raise InvalidConfig("a command has a program", context={"field": "argv"})
    if order.each and not any("{}" in word for word in order.argv):
        raise InvalidConfig(
            "--each puts its values in for {}, and the command has none",
            context={"field": "--each"},
        )
    for name in (*order.env, *order.secrets):
        if name not in os.environ:
            raise InvalidConfig(
                f"{name[:60]!a} is not set, so it cannot be passed on", context={"field": "--env"}
            )
    for name in order.secrets:
        check_secret(name, os.environ[name])
    values: tuple[str | None, ...] = order.each or (None,)
    if order.target is not None and len(values) > 1 and "{}" not in order.target:
        raise InvalidConfig(
            "one target cannot be held by several; put {} into its name",
            context={"field": "--target"},
        )
    return [
        Command(
            argv=[_filled(word, value) for word in order.argv],
            cwd=folder,
            target=None if order.target is None else check_target(_filled(order.target, value)),
            timeout=order.timeout,
            attempts=order.attempts,
            env=(*USUAL, *order.env),
            secrets=order.secrets,
            operation=str(key_of(order.operation)) if order.operation else "",
            effect=order.effect,
        )
        for value in values
    ]


def _filled(word: str, value: str | None) -> str:
    return word if value is None else word.replace("{}", value)
