"""Values and errors as text for people, whatever they are."""

from __future__ import annotations

LONGEST_NOTE = 10_000


def text_of(value: object, longest: int = LONGEST_NOTE) -> str:
    """Something to be shown to people, as plain text of a bounded length, whatever it is."""
    if value is None:
        return ""
    try:
        text = str.__str__(value) if isinstance(value, str) else str(value)
        return text[:longest].encode("utf-8", "replace").decode()
    except Exception:
        return f"a {type(value).__name__} that cannot be shown"


def described(error: BaseException) -> str:
    """An error in a line, whatever it does when asked for its text."""
    try:
        text = str(error)
    except Exception:
        text = "(it has no text)"
    return f"{type(error).__name__}: {text[:1000]}"
