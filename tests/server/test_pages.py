"""The pages in a real browser: watched, acted on, attacked, by keyboard, light and dark, wide and narrow (I-4, I-5)."""

from __future__ import annotations

import json
import os
import re

import pytest

from onceward.ui.cli.main import COMMANDS
from onceward.ui.http.api import ROUTES
from onceward.ui.web.forms import acts
from onceward.ui.web.pages import PAGES
from scene import plan
from server.browsing import Tab
from typing_in import until

SQLITE = pytest.mark.parametrize("scene", ["sqlite"], indirect=True)

SIGHTS = [("light", 1280), ("light", 390), ("dark", 1280), ("dark", 390)]
SLOW = '''
name = "watched"
[[stage]]
name = "think"
targets = ["a", "b", "c"]
run = ["sh", "-c", """echo thinking of {target}; sleep 0.7; echo '{"spend":{"usd":"0.02"}}' >&$ONCEWARD_REPORT_FD; \
echo thought > $ONCEWARD_OUT/t.txt"""]
[[stage]]
name = "join"
needs = ["think"]
run = ["sh", "-c", "echo all joined"]
'''
HOSTILE = r"""
name = "hostile <img src=x onerror=alert(1)>"
[[stage]]
name = "bad"
targets = ["<script>alert(2)</script>"]
run = ["python3", "write.py"]
"""
WRITES = r"""
import os
text = "<script>window.pwned = 1; alert(3)</script>\n<img src=x onerror=alert(4)>\n\x1b[31mred\x1b[0m \u202eturned\n"
text += 'data: {"event": "FAKE"}\n\nid: 999999\nevent: FAKE\n' + "x" * 300_000 + "\n</pre><h1 id=broken>out</h1>\n"
open(os.environ["ONCEWARD_OUT"] + "/page.html", "w").write(text)
print(text)
"""


def paths(running):
    """Every page, with something that is there in each place."""
    client, ids = running.client, running.ids
    known = {
        "build": ids["paused"],
        "session": ids["approved"],
        "child": client.show_session(ids["failed"])["children"][-1]["child_id"],
        "sha256": client.list_artifacts()[0]["sha256"],
        "entry": ids["change done"],
        "saga": ids["saga stuck"],
        "grant": client.list_grants()[0]["grant_id"],
        "stream": "workspace",
        "act": "runBuild",
    }
    for page in PAGES:
        if page.kind == "page" and not page.public:
            yield (
                page.name.removeprefix("page "),
                re.sub(r"\{(\w+)\}", lambda found: known[found[1]], page.path),
            )


@pytest.mark.one_in(2)
@SQLITE
@pytest.mark.rule("I-4")
@pytest.mark.parametrize(
    ("theme", "width"), SIGHTS if os.environ.get("ONCEWARD_PAGES") else SIGHTS[::3]
)
@pytest.mark.one_in(2)
def test_every_page_is_drawn_whole_in_light_and_dark_wide_and_narrow(
    browser, running, theme, width
):
    tab = Tab(browser, running, theme, width).sign_in()
    wrong = []
    for name, path in paths(running):
        page = tab.visit(path)
        page.wait_for_timeout(150)
        tab.shot(name.replace(" ", "-"))
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            wrong.append((name, "is wider than the window"))
        wrong += [(name, error) for error in tab.wrong]
        tab.wrong.clear()
        if not page.locator("h1").count() or page.evaluate(
            "document.querySelectorAll('script:not([src])').length"
        ):
            wrong.append((name, "has no title, or a script in it"))
    tab.close()
    assert wrong == [] and tab.foreign == []


@SQLITE
@pytest.mark.rule("I-4")
def test_a_build_is_watched_live_to_its_end(tab, running):
    (running.cli.folder / "slow.toml").write_text(SLOW)
    page = tab.visit("/builds")
    page.get_by_text("Run a plan").click()
    page.fill("form[data-path='/builds'] input[name=plan]", "slow.toml")
    page.click("form[data-path='/builds'] button")
    page.wait_for_url(re.compile("/builds/bld_"))
    page.wait_for_selector("h1 .badge:text('active')")
    height = page.evaluate("document.querySelector('.side').getBoundingClientRect().top")
    page.wait_for_selector(".timeline .bar[data-tone=busy]")
    page.wait_for_selector("pre.log:has-text('thinking of')")
    tab.shot("live-build")
    page.wait_for_selector("h1 .badge:text('success')", timeout=600_000)
    page.wait_for_selector(".graph .node[data-tone=good] >> nth=5")
    assert page.locator(".timeline .bar[data-tone=good]").count() == 6
    assert "$0.06" in page.inner_text(".lanes")
    assert page.locator(".chart canvas").count() == 1
    # What is above it did not move while it was updated: all but the row of buttons stays where it was.
    assert (
        abs(page.evaluate("document.querySelector('.side').getBoundingClientRect().top") - height)
        < 60
    )
    tab.shot("ended-build")
    assert tab.wrong == []


