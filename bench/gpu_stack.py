"""Whole runs on one GPU, as a user starts them: `grpo-stack up --runtime process`, shared and colocate.

    python bench/gpu_stack.py MODELS WORK RESULTS [half seven colocate]

MODELS is what bench/gpu_models.py wrote, WORK a folder for the runs, RESULTS one for a JSON file of each. Needs vLLM and TRL in
the Python that runs it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import gpu_faults
from gpu_watch import ROOT, Gpu, Up, commands, of_steps, save, until, words

RUNS: dict[str, tuple[str, str, int, int, tuple[str, ...]]] = {
    "half": ("half", "shared", 25, 0, ()),
    # A checkpoint of 7.6B with its optimizer takes 46 GB; what is measured here needs none.
    "seven": ("seven", "shared", 20, 8, ("trainer.args.save_strategy=no",)),
    "colocate": ("half", "colocate", 6, 0, ("trainer.args.save_strategy=no",)),
}
"""Model, split, steps, the step in whose next push the training process is killed (0: none), further settings."""


def planned(flags: list[str]) -> dict[str, Any]:
    """What `grpo-stack plan` expects the GPU to hold."""
    argv = [sys.executable, "-m", "grpo_stack.cli", "plan", "--json", *flags]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, check=False, timeout=120)
    return {"memory": json.loads(done.stdout).get("memory")} if done.returncode == 0 else {"failed": done.stderr}


def doctor(flags: list[str]) -> dict[str, Any]:
    """What `grpo-stack doctor` says about this machine."""
    argv = [sys.executable, "-m", "grpo_stack.cli", "doctor", "--runtime", "process", "--json", *flags]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, check=False, timeout=120)
    try:
        checks = json.loads(done.stdout)["checks"]
    except ValueError:
        return {"exit code": done.returncode, "said": done.stdout + done.stderr}
    lines = [f"{check['level']} {check['check']}: {check['found']}" for check in checks]
    return {"exit code": done.returncode, "checks": lines}


def run(name: str, models: Path, work: Path, results: Path) -> None:
    model, split, steps, strike_at, settings = RUNS[name]
    flags = words(models / model, split, steps, *settings)
    gpu = Gpu()
    before = gpu.used_mib()
    judged, expected = doctor(flags), planned(flags)
    gpu.watch()
    stack = Up(name, work, flags)
    struck = []
    if strike_at:
        stack.wait_for(rf"^step {strike_at}/", "trainer")
        struck.append(gpu_faults.strike("push", stack, gpu))
    code = stack.wait(540)
    ended = stack.now()
    back = until(lambda: gpu.used_mib() <= before + 16 and not gpu.processes(), 20)
    found = {
        **gpu.machine(),
        "model": model,
        "split": split,
        "exit code": code,
        "seconds": ended,
        **of_steps(stack.metrics()),
        "seconds to": phases(stack),
        "memory MiB": {"before": before, "highest": gpu.highest_mib, "after": gpu.used_mib(), "back after s": back},
        "left on the GPU": [commands(pid) for pid in gpu.processes()],
        "server GiB": of_server(stack),
        "trainer bytes": (stack.grep(r"^memory (\{.*\})", "trainer") or [None])[-1],
        "plan": expected,
        "doctor": judged,
        "faults": struck,
        "said": stack.said(),
    }
    save(results, f"stack-{name}", found)


def phases(stack: Up) -> dict[str, float | None]:
    return {
        "prefetch begins": stack.first("fetching model", "up"),
        "both start": stack.first("server and trainer starting|trainer starting", "up"),
        "server answers": stack.first("Application startup complete|vLLM answers", "vllm-server"),
        "first step": stack.first(r"^step 1/", "trainer"),
        "go": stack.first("the server is ready", "trainer"),
        "second step": stack.first(r"^step 2/", "trainer"),
        "stopping": stack.first("stopped;", "up"),
    }


def of_server(stack: Up) -> dict[str, list[str]]:
    """What vLLM says about the memory that it takes; colocate has it in the trainer."""
    source = "vllm-server" if any(name == "vllm-server" for _, name, _ in stack.lines) else "trainer"
    patterns = {
        "weights": r"Model loading took ([\d.]+) GiB",
        "graphs": r"Graph capturing finished in .* took ([\d.]+) GiB",
        "kv cache": r"Available KV cache memory: ([\d.]+) GiB",
        "kv tokens": r"GPU KV cache size: ([\d,]+) tokens",
        "peak activation": r"([\d.]+) GiB for peak activation|([\d.]+) GiB for peak",
        "engine start s": r"init engine .* took ([\d.]+) s",
    }
    return {name: stack.grep(pattern, source)[:1] for name, pattern in patterns.items()}


if __name__ == "__main__":
    models, work, results = map(Path, sys.argv[1:4])
    for each in sys.argv[4:] or RUNS:
        run(each, models.resolve(), work.resolve(), results.resolve())
