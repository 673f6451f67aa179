"""What is different between two plans, for one who asks why: in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from onceward.builds.plan import BESIDE, merge
from onceward.core.steps import fill

CODE_CHANGED: Final = "its code changed"


def changes(before: str, after: str) -> list[str]:
    """What is different about a plan, in words."""
    old, new = msgspec.json.decode(before), msgspec.json.decode(after)
    said = ["name changed"] if old["name"] != new["name"] else []
    said += _value_changes("config", old["config"], new["config"])
    olds, news = ({stage["name"]: stage for stage in plan["stages"]} for plan in (old, new))
    said += [f"stage {name} is gone" for name in olds if name not in news]
    said += [f"stage {name} is new" for name in news if name not in olds]
    for name in news:
        if name in olds:
            said += _stage_changes(name, olds[name], news[name])
    return said or (["the stages stand in another order"] if list(olds) != list(news) else [])


def _stage_changes(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    words = {"work": "what it runs"}
    apart = ("inputs", "config", "target_config", *BESIDE)
    plain = [what for what in new if what not in apart]
    was = {**old, "work": _without_code(old["work"])}
    is_ = {**new, "work": _without_code(new["work"])}
    said = [
        f"stage {name}: {words.get(what, what)} changed"
        for what in plain
        if was.get(what) != is_.get(what)
    ]
    for what in ("config", "target_config"):
        said += [f"stage {name}: {told}" for told in _value_changes(what, old[what], new[what])]
    files = _file_changes(dict(old["inputs"]), dict(new["inputs"]))
    said += [f"stage {name}: {file}" for file in files]
    return said


def _without_code(work: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is done, but for the version of a function: a change of code is told apart from one of the plan (B-11)."""
    return {**work, "function": ""} if "function" in work else work


def environment_changes(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """What is different between two environments, package by package."""
    old, new = (dict(line.split(" ", 1) for line in lines) for lines in (before, after))
    said = []
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            said.append(f"{name} {old.get(name, 'not used')} -> {new.get(name, 'not used')}")
    return said


def of_another_algorithm(one: str, other: str) -> bool:
    """Whether two versions of code were made in different ways, so that they say nothing about each other."""
    return one.rpartition(":")[0] != other.rpartition(":")[0]


class Body:
    """A plan as it was kept, to be asked about its steps."""

    def __init__(self, text: str | None) -> None:
        said = msgspec.json.decode(text) if text else {"stages": [], "config": {}}
        self.config: Mapping[str, Any] = said["config"]
        self.stages: dict[str, Mapping[str, Any]] = {
            stage["name"]: stage for stage in said["stages"]
        }

    def needs(self, stage: str, target: str) -> dict[str, Sequence[str]]:
        """What flows into a step: of each needed stage the same-named target, of each collected one all."""
        found = self.stages.get(stage)
        if found is None:
            return {}
        collected = {name: self.stages[name]["targets"] for name in found.get("collect", ())}
        return {**{need: [target] for need in found["needs"]}, **collected}


def step_changes(old: Body, new: Body, stage: str, target: str) -> list[str]:
    """What is different about one step, between two plans: all that flows into it but what other steps made."""
    was, is_ = old.stages.get(stage), new.stages.get(stage)
    if was is None or is_ is None:
        return [f"stage {stage} is {'new' if was is None else 'gone'}"]
    said = _work_changes(was["work"], is_["work"], target)
    before, after = (
        merge(b.config, s["config"], s["target_config"].get(target, {}))
        for b, s in ((old, was), (new, is_))
    )
    said += _value_changes("config", before, after)
    own = was.get("inputs_of") or is_.get("inputs_of")
    return said + _file_changes(_inputs(was, target, own), _inputs(is_, target, own))


def _work_changes(old: Mapping[str, Any], new: Mapping[str, Any], target: str) -> list[str]:
    if old == new:
        return []
    if "run" in old and "run" in new and old["run"] != new["run"]:
        was, now = (" ".join(fill(word, target) for word in work["run"]) for work in (old, new))
        return [f"its command changed: {_short(was)} -> {_short(now)}"]
    if old.get("operation") != new.get("operation"):
        return [
            f"its operation changed: {old.get('operation', 'none')} -> {new.get('operation', 'none')}"
        ]
    if "function" in old and "function" in new:
        if of_another_algorithm(old["function"], new["function"]):
            return ["since then Onceward makes versions of code in another way"]
        return [CODE_CHANGED]
    return [
        "what is done changed"
        if old.get("version") == new.get("version")
        else "its version changed"
    ]


def _value_changes(path: str, old: Any, new: Any) -> list[str]:
    if old == new:
        return []
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return [f"{path}: {_told(old)} -> {_told(new)}"]
    said = []
    for key in sorted({*old, *new}):
        here = f"{path}.{key}"
        if key not in old or key not in new:
            said.append(
                f"{here} is {'new' if key in new else 'gone'}: {_told((new if key in new else old)[key])}"
            )
        else:
            said += _value_changes(here, old[key], new[key])
    return said


def _told(value: Any) -> str:
    return _short(msgspec.json.encode(value).decode())


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


def _inputs(stage: Mapping[str, Any], target: str, known: Any) -> dict[str, str]:
    """The input files of one step: those of its stage, unless its steps have files of their own. A plan that was kept
    before that was noted is read as the other one is."""
    files = dict(stage["inputs"])
    own = stage.get("inputs_of", known)
    if own is None:
        return files
    names = [target] if own == "target" else own.get(target, ())
    return {name: files[name] for name in names if name in files}


def _file_changes(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    changes = []
    for file in sorted({*old, *new}):
        if file not in new:
            changes.append(f"input {file} is gone")
        elif file not in old:
            changes.append(f"input {file} is new")
        elif old[file] != new[file]:
            changes.append(f"input {file} changed")
    return changes
