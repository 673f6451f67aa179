"""Which display of a build fits where its output goes."""

from __future__ import annotations

import os
import sys

from onceward.ui.cli.build_display import BuildDisplay, JsonDisplay


def build_display(as_json: bool) -> BuildDisplay:
    """A live picture on a terminal, plain lines elsewhere, JSON lines where they are asked for."""
    if as_json:
        return JsonDisplay()
    if sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        # Only a terminal waits for rich to load.
        from onceward.ui.cli.live import LiveDisplay

        return LiveDisplay()
    return BuildDisplay()
