"""Writes docs/benchmarks-gpu.md from the measurements in docs/gpu: `python bench/gpu_page.py`."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from gpu_provenance import STACK, UNTIL_4TH, sockets_of, versions
from gpu_watch import LATE

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE = ROOT / "docs" / "gpu", ROOT / "docs" / "benchmarks-gpu.md"

HEAD = """# Figures on a GPU

Written by `bench/gpu_page.py` from the measurements in `docs/gpu`, which `make bench-gpu` makes on a host with a GPU. Every run was started as
a user starts one, by `grpo-stack up --runtime process`; both sides share the one GPU where nothing else is said. The models have random
weights in the shapes of Qwen2.5-0.5B and 7B (0.49 and 7.6 billion parameters): they show speed, memory and recovery, not learning.

No container has run on a GPU: all figures are of processes, with the packages that the Python of that machine held.
"""

CUT_SHORT = (
    "Where no next step is shown, the script ended the run after the server was ready again and before that step, and the signal's time "
    "is known to a second. Woken to be ended, the server still answered the generation that it held."
)
"""Of one fault in faults-half; `gpu_faults` as it is waits for the next step, so that no later measurement lacks it."""

FAULTS = {
    "push": "SIGKILL of the training process during a push",
    "engine": "SIGKILL of vLLM's engine while it generates",
    "stopped": "SIGSTOP of vLLM's engine while it generates, `stuck_after_s` 15",
    "api": "SIGKILL of vLLM's API server while it generates",
}


def load(pattern: str) -> list[dict[str, Any]]:
    return [{**json.loads(file.read_text()), "file": file.stem} for file in sorted(RESULTS.glob(pattern))]


def table(titles: list[str], rows: list[list[Any]]) -> list[str]:
    lines = ["| " + " | ".join(titles) + " |", "|" + " --- |" * len(titles)]
    return [*lines, *("| " + " | ".join(map(_cell, row)) + " |" for row in rows), ""]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _gib(mib: int) -> float:
    return mib / 1024


def runs(found: list[dict[str, Any]]) -> list[str]:
    rows = []
    for run in found:
        speed, difference = run["push GB/s"], run["log-prob difference"]
        parts = f"{run['generate s']} / {run['push s']} / {run['optimize s']}"
        rows.append(
            [
                f"{run['model']}, {run['split']}",
                run["exit code"],
                run["steps"],
                run["step s"],
                parts,
                statistics.median(speed[1:]) if speed else None,
                f"{difference[0]:.4f} → {difference[-1]:.4f}, at most {max(difference):.4f}" if difference else None,
                _gib(run["memory MiB"]["highest"]),
                run["memory MiB"]["back after s"],
            ]
        )
    titles = ["Run", "Exit code", "Steps", "s a step", "generate / push / optimize", "Push GB/s"]
    titles += ["Log-prob difference, first → last step", "GPU at most GiB", "GPU free again after s"]
    return ["## Whole runs", "", *table(titles, rows)]


def starts(found: list[dict[str, Any]]) -> list[str]:
    keys = ("both start", "server answers", "go", "first step")
    rows = [[f"{run['model']}, {run['split']}", *(run["seconds to"][key] for key in keys)] for run in found]
    titles = ["Run", "model and dataset checked", "server answers", "training may go on", "first step done"]
    return ["## Seconds from the start of `up`", "", *table(titles, rows)]


def memory(found: list[dict[str, Any]]) -> list[str]:
    rows = []
    for run in found:
        sides = {side["role"]: {one["label"]: one["gib"] for one in side["shares"]} for side in run["plan"]["memory"]}
        if "vllm-server" not in sides:
            continue  # vLLM inside the trainer says nothing of its memory there
        server, trainer = sides["vllm-server"], sides["trainer"]
        peak = json.loads(run["trainer bytes"] or "{}")
        in_torch = sum(
            trainer[name] for name in ("weights", "gradients", "optimizer state", "activations", "log-probs")
        )
        for name, seen, planned in (
            ("vLLM's weights", run["server GiB"]["weights"][0], server["weights"]),
            ("vLLM's activations", run["server GiB"]["peak activation"][0], server["activations"]),
            ("vLLM's CUDA graphs", run["server GiB"]["graphs"][0], server["CUDA graphs"]),
            ("vLLM's KV cache", run["server GiB"]["kv cache"][0], server["KV cache"]),
            ("trainer, most that torch allocated", peak["allocated"] / 2**30, in_torch),
        ):
            rows.append([run["model"], name, float(seen), planned, f"{100 * (planned / float(seen) - 1):+.1f} %"])
    return ["## Memory, GiB", "", *table(["Model", "", "measured", "`grpo-stack plan`", "off by"], rows)]


def faults(found: list[dict[str, Any]]) -> list[str]:
    rows, notes = [], []
    for run in found:
        for fault in run["faults"]:
            last = (fault["step before"] or ["-"])[0].split("  ")[0]
            row = [run["model"], FAULTS[fault["fault"]], fault["noticed after s"], fault["server ready after s"]]
            rows.append([*row, fault["next step after s"], last, (fault["step after"] or "-").split("  ")[0]])
            if fault["next step after s"] is None:
                notes = [CUT_SHORT, ""]
    titles = [
        "Model",
        "Fault",
        "noticed after s",
        "server ready after s",
        "next step done after s",
        "last step",
        "next step",
    ]
    return ["## Faults, and the run going on by itself", "", *table(titles, rows), *notes]


def figures(found: list[dict[str, Any]]) -> list[str]:
    rows = []
    for run in found:
        medians, rounds = run["medians"], len(run["rows"])
        for key, stack in medians["stack"].items():
            if key.endswith("after the start"):
                continue
            hand = medians["by hand"].get(key)
            rows.append([run["model"], rounds, key, hand, stack, stack / hand if hand else None])
        speed = {side: run["tokens a step"] / medians[side]["generate s"] for side in ("by hand", "stack")}
        ratio = speed["stack"] / speed["by hand"]
        rows.append([run["model"], rounds, "tokens/s", *(round(speed[s]) for s in speed), ratio])
        after = [statistics.median(_after_answer(row[side]) for row in run["rows"]) for side in ("by hand", "stack")]
        rows.append([run["model"], rounds, "server answers → first step s", *after, after[1] / after[0]])
    titles = ["Model", "rounds", "median of", "by hand", "stack", "stack / by hand"]
    few = (
        "Fewer than three rounds: a step of one and the same run takes up to a third more on another start, so a tenth more or "
        "less decides nothing."
    )
    note = [few, ""] if any(len(run["rows"]) < 3 for run in found) else []
    text = (
        "The pushes by hand are those of NCCL's own choice of sockets. By hand means the shortest way there is: the script "
        "imports while the server loads, and goes on once `/health` answers."
    )
    return ["## Beside the same thing done by hand", "", text, "", *table(titles, rows), *note, *phases(found)]


def _after_answer(side: dict[str, Any]) -> float:
    return float(side["first step"] - side["server answers"])


PHASES = (
    "started",
    "vLLM imported",
    "weights loaded",
    "graphs captured",
    "server answers",
    "go",
    "joined",
    "first step",
)


def phases(found: list[dict[str, Any]]) -> list[str]:
    """Seconds from the start of the stack until each phase has ended; the first round of a series is the cold one."""
    rows = []
    for run in found:
        for number, row in enumerate(run["rows"]):
            for side, imports in (("stack", "meanwhile"), (LATE, "after the gate")):
                if "go" in row.get(side, {}):
                    kind = "warm" if number else "cold"
                    rows.append(
                        [run["model"], kind, imports, *(row[side][phase] for phase in PHASES), _gate(row[side])]
                    )
    titles = ["Model", "caches", "trainer imports", *PHASES, "server answers → go"]
    text = (
        "Seconds from the start of `up` until each phase has ended. Cold: vLLM's, triton's and inductor's caches are empty. "
        "The stack's trainer imports meanwhile; to see what that gives, it was held until the gate opened. `go` is when training "
        "may touch server and GPU, and has imported what it needs; `joined` when its model is loaded and its group made."
    )
    return ["## A start in phases", "", text, "", *table(titles, rows), *_first_token(found)] if rows else []


def _gate(side: dict[str, Any]) -> float:
    return float(side["go"] - side["server answers"])


def _first_token(found: list[dict[str, Any]]) -> list[str]:
    firsts = [
        row["by hand"]["first token after s"]
        for run in found
        for row in run["rows"]
        if "first token after s" in row.get("by hand", {})
    ]
    if not firsts:
        return []
    text = f"Without the stack, a first token came {statistics.median(firsts):.2f} s after the server answered."
    return [text, ""]


def refusals(found: list[dict[str, Any]]) -> list[str]:
    rows = []
    for run in found:
        for what, one in run["refusals"].items():
            said = "; ".join(f"{problem['check']}: {problem['found']}" for problem in one.get("problems", []))
            rows.append([what, said or "-"])
    return [
        "## Refused on that machine, before anything was started",
        "",
        *table(["What was wrong", "`up` said"], rows),
    ]


def noise(found: list[dict[str, Any]]) -> list[str]:
    key = "log-prob difference of bfloat16 and float32"
    rows = [[model["model"], f"{model[key]:.4f}"] for one in found for model in one["models"] if key in model]
    text = "What bfloat16 alone does to the log-probs of these weights: the same model, the same tokens, in bfloat16 and in float32."
    return ["## Log-prob difference without any server", "", text, "", *table(["Model", "mean difference"], rows)]


def pushes(found: list[dict[str, Any]]) -> list[str]:
    lines = []
    for sweep in found:
        rows = []
        for row in sweep["rows"]:
            parts = [row.get(name) for name in ("start_weight_update", "finish_weight_update", "reset_prefix_cache")]
            whole = statistics.median(row["pushes s"][1:]) if "pushes s" in row else None
            rows.append([_marked(row["setting"]), row.get("GB/s"), whole, *parts])
        titles = ["NCCL: threads x sockets", "GB/s of the whole push", "s", "of it start", "finish", "reset cache"]
        size = max(row.get("bytes", 0) for row in sweep["rows"]) / 1e9
        text = (
            f"{size:.2f} GB through the whole of TRL's sync, medians of all pushes but the first; where nothing is said of cores, both "
            "sides may use all. What is not start, finish and cache is packing, sending and loading, which go on side by side."
        )
        lines += [f"## Weight push of {sweep['model']}, by {sweep['network']}", "", text, "", *table(titles, rows)]
    return lines


def _marked(setting: str) -> str:
    """A setting of the sweep, and whether it is the stack's, on all cores or on some."""
    is_ours = re.fullmatch(rf"{STACK}(, \d+ cores)?", setting)
    return f"{setting} (**the stack's**)" if is_ours else setting


