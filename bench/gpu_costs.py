"""What parts of the stack cost a step, switched off and on again within one run, which two starts cannot differ in.

    python bench/gpu_costs.py MODELS WORK RESULTS [STEPS]

- asking: both supervisors are stopped (SIGSTOP) in every other step, so that nobody asks the server how it is;
- giving back: after its push the trainer gives the GPU all that torch has cached, nothing, or what the push alone had taken, in turn
  (`gpu_reward.WAYS`).
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpu_faults import catch, generating
from gpu_figures import PARTS, end_without_saving
from gpu_hand import LENGTH
from gpu_reward import WAYS, way
from gpu_watch import REWARD, Gpu, Up, find, save, words

ON_OFF = (("on", False), ("off", True))
FIRST = 4
"""Steps before this one warm up."""


def is_silent(step: int) -> bool:
    """Whether nobody asks the server in this step."""
    return step % 2 == 1


def switch(stack: Up, steps: int) -> None:
    """Stop and wake the supervisors as steps begin, by metrics.jsonl, which needs no supervisor to grow."""
    asking = find(r"grpo_stack\.cli supervise", stack.process.pid)
    done = 0
    try:
        while done < steps and stack.process.poll() is None:
            if (now := len(stack.metrics())) == done:
                time.sleep(0.01)
                continue
            done = now
            for pid in asking:
                os.kill(pid, signal.SIGSTOP if is_silent(done + 1) else signal.SIGCONT)
    finally:
        for pid in asking:
            os.kill(pid, signal.SIGCONT)


def main() -> None:
    models, work, results = (Path(word).resolve() for word in sys.argv[1:4])
    steps = int(sys.argv[4]) if len(sys.argv) > 4 else 45
    flags = words(
        models / "half", "shared", 1000, "trainer.args.save_strategy=no", f"server.max_model_len={LENGTH['half']}"
    )
    flags[flags.index("--reward") + 1] = f"{REWARD}:switching"
    stack = Up("costs-half", work, flags)
    try:
        stack.wait_for(r"^step 1/", "trainer")
        switch(stack, steps)
        catch(generating)
    finally:
        code = end_without_saving(stack)
    lines = stack.metrics()[:steps]
    rows = [{"step": line["step"], **{part: line[f"seconds/{part}"] for part in PARTS}} for line in lines]
    save(results, "costs-half", {**Gpu().machine(), "model": "half", "exit code": code, **judged(rows), "rows": rows})


def judged(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of the steps with and without each part; each state of one holds as many steps of each state of the other."""
    later = [row for row in rows if row["step"] >= FIRST]
    chosen = {f"asking {state}": [row for row in later if is_silent(row["step"]) == off] for state, off in ON_OFF}
    chosen |= {f"giving back {what}": [row for row in later if way(row["step"]) == what] for what in WAYS}
    return {
        name: {f"{part} s": round(statistics.median(row[part] for row in some), 4) for part in PARTS}
        for name, some in chosen.items()
    }


if __name__ == "__main__":
    main()
