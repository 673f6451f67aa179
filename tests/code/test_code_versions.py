"""The version of a function: its own code wherever it lives, all that it reaches, and the environment beside it."""

from __future__ import annotations

import importlib
import importlib.machinery
import linecache
import os
import re
import subprocess
import sys
import sysconfig
import threading
import types
import venv
from functools import partial
from pathlib import Path

import pytest

import onceward
from installed import install
from onceward import Plan
from onceward.builds.plan_file import load
from onceward.builds.plans import Resolved
from onceward.code.parsing import parsed


@pytest.fixture(autouse=True)
def imports(tmp_path, monkeypatch):
    """Whatever a test imports from its own folder is forgotten; answers how to forget it earlier."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def forget():
        for name, module in list(sys.modules.items()):
            if str(vars(module).get("__file__") or "").startswith(f"{tmp_path}/"):
                del sys.modules[name]
        importlib.invalidate_caches()

    yield forget
    forget()


def write(folder, files):
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def stage_in(file):
    return load(file).steps.stages[0]


def plan_file(folder, body, head="", name="plan"):
    file = folder / f"{name}.py"
    file.write_text(
        f"{head}\nfrom onceward import Plan\nplan = Plan('p')\n@plan.stage\ndef work(task):\n"
        + "\n".join(f"    {line}" for line in body.split("\n"))
        + "\n"
    )
    return file


def stage_of(call, folder=None):
    plan = Plan("p", folder=folder)
    plan.stage(name="work")(call)
    return Resolved(plan).steps.stages[0]


@pytest.mark.rule("B-3")
def test_a_function_in_an_upgraded_package_is_another_function(tmp_path, imports):
    site = tmp_path / "site-packages"
    sys.path.insert(0, str(site))
    plan = tmp_path / "plan.toml"
    plan.write_text('name = "p"\n[[stage]]\nname = "work"\npython = "acme.steps:work"\n')
    steps = "from acme import tools\ndef work(task): return tools.one()\n"
    versions = []
    for number, one in (("1.0", "1"), ("1.0.post1", "1"), ("1.1", "2")):
        install(site, "acme", number, steps=steps, tools=f"def one(): return {one}\n")
        imports()
        versions.append(stage_in(plan).version)
    assert versions[0] == versions[1] != versions[2]
    install(site, "acme", "1.2", steps=steps.replace("()", "() + 1"), tools="def one(): return 2\n")
    imports()
    assert stage_in(plan).version not in versions


SAY_VERSION = (
    "from pathlib import Path; from onceward.builds.plan_file import load;"
    "print(load(Path('plan.toml')).steps.stages[0].version)"
)


@pytest.mark.rule("B-3")
def test_a_package_upgraded_in_an_environment_of_its_own_is_another_function(tmp_path):
    venv.create(tmp_path / "env", with_pip=False)
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    (tmp_path / "plan.toml").write_text(
        'name = "p"\n[[stage]]\nname = "work"\npython = "acme.steps:work"\n'
    )
    path = [str(Path(onceward.__file__).parent.parent), sysconfig.get_path("purelib")]
    versions = []
    for number, value in (("1.0", "1"), ("1.0", "1"), ("1.1", "2")):
        install(site, "acme", number, steps=f"def work(task): return {value}\n")
        done = subprocess.run(
            [tmp_path / "env" / "bin" / "python", "-c", SAY_VERSION],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
            capture_output=True,
            text=True,
            check=True,
        )
        versions.append(done.stdout)
    assert versions[0] == versions[1] != versions[2]


@pytest.mark.rule("B-3")
def test_another_installed_package_counts_for_the_environment_only(tmp_path, imports):
    site = tmp_path / "site-packages"
    sys.path.insert(0, str(site))
    ways = {
        "module": ("import acme", "return acme.one()"),
        "name": ("from acme import one", "return one()"),
        "inside": ("", "import acme.deep\nreturn acme.deep.two()"),
        "instance": ("import acme\nclient = acme.Client()", "return client"),
        "helper": ("import helper", "return helper.call()"),
    }
    (tmp_path / "helper.py").write_text(
        "def call():\n    from acme.deep import two\n    return two()\n"
    )
    text = "def one(): return 1\nclass Client: pass\n"
    for way, (head, body) in ways.items():
        file = plan_file(tmp_path, body, head, f"plan_{way}")
        stages = []
        for version in ("1.0", "1.0", "2.0"):
            install(
                site, "acme", version, init=f"{text}# {version}\n", deep="def two(): return 2\n"
            )
            imports()
            stages.append(stage_in(file))
        assert len({stage.version for stage in stages}) == 1, way
        assert stages[0].environment_hash == stages[1].environment_hash, way
        assert stages[0].environment_hash != stages[2].environment_hash, way
        assert "acme 1.0" in stages[0].environment and "acme 2.0" in stages[2].environment, way
        assert any(line.startswith("python ") for line in stages[0].environment)


@pytest.mark.rule("B-3")
def test_a_function_made_by_exec_counts_by_its_code():
    def version(text):
        made: dict = {}
        exec(text, made)
        return stage_of(made["work"]).version

    text = "N = 1\ndef helper(x): return x + N\ndef work(task): return helper(1), {'a', 'b', 'c'}"
    first = version(text)
    assert version(text) == first == version(f"\n\n{text}")
    for old, new in (("N = 1", "N = 2"), ("x + N", "x - N"), ("helper(1)", "helper(2)")):
        assert version(text.replace(old, new)) != first, new
    text = "class C:\n    depth = 1\n    def go(self): return 1\ndef work(task): return C().go()"
    assert version(text) == version(text)
    assert len({version(text), version(text.replace("depth = 1", "depth = 2"))}) == 2
    assert len({version(text), version(text.replace("return 1", "return 2"))}) == 2


@pytest.mark.rule("B-3")
def test_a_function_of_a_notebook_does_not_need_the_text_of_its_cell(monkeypatch):
    def cell(number, text):
        name = f"<ipython-input-{number}-abcdef>"
        lines = text.splitlines(keepends=True)
        monkeypatch.setitem(linecache.cache, name, (len(text), None, lines, name))
        made: dict = {"__name__": "__main__"}
        exec(compile(text, name, "exec"), made)
        return made["work"]

    text = "def helper(): return 1\ndef work(task): return helper()\n"
    work = cell(1, text)
    first = stage_of(work).version
    linecache.cache.clear()
    assert stage_of(work).version == first == stage_of(cell(2, text)).version
    assert stage_of(cell(3, text.replace("return 1", "return 2"))).version != first


@pytest.mark.rule("B-3")
def test_what_is_typed_at_a_terminal_hashes_the_same_in_every_process():
    def typed(value, seed):
        lines = (
            "from onceward import Plan; from onceward.builds.plans import Resolved\n"
            f"WORDS = frozenset({{'a', 'b', 'c', {value!r}}})\n"
            "def work(task): return task in {'x', 'y', 'z'}, WORDS\n\n"
            "plan = Plan('p'); _ = plan.stage(work)\n"
            "print(Resolved(plan).steps.stages[0].version)\n"
        )
        done = subprocess.run(
            [sys.executable, "-i", "-q"],
            input=lines,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.split()[-1]

    assert typed("d", "1") == typed("d", "2") != typed("e", "1")


@pytest.mark.rule("B-3", "B-6")
def test_a_terminal_of_ipython_notices_what_is_typed_anew_and_reuses_the_rest(tmp_path):
    pytest.importorskip("IPython")
    lines = (
        "from onceward import Plan\n"
        "def helper(): return 1\n\n"
        "class Maker:\n    def go(self): return helper()\n\n"
        "def work(task): return Maker().go()\n\n"
        "plan = Plan('p'); _ = plan.stage(work)\n"
        "print('RAN', plan.run(quiet=True).steps['executed'])\n"
        "print('RAN', plan.run(quiet=True).steps['executed'])\n"
        "def helper(): return 2\n\n"
        "print('RAN', plan.run(quiet=True).steps['executed'])\n"
    )

    def typed():
        done = subprocess.run(
            [sys.executable, "-m", "IPython", "--no-banner", "--simple-prompt"],
            input=lines,
            cwd=tmp_path,
            env={**os.environ, "IPYTHONDIR": str(tmp_path / "ipython")},
            capture_output=True,
            text=True,
            check=True,
        )
        return re.findall(r"RAN (\d)", done.stdout)

    assert typed() == ["1", "0", "1"]
    assert typed() == ["0", "0", "0"]


LAZY = {
    "import inside a function": ("import near\nreturn near.name()", "near.py", "far.py"),
    "from inside a function": ("from near import name\nreturn name()", "near.py", "far.py"),
    "a module of a package": (
        "from box import near\nreturn near.name()",
        "box/near.py",
        "box/far.py",
    ),
    "a package's module by its whole name": (
        "import box.near\nreturn box.near.name()",
        "box/near.py",
        "box/far.py",
    ),
    "import_module with a plain name": (
        "import importlib\nreturn importlib.import_module('near').name()",
        "near.py",
        "far.py",
    ),
}


@pytest.mark.rule("B-3")
@pytest.mark.parametrize("way", LAZY)
def test_imports_inside_functions_are_followed_and_need_not_have_happened(tmp_path, imports, way):
    body, near, far = LAZY[way]
    inside = near.startswith("box/")
    dot = "from . import far" if inside else "import far"
    file = plan_file(tmp_path, body)

    def versions(near_text="return far.name()", far_text="'a'", box="'box'"):
        write(
            tmp_path,
            {
                near: f"def name():\n    {dot}\n    {near_text}\n",
                far: f"def name(): return {far_text}\n",
                "box/__init__.py": f"NAME = {box}\n",
            },
        )
        imports()
        before = stage_in(file).version
        stage_in(file).call(None)
        return before, stage_in(file).version

    first, again = versions()
    assert first == again
    changed = versions(far_text="'b'")
    assert changed[0] == changed[1] != first
    nearer = versions("return far.name() * 2")
    assert nearer[0] == nearer[1] != first
    if inside:
        assert versions(box="'other'")[0] != first


@pytest.mark.rule("B-3")
def test_a_module_is_followed_through_what_it_imports_late(tmp_path, imports):
    write(tmp_path, {"near.py": "def name():\n    import far\n    return far.NAME\n"})
    file = plan_file(tmp_path, "return near.name()", "import near")
    seen = []
    for far in ("'a'", "'b'"):
        write(tmp_path, {"far.py": f"NAME = {far}\n"})
        imports()
        stage = stage_in(file)
        stage.call(None)
        assert stage_in(file).version == stage.version
        seen.append(stage.version)
    assert seen[0] != seen[1]


@pytest.mark.rule("B-3")
def test_a_lazy_module_is_not_loaded_to_be_read(tmp_path, imports):
    write(tmp_path, {"heavy.py": "import sys\nsys.heavy_was_loaded = True\nN = 1\n"})
    head = (
        "import importlib.util, sys\nspec = importlib.util.find_spec('heavy')\n"
        "spec.loader = importlib.util.LazyLoader(spec.loader)\n"
        "heavy = importlib.util.module_from_spec(spec)\nsys.modules['heavy'] = heavy\n"
        "spec.loader.exec_module(heavy)\n"
    )
    sys.path.insert(0, str(tmp_path))
    file = plan_file(tmp_path, "return heavy.N", head)
    first = stage_in(file)
    assert not hasattr(sys, "heavy_was_loaded")
    assert first.call(None) == 1 and sys.heavy_was_loaded
    del sys.heavy_was_loaded
    imports()
    assert stage_in(file).version == first.version
    write(tmp_path, {"heavy.py": "N = 2\n"})
    imports()
    assert stage_in(file).version != first.version


SLOTS = """
class Point:
    __slots__ = ("x", "__hidden")
    def __init__(self, x, y):
        self.x, self.__hidden = x, y
