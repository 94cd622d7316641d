"""The trainer's supervisor as a process of its own, over real children, real signals and a real socket."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from grpo_stack.errors import DescriptionError
from grpo_stack.readiness import Expectation
from grpo_stack.supervise import events, trainer
from grpo_stack.supervise.verdict import Limits
from tests import supervising as supervisor
from tests.fakes import peers
from tests.fakes.supervised_vllm import SupervisedVllm

TRAINING = """
import os, sys, time
from pathlib import Path
from grpo_stack.heartbeat import Heart
heart, here = Heart.from_environment(), Path.cwd()
print("training starts", flush=True)
with open("starts", "a") as file:
    file.write("x")
start = len(Path("starts").read_text())
def until(name):
    while not (here / name).exists():
        time.sleep(0.005)
def for_ever():
    until("never")
"""
"""In front of each training script: `start` counts the starts, from 1 on."""


class Supervised:
    """A supervisor that runs, and what it leaves behind."""

    def __init__(self, folder: Path, process: BaseProcess) -> None:
        self.folder = folder
        self.process = process

    def wait(self) -> int | None:
        self.process.join(timeout=supervisor.END_S)
        return self.process.exitcode

    def signal(self, sign: signal.Signals) -> None:
        assert self.process.pid
        os.kill(self.process.pid, sign)

    def events(self) -> list[dict[str, object]]:
        file = self.folder / "run" / events.FILE
        return list(events.read(file)) if file.exists() else []

    def names(self) -> list[object]:
        return [entry["event"] for entry in self.events()]

    def find(self, name: str) -> dict[str, object]:
        [entry] = [entry for entry in self.events() if entry["event"] == name]
        return entry

    def until(self, true: Callable[[], bool]) -> None:
        poll = threading.Event()
        while not true():
            assert self.process.is_alive(), self.said()
            poll.wait(0.005)

    def until_file(self, path: str) -> None:
        """Wait for what training leaves in its folder."""
        self.until((self.folder / path).exists)

    def until_event(self, name: str, times: int = 1) -> None:
        self.until(lambda: self.names().count(name) >= times)

    def said(self) -> str:
        return (self.folder / "log").read_text()


@contextmanager
def supervising(folder: Path, script: str, url: str = "", **options: Any) -> Iterator[Supervised]:
    words = [sys.executable, "-c", TRAINING + script]
    process = supervisor.start(folder, words, supervisor.Options(url, **options))
    try:
        yield Supervised(folder, process)
    finally:
        supervisor.end(process)


def test_training_that_waits_for_the_server_is_let_go_and_its_end_is_a_success(tmp_path: Path) -> None:
    script = """
heart.beat("start")
heart.beat("waiting")
assert heart.wait_for_go(0.01)
heart.beat("load", 0, 2)
heart.beat("generate", 0)
heart.beat("generate", 2)
heart.beat("done")
"""
    with SupervisedVllm() as vllm, supervising(tmp_path, script, vllm.url) as run:
        assert run.wait() == 0, run.said()

    assert run.names() == ["started", "ready", "ended", "finished"]
    assert run.find("started")["instance"] == run.find("ready")["instance"] == "first-instance"
    assert run.find("ready")["seconds"] >= 0  # type: ignore[operator]
    assert run.find("finished")["step"] == 2
    assert all(str(entry["time"]).endswith("Z") and entry["unix"] for entry in run.events())
    assert "training starts" in run.said()
    assert "POST /v1/completions" in vllm.requests


def test_training_does_not_go_before_the_server_can_generate(tmp_path: Path) -> None:
    script = """
heart.beat("waiting")
heart.wait_for_go(0.01)
Path("went").touch()
heart.beat("done")
"""
    with SupervisedVllm() as vllm:
        vllm.generates.clear()
        with supervising(tmp_path, script, vllm.url) as run:
            assert vllm.generation_began.wait(20)
            run.until_file("starts")
            assert not (tmp_path / "went").exists()
            vllm.generates.set()

            assert run.wait() == 0, run.said()

    assert (tmp_path / "went").exists()


def test_a_killed_rank_costs_one_start_and_the_recovery_is_measured(tmp_path: Path) -> None:
    script = """
