import os
import signal
import subprocess
import sys

from grpo_stack import children


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_child_and_its_own_children_end_with_the_block(tmp_path):
    script = (
        "import subprocess, sys, time; c = subprocess.Popen(['sleep', '60']); print(c.pid, flush=True); time.sleep(60)"
    )
    log = tmp_path / "log"
    with log.open("w") as output, children.child([sys.executable, "-c", script], os.environ, output) as process:
        while not log.read_text().strip():
            assert process.poll() is None
        grandchild = int(log.read_text())

    assert process.returncode == -signal.SIGTERM
    waited = subprocess.run(["tail", f"--pid={grandchild}", "-f", "/dev/null"], timeout=10, check=False)
    assert waited.returncode == 0
    assert not alive(grandchild)


def test_a_child_that_has_ended_keeps_its_exit_code(tmp_path):
    with (tmp_path / "log").open("w") as output, children.child(["sh", "-c", "exit 7"], {}, output) as process:
        process.wait(timeout=10)

    assert process.returncode == 7


def test_the_tail_of_a_log_is_its_last_lines_that_say_something(tmp_path):
    log = tmp_path / "log"
    log.write_text("x" * 50000 + "\na\n\n  \nb\n")

    assert children.tail(log, 2) == ["a", "b"]
