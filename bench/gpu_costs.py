"""What parts of the stack cost a step, switched off and on again within one run, which two starts cannot differ in.

    python bench/gpu_costs.py MODELS WORK RESULTS [STEPS]

- asking: both supervisors are stopped (SIGSTOP) in every other step, so that nobody asks the server how it is;
- giving back: after a push each side gives the GPU what the push alone had taken, all that torch has cached, or nothing
  (`gpu_switching.WAYS`).
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
from gpu_switching import SIDES, WAYS, way
from gpu_watch import ROOT, Gpu, Up, find, save, words

ON_OFF = (("on", False), ("off", True))
RESERVED = r"((?:trainer|server): reserved .*)"

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
    steps = int(sys.argv[4]) if len(sys.argv) > 4 else 58
    extension = '["--worker-extension-cls","gpu_switching_worker.Switching"]'
    settings = [f"server.max_model_len={LENGTH['half']}", f"server.extra_args={extension}"]
    flags = words(models / "half", "shared", 1000, "trainer.args.save_strategy=no", *settings)
    flags[flags.index("--reward") + 1] = f"{ROOT / 'bench' / 'gpu_switching.py'}:switching"
    os.environ["PYTHONPATH"] = f"{ROOT / 'bench'}:{os.environ.get('PYTHONPATH', '')}"
    stack = Up("costs-half", work, flags)
    try:
        stack.wait_for(r"^step 1/", "trainer")
        switch(stack, steps)
        catch(generating)
    finally:
        code = end_without_saving(stack)
    lines = stack.metrics()[:steps]
    rows = [{"number": line["step"], **{part: line[f"seconds/{part}"] for part in PARTS}} for line in lines]
    save(
        results,
        "costs-half",
        {
            **Gpu().machine(),
            "model": "half",
            "exit code": code,
            "first judged step": FIRST,
            **judged(rows),
            "reserved": stack.grep(RESERVED, "trainer") + stack.grep(RESERVED, "vllm-server"),
            "rows": rows,
        },
    )


def judged(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of the steps with and without each part; each state of one holds as many steps of each state of the other."""
    later = [row for row in rows if row["number"] >= FIRST]
    chosen = {f"asking {state}": [row for row in later if is_silent(row["number"]) == off] for state, off in ON_OFF}
    for side in SIDES:
        chosen |= {f"{side} gives {what}": [row for row in later if way(side, row["number"]) == what] for what in WAYS}
    return {
        name: {f"{part} s": round(statistics.median(row[part] for row in some), 4) for part in PARTS}
        for name, some in chosen.items()
    }


if __name__ == "__main__":
    main()