def costs(found: list[dict[str, Any]]) -> list[str]:
    """What parts of the stack cost, switched within one run."""
    lines = ["## Parts of the stack, on and off within one run", ""]
    for run in found:
        states = [name for name, value in run.items() if isinstance(value, dict) and "step s" in value]
        rows = [[name, *(f"{value:.3f}" for value in run[name].values())] for name in states]
        steps = [row["step"] for row in run["rows"] if row["number"] >= run["first judged step"]]
        low, _, high = statistics.quantiles(steps, n=4)
        grown = "; ".join(f"{way}: {change / 1e9:.2f} GB" for way, change in _grown(run["reserved"]).items())
        lines += [
            f"{run['model']}, {len(run['rows'])} steps. Asking: the supervisors ask the server how it is, or are stopped. Giving: what "
            "each side gives back to the GPU after a push, what the push alone had taken (as the stack does), all that torch has "
            "cached, or nothing.",
            "",
            *table(["", *(f"{part} s" for part in ("generate", "push", "optimize", "step"))], rows),
            f"Half of all steps lie between {low:.2f} and {high:.2f} s; a difference that is small beside that says nothing. What torch "
            f"keeps on the server's side grew at each push by (medians): {grown}.",
            "",
        ]
    return lines


def _grown(said: list[str]) -> dict[str, float]:
    """Median change of the server's reserved bytes from one push to the next, by what is given back after it."""
    pushes = re.findall(r"server: reserved (\d+) after push \d+, (.*)", "\n".join(said))
    changes: dict[str, list[int]] = {}
    for (before, _), (after, way) in pairwise(pushes):
        changes.setdefault(way, []).append(int(after) - int(before))
    return {way: statistics.median(some) for way, some in changes.items()}