import signal, subprocess
heart.beat("generate", 4, 6)
if start == 1:
    subprocess.Popen(["sleep", "600"])
    until("seen")
    os.kill(os.getpid(), signal.SIGKILL)
step = 4
while not Path("recovered").exists():
    heart.beat("generate", step, 1000)
    step += 1
    time.sleep(0.02)
heart.beat("done")
"""
    with supervising(tmp_path, script) as run:
        run.until_event("ready")
        (tmp_path / "seen").touch()
        run.until_event("recovered")
        (tmp_path / "recovered").touch()
        assert run.wait() == 0, run.said()

    first = ["started", "ready", "noticed", "ended", "resuming"]
    assert run.names() == [*first, "started", "ready", "recovered", "ended", "finished"]
    assert run.find("noticed")["evidence"] == "training ended with SIGKILL"
    assert run.find("noticed")["what"] == "child-ended"
    assert run.find("recovered")["seconds"] > 0  # type: ignore[operator]


def test_a_server_that_was_started_anew_takes_training_with_it(tmp_path: Path) -> None:
    script = """
heart.beat("generate", 4, 6)
if start == 1:
    Path("generating").touch()
    for_ever()
heart.beat("done", 6)
"""
    with SupervisedVllm() as vllm, supervising(tmp_path, script, vllm.url) as run:
        run.until_file("generating")
        run.until_event("ready")
        vllm.restart()
        assert run.wait() == 0, run.said()

    noticed = run.find("noticed")
    assert (noticed["what"], noticed["phase"], noticed["step"]) == ("server-restarted", "generate", 4)
    assert "step 4, generate: the server was started anew" in run.said()


def test_a_server_that_is_gone_is_waited_for_at_the_gate(tmp_path: Path) -> None:
    script = """
heart.beat("waiting")
heart.wait_for_go(0.01)
heart.beat("push", 4, 6)
if start == 1:
    Path("pushing").touch()
    for_ever()
heart.beat("done", 6)
"""
    with SupervisedVllm() as vllm, supervising(tmp_path, script, vllm.url) as run:
        run.until_file("pushing")
        vllm.leave()
        run.until_event("resuming")
        vllm.come_back()
        assert run.wait() == 0, run.said()

    assert run.find("noticed")["what"] == "server-gone"
    assert "the server is gone (connection refused)" in run.said()
    assert run.names().count("ready") == 2


def test_a_server_that_is_silent_costs_no_restart(tmp_path: Path) -> None:
    script = """
heart.beat("generate", 4, 6)
until("answered")
heart.beat("done", 6)
"""
    with SupervisedVllm() as vllm, supervising(tmp_path, script, vllm.url, call_s=0.05) as run:
        run.until_event("ready")
        vllm.answers.clear()
        vllm.wait_until_asked_in_vain(3)
        (tmp_path / "answered").touch()
        assert run.wait() == 0, run.said()

    assert run.names() == ["started", "ready", "ended", "finished"]


def test_an_update_left_open_by_a_killed_trainer_restarts_the_server(tmp_path: Path) -> None:
    script = """
import signal
heart.beat("waiting")
heart.wait_for_go(0.01)
heart.beat("push", 4, 6)
if start == 1:
    until("open")
    os.kill(os.getpid(), signal.SIGKILL)
heart.beat("done", 6)
"""
    with SupervisedVllm() as vllm, supervising(tmp_path, script, vllm.url) as run:
        run.until_event("ready")
        vllm.update_open = True
        (tmp_path / "open").touch()
        assert run.wait() == 0, run.said()

    assert vllm.abandoned == [True]
    whats = [entry["what"] for entry in run.events() if entry["event"] == "noticed"]
    assert whats == ["child-ended", "update-abandoned"]


def test_an_update_found_open_before_the_first_start_is_abandoned_too(tmp_path: Path) -> None:
    with SupervisedVllm() as vllm:
        vllm.update_open = True
        with supervising(tmp_path, 'heart.wait_for_go(0.01); heart.beat("done")', vllm.url) as run:
            assert run.wait() == 0, run.said()

    assert vllm.abandoned == [True]
    assert run.names()[:2] == ["noticed", "started"]


def test_an_update_found_open_at_the_gate_is_abandoned_too(tmp_path: Path) -> None:
    script = """
