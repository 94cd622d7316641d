"""Writes docs/benchmarks-gpu.md from the measurements in docs/gpu: `python bench/gpu_page.py`."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE = ROOT / "docs" / "gpu", ROOT / "docs" / "benchmarks-gpu.md"

HEAD = """# Figures on a GPU

Written by `bench/gpu_page.py` from the measurements in `docs/gpu`, which `make bench-gpu` makes on a host with a GPU. Every run was started as
a user starts one, by `grpo-stack up --runtime process`; both sides share the one GPU where nothing else is said. The models have random
weights in the shapes of Qwen2.5-0.5B and 7B (0.49 and 7.6 billion parameters): they show speed, memory and recovery, not learning.
"""


def load(pattern: str) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in sorted(RESULTS.glob(pattern))]


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
    rows = []
    for run in found:
        to = run["seconds to"]
        rows.append(
            [
                f"{run['model']}, {run['split']}",
                to["both start"],
                to["server answers"],
                to["first step"],
                run["seconds"],
            ]
        )
    titles = ["Run", "model and dataset there", "server answers", "first step done", "everything stopped"]
    return ["## Seconds from the start of `up`", "", *table(titles, rows)]


def memory(found: list[dict[str, Any]]) -> list[str]:
    rows = []
    for run in found:
        seen = run["server GiB"]
        peak = json.loads(run["trainer bytes"] or "{}")
        said = {name: (values or [None])[0] for name, values in seen.items()}
        trainer = [peak[key] / 2**30 if peak else None for key in ("allocated", "reserved")]
        rows.append([f"{run['model']}, {run['split']}", said["weights"], said["graphs"], said["kv cache"], *trainer])
    titles = ["Run", "vLLM weights", "CUDA graphs", "KV cache", "trainer's peak, allocated", "reserved"]
    return ["## Memory, GiB", "", *table(titles, rows)]


def faults(found: list[dict[str, Any]]) -> list[str]:
    rows = []
    for run in found:
        for fault in run["faults"]:
            before = (fault["step before"] or ["-"])[0].split("  ")[0]
            row = [run["model"], fault["signal"], fault["victims"][0].split()[0] if fault["victims"] else None]
            rows.append([*row, fault["fault"], fault["noticed after s"], fault["next step after s"], before])
            rows[-1].append(fault["step after"].split("  ")[0])
    titles = [
        "Model",
        "Signal",
        "to",
        "Fault",
        "noticed after s",
        "next step done after s",
        "last step before",
        "first after",
    ]
    return ["## Faults, and the run going on by itself", "", *table(titles, rows)]


def figures(found: list[dict[str, Any]]) -> list[str]:
    rows = []
    for run in found:
        for key, hand in run["medians"]["by hand"].items():
            rows.append([run["model"], key, hand, run["medians"]["stack"][key], run["stack / by hand"][key]])
    titles = ["Model", "Median", "by hand", "stack", "stack / by hand"]
    return ["## Beside the same thing done by hand", "", *table(titles, rows)]


def pushes(found: list[dict[str, Any]]) -> list[str]:
    lines = []
    for sweep in found:
        rows = []
        for row in sweep["rows"]:
            parts = [row.get(name) for name in ("start_weight_update", "finish_weight_update", "reset_prefix_cache")]
            whole = statistics.median(row["pushes s"][1:]) if "pushes s" in row else None
            rows.append([row["setting"], row.get("GB/s"), whole, *parts])
        titles = ["NCCL: threads x sockets", "GB/s of the whole push", "s", "of it start", "finish", "reset cache"]
        lines += [f"## Weight push of {sweep['model']}, by {sweep['network']}", "", *table(titles, rows)]
    return lines


SECTIONS = (
    ("stack-*", (runs, starts, memory)),
    ("faults-*", (faults,)),
    ("figures-*", (figures,)),
    ("push-*", (pushes,)),
)


def page() -> str:
    lines = [HEAD]
    machines = {
        (one["machine"], one["driver"], one["vllm"], one["trl"], one["torch"], one["transformers"])
        for one in load("*.json")
    }
    for machine, driver, vllm, trl, torch, transformers in sorted(machines):
        lines.append(
            f"- {machine}, driver {driver}; vLLM {vllm}, TRL {trl}, torch {torch}, transformers {transformers}"
        )
    lines.append("")
    for pattern, sections in SECTIONS:
        if found := load(f"{pattern}.json"):
            for section in sections:
                lines += section(found)
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(PAGE.read_text(), end="")