class Child(Point):
    __slots__ = ("z",)
P = Child(1, 2)
P.z = 3
"""


@pytest.mark.rule("B-3")
@pytest.mark.parametrize("change", [("(1, 2)", "(9, 2)"), ("(1, 2)", "(1, 9)"), ("z = 3", "z = 9")])
def test_values_in_slots_count(tmp_path, change):
    found = []
    for text in (SLOTS, SLOTS, SLOTS.replace(*change)):
        found.append(stage_in(plan_file(tmp_path, "return P", text)).version)
    assert found[0] == found[1] != found[2]


REACHED = {
    "a constant of a class that was computed": (
        "import numbers_of\nclass C:\n    depth = numbers_of.N\n",
        "return C.depth",
    ),
    "a method bound to a value": (
        "import re, numbers_of\nmatch = re.compile(str(numbers_of.N)).match\n",
        "return match('1')",
    ),
    "a deque": (
        "import collections, numbers_of\nD = collections.deque([numbers_of.N])\n",
        "return D",
    ),
}


@pytest.mark.rule("B-3")
@pytest.mark.parametrize("what", REACHED)
def test_computed_values_count(tmp_path, imports, what):
    head, body = REACHED[what]
    found = []
    for number in (1, 1, 2):
        write(tmp_path, {"numbers_of.py": f"N = {number}\n"})
        imports()
        found.append(stage_in(plan_file(tmp_path, body, head)).version)
    assert found[0] == found[1] != found[2]


WRAPPED = {
    "behind a decorator that does not say what it wraps": (
        "import acme\n@acme.bare\ndef helper(): return VALUE\n",
        "return helper()",
    ),
    "behind an object of another package": (
        "import acme\n@acme.Tool\ndef helper(): return VALUE\n",
        "return helper.func()",
    ),
    "given to somebody else's decorator": (
        "import acme\nN = VALUE\n@acme.times(N)\ndef helper(): return 0\n",
        "return helper()",
    ),
    "put into a class from outside": (
        "class C: pass\ndef go(self): return VALUE\nC.go = go\n",
        "return C().go()",
    ),
    "a decorated method": (
        "import functools\ndef more(f):\n    @functools.wraps(f)\n"
        "    def inner(self): return f(self) + VALUE\n    return inner\n"
        "class C:\n    @more\n    def go(self): return 1\n",
        "return C().go()",
    ),
    "one of several by type": (
        "import functools\n@functools.singledispatch\ndef show(x): return 0\n"
        "@show.register\ndef _(x: int): return VALUE\n",
        "return show(1)",
    ),
    "a metaclass": (
        "class Meta(type):\n    def name(cls): return VALUE\nclass C(metaclass=Meta): pass\n",
        "return C.name()",
    ),
}
ACME = """
import functools
def bare(f):
    def inner(): return f()
    return inner
