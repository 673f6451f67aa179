"""The habits of this repository, checked."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tempfile
import tomllib
from itertools import chain
from pathlib import Path

import pytest
import reference
import rules

from onceward.store.schema import LIFECYCLES

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
SLICES = ("builds", "changes", "dispatch", "grants", "people", "registry", "sagas")
PURE_FILES = {
    *("machine.py", "rules.py", "budget.py", "choices.py", "duties.py", "manifest.py"),
    *("permits.py", "plan.py", "plan_changes.py", "rollback.py", "stage.py", "stage_words.py"),
}
"""Decisions of a slice, wherever it stands: functions of values."""
PURE = [
    f
    for f in SOURCES
    if (f.parent.name == "core" and f.name not in ("sources.py", "faults.py", "durable.py"))
    or (f.parent.name in SLICES and f.name in PURE_FILES)
]


def names_of(file: Path) -> set[str]:
    """Every dotted name a file imports or calls."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Attribute) or (
            isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        ):
            found.add(ast.unparse(node))
    return found


def imports_of(file: Path) -> set[str]:
    """The packages that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def test_an_install_brings_exactly_what_is_imported():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    required = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    declared = {re.split(r"[\[<>=~! ]", line)[0].replace("-", "_") for line in required}
    # The supervisor runs outside the package and imports its neighbours by their bare names.
    ours = {"onceward", *(file.stem for file in SOURCES)}
    imported = set().union(*map(imports_of, SOURCES)) - sys.stdlib_module_names - ours
    assert declared == imported


@pytest.mark.rule("K-2")
@pytest.mark.parametrize("file", PURE, ids=lambda f: f"{f.parent.name}-{f.name}")
def test_pure_rooms_do_no_input_read_no_clock_and_draw_no_randomness(file):
    banned = {
        "os",
        "time",
        "random",
        "secrets",
        "socket",
        "subprocess",
        "threading",
        "pathlib",
        "datetime",
        "uuid",
    }
    found = {name.split(".")[0] for name in names_of(file)}
    assert not banned & found
    assert "open" not in found


@pytest.mark.rule("K-2")
@pytest.mark.parametrize("file", SOURCES, ids=lambda f: f"{f.parent.name}-{f.name}")
def test_wall_time_and_randomness_come_in_through_one_door(file):
    allowed = {"sources.py", "doctor.py"}
    banned = {
        "time.time",
        "time.time_ns",
        "datetime.now",
        "random.random",
        "uuid.uuid4",
        "os.urandom",
    }
    if file.name not in allowed and file.parent.name != "cli":
        assert not banned & names_of(file)
        assert not re.search(
            r"^\s*(import|from) (random|secrets)\b", file.read_text("utf-8"), re.MULTILINE
        )


@pytest.mark.guarantee("G25")
@pytest.mark.parametrize("file", SOURCES, ids=lambda f: f"{f.parent.name}-{f.name}")
def test_stored_data_is_never_code(file):
    banned = {"pickle", "marshal", "shelve", "eval", "exec", "yaml", "executescript", "compile"}
    assert not banned & {name.split(".")[-1] for name in names_of(file)} - {"compile"}
    assert not banned - {"compile"} & {name.split(".")[0] for name in names_of(file)}


@pytest.mark.rule("K-4")
def test_only_move_writes_a_state_column():
    states = {table.name: table.lifecycle.state for table in LIFECYCLES.values()}
    written = re.compile(r"(UPDATE|INSERT INTO)\s+(\w+|\{\})(.*)", re.IGNORECASE | re.DOTALL)
    computed = set()
    for function, text in sql_of_functions():
        for verb, table, rest in written.findall(text):
            if table == "{}":
                computed.add(function)
            elif table in states:
                assert verb.upper() == "UPDATE", f"{function} inserts into {table}"
                changed = rest.split("WHERE")[0]
                assert not re.search(rf"\b{states[table]}\s*=", changed), f"{function}: {text}"
    assert computed == {
        "_insert_sql",  # what `move` writes
        "_update_sql",
        "insert_sql",  # refused for tables with a lifecycle
        "consume",  # confirmation tokens
        "copy_rows",  # a whole store into another
        "load",  # what a fixture of the gate begins with
    }


def test_a_table_with_a_lifecycle_takes_no_plain_insert():
    for table in LIFECYCLES.values():
        with pytest.raises(ValueError, match="only by a move"):
            _ = table.insert_sql


def sql_of_functions():
    """Every piece of text in a function, with what is put into it as `{}`."""
    for file in SOURCES:
        for function in ast.walk(ast.parse(file.read_text("utf-8"))):
            if not isinstance(function, ast.FunctionDef):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.JoinedStr):
                    parts = (v.value if isinstance(v, ast.Constant) else "{}" for v in node.values)
                    yield function.name, "".join(map(str, parts))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield function.name, node.value


def test_generated_pages_are_fresh():
    for name, make in reference.PAGES.items():
        page = ROOT / "docs" / "reference" / name
        assert page.read_text("utf-8") == make(), f"{name} is stale: run make docs"


def test_marks_name_rules_of_the_contract():
    assert not set(rules.proven()) - set(rules.all_rules())


def test_nothing_of_this_machine_is_in_the_repository():
    files = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    assert "uv.lock" not in files
    # A clone in /tmp is no reason to miss /tmp in the README: only our own folder is of this machine.
    here = ROOT if ROOT.parent == Path(tempfile.gettempdir()) else ROOT.parent
    for name in filter(None, files):
        path = ROOT / name
        if path.exists() and path.suffix not in (".png", ".svg", ".xz"):
            text = path.read_text("utf-8")
            assert f"{here}/" not in text, name


def test_the_version_is_said_once():
    from onceward import __version__

    assert f'version = "{__version__}"' in (ROOT / "pyproject.toml").read_text("utf-8")
