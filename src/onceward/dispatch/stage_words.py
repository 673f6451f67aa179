"""The words a plan is written in, from TOML or Python: each checked, each refusal saying what to write instead."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from onceward.core.canon import canonical_config
from onceward.core.steps import check_target_name
from onceward.core.vocabulary import key_of
from onceward.dispatch.budget import amounts
from onceward.dispatch.stage import Rate, Stage, check_stage_name
from onceward.errors import InvalidConfig

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_WINDOWS: Final = {
    "s": 1,
    "sec": 1,
    "second": 1,
    "m": 60,
    "min": 60,
    "minute": 60,
    "h": 3600,
    "hour": 3600,
    "day": 86_400,
}
_DURATION = re.compile(r"([0-9]{1,9})\s*([smhd])")
_RATE = re.compile(r"([0-9]{1,6})\s*/\s*([a-z]+)")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

PLAN_WORDS: Final = ("name", "budget", "config", "stage", "jobs", "reuse", "on_pause", "tree")
STAGE_WORDS: Final = (
    *(
        "name",
        "needs",
        "collect",
        "after",
        "targets",
        "run",
        "python",
        "approve",
        "inputs",
        "config",
        "target",
        "estimate",
        "timeout",
    ),
    *("attempts", "on_crash", "env", "secrets", "jobs", "rate", "version", "operation", "effect"),
)


def check_words(given: Mapping[str, Any], known: Sequence[str], what: str) -> None:
    """Refuse a word nobody knows, with the one that was probably meant."""
    for word in given:
        if word not in known:
            near = difflib.get_close_matches(str(word), known, 1)
            meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise refuse(str(word), f"{what} has no {str(word)[:60]!a}; {meant}")


def refuse(field: str, message: str) -> InvalidConfig:
    return InvalidConfig(message, context={"field": field})


def stage_of(words: Mapping[str, Any], call: Callable[[Any], Any] | None = None) -> Stage:
    """A stage from its words; `call` is its function, where it has one."""
    check_words(words, STAGE_WORDS, "a stage")
    kinds = [kind for kind in ("run", "python", "approve") if words.get(kind)]
    if len(kinds) + (call is not None and "python" not in kinds) != 1:
        raise refuse(
            kinds[1] if len(kinds) > 1 else "name",
            f"stage {words.get('name', '')!a} must have exactly one of run, python and approve"
            + (
                f", not {' and '.join(kinds)}"
                if kinds
                else ', as in run = ["sh", "work.sh", "{target}"]'
            ),
        )
    if "name" not in words:
        raise refuse("name", 'a stage has a name, as in name = "extract"')
    if words.get("env") and not words.get("run"):
        raise refuse("env", "env is for stages that run a command")
    if call is not None:
        require_one_argument(call)
    targets, glob = _targets(words.get("targets"))
    on_crash = words.get("on_crash", "rerun")
    if on_crash not in ("rerun", "ask"):
        raise refuse("on_crash", f'on_crash is "rerun" or "ask", not {on_crash!r}')
    return Stage(
        name=_named("name", check_stage_name, words.get("name")),
        needs=_words("needs", words.get("needs", ())),
        collect=_words("collect", words.get("collect", ())),
        after=_words("after", words.get("after", ())),
        targets=targets,
        glob=glob,
        run=_argv(words.get("run", ())),
        call=call,
        version=_text("version", words.get("version", "")),
        approve=_text("approve", words.get("approve", "")),
        inputs=_words("inputs", words.get("inputs", ())),
        config=config_of("config", words.get("config", {})),
        target_config=_target_config(words.get("target", {})),
        estimate=_lanes("estimate", words.get("estimate", {})),
        timeout=duration_of("timeout", words.get("timeout", "300s")),
        attempts=whole("attempts", words.get("attempts", 3), 1, 100),
        on_crash=on_crash,
        env=_variables("env", words.get("env", ())),
        secrets=_variables("secrets", words.get("secrets", ())),
        jobs=None if words.get("jobs") is None else whole("jobs", words["jobs"], 1, 1000),
        rate=None if words.get("rate") is None else _rate(words["rate"]),
        operation=_operation(words),
        effect=_text("effect", words.get("effect", "")),
    )


def require_one_argument(call: Callable[[Any], Any]) -> None:
    """A step's function is called with its task."""
    try:
        inspect.signature(call).bind(None)
    except TypeError:
        raise refuse(
            "name", f"{getattr(call, '__name__', 'the function')} must take one argument, the task"
        ) from None
    except ValueError:
        # What has no signature is found out when it is called.
        return


def limits_of(budget: object) -> dict[str, int]:
    """The limits of a budget, by lane."""
    return _lanes("budget", budget)


