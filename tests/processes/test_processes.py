"""Subprocess children: the handshake, their whole trees, and their ends."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from helpers import processes_with
from onceward.core.limits import OUTPUT_BYTES
from onceward.errors import ChildStartFailed, InvalidConfig
from onceward.locks import TargetLock
from onceward.locks.identity import judge, own_identity
from onceward.locks.watch import watch
from onceward.processes import tree
from onceward.processes.capture import Capture
from onceward.processes.cgroup import _home
from onceward.processes.launcher import Processes, ProcessOrder, environment

pytestmark = pytest.mark.rule("C-8")
GRACE = 0.4


@pytest.fixture
def processes():
    running = Processes(grace=GRACE)
    yield running
    running.close()


@pytest.fixture
def nonce(request):
    """A word that no other process has in its command line; whoever has it at the end is a survivor."""
    word = f"ow{os.getpid()}x{time.monotonic_ns()}"
    yield word
    assert processes_with(word) == []


def start(processes, *argv, name="", cwd=Path("/"), commit=lambda who: None, **words):
    # A child's id is its mark, so no two tests may use the same one.
    name = name or f"chd_{os.getpid()}_{time.monotonic_ns()}"
    return processes.start(ProcessOrder(name, argv, cwd, environment((), {}), **words), commit)


def finish(process, timeout=600.0):
    ended = watch(process, timeout, GRACE)
    assert process.ending is not None
    return ended, process.ending


def run(processes, *argv, timeout=600.0, **words):
    return finish(start(processes, *argv, **words), timeout)


def script(text: str) -> tuple[str, str, str]:
    return (sys.executable, "-c", text)


def test_output_and_exit_status_are_captured(processes):
    ended, ending = run(processes, "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (ended.seen, ending.exit, ending.strays) == ("exited", 7, 0)
    assert (ending.out.kept(), ending.err.kept()) == (b"out\n", b"err\n")


def test_a_child_sees_only_what_it_was_given(processes, tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_KERNEL", "hunter2")
    monkeypatch.setenv("WANTED", "yes")
    reader, writer = os.pipe()
    text = (
        "import os,json;"
        "fds={n:os.readlink('/proc/self/fd/'+n) for n in os.listdir('/proc/self/fd') if os.path.exists('/dev/fd/'+n)};"
        "os.write(3, b'hello');"
        "print(json.dumps([dict(os.environ), os.getcwd(), fds, os.getsid(0)==os.getpid()]))"
    )
    order = ProcessOrder(
        "chd_9", script(text), tmp_path, environment(["WANTED"], {"GIVEN": "1"}), inherit=[writer]
    )
    _, ending = finish(processes.start(order, lambda who: None))
    env, cwd, descriptors, leads = json.loads(ending.out.kept())
    assert env["WANTED"] == "yes" and env["GIVEN"] == "1" and env["ONCEWARD_CHILD"] == "chd_9"
    assert "SECRET_OF_THE_KERNEL" not in env
    assert set(env) <= {
        "PATH",
        "LANG",
        "LC_ALL",
        "LC_CTYPE",
        "TZ",
        "TMPDIR",
        "WANTED",
        "GIVEN",
        "ONCEWARD_CHILD",
        "ONCEWARD_LEADER",
    }
    assert Path(cwd) == tmp_path.resolve()
    assert leads, "a child has a session of its own"
    assert descriptors["0"] == "/dev/null"
    # Beside what it was given, only what it opened itself to look.
    assert {n for n in descriptors if not descriptors[n].startswith("/proc/")} == {
        "0",
        "1",
        "2",
        "3",
    }
    assert os.read(reader, 10) == b"hello"
    os.close(reader)
    os.close(writer)


def test_who_the_child_is_is_told_before_it_runs(processes):
    told = []
    process = start(processes, "sleep", "30", commit=told.append)
    (who,) = told
    assert who == process.identity
    assert judge(who, own_identity()).liveness == "alive"
    process.kill()
    finish(process)
    assert judge(who, own_identity()).liveness == "dead"


@pytest.mark.guarantee("G9")
def test_nothing_runs_when_its_start_could_not_be_made_durable(processes, tmp_path, nonce):
    def refuse(who):
        raise RuntimeError("the store is full")

    witness = tmp_path / "ran"
    with pytest.raises(RuntimeError, match="full"):
        start(processes, "sh", "-c", f"touch {witness}; : {nonce}", commit=refuse)
    assert not witness.exists()


@pytest.mark.guarantee("G9")
def test_nothing_runs_before_its_start_is_durable(processes, tmp_path):
    witness = tmp_path / "ran"
    process = processes.stand(
        ProcessOrder("chd_1", ["touch", str(witness)], tmp_path, environment((), {}))
    )
    assert process.seen(0.3) is None
    assert not witness.exists()
    process.go()
    finish(process)
    assert witness.exists()


def test_a_standing_child_can_be_sent_away_unrun(processes, tmp_path):
    witness = tmp_path / "ran"
    process = processes.stand(
        ProcessOrder("chd_1", ["touch", str(witness)], tmp_path, environment((), {}))
    )
    process.dismiss()
    assert judge(process.identity, own_identity()).liveness == "dead"
    assert not witness.exists()


@pytest.mark.parametrize(
    ("argv", "cwd", "said"),
    [
        (("no-such-program",), "/", "there is no such program"),
        (("/etc/passwd",), "/", "may be run"),
        (("/no/such/program",), "/", "no such program"),
        (("true",), "/no/such/folder", "/no/such/folder"),
    ],
)
def test_what_cannot_start_is_refused_before_it_counts_as_started(processes, argv, cwd, said):
    committed = []
    with pytest.raises(ChildStartFailed, match=said):
        start(processes, *argv, cwd=Path(cwd), commit=committed.append)
    assert not committed


@pytest.mark.parametrize("argv", [(), ("",), ("true", "a\0b")])
def test_a_command_that_cannot_be_said_is_refused(processes, argv):
    with pytest.raises(InvalidConfig):
        start(processes, *argv)


def test_a_file_that_turns_out_not_to_be_a_program_is_a_failed_start(processes, tmp_path):
    file = tmp_path / "noshebang"
    file.write_text("echo hi\n")
    file.chmod(0o755)
    ended, ending = run(processes, str(file))
    assert ended.seen == "start_failed"
    assert "Exec format error" in ending.unrunnable


def test_a_child_that_heeds_nothing_is_killed_after_the_grace_time(processes, nonce):
    text = f"import signal,time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(99) # {nonce}"
    ended, ending = run(processes, *script(text), timeout=0.5)
    assert (ended.seen, ended.pressed, ending.exit) == ("exited", "killing", -signal.SIGKILL)


def test_a_child_may_end_well_when_asked(processes):
    text = "import signal,time,sys; signal.signal(15, lambda *_: sys.exit(5)); time.sleep(99)"
    ended, ending = run(processes, *script(text), timeout=0.5)
    assert (ended.pressed, ending.exit) == ("ending", 5)


def test_any_thread_may_ask_a_child_to_end(processes):
    process = start(processes, "sleep", "60")
    threading.Timer(0.2, process.terminate).start()
    ended, ending = finish(process, timeout=None)
    assert (ended.pressed, ending.exit) == ("ending", -signal.SIGTERM)


TREES = {
    "background": "sleep 1000 & exit 3",
    "setsid": "setsid sleep 1000 & sleep 0.1; exit 3",
    "double fork": "(setsid sleep 1000 &) ; sleep 0.1; exit 3",
    "clean environment": "(setsid env -i sleep 1000 &) ; sleep 0.1; exit 3",
    "closed output": "(setsid sleep 1000 </dev/null >/dev/null 2>&1 3>&- &) ; sleep 0.1; exit 3",
    "ignores TERM": "(trap '' TERM; setsid sh -c 'while :; do sleep 1000; done' &) ; sleep 0.1; exit 3",
    "a tree of its own": "(setsid sh -c 'sh -c \"sleep 1000 & sleep 1000 & wait\" & wait' &) ; sleep 0.2; exit 3",
}


@pytest.mark.guarantee("G11")
@pytest.mark.parametrize("kind", TREES)
@pytest.mark.parametrize("how", ["by itself", "killed"])
def test_nothing_a_child_started_outlives_it(processes, nonce, kind, how):
    text = TREES[kind].replace("1000", f"1000.{nonce[2:].replace('x', '')}")
    if how == "killed":
        text = text.replace("exit 3", "exec sleep 2000")
    process = start(processes, "sh", "-c", text)
    if how == "killed":
        assert process.seen(0.5) is None
        process.kill()
    _, ending = finish(process)
    assert ending.exit == (3 if how == "by itself" else -signal.SIGKILL)
    assert processes_with(nonce[2:].replace("x", "")) == []
    assert ending.strays or how == "killed"


@pytest.mark.guarantee("G11")
def test_the_end_of_one_child_leaves_the_helpers_of_another_alone(processes, tmp_path, nonce):
    alive = tmp_path / "alive"
    text = (
        f"(setsid sh -c 'while :; do date > {alive}; sleep 0.05; done # {nonce}' &) ; exec sleep 60"
    )
    keeper = start(processes, "sh", "-c", text, name="chd_keeper")
    while not alive.exists():
        assert keeper.seen(0.02) is None
    for number in range(3):
        run(processes, "sh", "-c", "(setsid sleep 50 &); true", name=f"chd_{number}")
    alive.unlink()
    while not alive.exists():
        assert keeper.seen(0.02) is None
    keeper.terminate()
    finish(keeper)


@pytest.mark.guarantee("G11")
def test_a_process_that_hides_whose_it_is_ends_with_the_last_who_may_own_it(processes, nonce):
    keeper = start(processes, "sleep", "60", name="chd_keeper")
    word = f"77.{nonce[2:].replace('x', '')}"
    _, ending = run(
        processes, "sh", "-c", f"(setsid env -i sleep {word} &); sleep 0.1", name="chd_hider"
    )
    assert ending.unsure == 1
    assert processes_with(word)
    keeper.kill()
    finish(keeper)
    deadline = time.monotonic() + 10
    while processes_with(word) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert processes_with(word) == []


def test_a_flood_of_output_is_bounded_and_its_ends_are_kept(processes):
    text = "import sys; w=sys.stdout.buffer.write; w(b'first\\n'); [w(b'x'*65536) for _ in range(600)]; w(b'last\\n')"
    _, ending = run(processes, *script(text))
    kept = ending.out.kept()
    assert ending.exit == 0
    assert len(kept) < OUTPUT_BYTES + 100
    assert kept.startswith(b"first\n") and kept.endswith(b"last\n")
    assert ending.out.size == 6 + 600 * 65536 + 5
    assert f"{ending.out.dropped} bytes were dropped".encode() in kept


@pytest.mark.parametrize("limit", [2, 10, 64])
@pytest.mark.parametrize(
    "sizes", [(1,), (64,), (3, 3, 3), (100, 1), (1, 100), (32, 32), (33, 33, 33), (0,)]
)
def test_a_capture_keeps_the_first_and_the_last_half(limit, sizes):
    capture, everything = Capture(limit), b""
    for number, size in enumerate(sizes):
        data = bytes([65 + number]) * size
        capture.take(data)
        everything += data
    if len(everything) <= limit:
        assert capture.kept() == everything and capture.dropped == 0
    else:
        assert capture.kept().startswith(everything[: limit // 2])
        assert capture.kept().endswith(everything[-(limit // 2) :])
        assert capture.dropped == len(everything) - limit // 2 * 2


def test_closing_ends_everything(nonce):
    processes = Processes(grace=GRACE)
    text = f"(trap '' TERM; setsid sh -c 'while :; do sleep 1000; done # {nonce}' &) ; sleep 1000"
    process = start(processes, "sh", "-c", text)
    assert process.seen(0.2) is None
    processes.close()
    assert processes_with(nonce) == []
    with pytest.raises(ChildStartFailed, match="stopping"):
        start(processes, "true")
    finish(process)


@pytest.mark.guarantee("G11")
def test_a_kernel_whose_supervisor_is_killed_ends_its_children_and_starts_another(processes, nonce):
    hidden = f"sh -c 'sleep 1000 # {nonce}'"
    text = f"(setsid {hidden} &) ; (setsid env -i {hidden} &) ; sleep 1000 # {nonce}"
    process = start(processes, "sh", "-c", text)
    assert process.seen(0.3) is None
    os.kill(processes._supervisor.pid, signal.SIGKILL)
    ended, ending = finish(process)
    assert (ended.seen, ending.exit) == ("exited", -signal.SIGKILL)
    assert not ending.survivors
    if _home() is None:
        for pid in processes_with(nonce):
            os.kill(
                pid, signal.SIGKILL
            )  # without control groups, one that hides from everything can hide
    assert run(processes, "true")[1].exit == 0


def test_processes_without_a_supervisor_are_found_by_their_mark_and_their_session(nonce):
    environ = {**os.environ, tree.MARK: nonce}
    marked = subprocess.Popen(
        ["sh", "-c", f"setsid sleep 1000 & sleep 1000 # {nonce}"], env=environ
    )
    member = subprocess.Popen(["sh", "-c", f"sleep 1000 # {nonce}"], start_new_session=True)
    stranger = subprocess.Popen(["sleep", "1000"])
    time.sleep(0.2)
    here = own_identity()
    leader = type(here)(
        here.hostname, here.machine_id, here.boot_id, member.pid, tree.start_of(member.pid)
    )
    known = tree.ProcessTree(nonce, leader)
    found = {process.pid for process in tree.living([known])[nonce]}
    assert {marked.pid, member.pid} <= found
    assert not tree.end(known, 5.0)
    assert stranger.poll() is None
    for process in (stranger, marked, member):
        process.kill()
        process.wait()


def test_another_process_of_the_same_pid_is_not_taken_for_the_child(nonce):
    other = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    here = own_identity()
    leader = type(here)(here.hostname, here.machine_id, here.boot_id, other.pid, "1")
    assert tree.living([tree.ProcessTree(nonce, leader)]) == {nonce: []}
    other.kill()
    other.wait()


@pytest.mark.rule("L-4")
@pytest.mark.guarantee("G21")
def test_a_target_stays_held_until_the_last_of_its_tree_is_gone(processes, tmp_path, nonce):
    locks = TargetLock(tmp_path / "locks")
    claim = locks.acquire("t")
    text = f"(setsid sh -c 'sleep 1000 # {nonce}' 3>&- &) ; exec sleep 1000"
    process = start(processes, "sh", "-c", text, lock=claim.descriptor)
    assert process.seen(0.2) is None
    locks.forget(claim)
    assert not TargetLock(tmp_path / "locks")._unheld(claim.path)
    process.kill()
    finish(process)
    assert TargetLock(tmp_path / "locks")._unheld(claim.path)


@pytest.mark.skipif(_home() is None, reason="this machine lets us make no control groups")
def test_a_control_group_is_used_where_permitted_and_removed(nonce):
    processes = Processes(grace=GRACE)
    process = start(processes, "sh", "-c", f"sleep 1000 # {nonce}")
    group = processes._cgroup
    if group is None:
        processes.close()
        pytest.skip("this user may make no control groups")
    assert str(process.identity.pid) in (group.folder / "cgroup.procs").read_text().split()
    processes.close()
    assert not group.folder.exists()
    finish(process)


def test_many_children_at_once_do_not_mix_up(processes):
    found = {}

    def one(number):
        name = f"chd_{number}"
        _, ending = run(
            processes, "sh", "-c", f"echo {number} $ONCEWARD_CHILD; exit {number}", name=name
        )
        found[number] = (ending.exit, ending.out.kept().decode())

    threads = [threading.Thread(target=one, args=(n,)) for n in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: (n, f"{n} chd_{n}\n") for n in range(40)}


def limit(pid, what, soft):
    _, hard = resource.prlimit(pid, what)
    resource.prlimit(pid, what, (soft, hard))


def test_a_failed_start_leaves_its_siblings_alone(processes):
    keeper = start(processes, "sleep", "60")
    copies = Path(f"/proc/{processes._supervisor.pid}/task/{processes._supervisor.pid}/children")
    spare = 0
    while not spare:
        spare = next(
            (pid for pid in map(int, copies.read_text().split()) if pid != keeper.identity.pid), 0
        )
    assert keeper.seen(0.2) is None
    os.kill(spare, signal.SIGSTOP)
    # The copy that gets the order dies before it can say that it is ready.
    threading.Timer(0.2, os.kill, (spare, signal.SIGKILL)).start()
    with pytest.raises(ChildStartFailed, match="ended before it could start"):
        start(processes, "true")
    assert keeper.seen(0.1) is None
    assert run(processes, "true")[1].exit == 0
    keeper.kill()
    finish(keeper)


def test_two_children_of_one_name_are_one_too_many(processes):
    keeper = start(processes, "sleep", "0.5", name="chd_twice")
    with pytest.raises(ChildStartFailed, match="another child has its name"):
        start(processes, "true", name="chd_twice")
    assert finish(keeper)[1].exit == 0


def test_a_supervisor_without_descriptors_refuses_and_lives(processes):
    keeper = start(processes, "sleep", "60")
    supervisor = processes._supervisor.pid
    # The count may hold descriptors the supervisor is just letting go of, so the limit begins well below it.
    used = len(list(Path(f"/proc/{supervisor}/fd").iterdir()))
    refused = 0
    for room in range(-4, 6):
        limit(supervisor, resource.RLIMIT_NOFILE, used + room)
        try:
            assert finish(start(processes, "true"))[1].exit == 0
        except ChildStartFailed:
            refused += 1
    assert refused >= 2
    limit(supervisor, resource.RLIMIT_NOFILE, 256)
    assert run(processes, "true")[1].exit == 0
    assert keeper.seen(0.1) is None
    keeper.kill()
    finish(keeper)


def test_a_child_may_open_as_many_files_as_its_kernel(processes):
    _, ending = run(
        processes, *script("import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))")
    )
    assert ending.out.kept().decode().strip() == str(resource.getrlimit(resource.RLIMIT_NOFILE))


@pytest.mark.rule("L-11")
def test_a_survivor_keeps_a_child_from_counting_as_ended(processes, monkeypatch, nonce):
    """No signal of ours can end a program that became another user's; stood in for by a tree that is never empty."""
    process = start(processes, "sh", "-c", f"sleep 1000 # {nonce}")
    left = tree.Remains([4194303])
    monkeypatch.setattr(tree, "end", lambda some, seconds: time.sleep(min(seconds, 0.05)) or left)
    os.kill(processes._supervisor.pid, signal.SIGKILL)
    assert process.seen(0.5) is None
    assert process.ending.survivors.pids == [4194303]
    assert watch(process, 0.1, 0.1).retained
    monkeypatch.undo()
    assert process.seen(1.0) == "exited"


