"""A stack under test, the faults that can be done to it, and how long it takes to recover."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from grpo_stack import engine
from grpo_stack.supervise import events
from tests.real.conftest import ROOT, Stack

SERVER, TRAINER = "vllm-server", "trainer"

RANK, ENGINE, VLLM = r"python (-u )?-m grpo_stack\.train", "VLLM::EngineCore", "VLLM::"
"""Training processes, and not what stands in front of them; vLLM's engine; all of its children."""

RECORD = ROOT / ".cache" / "faults.jsonl"
"""Where the times of each recovery are kept, for `bench/reliability.py`."""

WATCH = """
import json, sys, time, urllib.request
moment, end, last = sys.argv[1], time.monotonic() + float(sys.argv[2]), None
while time.monotonic() < end:
    try:
        with urllib.request.urlopen("http://127.0.0.1:8000/grpo_stack/activity", timeout=5) as answer:
            seen = json.load(answer)
        now = "push" if seen["update_open_s"] is not None else "generate" if seen["generating"] else "idle"
    except OSError:
        now = "away"
    if now == moment and last not in (None, now) and (moment != "idle" or last == "generate"):
        print(now, flush=True)
        break
    last = now
    time.sleep(0.005)
"""
"""Runs in the server's container, and says when a moment comes. It ends by itself: nobody can end it from outside, and one that
goes on asking costs the stack under test a core."""


@dataclass(frozen=True)
class Recovery:
    """Seconds from a fault, by the wall clock."""

    fault: str
    phase: str | None
    """What training was doing, as its supervisor knew it."""
    noticed_s: float | None
    """Until a supervisor said so; None where none had to."""
    ready_s: float | None
    """Until the gate was passed again."""
    step_s: float
    """Until the next completed step."""
    lost_steps: int
    """Steps that had to be made again."""


@dataclass(frozen=True)
class Fault:
    """Harm that was done."""

    at: float
    """Seconds since 1970."""
    before: int
    """Steps completed by then."""
    over: float
    """Seconds since 1970: when no more harm was done."""


class Live:
    """A running stack."""

    def __init__(self, stack: Stack, *words: str) -> None:
        self.stack, self.folder = stack, stack.run_folder
        self.child = stack.start(*words)
        self.told: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.child.stderr
        self.told += self.child.stderr

    def metrics(self) -> list[dict[str, Any]]:
        file = self.folder / "metrics.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def events(self, since: float = 0.0) -> list[dict[str, Any]]:
        file = self.folder / events.FILE
        return [each for each in events.read(file) if each["unix"] >= since] if file.exists() else []

    def step(self) -> int:
        return max((line["step"] for line in self.metrics()), default=0)

    def until(self, what: str, true: Callable[[], Any], limit_s: float) -> Any:
        """What `true` returns once that is something; the test fails after `limit_s`, or when the stack has ended."""
        deadline = time.monotonic() + limit_s
        while not (found := true()):
            if self.child.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"no {what} within {limit_s} s; the stack said:\n{''.join(self.told)}")
            time.sleep(0.1)
        return found

    def until_step(self, step: int, limit_s: float = 240) -> None:
        self.until(f"step {step}", lambda: self.step() >= step, limit_s)

    def await_moment(self, moment: str, limit_s: float = 120) -> None:
        """Return as the server begins to `generate` or to take a `push`, or is `idle` after generating, while the trainer
        optimizes."""
        argv = [self.stack.docker, "exec", self.name(SERVER), "python", "-c", WATCH, moment, str(limit_s)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as watching:
            assert watching.stdout
            killer = threading.Timer(limit_s + 30, watching.kill)
            killer.start()
            seen = watching.stdout.readline()
            killer.cancel()
            watching.kill()  # rather than wait for Docker's client, while the moment passes
        if not seen:
            pytest.fail(f"the server did not come to {moment} within {limit_s} s")

    def strike(self, moment: str, service: str, text: str = "", sign: signal.Signals = signal.SIGKILL) -> Fault:
        """Send a signal to the processes that match `text`, or end the whole container, at that moment of a step."""
        # Looked up before, since a push takes less time than asking Docker.
        victims = self.pids(service, text) if text else [self.main_pid(service)]
        assert victims, f"no {text} in {service}"
        self.await_moment(moment)
        at, before = time.time(), self.step()
        for pid in victims:
            os.kill(pid, sign)
        return Fault(at, before, at)

    def name(self, service: str) -> str:
        return next(box.name for box in engine.containers(self.stack.project) if box.service == service)

    def pids(self, service: str, text: str) -> list[int]:
        """Processes of a container whose command line matches `text`, as this host numbers them."""
        argv = [self.stack.docker, "top", self.name(service), "-eo", "pid,args"]
        lines = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()[1:]
        return [int(line.split()[0]) for line in lines if re.search(text, line)]

    def main_pid(self, service: str) -> int:
        """The first process of a container. Killed like this it ends as by the kernel, and not as by Docker, which would
        take the end for its own wish."""
        argv = [self.stack.docker, "inspect", "--format", "{{.State.Pid}}", self.name(service)]
        return int(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)

    def fault(self, do: Callable[[], object]) -> Fault:
        """Do any other harm."""
        at, before = time.time(), self.step()
        do()
        return Fault(at, before, time.time())

    def compose(self, *words: str) -> None:
        argv = [self.stack.docker, "compose", "--project-name", self.stack.project, *words]
        subprocess.run(argv, capture_output=True, check=True, timeout=180)

    def recovered(self, name: str, fault: Fault, *, restart: bool = True, limit_s: float = 300) -> Recovery:
        """Wait for the next step after a fault; its times, which are kept under `name`.

        Where nothing has to `restart`, it is the first one after the harm was over: the step in between needed no server.
        """
        at = fault.at

        def next_step() -> tuple[float, float | None, int] | None:
            seen = self.events(at)
            ready = next((each["unix"] for each in seen if each["event"] == "ready"), None)
            if restart and ready is None:
                return None
            later = [line for line in self.metrics() if line["time"] > (ready if restart and ready else fault.over)]
            return (later[0]["time"], ready, later[0]["step"]) if later else None

        step_at, ready, step = self.until(f"step after {name}", next_step, limit_s)
        noticed = next((each for each in self.events(at) if each["event"] == "noticed"), None)
        found = Recovery(
            name,
            noticed.get("phase") if noticed else None,
            round(noticed["unix"] - at, 1) if noticed else None,
            round(ready - at, 1) if ready and restart else None,
            round(step_at - at, 1),
            max(0, fault.before + 1 - step),
        )
        RECORD.parent.mkdir(exist_ok=True)
        with RECORD.open("a") as stream:
            stream.write(json.dumps(asdict(found)) + "\n")
        return found

    def finish(self, limit_s: float = 300) -> int:
        """The exit code at the end of the run."""
        try:
            code = self.child.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"not done within {limit_s} s; it said:\n{''.join(self.told)}")
        self._reader.join(timeout=10)
        return code

    def end(self) -> None:
        """Leave nothing running, whatever happened."""
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGINT)
            try:
                self.child.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self.child.kill()


def corrupt(file: Path) -> None:
    """Cut a file in half, as a crash of the host may leave it."""
    os.truncate(file, file.stat().st_size // 2)