heart.beat("waiting")
heart.wait_for_go(0.01)
heart.beat("done")
"""
    with SupervisedVllm() as vllm:
        vllm.leave()
        with supervising(tmp_path, script, vllm.url) as run:
            run.until(lambda: "connection refused" in run.said())
            vllm.come_back(update_open=True)
            assert run.wait() == 0, run.said()

    assert vllm.abandoned == [True]
    assert run.names() == ["started", "noticed", "ready", "ended", "finished"]


def test_a_phase_past_its_deadline_is_ended_and_training_resumed(tmp_path: Path) -> None:
    script = """
heart.beat("optimize", 4, 6)
if start == 1:
    for_ever()
heart.beat("done", 6)
"""
    with supervising(tmp_path, script, floor_s=0.05) as run:
        assert run.wait() == 0, run.said()

    assert run.find("noticed")["what"] == "phase-overdue"
    assert "step 4, optimize: no end of optimize after" in run.said()


def test_it_gives_up_after_restarts_without_progress_and_shows_both_sides(tmp_path: Path) -> None:
    script = """
heart.beat("generate", 4, 6)
print("the last words", flush=True)
sys.exit(1)
"""
    with SupervisedVllm() as vllm, supervising(tmp_path, script, vllm.url, restarts=2) as run:
        assert run.wait() == 5

    assert run.names().count("started") == 3
    assert run.find("gave-up")["exit_code"] == 5
    end = run.said().partition("grpo-stack: | ")[2]
    assert "the last words" in end
    assert "the server's last answer: HTTP 200, instance first-in" in end
    assert "gave up after 2 restarts without a new step; the last one: training ended with exit code 1" in end


def test_a_new_step_forgives_the_restarts_before(tmp_path: Path) -> None:
    script = """
heart.beat("generate", 0, 9)
heart.beat("generate", start, 9)
if start < 3:
    until(f"step{start}")
    sys.exit(1)
heart.beat("done", 9)
"""
    with supervising(tmp_path, script, restarts=1) as run:
        for start in (1, 2):
            run.until_event("started", start)
            (tmp_path / f"step{start}").touch()
        code = run.wait()

    assert code == 0, run.said()


def test_a_fault_that_training_itself_has_announced_is_passed_on(tmp_path: Path) -> None:
    script = """
heart.beat("load", 0, 6)
heart.fail(2, "dataset: no such thing")
sys.exit(1)
"""
    with supervising(tmp_path, script) as run:
        assert run.wait() == 2

    assert "fault: dataset: no such thing" in run.said()
    assert run.names().count("started") == 1
    assert run.find("gave-up")["exit_code"] == 2


def test_a_server_that_can_never_be_used_ends_the_run_at_once(tmp_path: Path) -> None:
    with SupervisedVllm("org/other") as vllm, supervising(tmp_path, "for_ever()", vllm.url) as run:
        assert run.wait() == 4

    assert "it serves 'org/other', but 'org/model' will be trained" in run.said()
    assert run.find("gave-up")["exit_code"] == 4


def test_a_server_that_does_not_come_costs_the_budget_and_no_more(tmp_path: Path) -> None:
    with peers.refusing() as url, supervising(tmp_path, "for_ever()", url, budget_s=0.6) as run:
        assert run.wait() == 4

    assert "not ready after 0.6 s (last answer: connection refused on /health)" in run.said()


def test_sigterm_lets_the_step_end_with_a_checkpoint(tmp_path: Path) -> None:
    script = """
heart.beat("optimize", 4, 6)
Path("optimizing").touch()
while not heart.stop_asked():
    time.sleep(0.005)