def test_a_supervisor_that_hangs_is_ended_and_its_children_with_it(nonce):
    processes = Processes(grace=0.1)
    process = start(processes, "sh", "-c", f"sleep 1000 # {nonce}")
    os.kill(processes._supervisor.pid, signal.SIGSTOP)
    processes.close()
    assert process.seen(5.0) == "exited"


def test_asking_a_thousand_times_is_asking_once(processes):
    text = "import signal,time; signal.signal(15, lambda *_: print('asked', flush=True)); print('up', flush=True)\n"
    process = start(
        processes,
        *script(text + "t=time.monotonic()\nwhile time.monotonic()-t<1: time.sleep(0.01)"),
    )
    while not process._out.size:
        assert process.seen(0.05) is None
    for _ in range(1000):
        process.terminate()
    other = start(processes, "true")
    assert finish(other)[1].exit == 0
    while process.seen(5.0) != "exited":
        pass
    assert process.ending.out.kept() == b"up\nasked\n"


def test_a_closed_kernel_tells_how_its_children_took_it():
    processes = Processes(grace=5.0)
    process = start(
        processes, "sh", "-c", 'trap "exit 7" TERM; echo up; while :; do sleep 0.05; done'
    )
    while not process._out.size:
        assert process.seen(0.05) is None
    closing = threading.Thread(target=processes.close)
    closing.start()
    assert finish(process)[1].exit == 7
    closing.join()


