"""What a reviewer is shown is all there is: hidden characters, long lines, large files; on the page and on a terminal."""

from __future__ import annotations

import json

import pytest

from core.test_hidden import FORTY
from onceward.core.hidden import marked
from server.browsing import Tab
from typing_in import until

pytestmark = pytest.mark.parametrize("scene", ["sqlite"], indirect=True)

ASKS = """
name = "asks"
[[stage]]
name = "draft"
run = ["sh", "-c", "cp draft.txt $ONCEWARD_OUT/letter.txt"]
[[stage]]
name = "look"
needs = ["draft"]
approve = "Send it?"
"""


def proposed(running, files):
    """A change that makes these files, swept so that it can be reviewed."""
    home = running.cli.folder
    tree, wanted = home / "repo", home / "wanted"
    for folder in (tree, wanted):
        folder.mkdir(exist_ok=True)
        (folder / "kept.txt").write_text("kept\n")
    for name, text in files.items():
        (wanted / name).write_text(text)
    said = running.cli(
        *("change", "mark", "--tree", "wanted", "--into", "repo", "--reason", "look", "--json"),
        check=0,
    )
    running.cli("change", "sweep", check=0)
    return json.loads(said.stdout)["entry_id"]


@pytest.fixture
def reviewer(browser, running):
    found = Tab(browser, running).sign_in_as("rob")
    yield found
    found.close()


def hidden_lines():
    return [f"line {number} pay{char}load" for number, char in enumerate(FORTY)]


@pytest.mark.rule("H-4", "I-4")
@pytest.mark.guarantee("G23")
@pytest.mark.parametrize("view", ["split", "unified"])
def test_forty_hidden_characters_are_all_visible_in_a_browser(reviewer, running, view):
    lines = [line for line in hidden_lines() if "\r" not in line and "\u2028" not in line]
    entry = proposed(running, {"x.txt": "".join(f"{line}\n" for line in lines)})
    page = reviewer.visit(f"/changes/{entry}?view={view}")
    shown = page.inner_text(".diff")
    for line in lines:
        assert marked(line) in shown
        assert line not in shown
    # Each takes room on the screen: the line is wider than it would be without the character.
    widths = page.evaluate(
        "[...document.querySelectorAll('.diff .came code')].map(code => {"
        " const range = document.createRange(); range.selectNodeContents(code);"
        " return range.getBoundingClientRect().width; })"
    )
    plain = page.evaluate(
        "(() => { const code = document.querySelector('.diff .came code').cloneNode();"
        " code.textContent = 'line 0 payload'; const cell = document.createElement('td');"
        " cell.className = 'came'; cell.append(code);"
        " document.querySelector('.diff tr').append(cell); const range = document.createRange();"
        " range.selectNodeContents(code); return range.getBoundingClientRect().width; })()"
    )
    assert len(widths) >= 40 and min(widths) > plain
    assert page.locator("button:text('Approve')").count() == 1
    reviewer.shot(f"hidden-{view}")


@pytest.mark.rule("H-4", "I-4")
@pytest.mark.parametrize(
    "text",
    [
        "x" * 3000 + " and then rm -rf\n",
        "".join(f"{number}\n" for number in range(2000)),
        ("y" * 1000 + "\n") * 600,
    ],
    ids=["a long line", "many lines", "a large file"],
)
def test_nothing_is_approved_while_anything_is_cut_off(reviewer, running, text):
    entry = proposed(running, {"x.txt": text})
    page = reviewer.visit(f"/changes/{entry}")
    assert page.locator("button:text('Approve')").count() == 0
    assert page.locator("button:text('Reject')").count() == 1
    reviewer.shot("cut-off")
    page.click("text=Show everything")
    page.wait_for_selector("button:text('Approve')")
    last = text.rstrip("\n").split("\n")[-1]
    assert (
        page.evaluate("document.querySelector('.file:last-of-type').innerText")
        .rstrip()
        .endswith(last)
    )


@pytest.mark.rule("B-15", "I-4")
def test_a_step_is_approved_by_what_flows_into_it_and_all_of_it_is_shown(tab, running):
    (running.cli.folder / "draft.txt").write_text("Dear\u202e all\n" + "z" * 20_000 + "THE END\n")
    (running.cli.folder / "asks.toml").write_text(ASKS)
    begun = running.client.run_build(plan="asks.toml")
    build = begun["build_id"]
    until(lambda: running.client.show_build(build).get("approvals"))
    page = tab.visit(f"/builds/{build}")
    assert page.locator("button:text('Approve')").count() == 0
    page.click("text=Show everything")
    page.wait_for_selector("button:text('Approve')")
    shown = page.inner_text(".wanted pre.log")
    assert "Dear⟨U+202E⟩ all" in shown and "THE END" in shown
    tab.shot("approval-whole")
    said = running.cli("approve", build, "look", "--show", check=0).stdout
    assert "Send it?" in said and "Dear⟨U+202E⟩ all" in said and "THE END" in said
    refused = running.cli("approve", build, "look", check=2)
    assert "needs the digest of the exact bytes" in refused.stderr
    digest = running.client.show_build(build)["approvals"][0]["digest"]
    assert digest in said
    running.cli("approve", build, "look", "--digest", digest, check=0)
    until(lambda: running.client.show_build(build)["state"] == "SUCCESS")


@pytest.mark.rule("H-2", "I-4")
def test_what_changed_beside_a_proposal_is_shown_above_the_button(running, browser):
    cli, folder = running.cli, running.scene.folder.parent
    (folder / "site").mkdir()
    for name in ("index.html", "old.html"):
        (folder / "site" / name).write_text("one\n")
    script = "echo two > $ONCEWARD_OUT/index.html; rm site/old.html; echo x > 'site/ev\nil.py'"
    (folder / "site.toml").write_text(
        f'name = "site"\ntree = "site"\n[[stage]]\nname = "edit"\nrun = {json.dumps(["sh", "-c", script])}\n'
    )
    cli("run", "site.toml", check=0)
    said = cli("change", "mark", "--build", "latest", "--into", "site", "--json", check=0).stdout
    cli("change", "sweep", check=0)
    tab = Tab(browser, running).sign_in()
    shown = tab.visit(f"/changes/{json.loads(said)['entry_id']}").inner_text("main")
    tab.close()
    assert "2 files changed since then, outside any recorded cut:" in shown
    assert "ev\\x0ail.py" in shown and "old.html removed" in shown.replace("\n", " ")
    plain = cli("change", "diff", "latest", check=0).stdout
    assert "ev\\x0ail.py (added)" in plain and "old.html (removed)" in plain
