"""The command line."""

from __future__ import annotations

import os
import sys


def _require_streams() -> None:
    """A file that we open must never become standard output: what is closed is opened onto nothing."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free: the one that was closed.
            opened = os.open(os.devnull, os.O_RDWR)
            assert opened == number
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def main() -> None:
    """The entry point: even an interrupt while Python still loads ends quietly."""
    _require_streams()
    try:
        from onceward.ui.cli.main import run

        status = run(sys.argv[1:])
    except KeyboardInterrupt:
        status = 130
    _let_go()
    sys.exit(status)


def _let_go() -> None:
    """What nobody reads any more must not change how we end: Python would try once more, and complain."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            stream.flush()
        except (OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