def test_a_process_object_that_was_let_go_says_so(processes):
    process = start(processes, "sleep", "0.2")
    process.close()
    with pytest.raises(ChildStartFailed, match="let go"):
        process.seen(0.1)
    assert run(processes, "true")[1].exit == 0


@pytest.mark.parametrize(
    ("argv", "env", "cwd"),
    [
        (("true", "\ud800"), {}, "/"),
        (("true",), {"": "x"}, "/"),
        (("true",), {}, "/a\0b"),
        (("true",), {"A=B": ""}, "/"),
    ],
)
def test_words_that_the_system_cannot_take_are_refused(processes, argv, env, cwd):
    with pytest.raises(InvalidConfig):
        processes.start(ProcessOrder("chd_x", argv, Path(cwd), env), lambda who: None)


def test_no_descriptors_are_lost_over_many_children(processes):
    run(processes, "true")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(60):
        if number % 3 == 0:
            with pytest.raises(ChildStartFailed):
                start(processes, "no-such-program")
        else:
            run(processes, "sh", "-c", "sleep 9 & exit 1")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.skipif(_home() is None, reason="this machine lets us make no control groups")
def test_strange_folders_among_the_control_groups_disturb_nobody(nonce):
    strange = _home() / "onceward-strange.slice"
    try:
        strange.mkdir(exist_ok=True)
    except OSError:
        pytest.skip("this user may make no control groups")
    try:
        processes = Processes(grace=GRACE)
        assert run(processes, "true")[1].exit == 0
        processes.close()
        assert strange.exists()
    finally:
        strange.rmdir()