@SQLITE
@pytest.mark.rule("I-4", "B-10")
def test_a_budget_pause_is_confirmed_and_the_build_goes_on(tab, running):
    (running.cli.folder / "plan.toml").write_text(plan(budget="0.01", last="echo more"))
    page = tab.visit(f"/builds/{running.ids['paused']}")
    assert page.input_value("textarea[name=budget]") == "usd=0.02"
    page.fill("textarea[name=budget]", "usd=1.00")
    page.click("text=Confirm and resume")
    page.wait_for_selector("h1 .badge:text('success')", timeout=600_000)
    permits = running.client.list_permits()
    assert (
        next(one["state"] for one in permits if one["build_id"] == running.ids["paused"]) == "used"
    )
    assert tab.wrong == []


@pytest.mark.rule("I-4", "H-3")
def test_a_change_is_approved_for_exactly_what_was_shown(browser, running):
    """By somebody who may review; whoever may not is offered nothing that would be refused, and told why."""
    client, folder = running.client, running.cli.folder
    for tree, text in (("site", "one\ntwo\n"), ("wanted", "one\n<b>2</b>\nthree\n")):
        (folder / tree).mkdir()
        (folder / tree / "page.txt").write_text(text)
    marked = running.cli(
        "change",
        "mark",
        "--tree",
        "wanted",
        "--into",
        "site",
        "--reason",
        "more",
        "--json",
        check=0,
    )
    entry = json.loads(marked.stdout)["entry_id"]
    client.sweep_changes()
    shown = client.show_change(entry)["manifest"]
    tabs = {}
    for name in ("tester", "max", "rob"):
        tabs[name] = Tab(browser, running).sign_in_as(name)
    page = tabs["tester"].visit(f"/changes/{entry}")
    assert page.get_by_role("button", name="Approve").count() == 0
    assert "authors do not approve their own" in page.inner_text(".review")
    page = tabs["max"].visit(f"/changes/{entry}")
    assert page.locator(".review button").count() == 0
    assert "Approve: needs the role reviewer" in page.inner_text(".review")
    tabs["max"].shot("withheld")
    page = tabs["rob"].visit(f"/changes/{entry}")
    assert shown in page.inner_text(".digest") and page.locator(".diff tr").count()
    page.click("text=Unified")
    page.wait_for_selector(".diff.unified")
    form = page.locator("form.act", has=page.get_by_role("button", name="Approve"))
    form.locator("input[name=reason]").fill("as it should be")
    form.get_by_role("button", name="Approve").click()
    page.wait_for_selector("h1 .badge:text('reviewed approved')")
    said = client.show_change(entry)["decisions"][-1]
    assert (said["reviewer"], said["decision"], said["content_hash"]) == ("rob", "approve", shown)
    tabs["rob"].shot("approved-change")
    for one in tabs.values():
        one.close()


@SQLITE
@pytest.mark.rule("I-4")
@pytest.mark.guarantee("G23")
def test_what_a_worker_wrote_is_shown_and_does_nothing(tab, running):
    (running.cli.folder / "hostile.toml").write_text(HOSTILE)
    (running.cli.folder / "write.py").write_text(WRITES)
    begun = running.client.run_build(plan="hostile.toml")
    until(lambda: running.client.show_build(begun["build_id"])["state"] == "SUCCESS")
    step = running.client.show_build(begun["build_id"])["steps"][0]
    digest = next(one["sha256"] for one in step["artifacts"] if one["name"].endswith("page.html"))
    for place in ("/", "/builds", f"/builds/{begun['build_id']}", f"/children/{step['child_id']}"):
        page = tab.visit(place)
        assert page.evaluate(
            "[window.pwned, document.querySelectorAll('#broken, img[src=x]').length]"
        ) == [None, 0]
    page = tab.visit(f"/artifacts/{digest}")
    shown = page.inner_text("pre.log")
    assert "<script>window.pwned" in shown and "␛[31mred" in shown and "⟨U+202E⟩" in shown
    assert "more characters" in shown and page.evaluate("window.pwned") is None
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
    tab.shot("hostile-artifact")
    answer = page.request.get(f"{running.url}/api/v1/artifacts/{digest}")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert (
        "attachment" in answer.headers["content-disposition"]
        and "sandbox" in answer.headers["content-security-policy"]
    )
    page.goto(f"{running.url}/api/v1/artifacts/{digest}?as=text")
    assert page.evaluate("window.pwned") is None and tab.dialogs == [] and tab.wrong == []


