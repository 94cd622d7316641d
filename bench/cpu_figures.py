"""Figures of the CPU demo on this machine: `make bench-cpu`, or `python bench/cpu_figures.py --label second`.

Runs `make up` with a few steps and notes when each phase began, and how much memory each container took at most. The figure of
the first `make up` is that of a machine without images, build cache or Docker: run it there, with `--label first`. Results are
added to docs/benchmarks.json, and docs/benchmarks.md is written from them. `--helper-only` measures what needs no containers.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import machine

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "benchmarks.json"
PAGE = ROOT / "docs" / "benchmarks.md"
PROJECT = "grpo-stack-bench"

PHASES = {
    "building": "building the images",
    "loading": "server loading",
    "ready": "server ready after",
    "first step": "step 1/",
    "second step": "step 2/",
    "stopped": "stopped;",
}

HELPER = ("--help", "render", "doctor --json", "doctor --preset 4-4 --json")


def cost_of(*words: str, runs: int = 7) -> dict[str, float]:
    """Median wall and processor seconds of a command with its children, and its own peak memory, in MiB.

    Processor seconds hold still where other programs share the cores; wall seconds are what a user waits.
    """
    wall, busy, peak = [], [], 0.0
    for _ in range(runs):
        began = time.perf_counter()
        child = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        # 3: this host cannot run what is asked about, which `doctor` may well find.
        if child.returncode not in (0, 3):
            raise SystemExit(f"{' '.join(words)} ended with exit code {child.returncode}; nothing was measured")
        wall.append(time.perf_counter() - began)
        busy.append(used.ru_utime + used.ru_stime)
        peak = max(peak, used.ru_maxrss / 1024)
    return {
        "s": round(statistics.median(wall), 3),
        "processor s": round(statistics.median(busy), 3),
        "peak MiB": round(peak, 1),
    }


def helper() -> dict[str, dict[str, float]]:
    """What the helper's commands cost."""
    program = str(ROOT / ".venv" / "bin" / "grpo-stack")
    return {words: cost_of(program, *words.split()) for words in HELPER}


class MemoryWatch(threading.Thread):
    """Highest memory of each service of the project, in GiB, as `docker stats` tells it."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.highest: dict[str, float] = {}
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(1):
            argv = ["docker", "stats", "--no-stream", "--format", "{{.Name}} {{.MemUsage}}"]
            for line in subprocess.run(argv, capture_output=True, text=True, check=False).stdout.splitlines():
                name, used = line.split()[:2]
                if name.startswith(PROJECT):
                    service = name.removeprefix(f"{PROJECT}-").rpartition("-")[0]
                    self.highest[service] = max(self.highest.get(service, 0.0), _gib(used))


def _gib(text: str) -> float:
    for unit, size in (("GiB", 1.0), ("MiB", 2.0**-10), ("KiB", 2.0**-20), ("B", 2.0**-30)):
        if text.endswith(unit):
            return round(float(text.removesuffix(unit)) * size, 2)
    raise ValueError(f"docker stats wrote {text!r}")


def run_demo(steps: int) -> dict[str, Any]:
    """`make up` with `steps` steps: seconds from its start to each phase, memory, and the steps' own seconds."""
    with tempfile.TemporaryDirectory() as folder:
        outputs = f"{folder}/outputs"  # which the containers, unlike the folder above, may enter
        args = f"--project {PROJECT} --outputs {outputs} --run bench --set trainer.args.max_steps={steps}"
        memory = MemoryWatch()
        memory.start()
        began = time.monotonic()
        child = subprocess.Popen(
            ["make", "up", f"ARGS={args}"], cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        assert child.stderr is not None
        seen: dict[str, float] = {}
        for line in child.stderr:
            sys.stderr.write(line)
            for name, text in PHASES.items():
                if text in line:
                    seen.setdefault(name, round(time.monotonic() - began, 1))
        code = child.wait()
        memory.done.set()
        if code:
            raise SystemExit(f"make up ended with exit code {code}; nothing was measured")
        metrics = [json.loads(line) for line in (Path(outputs) / "bench" / "metrics.jsonl").read_text().splitlines()]
    later = [step["seconds/step"] for step in metrics[1:]]
    return {"seconds to": seen, "memory GiB": memory.highest, "seconds a step": round(statistics.median(later), 2)}


def page(results: list[dict[str, Any]]) -> str:
    lines = [
        "# Figures",
        "",
        "Written by `bench/cpu_figures.py` from `docs/benchmarks.json`. The CPU demo (SmolLM2-135M-Instruct, 16 completions a",
        "step) shows that the loop works; it says nothing about GPUs.",
        "",
        "| Run | Machine | `make up` → first step | ready → first step | a step | server | trainer |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in results:
        if "seconds to" not in row:
            continue
        seen, memory = row["seconds to"], row["memory GiB"]
        cells = [row["label"], row["machine"], f"{seen['first step']:.0f} s"]
        cells += [f"{seen['first step'] - seen['ready']:.0f} s", f"{row['seconds a step']} s"]
        cells += [f"{memory.get(name, 0):.1f} GiB" for name in ("vllm-server", "trainer")]
        lines.append("| " + " | ".join(cells) + " |")
    lines += [
        "",
        "The helper on the host, median of 7; its memory is the highest of them.",
        "",
        "| Run | Machine | Command | takes | of a processor | peak memory |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in results:
        for words, cost in row.get("helper", {}).items():
            cells = [row["label"], row["machine"], f"`{words}`", f"{cost['s']} s", f"{cost['processor s']} s"]
            lines.append("| " + " | ".join([*cells, f"{cost['peak MiB']} MiB"]) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--label", default="second", help="first: on a machine that has nothing yet; second: any later run"
    )
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--helper-only", action="store_true", help="measure the helper's commands and start nothing")
    given = parser.parse_args()
    found = {} if given.helper_only else run_demo(given.steps)
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    kept = next((old for old in rows if old["label"] == given.label), {}) if given.helper_only else {}
    row = {**kept, "label": given.label, "date": time.strftime("%Y-%m-%d"), "machine": machine.describe()}
    row |= {"helper": helper(), **found}
    rows = [*(old for old in rows if old["label"] != given.label), row]
    RESULTS.write_text(json.dumps(rows, indent=2) + "\n")
    PAGE.write_text(page(rows))
    print(PAGE.read_text(), end="")


if __name__ == "__main__":
    main()
