"""The stack against the same thing done by hand, on one GPU, one after the other and again.

    python bench/gpu_figures.py MODELS WORK RESULTS [half|seven] [ROUNDS] [FIRST] [SIDE …]

By hand: bench/gpu_hand.py. The stack starts in two orders: as it is, the trainer imports while the server loads; the other way, its
imports wait for the gate. Who comes first changes with each round. Rounds from FIRST on (default 0) are added to what RESULTS holds.
The very first start of all finds no compiled kernels: it is the cold one.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import gpu_hand
from gpu_faults import catch, generating
from gpu_watch import LATE, Gpu, Up, commands, find, save, until, words

STEPS = {"half": 12, "seven": 7}
TOKENS = {"half": 32 * 64, "seven": 16 * 256}
"""Completion tokens a step; random models hardly ever end one early."""

PARTS = ("generate", "push", "optimize", "step")
STARTS = ("server answers", "go", "joined", "first step")
BOOT = {
    "vLLM imported": r"non-default args|Initializing a V1 LLM engine",
    "weights loaded": r"Model loading took",
    "compiled": r"torch\.compile (takes|took)|Compiling a graph|Directly load the compiled graph",
    "graphs captured": r"Graph capturing finished",
    "server answers": r"Application startup complete",
}
"""What vLLM says on its way, by the phase that has then ended."""


def by_hand(model: Path, work: Path, number: int) -> dict[str, Any]:
    return gpu_hand.run(model, work, STEPS[model.name])


def with_middleware(model: Path, work: Path, number: int) -> dict[str, Any]:
    """By hand, and the stack's middleware in vLLM's API server."""
    return gpu_hand.run(model, work, STEPS[model.name], "--middleware", "grpo_stack.activity.Activity")


def by_stack(model: Path, work: Path, number: int, late: bool = False) -> dict[str, Any]:
    """As it is started for use; `late`: the trainer's imports only after the gate."""
    steps = STEPS[model.name]
    settings = ("trainer.args.save_strategy=no", f"server.max_model_len={gpu_hand.LENGTH[model.name]}")
    # More steps than are looked at: to write 15 GB of model at the end is not what is measured.
    stack = Up(f"figures-{model.name}-{number}", work, words(model, "shared", 1000, *settings))
    beats = Beats(stack.began)
    try:
        if late:
            hold_until_ready(stack)
        stack.wait_for(rf"^step {steps}/", "trainer")
        catch(generating)  # a trainer that ends within a push would leave vLLM waiting for it
    finally:
        code = end_without_saving(stack)
        beats.over.set()
    metrics = stack.metrics()[:steps]
    lines = [at for at, name, line in stack.lines if name == "trainer" and line.startswith("step ")][:steps]
    boot = {phase: stack.first(pattern, "vllm-server") for phase, pattern in BOOT.items()}
    return {
        "started": stack.first("started vLLM", "vllm-server"),
        **boot,
        "imported": beats.at.get("waiting"),
        "go": beats.at.get("load"),
        "joined": beats.at.get("optimize"),
        "first step": lines[0],
        "lines": lines,
        "steps": [{part: line[f"seconds/{part}"] for part in PARTS} for line in metrics],
        "exit code": code,
        "said": stack.said(),
    }


def with_late_imports(model: Path, work: Path, number: int) -> dict[str, Any]:
    return by_stack(model, work, number, late=True)


def hold_until_ready(stack: Up) -> None:
    """Stop the training command as soon as it is there, and let it go on when the gate opens."""

    def launchers() -> list[int]:
        # Not the supervisor, whose words hold those of the command, nor its child before that has become the command.
        found = find(r"accelerate.* launch ", stack.process.pid)
        return [pid for pid in found if "supervise" not in commands(pid)]

    if until(lambda: bool(launchers()), 60) is None:
        raise SystemExit("the training command never started")
    held = launchers()
    for pid in held:
        os.kill(pid, signal.SIGSTOP)
    stack.wait_for("the server is ready after", "trainer")
    for pid in held:
        os.kill(pid, signal.SIGCONT)


def end_without_saving(stack: Up) -> int:
    """Asked twice, the trainer writes no checkpoint."""
    supervisors = find("supervise trainer", stack.process.pid)
    stack.process.terminate()
    for _ in range(2):
        time.sleep(0.1)
        for pid in supervisors:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
    return stack.wait(60)


class Beats:
    """When the trainer's phases began, in seconds since the start: what it tells its supervisor."""

    def __init__(self, began: float) -> None:
        self.at: dict[str, float] = {}
        self.over = threading.Event()
        self._began = began
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while not self.over.wait(0.01) and "generate" not in self.at:
            for file in Path(tempfile.gettempdir()).glob("grpo-stack-*/beat.json"):
                try:
                    beat = json.loads(file.read_text())
                except (OSError, ValueError):
                    continue
                if beat["at"] >= self._began:
                    self.at.setdefault(beat["phase"], round(beat["at"] - self._began, 3))


SIDES = {
    "by hand": by_hand,
    "stack": by_stack,
    LATE: with_late_imports,
    "by hand, with the middleware": with_middleware,
}


def medians(rows: list[dict[str, Any]], side: str) -> dict[str, float]:
    """Of each round its median step, its first left out; of the rounds the median. Starts: of the warm rounds."""
    mine = [row[side] for row in rows if side in row]
    found = {
        f"{part} s": statistics.median(statistics.median(step[part] for step in one["steps"][1:]) for one in mine)
        for part in PARTS
    }
    gaps = [statistics.median(b - a for a, b in itertools.pairwise(one["lines"][1:])) for one in mine]
    found["line to line s"] = statistics.median(gaps)
    for key in STARTS:
        times = [one[key] for one in mine[1:] or mine if one.get(key) is not None]
        if times:
            found[f"{key}, s after the start"] = statistics.median(times)
    return {key: round(value, 4) for key, value in found.items()}


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing that was started keeps running
    models, work, results = (Path(word).resolve() for word in sys.argv[1:4])
    name = sys.argv[4] if len(sys.argv) > 4 else "half"
    rounds, first = (int(word) for word in (sys.argv[5:7] + ["3", "0"][len(sys.argv[5:7]) :]))
    chosen = sys.argv[7:] or ["stack", "by hand", LATE]
    gpu = Gpu()
    empty = gpu.used_mib()
    file = results / f"figures-{name}.json"
    rows: list[dict[str, Any]] = json.loads(file.read_text())["rows"] if first else []
    work.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + rounds):
        rows.append({})
        for side in chosen if number % 2 == 0 else reversed(chosen):
            rows[-1][side] = SIDES[side](models / name, work, number)
            until(lambda: gpu.used_mib() <= empty + 16, 20)
            sides = {side: medians(rows, side) for side in SIDES if any(side in row for row in rows)}
            found = {**gpu.machine(), "model": name, "tokens a step": TOKENS[name], "medians": sides, "rows": rows}
            # After each side, so that a run that is cut short leaves what it has.
            save(results, f"figures-{name}", found)


if __name__ == "__main__":
    main()