@SQLITE
@pytest.mark.rule("I-3", "I-4")
@pytest.mark.guarantee("G23")
def test_a_link_lets_in_once_and_a_session_ends(browser, running):
    tab = Tab(browser, running).sign_in(running.link)
    assert "#" not in tab.page.url
    (cookie,) = tab.context.cookies()
    assert (
        cookie["httpOnly"]
        and cookie["sameSite"] == "Strict"
        and cookie["name"].startswith("onceward_")
    )
    other = Tab(browser, running)
    other.page.goto(running.link)
    other.page.wait_for_selector("#said[data-tone=bad]")
    other.shot("refused-link")
    page = tab.visit("/builds")
    page.click("#signout")
    page.wait_for_url(f"{running.url}/signin")
    assert page.goto(f"{running.url}/builds").status == 401
    # Whoever kept the cookie has nothing of it.
    tab.context.add_cookies([cookie])
    assert page.goto(f"{running.url}/builds").status == 401
    assert "over" in page.inner_text("#said")
    tab.shot("signed-out")
    # A session is over with its server, too: whoever looks is told so, and comes back to where they were.
    tab.sign_in()
    page = tab.visit("/sagas")
    running.kill()
    page.wait_for_selector("#signin", timeout=600_000)
    assert "over" in page.inner_text("#said") and page.url.endswith("/sagas")
    tab.shot("session-over")
    tab.close()
    other.close()


@SQLITE
@pytest.mark.rule("I-4")
def test_everything_can_be_reached_by_keyboard(tab, running):
    page = tab.visit("/")
    page.keyboard.press("g")
    page.keyboard.press("b")
    page.wait_for_url(f"{running.url}/builds")
    page.keyboard.press("j")
    page.keyboard.press("j")
    second = page.evaluate("document.activeElement.getAttribute('href')")
    page.keyboard.press("Enter")
    page.wait_for_url(running.url + second)
    page.keyboard.press("/")
    page.keyboard.type(running.ids["saga stuck"])
    page.keyboard.press("Enter")
    page.wait_for_selector(".explain")
    assert "could not be undone" in page.inner_text(".explain")
    page.keyboard.press("?")
    page.wait_for_selector("#help[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("#help", state="hidden")
    page.keyboard.press("t")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.keyboard.press("Tab")
    assert tab.wrong == []


@SQLITE
@pytest.mark.rule("I-4")
def test_a_form_that_is_sent_twice_is_done_once_and_what_is_refused_says_why(tab, running):
    page = tab.visit("/do/addPrincipal")
    page.fill("input[name=name]", "nina")
    page.fill("textarea[name=roles]", "no-such-role")
    page.click("text=Send")
    page.wait_for_selector(".refused:visible")
    assert "role" in page.inner_text(".refused")
    page.fill("textarea[name=roles]", "viewer")
    before = len(list(running.client.list_principals()))
    page.dblclick("text=Send")
    page.wait_for_selector("#answer:visible")
    assert len(running.client.list_principals()) == before + 1
    told = [
        json.loads(line) for line in running.cli("events", "workspace", check=0).stdout.splitlines()
    ]
    assert [one["detail"]["principal"] for one in told if one["event"] == "PRINCIPAL_ADDED"].count(
        "nina"
    ) == 1


PAGE_OF = {
    **dict.fromkeys(("run", "list"), "/builds"),
    **dict.fromkeys(
        ("resume", "confirm", "approve", "abandon", "why", "export", "cancel"), "/builds/{build}"
    ),
    **{
        "saga": "/sagas",
        "grant": "/grants",
        "registry": "/registry",
        "change": "/changes",
        "explain": "/explain",
    },
    **{
        "logs": "/children/{child}",
        "artifacts": "/artifacts/{sha256}",
        "spend": "/spend",
        "spawn": "/sessions",
    },
    **{
        "status": "/",
        "events": "/streams",
        "locks": "/locks",
        "gate": "/gate",
        "principals": "/people",
    },
    **dict.fromkeys(("keys", "tokens"), "/people"),
    **dict.fromkeys(("verify", "replay", "seal", "outbox", "doctor"), "/evidence"),
}
OF_THE_MACHINE = {
    **dict.fromkeys(("init", "migrate", "backup", "restore", "gc"), "the workspace's own files"),
    **dict.fromkeys(("serve", "open", "completion", "version"), "the program itself"),
    **dict.fromkeys(("canon", "report", "machines"), "for programs; the API has machines"),
    "output": "writes a folder on the machine; here each artifact is downloaded",
}


@pytest.mark.rule("I-5")
def test_whatever_the_command_line_can_do_the_pages_can_and_the_other_way_round():
    assert (
        PAGE_OF.keys() | OF_THE_MACHINE.keys() == COMMANDS.keys()
        and not PAGE_OF.keys() & OF_THE_MACHINE.keys()
    )
    assert set(PAGE_OF.values()) <= {page.path for page in PAGES}
    offered = {form.name for forms in acts().values() for form in forms}
    # Values are brought for a request that follows under the same id: half an act, for programs.
    beside = {"signIn", "signOut", "upload", "bringEnvironment"}
    assert offered | beside == {route.name for route in ROUTES if route.method != "GET"}
    # No page changes anything: what they offer is sent to the API, which the command line asks the same of.
    assert all(page.method == "GET" for page in PAGES)