@pytest.fixture
def no_groups(monkeypatch):
    """A system that does not let us make control groups."""
    monkeypatch.setattr("onceward.processes.cgroup._home", lambda: None)


HIDDEN = "(setsid env -i sleep 1000.{nonce} </dev/null >/dev/null 2>&1 &) ; sleep 0.1; "


@pytest.mark.rule("C-8")
@pytest.mark.guarantee("G11")
def test_without_control_groups_a_hidden_process_of_a_lost_supervisor_is_found_by_its_witness(
    no_groups, processes, tmp_path
):
    nonce = str(time.monotonic_ns())
    text = HIDDEN.format(nonce=nonce) + "echo up; exec sleep 1000"
    process = start(processes, "sh", "-c", text, witness=tmp_path / "chd_1.witness")
    while not process._out.size:
        assert process.seen(0.05) is None
    assert processes_with(nonce)
    os.kill(processes._supervisor.pid, signal.SIGKILL)
    finish(process)
    assert not process.ending.survivors
    assert processes_with(nonce) == []


@pytest.mark.rule("C-8", "L-4")
@pytest.mark.guarantee("G8")
def test_a_hidden_process_ends_with_the_child_whose_witness_it_has(no_groups, processes, tmp_path):
    nonce = str(time.monotonic_ns())
    other = start(processes, "sleep", "1000", name="chd_other", witness=tmp_path / "other")
    text = HIDDEN.format(nonce=nonce)
    _, ending = run(processes, "sh", "-c", text, name="chd_hider", witness=tmp_path / "hider")
    assert ending.unsure
    assert processes_with(nonce) == []
    assert other.seen(0.0) is None
    other.kill()
    finish(other)


@pytest.mark.rule("C-20")
@pytest.mark.guarantee("G11")
def test_what_a_stopped_supervisor_adopted_is_ended_before_it(no_groups, nonce):
    """The supervisor of a dead kernel hangs; a process that hid from everything else is still its child."""
    processes = Processes(grace=0.3)
    process = start(
        processes,
        "sh",
        "-c",
        f"(setsid env -i sh -c 'sleep 1000 # {nonce}' 3>&- &); echo up; sleep 1000",
    )
    while not process._out.size:
        assert process.seen(0.05) is None
    os.kill(processes._supervisor.pid, signal.SIGSTOP)
    known = [tree.ProcessTree(process.name, process.identity), tree.supervisors_of(processes.here)]
    assert not any(tree.end_all(known, 10.0).values())
    assert processes_with(nonce) == []
    process.close()
    processes._supervisor.wait()
    processes.close()
