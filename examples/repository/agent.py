"""A pretend coding agent: reads a repository, says what it spends, and leaves the files it wants changed.

It never touches the repository itself: what it leaves in ONCEWARD_OUT is a proposal, and no more."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from onceward import child


def main() -> None:
    repo, out = Path("repo"), Path(os.environ["ONCEWARD_OUT"])
    source = (repo / "prices.py").read_text()
    child.spend(usd="0.03", tokens=1800)
    print("agent: total() forgets how many, discount() divides by ten", file=sys.stderr)
    source = source.replace(
        "sum(price for price, _ in items)", "sum(price * count for price, count in items)"
    )
    if "--careless" not in sys.argv:
        source = source.replace("percent // 10", "percent // 100")
    child.spend(usd="0.01", tokens=400)
    (out / "prices.py").write_text(source)


if __name__ == "__main__":
    main()
