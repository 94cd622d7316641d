"""Real processes, small ones, under the real runner; each `up` is a process of its own, as it is for a user."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from grpo_stack import local_stop, process_tree, run_state

DRIVER = """
import json, os, sys
from pathlib import Path
from grpo_stack import local_run
from grpo_stack.errors import GrpoStackError
from grpo_stack.processes import Program
from grpo_stack.progress import Progress
programs = tuple(
    Program(name, (sys.executable, "-u", "-c", code), dict(os.environ), {}, {}, grace_s=20)
    for name, code in json.loads(sys.argv[2]).items()
)
fetches = "here" not in sys.argv[3:]
try:
    with Progress(sys.stderr) as progress:
        sys.exit(local_run.up(local_run.Run("stack", Path(sys.argv[1]), programs, fetches), progress))
except GrpoStackError as fault:
    print(*fault.problems, sep="\\n")
    sys.exit(fault.exit_code)
except KeyboardInterrupt:
    sys.exit(130)
"""

SERVES = (
    "import subprocess, time; subprocess.Popen(['sleep', '600'], start_new_session=True); print('up'); time.sleep(600)"
)
"""A server with a worker in a session of its own, which no process group reaches."""

STEPS = """open('../../metrics.jsonl', 'a').write('{"step": 1, "max_steps": 1, "reward": 0.5}\\n')"""

WAITS = "import time; print('training'); time.sleep(600)"

GRACEFUL = """
import signal, sys, time
def end(*_):
    open('../../checkpoint', 'w').write('saved')
    sys.exit(130)
signal.signal(signal.SIGTERM, end)
print('training')
time.sleep(600)
"""


ENDS_WHEN_TOLD = """
import signal, subprocess, sys, time
from pathlib import Path
worker = subprocess.Popen(['sleep', '600'], start_new_session=True)
def end(*_):
    Path('../../asked').touch()
    while not Path('../../told').exists(): time.sleep(0.01)
    worker.kill()
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print('up')
time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "outputs" / "run" / "logs").mkdir(parents=True)
    return tmp_path / "outputs" / "run"


def driver(folder, *words, before="", **codes):
    named = {"prefetch": "", "vllm-server": SERVES, "trainer": STEPS, **codes}
    named = {name.replace("_", "-"): code for name, code in named.items() if code is not None}
    argv = [sys.executable, "-c", before + DRIVER, str(folder), json.dumps(named), *words]
    # A session of its own is also how its children are told from everything else.
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def run(folder, *words, **codes):
    process = driver(folder, *words, **codes)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def until(process, happened):
    """Wait for something that a running `up` leads to."""
    limit = time.monotonic() + 30
    while not happened():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit


def at_work(folder):
    return {log.read_text() for log in folder.glob("logs/*.log")} == {"", "up\n", "training\n"}


@contextmanager
def running(folder, **codes):
    """An `up` whose server and trainer have both begun to work."""
    process = driver(folder, **codes)
    try:
        until(process, lambda: at_work(folder))
        yield process
    finally:
        # Asked first: killed while it starts a role, it leaves a worker that nobody can find any more.
        process.terminate()
        try:
            process.communicate(timeout=30)
        finally:
            process.kill()
            local_stop.down(folder, 1)


def everything(process):
    """`up` and all that is below it."""
    return {process_tree.find(process.pid), *process_tree.below(process.pid)}


def left(processes):
    return [process for process in processes if process_tree.alive(process)]


def member(folder, name):
    return next(found for found in run_state.read(folder).roles if found.name == name)


def test_a_run_is_followed_to_its_end_and_nothing_of_it_stays(folder):
    code, out, err = run(folder)

    assert (code, out) == (0, "")
    assert "step 1/1  reward 0.50" in err
    assert {found.name: found.exit_code for found in run_state.read(folder).roles} == {
        "prefetch": 0,
        "vllm-server": -signal.SIGTERM,
        "trainer": 0,
    }
    assert run_state.read(folder).live == ()


