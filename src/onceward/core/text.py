"""Values and errors as text for people, whatever they are."""

from __future__ import annotations

import traceback

LONGEST_NOTE = 10_000
_LONGEST_TRACEBACK = 200_000


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


def place_of(error: BaseException) -> str:
    """The last place an error came through, as a person looks for it: file, line and function."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    code = trace.tb_frame.f_code
    return f" ({code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}, in {code.co_name})"


def traceback_of(error: BaseException) -> str:
    """An error with the way it came, whatever it does when asked for its text."""
    try:
        text = "".join(traceback.format_exception(error))
    except Exception:
        text = described(error)
    return text[:_LONGEST_TRACEBACK]