def paths(found: list[dict[str, Any]]) -> list[str]:
    """Ways between two GPUs of one host."""
    lines = []
    for run in found:
        rows = []
        for row in run["rows"]:
            whole = statistics.median(row["pushes s"][1:]) if "pushes s" in row else None
            said = row["warnings"] or [row.get("failed", "-")]
            rows.append([row["path"], row["network"], row.get("GB/s"), whole, ", ".join(row["transports"]), said[0]])
        titles = ["Way", "network", "GB/s of the whole push", "s", "NCCL chose", "NCCL warned"]
        lines += [f"## Weight push of {run['model']} between two GPUs", "", *table(titles, rows)]
    return lines


SECTIONS = (
    (("stack-*",), (runs, starts, memory)),
    (("models",), (noise,)),
    (("faults-*", "stack-*"), (faults,)),
    (("figures-*",), (figures,)),
    (("costs-*",), (costs,)),
    (("push-*",), (pushes,)),
    (("paths",), (paths,)),
    (("refusals",), (refusals,)),
)


def sockets() -> list[str]:
    """With which sockets the weights of each table were pushed."""
    tables: dict[str, list[str]] = {}
    for section, found in measured():
        if section not in WITHOUT_THE_STACKS_PUSH:
            said = "; ".join(dict.fromkeys(sockets_of(run) for run in found))
            tables.setdefault(said, []).extend(line[3:] for line in section(found) if line.startswith("## "))
    text = (
        f"Weights go over NCCL's sockets, threads x sockets of each; the stack has {STACK}; until 2026-12-04 it had "
        f"{UNTIL_4TH}. Its pushes were measured with:"
    )
    rows = [["; ".join(titles), said] for said, titles in tables.items()]
    return [text, "", *table(["Tables", "Sockets of the stack"], rows)]


Section = Callable[[list[dict[str, Any]]], list[str]]

WITHOUT_THE_STACKS_PUSH: tuple[Section, ...] = (noise, pushes, paths, refusals)
"""They push nothing, or say with which sockets."""


def measured() -> Iterator[tuple[Section, list[dict[str, Any]]]]:
    """Each section that there are measurements for."""
    for patterns, sections in SECTIONS:
        if found := [one for pattern in patterns for one in load(f"{pattern}.json")]:
            for section in sections:
                yield section, found


def page() -> str:
    lines = [HEAD, *versions(load("*.json")), *sockets()]
    for section, found in measured():
        lines += section(found)
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(PAGE.read_text(), end="")
