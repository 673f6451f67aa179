"""From what was read to a page: templates that escape everything, and the few words they share."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from onceward.core.hidden import marked
from onceward.core.limits import LONG_LINE
from onceward.core.money import to_usd
from onceward.core.sources import LiveSources

HERE: Final = Path(__file__).parent
STATIC: Final = HERE / "static"
_clock: Final = LiveSources()
_TONES: Final = {
    "good": "SUCCESS REUSED SKIPPED done ok good sound alive verified_complete active kernel consumed applied approve",
    "busy": "ACTIVE running started leased cut_in_progress verify_in_progress",
    "wait": "BUDGET_PAUSE CRASHED IN_DOUBT marked review_pending reviewed_deferred reviewed_approved"
    " cut_applied draft undecided unfinished parked stuck unknown warn open next standby defer",
    "bad": "FAILED BLOCKED failed stopped dead reviewed_rejected reject revoked verify_failed_escalated fail refused",
}
TONE: Final = {word: tone for tone, words in _TONES.items() for word in words.split()}


def visible(text: Any) -> str:
    """Somebody's text with nothing hidden in it, and no line longer than a page can show."""
    return "\n".join(_short(line) for line in marked(str(text)).split("\n"))


def whole(text: Any) -> str:
    """The same with no line cut off."""
    return marked(str(text))


def _short(line: str) -> str:
    return (
        line
        if len(line) <= LONG_LINE
        else f"{line[:LONG_LINE]} … ({len(line) - LONG_LINE:,} more characters)"
    )


def tone(word: Any) -> str:
    """Whether a state is good, busy, waits or is bad: for its colour, beside its word."""
    return TONE.get(str(word), "calm")


def words(name: Any) -> str:
    return str(name).replace("_", " ").replace("-", " ").lower()


def short(ident: Any) -> str:
    """An id as people tell it apart: what kind it is, and its end."""
    text = str(ident)
    kind, _, rest = text.rpartition("_")
    if kind and len(rest) > 14:
        return f"{kind}_…{rest[-8:]}"
    return text if len(text) <= 20 else f"{text[:12]}…"


def moment(said: Any) -> str:
    return str(said)[:19].replace("T", " ") if said else ""


def ago(said: Any) -> str:
    """How long since, in a word or two."""
    if not said:
        return ""
    return lasting(_clock.now() / 1e6 - seconds_of(str(said)))


def seconds_of(said: str) -> float:
    """A moment or a day as it is written, in seconds since 1970."""
    then = datetime.fromisoformat(said.replace("Z", "+00:00"))
    return (then if then.tzinfo else then.replace(tzinfo=UTC)).timestamp()


def lasting(seconds: float) -> str:
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {name}"
    if seconds < 1:
        return f"{max(round(seconds * 1000), 0)} ms"
    return f"{seconds:.1f} s" if seconds < 10 else f"{int(seconds)} s"


def amount(lane: str, value: int | None) -> str:
    """So much of a lane, as people say it."""
    if value is None:
        return "no limit"
    return f"${to_usd(value)}" if lane == "usd_micros" else f"{value:,}"


def size(count: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} B"


def pretty(value: Any) -> str:
    return visible(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


@cache
def stamp() -> str:
    """What the pages' own files are, in a few letters: a new one is loaded anew."""
    made = hashlib.sha256()
    for path in sorted(STATIC.rglob("*")):
        if path.is_file():
            made.update(path.read_bytes())
    return made.hexdigest()[:12]


@cache
def environment() -> Environment:
    found = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    filters = (visible, whole, tone, words, short, moment, ago, lasting, size, pretty)
    found.filters |= {made.__name__: made for made in filters}
    found.globals |= {"stamp": stamp, "amount": amount}
    return found


def rendered(template: str, **said: Any) -> str:
    return environment().get_template(template).render(**said)