heart.beat("save", 5)
Path("checkpoint").touch()
heart.beat("stopped")
"""
    with supervising(tmp_path, script) as run:
        run.until_file("optimizing")
        run.until_event("ready")
        run.signal(signal.SIGTERM)
        assert run.wait() == 130, run.said()

    assert (tmp_path / "checkpoint").exists()
    assert run.names() == ["started", "ready", "stopping", "ended", "stopped"]


def test_sigterm_ends_training_at_once_while_there_is_nothing_to_save(tmp_path: Path) -> None:
    script = """
heart.beat("waiting")
Path("waiting").touch()
for_ever()
"""
    with peers.refusing() as url, supervising(tmp_path, script, url) as run:
        run.until_file("waiting")
        run.signal(signal.SIGINT)
        assert run.wait() == 130, run.said()

    assert run.names()[-2:] == ["ended", "stopped"]


def test_a_second_signal_does_not_wait_for_the_step(tmp_path: Path) -> None:
    script = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
heart.beat("optimize", 4, 6)
Path("optimizing").touch()
for_ever()
"""
    with supervising(tmp_path, script) as run:
        run.until_file("optimizing")
        run.signal(signal.SIGTERM)
        run.until_event("stopping")
        run.signal(signal.SIGTERM)
        assert run.wait() == 130, run.said()

    assert run.find("stopped")["evidence"] == "asked to stop twice"


def test_training_that_does_not_end_in_time_is_killed(tmp_path: Path) -> None:
    script = """
heart.beat("optimize", 4, 6)
Path("optimizing").touch()
for_ever()
"""
    with supervising(tmp_path, script, grace_s=0.1) as run:
        run.until_file("optimizing")
        run.signal(signal.SIGTERM)
        assert run.wait() == 130, run.said()

    assert run.find("stopped")["evidence"] == "training did not end within 0.1 s"


def test_a_program_that_knows_nothing_of_us_is_asked_by_signal(tmp_path: Path) -> None:
    script = """
import signal
def end(*of):
    Path("ended").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
Path("running").touch()
for_ever()
"""
    with supervising(tmp_path, script) as run:
        run.until_file("running")
        run.signal(signal.SIGTERM)
        assert run.wait() == 130, run.said()

    assert (tmp_path / "ended").exists()


def test_a_program_that_knows_nothing_of_us_has_succeeded_with_exit_code_0_and_only_then(tmp_path: Path) -> None:
    with supervising(tmp_path, "sys.exit(1 if start == 1 else 0)", floor_s=0.01) as run:
        assert run.wait() == 0, run.said()

    assert run.names().count("started") == 2


def test_training_alone_is_given_the_variables_of_the_env_file(tmp_path: Path) -> None:
    keys = tmp_path / "keys.env"
    keys.write_text("TRACKER_KEY=secret\nPATH=/mine\n")

    with supervising(tmp_path, 'print(os.environ["TRACKER_KEY"], os.environ["PATH"])', env_file=keys) as run:
        assert run.wait() == 0, run.said()

    assert "secret /mine" in run.said()
    assert "TRACKER_KEY" not in os.environ


def test_a_command_that_does_not_exist_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(DescriptionError, match="no-such-command cannot be run"):
        trainer.run(trainer.Settings(tmp_path), ["no-such-command"])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"server": Expectation("vllm-server:8000", "org/model")}, "--url: not a URL"),
        ({"gate_budget_s": 0.0}, "0 s is no time limit"),
        ({"phase_floor_s": float("inf")}, "inf s is no time limit"),
        ({"limits": Limits(grace_s=-1)}, "-1 s is no time limit"),
        ({"restarts": -1}, "--restarts -1"),
        ({"env_file": Path("/nowhere/keys")}, "trainer.env_file: /nowhere/keys cannot be read: No such file"),
    ],
)
def test_a_setting_that_cannot_be_used_is_refused_before_anything_starts(
    tmp_path: Path, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(DescriptionError, match=said):
        trainer.run(trainer.Settings(tmp_path, **settings), ["touch", str(tmp_path / "started")])

    assert list(tmp_path.iterdir()) == []
