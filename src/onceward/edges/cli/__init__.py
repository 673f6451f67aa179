"""The command line."""

from __future__ import annotations

import sys


def main() -> None:
    """The entry point: even an interrupt while Python still loads ends quietly."""
    try:
        from onceward.edges.cli.main import run

        status = run(sys.argv[1:])
    except KeyboardInterrupt:
        status = 130
    sys.exit(status)
