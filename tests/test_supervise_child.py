"""Real processes. Each test runs a small supervisor, since whatever descends from its process belongs to its child."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from grpo_stack.errors import DescriptionError
from grpo_stack.supervise.child import Child

PRELUDE = """
import os, signal, sys, time
from grpo_stack import process_tree
from grpo_stack.supervise import child
child.ORPHAN_GRACE_S = 0.3
child.adopt_orphans()
reader, writer = os.pipe()
lines = os.fdopen(reader)
def start(script, program="sh"):
    return child.Child([program, "-c", script], os.environ, os.fdopen(writer, "wb", 0))
def below():
    return len(process_tree.below(os.getpid()))
def ended():
    return len(process_tree.ended_children(os.getpid()))
def ended_by_itself(process):
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
"""

DEAF = 'trap "" TERM; echo ready; while :; do sleep 0.05; done'


def supervise(script: str) -> list[str]:
    """Runs a supervisor, and what it printed, by line."""
    argv = [sys.executable, "-c", PRELUDE + script]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    assert done.stderr == ""
    assert done.returncode == 0
    return done.stdout.splitlines()


def test_output_comes_unchanged_and_at_once() -> None:
    script = "import sys; sys.stdin.close(); o = sys.stdout.buffer; o.write(b'a\\xff\\n'); o.flush(); print('e', file=sys.stderr, end='')"
    code = f"""
process = child.Child([sys.executable, "-c", {(script + "; import signal; signal.pause()")!r}], os.environ)
sys.stdin.read(1)
process.end(5)
"""
    argv = [sys.executable, "-c", PRELUDE + code]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as running:
        assert running.stdout
        assert running.stdin
        seen = b""
        while not seen.endswith(b"e"):
            piece = running.stdout.read(100)
            assert piece
            seen += piece
        assert running.poll() is None
        running.stdin.write(b"x")
        rest = running.stdout.read()

    assert (seen, rest, running.returncode) == (b"a\xff\ne", b"", 0)


def test_the_last_lines_are_kept() -> None:
    shown = supervise("""
process = start("i=0; while [ $i -lt 100 ]; do i=$((i+1)); echo line $i; done; printf 'no end'")
ended_by_itself(process)
process.end(5)
print(len(process.last_lines()), process.last_lines()[0], process.last_lines()[-1], sep="|")
""")
    assert shown == ["30|line 72|no end"]


def test_a_child_that_obeys_is_not_killed() -> None:
    shown = supervise("""
process = start("trap 'exit 3' TERM; echo ready; while :; do sleep 0.05; done")
lines.readline()
print(process.end(20), process.poll(), below())
""")
    assert shown == ["[] 3 0"]


def test_a_child_that_does_not_obey_is_killed_after_its_grace_with_its_group() -> None:
    shown = supervise(f"""
process = start({DEAF!r})
lines.readline()
before = time.monotonic()
print(process.end(0.3), process.poll(), below(), ended(), 0.3 <= time.monotonic() - before < 5)
""")
    assert shown == [f"[] {-signal.SIGKILL} 0 0 True"]


def test_a_stopped_child_is_woken_to_end() -> None:
    shown = supervise("""
process = start("trap 'exit 3' TERM; echo ready; kill -STOP $$; while :; do sleep 0.05; done")
lines.readline()
os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
print(process.end(20), process.poll())
""")
    assert shown == ["[] 3"]


@pytest.mark.parametrize(
    "worker", ["sleep 60", "sh -c '" + DEAF.replace("echo ready; ", "") + "'"], ids=["obeys", "does not"]
)
def test_what_outlives_a_child_in_a_session_of_its_own_is_ended(worker: str) -> None:
    shown = supervise(f"""
process = start('setsid {worker.replace("'", chr(92) + "'")} >/dev/null & echo ready')
lines.readline()
ended_by_itself(process)
print(below())
print(process.end(20), process.poll(), below(), ended())
""")
    assert int(shown[0]) >= 1
    assert shown[1:] == ["[] 0 0 0"]


def test_orphans_that_end_meanwhile_leave_no_zombies() -> None:
    shown = supervise("""
process = start("(setsid true &); echo ready; exec sleep 60")
lines.readline()
while not (orphans := [p for p in process_tree.ended_children(os.getpid()) if p.pid != process.pid]):
    os.sched_yield()
print(len(orphans), process.poll(), ended())
process.end(5)
""")
    assert shown == ["1 None 0"]


def test_a_reader_that_goes_away_does_not_disturb_the_child() -> None:
    shown = supervise("""
process = start("i=0; while [ $i -lt 2000 ]; do i=$((i+1)); echo line $i; done; exit 7")
lines.close()
ended_by_itself(process)
print(process.end(5), process.poll(), process.last_lines()[-1])
""")
    assert shown == ["[] 7 line 2000"]


@pytest.mark.parametrize(("program", "fault"), [("no-such-program", "No such file"), (os.devnull, "Permission denied")])
def test_a_command_that_cannot_be_run_is_said(program: str, fault: str) -> None:
    with pytest.raises(DescriptionError, match=f"supervise: {program} cannot be run: {fault}"):
        Child([program], {})
