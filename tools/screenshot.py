"""Takes docs/dashboard.png anew: a build of a real server, half-way, in a real browser. Needs
Chromium."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from onceward.client import Client

OUT = Path(__file__).resolve().parent.parent / "docs" / "dashboard.png"
PLAN = """
import time

from onceward import Plan

plan = Plan("catalogue", budget={"usd": "1.00"}, jobs=3)
PARTS = {"apples": 0.7, "pears": 1.1, "plums": 0.5, "quinces": 0.9}


@plan.stage(targets=list(PARTS), estimate={"usd": "0.05"})
def research(task):
    print(f"reading what is known of {task.target}", flush=True)
    for share in range(5):
        time.sleep(PARTS[task.target] / 5)
        task.spend(usd="0.01", tokens=420, settled=True)
    return f"notes on {task.target}"


@plan.stage(needs=research, estimate={"usd": "0.08"})
def write(task):
    print(f"asking the model for a page on {task.target}", flush=True)
    for line in range(8):
        time.sleep(PARTS[task.target] / 4)
        task.spend(usd="0.01", tokens=900, settled=True)
        print(f"  paragraph {line + 1} of 8", flush=True)
    return f"a page on {task.target}"


@plan.stage(needs=write, targets=["all"])
def bind(task):
    (task.out / "catalogue.md").write_text("\\n".join(task.inputs["write"].values()))
"""


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("there is no Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "orchard"
        folder.mkdir()
        (folder / "plan.py").write_text(PLAN)
        own = Path(sys.executable).parent / "onceward"
        subprocess.run(
            [own, "--as", "mara", "init"], cwd=folder, check=True, stdout=subprocess.DEVNULL
        )
        server = subprocess.Popen(
            [own, "--as", "mara", "serve", "--port", "0", "--json"],
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.stdout is not None
            said = json.loads(server.stdout.readline())
            take(chromium, Client.here(folder / ".onceward"), said)
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()


def take(chromium: str, client: Client, said: dict[str, str]) -> None:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_context(
            viewport={"width": 1280, "height": 1180}, device_scale_factor=1.25
        ).new_page()
        page.goto(said["link"])
        page.wait_for_url("**/")
        begun = client.run_build(plan="plan.py")
        page.goto(f"{said['url']}/builds/{begun['build_id']}")
        while (
            sum(one["status"] == "SUCCESS" for one in client.show_build(begun["build_id"])["steps"])
            < 5
        ):
            time.sleep(0.1)
        page.wait_for_timeout(1600)
        page.screenshot(path=OUT)
        browser.close()
    print(f"took {OUT.relative_to(OUT.parent.parent)}: {OUT.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
