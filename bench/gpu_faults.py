"""Faults on a GPU, one after the other in one run, and how long the stack takes to train on by itself.

    python bench/gpu_faults.py MODELS WORK RESULTS [half|seven] [FAULT …]

FAULT: push (SIGKILL of the training process during a weight push), engine (SIGKILL of vLLM's engine while it generates),
stopped (SIGSTOP of it, which only deadlines can notice), api (SIGKILL of the server process). The deadlines are set short:
what is measured is the recovery, not the patience before it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import gpu_hand
from gpu_watch import Gpu, Up, commands, find, save, until, words

PATIENCE = ("recovery.stuck_after_s=15", "recovery.update_limit_s=30", "recovery.phase_floor_s=45")
REPORT = "http://127.0.0.1:8000/grpo_stack/activity"


def report() -> dict[str, Any]:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(REPORT, timeout=2) as answer:
        return dict(json.load(answer))


def catch(moment: Callable[[dict[str, Any]], bool], limit_s: float = 60) -> None:
    """Return at a moment that the server's own report shows."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        try:
            if moment(report()):
                return
        except OSError:
            time.sleep(0.05)
    raise SystemExit("the moment for the fault never came")


def training(stack: Up) -> list[int]:
    """The training process: not the supervisor and the launcher above it, whose words name the module too."""
    found = find(r"grpo_stack\.train", stack.process.pid)
    return [pid for pid in found if "supervise" not in commands(pid) and "accelerate" not in commands(pid)]


def engines(stack: Up) -> list[int]:
    return find(r"^VLLM::EngineCor", stack.process.pid)


def servers(stack: Up) -> list[int]:
    return [pid for pid in find(r"vllm serve", stack.process.pid) if "supervise" not in commands(pid)]


def pushing(seen: dict[str, Any]) -> bool:
    return (seen["update_open_s"] or 0) > 0.02


def generating(seen: dict[str, Any]) -> bool:
    return seen["generating"] > 0 and seen["oldest_s"] > 0.05


Moment = Callable[[dict[str, Any]], bool]

FAULTS: dict[str, tuple[Callable[[Up], list[int]], Moment, signal.Signals]] = {
    "push": (training, pushing, signal.SIGKILL),
    "engine": (engines, generating, signal.SIGKILL),
    "stopped": (engines, generating, signal.SIGSTOP),
    "api": (servers, generating, signal.SIGKILL),
}


def strike(name: str, stack: Up, gpu: Gpu) -> dict[str, Any]:
    choose, moment, sign = FAULTS[name]
    victims = choose(stack)  # before the moment, which does not last
    shown = [Path(commands(pid).split()[0]).name for pid in victims]
    catch(moment)
    for pid in victims:
        os.kill(pid, sign)
    at = stack.now()
    last = [line for when, source, line in stack.lines if source == "trainer" and line.startswith("step ")][-1:]
    # The step that was on may still end, so the next one is known by the supervisor's own word.
    recovered = stack.wait_for(r"recovered: step", "trainer", after=at, limit_s=400)
    steps = [(when, line) for when, who, line in stack.lines if who == "trainer" and line.startswith("step ")]
    resumed, next_step = [step for step in steps if step[0] <= recovered][-1]
    own = [(when, f"{who}: {line}") for when, who, line in stack.lines if when > at and line.startswith("grpo-stack:")]
    ready = [when for when, line in own if "the server is ready" in line]
    told = [(round(when - at, 2), line[:200]) for when, line in own if when <= recovered and "waiting for" not in line]
    return {
        "fault": name,
        "signal": sign.name,
        "victims": shown,
        "noticed after s": told[0][0] if told else None,
        "server ready after s": round(ready[0] - at, 2) if ready else None,
        "next step after s": round(resumed - at, 2),
        "step before": last,
        "step after": next_step,
        "on the GPU MiB": gpu.used_mib(),
        "told": told,
    }


def main() -> None:
    models, work, results = (Path(word).resolve() for word in sys.argv[1:4])
    model = sys.argv[4] if len(sys.argv) > 4 else "half"
    save_ = ("trainer.args.save_steps=5",) if model == "half" else ("trainer.args.save_strategy=no",)
    gpu = Gpu()
    before = gpu.used_mib()
    gpu.watch()
    length = (
        f"server.max_model_len={gpu_hand.LENGTH[model]}"  # as in the figures, so that their compiled kernels serve here
    )
    stack = Up(f"faults-{model}", work, words(models / model, "shared", 10000, length, *save_, *PATIENCE))
    struck: list[dict[str, Any]] = []
    ready = None
    try:
        stack.wait_for(r"^step 7/" if model == "half" else r"^step 3/", "trainer")
        ready = stack.now()
        for name in sys.argv[5:] or ("push", "engine", "stopped"):
            struck.append(strike(name, stack, gpu))
            time.sleep(3)
    finally:
        asked = stack.now()
        stack.process.terminate()
        code = stack.wait(150)
        back = until(lambda: gpu.used_mib() <= before + 16 and not gpu.processes(), 20)
        found = {
            **gpu.machine(),
            "model": model,
            "ready for faults s": ready,
            "faults": struck,
            "exit code after SIGTERM": code,
            "SIGTERM to end s": round(stack.now() - asked, 2),
            "memory MiB": {"before": before, "highest": gpu.highest_mib, "after": gpu.used_mib(), "back after s": back},
            "left on the GPU": [commands(pid) for pid in gpu.processes()],
            "said": stack.said(),
        }
        save(results, f"faults-{model}", found)


if __name__ == "__main__":
    main()