def test_a_state_that_cannot_be_written_hides_no_exit_code_and_leaves_nothing_running(folder):
    (folder / "processes.new").mkdir()
    log = folder / "logs" / "vllm-server.log"
    server = SERVES.replace("subprocess.Popen", "print(subprocess.Popen").replace("True);", "True).pid);")
    trainer = (
        f"import sys, time\nwhile 'up' not in open({str(log)!r}).read(): time.sleep(0.01)\nprint('full'); sys.exit(3)"
    )

    code, out, _ = run(folder, vllm_server=server, trainer=trainer)

    assert code == 3
    assert "trainer ended with exit code 3; its last lines:\n    full" in out
    assert process_tree.find(int(log.read_text().split()[0])) is None


def test_a_trainer_that_generates_by_itself_needs_no_server(folder):
    assert run(folder, vllm_server=None)[0] == 0


def test_what_the_trainer_ends_with_is_passed_on_with_its_last_words(folder):
    code, out, _ = run(folder, trainer="import sys; print('no such column'); sys.exit(2)")

    assert code == 2
    assert "trainer ended with exit code 2; its last lines:\n    no such column" in out


def test_of_a_trainer_that_gave_up_both_sides_are_heard(folder):
    log = folder / "logs" / "vllm-server.log"
    waits = f"import sys, time\nwhile 'up' not in open({str(log)!r}).read(): time.sleep(0.01)\n"

    code, out, _ = run(folder, trainer=f"{waits}print('no server'); sys.exit(5)")

    assert code == 5
    assert (
        "trainer ended with exit code 5; its last lines:\n    no server\nthe last lines of vllm-server:\n    up\n"
        in out
    )
    assert out.endswith(f"all of them: {folder / 'logs'}\n")


def test_a_prefetch_that_refuses_ends_the_run_in_its_own_words_before_anything_else_starts(folder):
    code, out, _ = run(folder, prefetch="import sys; print('model: no such model'); sys.exit(2)")

    assert (code, out) == (2, "model: no such model\n")
    assert [found.name for found in run_state.read(folder).roles] == ["prefetch"]


def test_where_nothing_is_fetched_the_checks_do_not_hold_the_others_up(folder):
    # Ends only once the server has begun.
    checks = "from pathlib import Path\nwhile not Path('../../logs/vllm-server.log').read_text(): pass"

    code, _, err = run(folder, "here", prefetch=checks)

    assert code == 0
    assert "checking model and dataset" in err


def test_and_what_they_find_still_ends_the_run(folder):
    code, out, _ = run(folder, "here", prefetch="import sys; print('no such column'); sys.exit(2)", trainer=WAITS)

    assert (code, out) == (2, "no such column\n")
    assert run_state.read(folder).live == ()


def test_a_server_that_was_given_up_ends_the_run(folder):
    code, out, _ = run(folder, vllm_server="import sys; print('engine died'); sys.exit(5)", trainer=WAITS)

    assert code == 5
    assert "vllm-server ended with exit code 5; its last lines:\n    engine died" in out


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_trainer_save_and_leaves_nothing_behind(folder, sign):
    with running(folder, trainer=GRACEFUL) as process:
        tree = everything(process)
        assert len(tree) >= 4  # up, the server, its worker, the trainer
        process.send_signal(sign)
        process.communicate(timeout=30)

        assert process.returncode == 130
        assert (folder / "checkpoint").read_text() == "saved"
        assert left(tree) == []


@pytest.mark.parametrize(
    ("sign", "code"), [(signal.SIGINT, 0), (signal.SIGINT, 2), (signal.SIGTERM, 0), (signal.SIGHUP, 0)]
)
def test_a_signal_that_comes_while_the_run_is_stopped_leaves_nothing_behind_and_changes_no_exit_code(
    folder, sign, code
):
    end = f"import sys\nwhile not Path('../../watched').exists(): pass\n{STEPS}\nsys.exit({code})"
    process = driver(folder, vllm_server=ENDS_WHEN_TOLD, trainer=f"from pathlib import Path\nprint('training')\n{end}")
    try:
        until(process, lambda: at_work(folder))
        tree = everything(process)
        (folder / "watched").touch()
        until(process, (folder / "asked").exists)
        process.send_signal(sign)
        (folder / "told").touch()
        process.communicate(timeout=30)

        assert process.returncode == code
        assert left(tree) == []
    finally:
        process.kill()
        local_stop.down(folder, 1)


