"""What the documents tell people to type is typed here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(page.read_text("utf-8")) if kind == language]


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=lambda p: p.name)
def test_python_in_the_documents_runs(page, tmp_path):
    for text in blocks(page, "python"):
        (tmp_path / "typed.py").write_text(text)
        subprocess.run([sys.executable, "typed.py"], cwd=tmp_path, check=True, timeout=60)


def shell(script: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    clean = {k: v for k, v in os.environ.items() if not k.startswith("ONCEWARD_")}
    return subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env={**clean, "PATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.rule("K-8", "I-1")
def test_the_readme_can_be_typed_in(tmp_path):
    typed = [text for text in blocks(ROOT / "README.md", "sh") if "make " not in text]
    script = "\n".join(typed).replace("/tmp/try", str(tmp_path / "try"))
    done = shell(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "exit 137" in done.stdout, "the process killed itself"
    assert done.stdout.count('"idempotent_replay": true') == 2
    assert "chains whole, states agree" in done.stdout
    before = shell(
        "ONCEWARD_FAULT=commit.before:2 onceward principals add zoe --role viewer --request-id z; echo exit $?\n"
        "onceward principals add zoe --role viewer --request-id z --json",
        tmp_path / "try",
    )
    assert "exit 137" in before.stdout
    assert "idempotent_replay" not in before.stdout


def test_the_backup_guide_can_be_typed_in(tmp_path, postgres_url):
    from conftest import schema_url

    script = "set -e\nonceward init\n" + "\n".join(blocks(ROOT / "docs" / "guides" / "back-up-and-move.md", "sh"))
    url = schema_url(postgres_url, "guide")
    done = shell(script.replace("postgresql://me@db.example/work?schema=catalogue", url), tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("verified") == 4


def test_links_between_documents_lead_somewhere():
    for page in [*PAGES, *ROOT.glob("*.md")]:
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8")):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_the_agent_guide_can_be_typed_in(tmp_path):
    script = "set -e\n" + "\n".join(blocks(ROOT / "docs" / "guides" / "run-an-agent.md", "sh"))
    done = shell(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "writing the patch" in done.stdout
    assert "usd           0.03 of 0.50" in done.stdout
    assert '"event":"WORKER_PASS"' in done.stdout
    assert "Nothing of it is running." in done.stdout


def test_the_first_costly_thing_of_the_readme_ends_as_told(tmp_path):
    (text,) = [block for block in blocks(ROOT / "README.md", "sh") if "onceward spawn" in block]
    done = shell(text.replace("/tmp/first", str(tmp_path / "first")), tmp_path)
    assert "exit 1" in done.stdout
    assert "never reached" not in done.stdout
    assert "budget_exceeded: tokens is at 700 of 1000" in done.stderr


@pytest.mark.rule("B-4", "B-9", "I-1")
def test_the_build_guide_can_be_typed_in(tmp_path):
    script = "\n".join(blocks(ROOT / "docs" / "guides" / "build-something.md", "sh"))
    done = shell(f"set -x\n{script}", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "4 steps: 4 reused" in done.stderr
    assert "exit 137" in done.stdout and "exit 3" in done.stdout
    assert done.stderr.count("SUCCESS") >= 4