def times(n):
    def around(f):
        @functools.wraps(f)
        def inner(): return n
        return inner
    return around
class Tool:
    def __init__(self, func): self.func = func
"""


@pytest.mark.rule("B-3")
@pytest.mark.parametrize("what", WRAPPED)
def test_code_that_somebody_else_holds_counts(tmp_path, imports, what):
    site = tmp_path / "site-packages"
    sys.path.insert(0, str(site))
    install(site, "acme", "1.0", init=ACME)
    head, body = WRAPPED[what]
    found = []
    for value in ("1", "1", "2"):
        imports()
        text = head.replace("VALUE", value)
        found.append(stage_in(plan_file(tmp_path, body, text)).version)
    assert found[0] == found[1] != found[2]


@pytest.mark.rule("B-3")
def test_spaces_at_the_end_of_a_line_of_a_text_count(tmp_path):
    body = 'return """a{}\nb"""'
    first, second = (
        stage_in(plan_file(tmp_path, body.format(spaces))).version for spaces in ("", "  ")
    )
    assert first != second


@pytest.mark.rule("B-3")
def test_code_that_runs_counts_and_not_what_its_file_says_by_now(tmp_path, imports):
    write(tmp_path, {"near.py": "def name(task): return 1\n"})
    sys.path.insert(0, str(tmp_path))
    near = importlib.import_module("near")

    def by_name(task):
        return near.name(task)

    whole = stage_of(by_name).version
    alone = stage_of(near.name).version
    write(tmp_path, {"near.py": "# more\ndef name(task): return 1\n"})
    assert stage_of(near.name).version == alone
    write(tmp_path, {"near.py": "def name(task): return 2\n"})
    assert stage_of(near.name).version not in (alone, None)
    edited = stage_of(by_name).version
    del sys.modules["near"]
    near = importlib.import_module("near")
    assert len({whole, edited, stage_of(by_name).version}) == 3


@pytest.mark.rule("B-3")
def test_a_tree_elsewhere_with_paths_in_it_hashes_the_same(tmp_path, imports):
    found = set()
    for place in ("one", "two/deeper"):
        root = tmp_path / place
        write(
            root / "src",
            {
                "places.py": "import os, pathlib\nHERE = pathlib.Path(__file__).parent\n"
                "TEXT = os.path.join(os.path.dirname(__file__), 'prompt.txt')\n"
                "def show(): return HERE, TEXT\n"
            },
        )
        (root / "pyproject.toml").write_text("")
        (root / "plans").mkdir()
        sys.path.insert(0, str(root / "src"))
        file = plan_file(root / "plans", "return show()", "from places import show")
        found.add(stage_in(file).version)
        imports()
        sys.path.remove(str(root / "src"))
    assert len(found) == 1


STATE = """
import functools, json
import stateful
_cache = {}
_client = None
_calls = []
count = 0

