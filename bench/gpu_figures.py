"""The stack against the same thing done by hand, on one GPU, one after the other and again.

    python bench/gpu_figures.py MODELS WORK RESULTS [half|seven] [ROUNDS]

By hand: `vllm serve` with the options that TRL's documentation names, and a plain TRL script once it is ready.
"""

from __future__ import annotations

import itertools
import os
import re
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpu_watch import ROOT, SHAPES, Gpu, Up, save, words

STEPS = 15
LENGTH = {"half": 192, "seven": 384}
"""vLLM's longest sequence, on both sides of the comparison."""

TOKENS = {"half": 32 * 64, "seven": 16 * 256}
"""Completion tokens a step; random models hardly ever end one early."""


def by_hand(model: Path, work: Path) -> dict[str, Any]:
    """One run: seconds to its parts, and of each step."""
    env = {**os.environ, "VLLM_SERVER_DEV_MODE": "1", "VLLM_HOST_IP": "127.0.0.1", "NCCL_SOCKET_IFNAME": "lo"}
    env |= {"VLLM_USE_FLASHINFER_SAMPLER": "0", "HF_HUB_OFFLINE": "1", "NO_PROXY": "127.0.0.1"}
    argv = ["vllm", "serve", str(model), "--host", "127.0.0.1", "--port", "8000"]
    argv += ["--weight-transfer-config", '{"backend": "nccl"}', "--logprobs-mode", "processed_logprobs"]
    argv += ["--max-logprobs", "-1", "--gpu-memory-utilization", "0.3", "--max-model-len", str(LENGTH[model.name])]
    train = ["accelerate", "launch", "--num_processes", "1", "--num_machines", "1", "--mixed_precision", "bf16"]
    train += ["--dynamo_backend", "no", str(ROOT / "bench" / "by_hand.py"), str(model), str(work / "hand")]
    train += ["http://127.0.0.1:8000", "61216", str(STEPS), *SHAPES[model.name]]
    began = time.monotonic()
    with (work / "hand-server.log").open("wb") as log:
        server = subprocess.Popen(
            argv, env={**env, "NCCL_HOSTID": "server"}, stdout=log, stderr=log, start_new_session=True
        )
    try:
        _answers(server)
        ready = time.monotonic() - began
        lines = _train(train, {**env, "NCCL_HOSTID": "trainer"}, work / "hand-trainer.log", began)
    finally:
        os.killpg(server.pid, 15)
        server.wait(timeout=60)
    steps = [float(match[1]) for _, line in lines if (match := re.search(r"  ([\d.]+) s$", line))]
    found = _found(ready, lines, steps)
    for part in ("generate", "push"):
        spent = [float(match[1]) for _, line in lines if (match := re.search(rf"{part} ([\d.]+)", line))]
        found[f"{part} s"] = round(statistics.median(spent[1:]), 4)
    return found


def _answers(server: subprocess.Popen[bytes]) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while server.poll() is None:
        try:
            with opener.open("http://127.0.0.1:8000/health", timeout=2):
                return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("by hand: the server ended before it answered")


def _train(argv: list[str], env: dict[str, str], log: Path, began: float) -> list[tuple[float, str]]:
    lines = []
    with log.open("wb") as errors:
        trainer = subprocess.Popen(
            argv, env=env, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        )
        assert trainer.stdout is not None
        for line in trainer.stdout:
            if line.startswith("step "):
                lines.append((time.monotonic() - began, line.strip()))
        if trainer.wait():
            raise SystemExit(f"by hand: the trainer ended with {trainer.returncode}; see {log}")
    return lines


def by_stack(model: Path, work: Path, number: int) -> dict[str, Any]:
    settings = ("trainer.args.save_strategy=no", f"server.max_model_len={LENGTH[model.name]}")
    stack = Up(f"figures-{model.name}-{number}", work, words(model, "shared", STEPS, *settings))
    code = stack.wait(400)
    if code:
        raise SystemExit(f"the stack ended with exit code {code}: {stack.said()[-20:]}")
    lines = [(at, line) for at, name, line in stack.lines if name == "trainer" and line.startswith("step ")]
    metrics = stack.metrics()
    found = _found(
        stack.first("Application startup complete", "vllm-server"), lines, [m["seconds/step"] for m in metrics]
    )
    found["generate s"] = statistics.median(m["seconds/generate"] for m in metrics[1:])
    found["push s"] = statistics.median(m["seconds/push"] for m in metrics[1:])
    found["said"] = stack.said()
    return found


def _found(ready: float | None, lines: list[tuple[float, str]], steps: list[float]) -> dict[str, Any]:
    gaps = [later[0] - earlier[0] for earlier, later in itertools.pairwise(lines[1:])]
    return {
        "server ready s": ready,
        "first step done s": lines[0][0],
        "step s": round(statistics.median(steps[1:]), 4),
        "line to line s": round(statistics.median(gaps), 4),
    }


def main() -> None:
    models, work, results = (Path(word).resolve() for word in sys.argv[1:4])
    name = sys.argv[4] if len(sys.argv) > 4 else "half"
    rounds = int(sys.argv[5]) if len(sys.argv) > 5 else 3
    gpu, rows = Gpu(), []
    work.mkdir(parents=True, exist_ok=True)
    for number in range(rounds):
        rows.append({"by hand": by_hand(models / name, work), "stack": by_stack(models / name, work, number)})
        medians = {
            side: {key: statistics.median(row[side][key] for row in rows) for key in rows[0][side] if key != "said"}
            for side in ("by hand", "stack")
        }
        ratio = {key: round(medians["stack"][key] / medians["by hand"][key], 3) for key in medians["by hand"]}
        found = {**gpu.machine(), "model": name, "rounds": len(rows), "medians": medians, "stack / by hand": ratio}
        # After each round, so that a run that is cut short leaves what it has.
        save(results, f"figures-{name}", {**found, "tokens a step": TOKENS[name], "rows": rows})


if __name__ == "__main__":
    main()
