"""Which rules of the contract are proven by which tests, read from the tests' marks."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INDEX = ROOT / "docs" / "reference" / "rules.md"
CONTRACT = ROOT.parent / "shared" / "SPEC.md"
_RULE = re.compile(r"^- \*\*([A-Z]-\d+[a-z]?)\b", re.MULTILINE)
_LISTED = re.compile(r"^\| ([A-Z]-\d+[a-z]?) ", re.MULTILINE)

LATER = {"K-14": 12, "K-15": 13, "E-6": 18}
"""Rules that a later part of the plan builds, and which part it is."""


def all_rules() -> list[str]:
    """Every rule's id: from the contract where it is at hand, else from the index made from it."""
    if CONTRACT.exists():
        return list(dict.fromkeys(_RULE.findall(CONTRACT.read_text("utf-8"))))
    return _LISTED.findall(INDEX.read_text("utf-8")) if INDEX.exists() else []


def proven() -> dict[str, list[str]]:
    """Rule id to the tests that carry its mark."""
    found: dict[str, list[str]] = {}
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        tree = ast.parse(file.read_text("utf-8"))
        for node in tree.body:
            inner = node.body if isinstance(node, ast.ClassDef) else []
            for item in (node, *inner):
                for rule in _marks(item):
                    name = f"{file.relative_to(ROOT / 'tests')}::{getattr(item, 'name', '')}"
                    found.setdefault(rule, []).append(name)
    return found


def _marks(node: ast.stmt) -> list[str]:
    marks = []
    for decorator in getattr(node, "decorator_list", []):
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.rule":
            marks += [str(arg.value) for arg in decorator.args if isinstance(arg, ast.Constant)]
    return marks


def page() -> str:
    """`docs/reference/rules.md`."""
    tests = proven()
    lines = [
        "# Rules and the tests that prove them",
        "",
        "Made by `make docs` from the marks in the tests; `make rules` lists the rules without one.",
        "",
        "| rule | tests |",
        "|---|---|",
    ]
    for rule in all_rules():
        names = "<br>".join(f"`{name}`" for name in tests.get(rule, []))
        lines.append(f"| {rule} | {names} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    tests, rules = proven(), all_rules()
    unknown = sorted(set(tests) - set(rules))
    missing = [rule for rule in rules if rule not in tests]
    for rule in missing:
        print(f"{rule} (part {LATER[rule]})" if rule in LATER else rule)
    print(f"{len(rules) - len(missing)} of {len(rules)} rules have a test", file=sys.stderr)
    if unknown:
        sys.exit(f"tests name rules that are not in the contract: {', '.join(unknown)}")


if __name__ == "__main__":
    main()