def client():
    global _client, count
    count += 1
    if _client is None:
        import late
        _client = late.Client()
    return _client

class Counter:
    def __init__(self): self.n, self.seen = 0, []
    def tick(self):
        self.n += 1
        self.seen.append(self.n)
        return self.n
    @functools.cached_property
    def name(self): return "c"

counter = Counter()
"""
RUN = """\
_cache[task.target] = client().ask()
_calls.append(1)
counter.tick(), counter.name
return stateful.fill()"""


@pytest.mark.rule("B-3", "B-6")
@pytest.mark.guarantee("G7")
def test_two_runs_in_one_process_reuse_everything(site):
    write(
        site.folder,
        {
            "late.py": "import deep\nclass Client:\n    def ask(self): return deep.N\n",
            "deep.py": "N = 1\n",
            "stateful.py": "MEMO = {}\ndef fill():\n    import deep\n    MEMO['a'] = deep.N\n"
            "    return 1\n",
        },
    )
    file = plan_file(site.folder, RUN, STATE)
    resolved = load(file)
    assert site.run(resolved.plan)["steps"]["executed"] == 1
    assert site.run(resolved.plan)["steps"]["reused"] == 1
    assert site.run(load(file).plan)["steps"]["reused"] == 1
    write(site.folder, {"deep.py": "N = 2\n"})
    del sys.modules["deep"]
    assert site.run(load(file).plan)["steps"]["executed"] == 1


@pytest.mark.rule("B-3")
def test_what_is_filled_when_a_module_is_loaded_counts(tmp_path):
    registry = (
        "PROMPTS = {}\ndef register(name, text): PROMPTS[name] = text\nregister('a', 'hello')\n"
    )
    first, second = (
        stage_in(plan_file(tmp_path, "return PROMPTS['a']", text)).version
        for text in (registry, registry.replace("hello", "hi"))
    )
    assert first != second


BESIDE = {
    "of a text": "class D(str): pass\nd = D('a')\nd.x = 1",
    "of a dict": "class D(dict): pass\nd = D()\nd.x = 1",
    "of a list": "class D(list): pass\nd = D()\nd.x = 1",
    "of a context": "import contextvars\nd = contextvars.ContextVar('d', default=1)",
}


@pytest.mark.rule("B-3")
@pytest.mark.parametrize("what", BESIDE)
def test_what_a_value_holds_beside_itself_counts(tmp_path, what):
    first, again, second = (
        stage_in(plan_file(tmp_path, "return d", head)).version
        for head in (BESIDE[what], BESIDE[what], BESIDE[what].replace("1", "2"))
    )
    assert first == again != second


UNFOLLOWED = {
    "a computed import": (
        "import importlib\nreturn importlib.import_module('mod_' + task.target)",
        "",
        "import_module",
    ),
    "an import in a module": ("return chooser.pick('x')", "import chooser", "chooser"),
    "code from a text": ("return eval(task.target)", "", "eval"),
    "names from a text": ("return globals()[task.target]", "K = 1", "globals"),
    "an attribute of a function": ("return g.k", "def g(): pass\ng.k = 1", "g.k"),
    "an extension of one's own": ("import speedups\nreturn speedups.go()", "", "speedups"),
    "an object of another package": ("return S", "import msgspec\nS = msgspec.json.Encoder()", "S"),
    "a module that is not there": ("import nowhere_at_all", "", "nowhere_at_all"),
}


@pytest.mark.rule("B-3")
@pytest.mark.parametrize("what", UNFOLLOWED)
def test_what_cannot_be_followed_is_named(tmp_path, imports, what):
    write(tmp_path, {"chooser.py": "def pick(name): return __import__(name)\n"})
    (tmp_path / f"speedups{importlib.machinery.EXTENSION_SUFFIXES[0]}").write_bytes(b"\x7fELF")
    body, head, named = UNFOLLOWED[what]
    (said,) = stage_in(plan_file(tmp_path, body, head)).unfollowed
    assert named in said
    assert stage_in(plan_file(tmp_path, "return 1")).unfollowed == ()


@pytest.mark.rule("B-3")
def test_a_value_that_holds_itself_can_be_read():
    ring: list = [1]
    ring.append(ring)
    box = types.SimpleNamespace(ring=ring)
    box.self = box

    def work(task):
        return ring, box

    assert stage_of(work).version == stage_of(work).version


class Loud:
    """Garbage whose collection runs Python code, so that threads take turns in the middle of anything."""

    def __init__(self):
        self.itself = self

    def __del__(self):
        sum(range(20))


@pytest.mark.thorough
def test_sources_are_read_by_many_threads_at_once(request):
    """Python 3.11's own parser breaks when two threads use it at the same time."""
    request.addfinalizer(partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1e-6)
    source = ("x = 1" + " + 1" * 60 + "\n") * 200
    failed = []

    def read():
        try:
            for _ in range(15):
                _garbage = [Loud() for _ in range(50)]
                parsed(source)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=read) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