def config_of(field: str, value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise refuse(field, f"{field} is a table, as in {{ depth = 2 }}")
    try:
        canonical_config(dict(value))
    except InvalidConfig as error:
        path = str(error.context.get("path", "$")).removeprefix("$")
        raise refuse(
            f"{field}{path}", f"{field}{path}: {error.message.partition(': ')[2]}"
        ) from None
    # A copy of its own, down to the last table: whoever made the plan may go on with theirs.
    copy: dict[str, Any] = copied(dict(value))
    return copy


def copied(value: Any) -> Any:
    """A config of its own: tables and lists copied, numbers as they were."""
    if isinstance(value, Mapping):
        return {key: copied(item) for key, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list | tuple) else value


def whole(field: str, value: object, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise refuse(field, f"{field} is a whole number from {least} to {most}, not {value!r}")
    return value


def _named(field: str, check_name: Callable[[object], str], value: object) -> str:
    try:
        return check_name(value)
    except InvalidConfig as error:
        raise refuse(field, error.message) from None


def _words(field: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        raise refuse(field, f'{field} is a list, as in {field} = ["{value[:40]}"]')
    if not isinstance(value, list | tuple) or not all(
        isinstance(word, str) and word for word in value
    ):
        raise refuse(field, f'{field} is a list of words, as in {field} = ["a", "b"]')
    if len(set(value)) != len(value):
        raise refuse(field, f"{field} names something twice")
    return tuple(value)


def _argv(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        raise refuse(
            "run",
            f'run is a list of words, no shell line; write run = ["sh", "-c", {value[:60]!r}]',
        )
    if not isinstance(value, list | tuple) or not all(
        isinstance(w, str) and "\0" not in w for w in value
    ):
        raise refuse(
            "run", 'run is a list of words, as in run = ["python3", "extract.py", "{target}"]'
        )
    for name in re.findall(r"\{([A-Za-z_]+)\}", " ".join(value)):
        if name != "target" and difflib.get_close_matches(name, ["target"], 1, 0.7):
            raise refuse("run", f"there is no {{{name}}}; did you mean {{target}}?")
    if value and not value[0]:
        raise refuse("run", "the first word of run is the program; it is empty")
    return tuple(value)


def _targets(value: object) -> tuple[tuple[str, ...] | None, str]:
    if value is None:
        return None, ""
    if isinstance(value, Mapping):
        if set(value) != {"glob"} or not isinstance(value["glob"], str) or not value["glob"]:
            raise refuse("targets", 'targets is a list of names, or { glob = "docs/*.md" }')
        return None, value["glob"]
    names = _words("targets", value)
    if not names:
        raise refuse("targets", "targets is empty; name at least one, or leave targets out")
    return tuple(_named("targets", check_target_name, name) for name in names), ""


def _target_config(value: object) -> dict[str, dict[str, Any]]:
    if not isinstance(value, Mapping):
        raise refuse(
            "target",
            "target is config for single targets, a table as in [stage.target.a]; did you mean targets?",
        )
    return {str(name): config_of(f"target.{name}", own) for name, own in value.items()}


def _lanes(field: str, value: object) -> dict[str, int]:
    if not isinstance(value, Mapping):
        raise refuse(
            field, f'{field} is a table of lanes, as in {{ usd = "5.00", tokens = 200000 }}'
        )
    found: dict[str, int] = {}
    for lane, amount in value.items():
        try:
            found |= amounts({lane: amount})
        except InvalidConfig as error:
            raise refuse(f"{field}.{lane}", f"{field}: {error.message}") from None
    return found


def _text(field: str, value: object) -> str:
    if not isinstance(value, str) or len(value) > 2000:
        raise refuse(field, f"{field} is a text of at most 2000 characters")
    return value


def _operation(words: Mapping[str, Any]) -> str:
    """A registered operation, always with its version."""
    said = _text("operation", words.get("operation", ""))
    if words.get("effect") and not said:
        raise refuse("effect", "effect says what the operation must be for; name the operation too")
    return str(key_of(said)) if said else ""


def duration_of(field: str, value: object) -> float:
    """Seconds, from a whole number of them or a time such as 5m."""
    found = _DURATION.fullmatch(value) if isinstance(value, str) else None
    seconds = int(found[1]) * _UNITS[found[2]] if found else value
    if type(seconds) is not int or not 1 <= seconds <= 30 * 86_400:
        raise refuse(
            field, f'{field} is a time such as "90s", "5m" or "2h", at most 30 days, not {value!r}'
        )
    return float(seconds)


def _rate(value: object) -> Rate:
    found = _RATE.fullmatch(value) if isinstance(value, str) else None
    if found is None or found[2] not in _WINDOWS or not 1 <= int(found[1]) <= 100_000:
        raise refuse(
            "rate",
            f'rate is a number of starts in a time, as in "10/min", "2/s" or "500/hour", not {value!r}',
        )
    return Rate(int(found[1]), _WINDOWS[found[2]])


def _variables(field: str, value: object) -> tuple[str, ...]:
    names = _words(field, value)
    for name in names:
        if not _VARIABLE.fullmatch(name) or name.startswith("ONCEWARD_"):
            raise refuse(
                field,
                f"{name[:60]!a} is no name of an environment variable that could be passed on",
            )
    return names
