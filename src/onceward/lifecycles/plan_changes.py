"""What is different between two plans, for one who asks why: in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from onceward.lifecycles.plan import fill, merge


def changes(before: str, after: str) -> list[str]:
    """What is different about a plan, in words."""
    old, new = msgspec.json.decode(before), msgspec.json.decode(after)
    said = [f"{what} changed" for what in ("name", "config") if old[what] != new[what]]
    olds, news = ({stage["name"]: stage for stage in plan["stages"]} for plan in (old, new))
    said += [f"stage {name} is gone" for name in olds if name not in news]
    said += [f"stage {name} is new" for name in news if name not in olds]
    for name in news:
        if name in olds and olds[name] != news[name]:
            said += _stage_changes(name, olds[name], news[name])
    return said or (["the stages stand in another order"] if old != new else [])


def _stage_changes(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    words = {"work": "what it runs", "target_config": "a target's config"}
    plain = [what for what in new if what not in ("inputs", "inputs_of")]
    said = [f"stage {name}: {words.get(what, what)} changed" for what in plain if old[what] != new[what]]
    files = _file_changes(dict(old["inputs"]), dict(new["inputs"]))
    said += [f"stage {name}: {file}" for file in files]
    return said or [f"stage {name}: which step has which input changed"]


def step_changes(old: Mapping[str, Any], new: Mapping[str, Any], stage: str, target: str) -> list[str]:
    """What is different about one step, between two plans' bodies: all that flows into it but what other steps made."""
    was, is_ = _stage_in(old, stage), _stage_in(new, stage)
    if was is None or is_ is None:
        return [f"stage {stage} is {'new' if was is None else 'gone'}"]
    said = _work_changes(was["work"], is_["work"], target)
    before, after = _config(old, was, target), _config(new, is_, target)
    said += _value_changes("config", before, after)
    return said + _file_changes(_inputs(was, target), _inputs(is_, target))


def _stage_in(body: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    return next((stage for stage in body["stages"] if stage["name"] == name), None)


def _work_changes(old: Mapping[str, Any], new: Mapping[str, Any], target: str) -> list[str]:
    if old == new:
        return []
    if "run" in old and "run" in new and old["run"] != new["run"]:
        was, now = (" ".join(fill(word, target) for word in work["run"]) for work in (old, new))
        return [f"its command changed: {_short(was)} -> {_short(now)}"]
    if "function" in old and "function" in new:
        return ["its code changed"]
    return ["what is done changed" if old.get("version") == new.get("version") else "its version changed"]


def _config(body: Mapping[str, Any], stage: Mapping[str, Any], target: str) -> dict[str, Any]:
    return merge(body["config"], stage["config"], stage["target_config"].get(target, {}))


def _value_changes(path: str, old: Any, new: Any) -> list[str]:
    if old == new:
        return []
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return [f"{path}: {_told(old)} -> {_told(new)}"]
    said = []
    for key in sorted({*old, *new}):
        here = f"{path}.{key}"
        if key not in old or key not in new:
            said.append(f"{here} is {'new' if key in new else 'gone'}: {_told((new if key in new else old)[key])}")
        else:
            said += _value_changes(here, old[key], new[key])
    return said


def _told(value: Any) -> str:
    return _short(msgspec.json.encode(value).decode())


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


def _inputs(stage: Mapping[str, Any], target: str) -> dict[str, str]:
    """The input files of one step: those of its stage, unless its steps have files of their own."""
    files = dict(stage["inputs"])
    own = stage.get("inputs_of")
    if own is None:
        return files
    names = [target] if own == "target" else own.get(target, ())
    return {name: files[name] for name in names if name in files}


def _file_changes(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    said = []
    for file in sorted({*old, *new}):
        if old.get(file) != new.get(file):
            said.append(f"input {file} {'is gone' if file not in new else 'is new' if file not in old else 'changed'}")
    return said
