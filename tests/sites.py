"""A workspace of its own, its kernel, and a folder with a plan in it, for tests that run real builds."""

from __future__ import annotations

import json
import threading
import uuid
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from onceward import Plan, running
from onceward.builds.choices import Choices
from onceward.builds.jobs import BuildJob, BuildOptions
from onceward.builds.lifecycle import Offer
from onceward.builds.plan_file import load
from onceward.builds.plans import Resolved
from onceward.builds.views import build_list, build_view
from onceward.core import faults
from onceward.core.records import Request
from onceward.core.views import document
from onceward.kernel.views import stream_lines
from onceward.workspace import Workspace
from typing_in import until


@pytest.fixture
def workspace(store_url, tmp_path):
    workspace = Workspace(tmp_path / ".onceward", store_url=store_url, principal="tester")
    workspace.create()
    return workspace


@pytest.fixture
def kernel(workspace):
    kernel = workspace.kernel()
    kernel.processes.grace = 0.3
    yield kernel
    kernel.close()


class Site:
    """A folder with a plan in it: runs and resumes builds there, and reads what its steps witnessed."""

    def __init__(self, workspace, folder):
        self.workspace, self.folder = workspace, folder
        self.witness = folder / "witness"
        self.told = []

    def begun(self, begun):
        self.build_id = begun.build_id

    def load(self, plan, **chosen):
        if isinstance(plan, Plan):
            return Resolved(plan, Choices(**chosen))
        file = self.folder / "plan.toml"
        file.write_text(plan)
        return load(file, Choices(**chosen))

    def run(self, plan, only=(), force=False, config=None, **words):
        self.told = []
        display = SimpleNamespace(begun=self.begun, told=self.told.append, end=lambda: None)
        resolved = self.load(plan, only=only, force=force, config=config or {})
        outcome, _ = running.run(self.workspace, resolved, display, BuildOptions(**words))
        return outcome

    def resume(self, plan, build_id, offer=None, **words):
        self.told = []
        display = SimpleNamespace(begun=self.begun, told=self.told.append, end=lambda: None)
        resolved = self.load(plan)
        which = {"plan": plan} if isinstance(plan, Plan) else {"plan_file": resolved.plan.file}
        outcome, _ = running.resume(
            self.workspace, build_id, display, offer or Offer(), BuildOptions(**words), **which
        )
        return outcome

    def crash(self, plan, point="commit.before", nth=5, **words):
        """Run until a fault, then let the next kernel find the build crashed; answers its id."""
        with pytest.raises(faults.SimulatedCrash):
            with faults.armed(point, nth, faults.crash):
                self.run(plan, **{"jobs": 1, **words})
        self.workspace.kernel().close()
        with self.workspace.reading() as store:
            self.build_id = build_list(store)[0].build_id
        return self.build_id

    @contextmanager
    def waiting(self, plan, **words):
        """A build that runs beside us and waits for a person."""
        runner = threading.Thread(target=self.run, args=(plan,), kwargs=words)
        runner.start()
        try:
            until(lambda: any(said["status"] == "APPROVAL" for said in self.told))
            yield
        except BaseException:
            self.ask("builds.abandon", build=self.build_id, failed=False)
            raise
        finally:
            runner.join()

    def ask(self, verb, **payload):
        engine = self.workspace.engine()
        try:
            return engine.ask(Request(verb, uuid.uuid4().hex, payload, "tester"), 20)
        finally:
            engine.close()

    def lines(self):
        """What ran, in order; the witness is emptied."""
        found = self.witness.read_text().split() if self.witness.exists() else []
        self.witness.unlink(missing_ok=True)
        return found

    def status(self, build_id=None):
        with self.workspace.reading() as store:
            return document(build_view(store, build_id or self.build_id))

    def steps(self, build_id=None):
        return {f"{s['stage']}:{s['target']}": s["status"] for s in self.status(build_id)["steps"]}

    def events(self, build_id=None):
        with self.workspace.reading() as store:
            return [
                json.loads(line)
                for line in stream_lines(store, f"session:{build_id or self.build_id}")
            ]


def prepared(kernel, build, resolved, jobs, keep_going=False, reuse=True, told=lambda said: None):
    """A build that was begun, ready to be carried to its end by the test itself."""
    options = BuildOptions(jobs=jobs, keep_going=keep_going, reuse=reuse)
    job = BuildJob(kernel, kernel.actor, build, resolved, options=options)
    job.display = SimpleNamespace(told=told)
    return job.prepared()


@pytest.fixture
def site(workspace, tmp_path):
    folder = tmp_path / "site"
    folder.mkdir()
    return Site(workspace, folder)


@pytest.fixture
def hook():
    """A real HTTP server on loopback that answers with the status it is told to."""
    heard: list[tuple[dict[str, str], bytes]] = []
    answers = [200]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            heard.append((dict(self.headers), body))
            self.send_response(answers[0])
            self.end_headers()

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/in?x=1", heard, answers
    server.shutdown()
    thread.join()
    server.server_close()
