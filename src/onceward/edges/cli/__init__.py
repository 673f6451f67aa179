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
        from onceward.edges.cli.main import run

        status = run(sys.argv[1:])
    except KeyboardInterrupt:
        status = 130
    sys.exit(status)
