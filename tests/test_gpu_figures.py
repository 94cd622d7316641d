"""What the GPU figures hold back is held back, and let go."""

import importlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parent.parent

SUPERVISOR = """
import subprocess, sys
# supervise trainer -- accelerate launch
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()", "accelerate", "launch", "train"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
sys.stdin.read()
child.communicate()
"""


@pytest.fixture
def gpu_figures(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("gpu_figures")


def state(pid: int) -> str:
    """`T` for a process that is stopped, S for one that sleeps."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_training_stands_still_until_the_gate_opens_and_its_supervisor_does_not(gpu_figures):
    argv = [sys.executable, "-c", SUPERVISOR]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as supervisor:
        training = int(supervisor.stdout.readline())
        seen = []

        def gate_opens(*_: str) -> None:
            gpu_figures.until(lambda: state(training) == "T", 5)
            seen.append((state(training), state(supervisor.pid)))

        outer = SimpleNamespace(process=SimpleNamespace(pid=supervisor.pid), wait_for=gate_opens)
        gpu_figures.hold_until_ready(outer)
        gpu_figures.until(lambda: state(training) == "S", 5)
        seen.append((state(training), state(supervisor.pid)))
        supervisor.communicate()

    assert seen == [("T", "S"), ("S", "S")]
