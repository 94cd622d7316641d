"""What the GPU measurements share: a run of `grpo-stack up --runtime process` with a clock on all that it says."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from grpo_stack import process_tree
from grpo_stack.plan import SOCKETS

ROOT = Path(__file__).resolve().parent.parent
REWARD = ROOT / "bench" / "gpu_reward.py"

SHAPES: dict[str, tuple[str, ...]] = {
    "half": ("max_completion_length=64", "gradient_accumulation_steps=4", "learning_rate=1e-4"),
    "seven": ("max_completion_length=256", "gradient_accumulation_steps=2", "learning_rate=2e-5"),
}
"""32 completions of 64 tokens a step for 0.5B, 16 of 256 for 7.6B."""

LATE = "stack, imports after the gate"
"""The side of the figures whose trainer imports one after the other with the server's loading."""


def words(model: Path, split: str, steps: int, *settings: str) -> list[str]:
    """Flags of `grpo-stack` for one of the models that bench/gpu_models.py writes."""
    args = ("num_generations=8", "per_device_train_batch_size=8", "lr_scheduler_type=constant", f"max_steps={steps}")
    set_ = [f"trainer.args.{arg}" for arg in (*args, *SHAPES[model.name])] + ["data.max_prompt_length=128", *settings]
    named = ["--model", str(model), "--split", split, "--dataset", "two-digit-sums", "--reward", f"{REWARD}:digits"]
    return [*named, *(word for setting in set_ for word in ("--set", setting))]


class Gpu:
    """The first GPU, as NVML sees it; the highest memory in use since `watch`."""

    def __init__(self) -> None:
        import pynvml

        self._nvml = pynvml
        pynvml.nvmlInit()
        self._handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        self.highest_mib = 0
        self._stop = threading.Event()

    def used_mib(self) -> int:
        return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used) // 2**20

    def processes(self) -> list[int]:
        return [process.pid for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)]

    def watch(self) -> None:
        self.highest_mib = 0

        def look() -> None:
            while not self._stop.wait(0.1):
                self.highest_mib = max(self.highest_mib, self.used_mib())

        threading.Thread(target=look, daemon=True).start()

    def machine(self) -> dict[str, str]:
        """What was measured on, and with what."""
        name, driver = self._nvml.nvmlDeviceGetName(self._handle), self._nvml.nvmlSystemGetDriverVersion()
        versions = {}
        for package in ("vllm", "trl", "torch", "transformers"):
            versions[package] = metadata.version(package)
        gpus, cores = self._nvml.nvmlDeviceGetCount(), len(os.sched_getaffinity(0))
        return {
            "machine": f"{gpus if gpus > 1 else 'one'} {name}, {cores} cores",
            "driver": driver,
            "python": sys.version.split()[0],
            **versions,
        }


class Up:
    """A run, and every line that `up`, the server and the trainer say, with the seconds since its start."""

    def __init__(self, name: str, outputs: Path, flags: Iterable[str]) -> None:
        self.folder = outputs / name
        (self.folder / "logs").mkdir(parents=True, exist_ok=True)
        self.lines: list[tuple[float, str, str]] = []
        argv = [sys.executable, "-m", "grpo_stack.cli", "up", "--runtime", "process"]
        argv += ["--run", name, "--outputs", str(outputs), *flags]
        self._log = self.folder / "logs" / "up.log"
        self.began = time.monotonic()
        with self._log.open("wb") as output:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=ROOT, start_new_session=True
            )
        self._done = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def now(self) -> float:
        return round(time.monotonic() - self.began, 3)

    def _read(self) -> None:
        at: dict[Path, int] = {}
        while True:
            last = self._done.is_set()
            for file in sorted(self.folder.glob("logs/*.log")):
                with file.open("rb") as stream:
                    stream.seek(at.get(file, 0))
                    added = stream.read().rpartition(b"\n")[0]
                if added:
                    at[file] = at.get(file, 0) + len(added) + 1
                    for line in added.decode(errors="replace").splitlines():
                        self.lines.append((self.now(), file.stem, line))
            if last:
                return
            time.sleep(0.02)

    def wait_for(self, pattern: str, source: str, after: float = -1.0, limit_s: float = 400) -> float:
        """Seconds since the start when `source` first said `pattern`, later than `after`; SystemExit if it never does."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            found = self.first(pattern, source, after)
            if found is not None:
                return found
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise SystemExit(f"{self.folder.name}: {source} never said {pattern!r} after {after} s; see {self._log}")

    def first(self, pattern: str, source: str, after: float = -1.0) -> float | None:
        compiled = re.compile(pattern)
        for at, name, line in list(self.lines):
            if at > after and name == source and compiled.search(line):
                return at
        return None

    def wait(self, limit_s: float) -> int:
        """The exit code; -9 for a run that had to be killed at the limit."""
        try:
            code = self.process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            self.process.wait(timeout=200)
            code = -9
        self._done.set()
        self._reader.join()
        return code

    def said(self) -> list[str]:
        """What grpo-stack itself said, and when."""
        own = [entry for entry in self.lines if entry[2].startswith("grpo-stack:") and "waiting for" not in entry[2]]
        return [f"{at:8.2f} {name:12} {line[:240]}" for at, name, line in own]

    def metrics(self) -> list[dict[str, Any]]:
        file = self.folder / "metrics.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def grep(self, pattern: str, source: str) -> list[str]:
        compiled = re.compile(pattern)
        return [match[1] for _, name, line in self.lines if name == source for match in compiled.finditer(line)]


def until(done: Callable[[], bool], limit_s: float) -> float | None:
    """Seconds until `done`; None if it never was within the limit."""
    began = time.monotonic()
    while time.monotonic() - began < limit_s:
        if done():
            return round(time.monotonic() - began, 2)
        time.sleep(0.01)
    return None


def commands(pid: int) -> str:
    """The command line of a process, or its name where it has none."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        return text or Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def find(pattern: str, below: int) -> list[int]:
    """Processes below `below` whose command line matches."""
    compiled = re.compile(pattern)
    return sorted(entry.pid for entry in process_tree.below(below) if compiled.search(commands(entry.pid)))


def of_steps(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over all steps but the first, and each step's push speed and log-prob difference."""
    keys = {name: f"seconds/{name}" for name in ("step", "generate", "push", "optimize")}
    later = lines[1:]
    speed, difference = "push/gigabytes_per_s", "sampling/sampling_logp_difference/mean"
    return {
        "steps": len(lines),
        "first step s": round(lines[0]["seconds/step"], 2) if lines else None,
        **{f"{name} s": _median(line.get(key) for line in later) for name, key in keys.items()},
        "push GB/s": [round(line[speed], 2) for line in lines if line.get(speed)],
        "log-prob difference": [round(line[difference], 5) for line in lines if line.get(difference) is not None],
        "reward": [round(lines[0]["reward"], 3), round(lines[-1]["reward"], 3)] if lines else [],
    }


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(statistics.median(known), 3) if known else None


def save(results: Path, name: str, found: dict[str, Any]) -> None:
    """One JSON file for each measurement, with the socket settings that the stack has at that time."""
    results.mkdir(parents=True, exist_ok=True)
    (results / f"{name}.json").write_text(json.dumps({"sockets of the stack": SOCKETS, **found}, indent=2) + "\n")
    print(json.dumps({name: {key: value for key, value in found.items() if key != "said"}}), flush=True)
