"""A pretend model: offline, always the same answer to the same question, and it keeps a bill of its own.

The bill stands for what a provider charges: every call that reaches it, whether anybody is left to hear the answer or
not, also if the same question comes again. Each line names the key that the caller gave, so that calls made twice can be counted.
"""

import fcntl
import json
import time
from pathlib import Path

BILL = Path(__file__).with_name("bill.ndjson")
SECONDS = 0.5
MICROS_A_TOKEN = 100


def ask(task: str, text: str, key: str) -> tuple[str, int, str]:
    """The answer, its tokens, and what it cost in dollars."""
    words = text.split()
    answer = _outline(text) if task == "outline" else _summary(text)
    tokens = len(words) + len(answer.split())
    usd = f"{tokens * MICROS_A_TOKEN / 1_000_000:.4f}"
    _charge(key, task, usd)
    time.sleep(SECONDS)
    return answer, tokens, usd


def _outline(text: str) -> str:
    """The first sentence of every paragraph."""
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n") if not part.startswith("#")]
    return "\n".join(f"- {part.split('. ')[0].rstrip('.')}." for part in paragraphs if part)


def _summary(outline: str) -> str:
    """The first and the last line of an outline."""
    lines = [line.removeprefix("- ") for line in outline.splitlines()]
    return " ".join(dict.fromkeys((lines[0], lines[-1])))


def _charge(key: str, task: str, usd: str) -> None:
    with BILL.open("a") as bill:
        fcntl.flock(bill, fcntl.LOCK_EX)
        bill.write(json.dumps({"key": key, "task": task, "usd": usd}) + "\n")