INTERRUPTED = """
import signal
from grpo_stack import local_run
identify = local_run._identify
def interrupted(name, pid):
    if name == "vllm-server":
        signal.raise_signal(signal.SIGINT)
    return identify(name, pid)
local_run._identify = interrupted
"""


def test_a_signal_that_comes_the_moment_a_role_was_started_ends_that_one_too(folder):
    log = folder / "logs" / "vllm-server.log"

    code, out, _ = run(folder, before=INTERRUPTED, vllm_server=f"import os; print(os.getpid())\n{WAITS}")

    assert (code, out) == (130, "")
    assert [pid for pid in log.read_text().split() if pid.isdigit() and process_tree.find(int(pid))] == []


def test_a_stopped_server_ends_too(folder):
    with running(folder, trainer=GRACEFUL) as process:
        tree = everything(process)
        os.kill(member(folder, "vllm-server").process.pid, signal.SIGSTOP)
        process.terminate()
        process.communicate(timeout=30)

        assert left(tree) == []


def test_a_supervisor_that_was_killed_from_outside_is_started_again_without_what_it_left(folder):
    with running(folder, trainer=WAITS) as process:
        server = member(folder, "vllm-server")
        workers = process_tree.below(server.process.pid)
        os.kill(server.process.pid, signal.SIGKILL)
        limit = time.monotonic() + 30
        while member(folder, "vllm-server").process == server.process:
            assert time.monotonic() < limit

        assert workers
        assert left(workers) == []
        assert process.poll() is None


def test_a_second_up_of_the_same_run_is_refused_and_disturbs_nothing(folder):
    with running(folder, trainer=WAITS) as process:
        code, out, _ = run(folder)

        assert code == 3
        assert f"run {folder.name} is running already; stop it with `grpo-stack down --runtime process" in out
        assert process.poll() is None


def test_an_up_that_was_killed_leaves_a_run_that_is_refused_until_down_has_ended_it(folder):
    with running(folder, trainer=GRACEFUL) as process:
        tree = everything(process)
        process.kill()
        process.communicate(timeout=30)
        code, out, _ = run(folder)
        local_stop.down(folder, 20)

        assert code == 3
        assert "left by an `up` that was killed: vllm-server (pid " in out
        assert (folder / "checkpoint").exists()
        assert left(tree) == []
    assert run(folder)[0] == 0


def test_down_asks_the_up_that_is_there(folder):
    with running(folder, trainer=GRACEFUL) as process:
        tree = everything(process)
        local_stop.down(folder, 20)
        process.communicate(timeout=30)

        assert process.returncode == 130
        assert left(tree) == []


def test_status_tells_of_each_role(folder):
    with running(folder, trainer=WAITS):
        told = {row["service"]: row["state"] for row in local_stop.status(folder)}

        assert told == {"prefetch": "exited", "vllm-server": "running", "trainer": "running"}
        assert run_state.live_runs(folder.parent, "stack") == [folder]
        assert run_state.live_runs(folder.parent, "other") == []


def test_a_process_that_was_given_an_old_id_is_nobody_of_the_run(folder):
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        found = process_tree.find(stranger.pid)
        old = process_tree.Process(found.pid, found.started - 1)
        with run_state.claim(folder) as record:
            runner = run_state.Member("up", old)
            record.write(run_state.State("stack", process_tree.boot(), runner, (run_state.Member("trainer", old),)))
        local_stop.down(folder, 1)

        assert process_tree.alive(found)
        assert run_state.read(folder).live == ()
    finally:
        stranger.kill()
        stranger.wait()


def test_after_another_boot_no_id_means_anything(folder):
    own = run_state.Member("up", process_tree.find(os.getpid()))

    assert run_state.State("stack", process_tree.boot(), own).live == (own,)
    assert run_state.State("stack", "another", own).live == ()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"project": "x"}'])
def test_a_state_that_cannot_be_read_is_none(folder, text):
    Path(folder, run_state.FILE).write_text(text)

    assert run_state.read(folder) is None
