"""The times of recovery in docs/reliability.md: `python bench/reliability.py` after `make test` or `make soak`.

The tests with real containers note how each fault went in .cache/faults.jsonl. This takes them over into
docs/reliability.json, the newest of each fault, and writes the table.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import machine

ROOT = Path(__file__).resolve().parent.parent
NOTED = ROOT / ".cache" / "faults.jsonl"
RESULTS = ROOT / "docs" / "reliability.json"
PAGE = ROOT / "docs" / "reliability.md"
RANDOM = "soak: "
"""How the faults begin that `make soak` does at random."""

BEGIN, END = "<!-- faults:begin -->", "<!-- faults:end -->"


def table(results: list[dict[str, Any]]) -> str:
    """The results as a Markdown table; times in seconds from the fault."""
    lines = [
        "| Fault | during | Machine | noticed | server ready | next step | steps made again |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in results:
        times = [f"{row[key]:.1f} s" if row[key] is not None else "-" for key in ("noticed_s", "ready_s", "step_s")]
        lines.append(
            "| "
            + " | ".join([row["fault"], row["phase"] or "-", row["machine"], *times, str(row["lost_steps"])])
            + " |"
        )
    return "\n".join(lines) + "\n"


def at_random(noted: list[dict[str, Any]], here: str) -> dict[str, Any] | None:
    """All random faults of `make soak` as one row: the longest of each time."""
    rows = [row for row in noted if row["fault"].startswith(RANDOM)]
    if not rows:
        return None
    longest = {key: max(row[key] or 0 for row in rows) for key in ("noticed_s", "ready_s", "step_s", "lost_steps")}
    return {
        "fault": f"{len(rows)} random ones in one run, the longest of each time",
        "phase": None,
        **longest,
        "machine": here,
    }


def main() -> int:
    known = {row["fault"]: row for row in json.loads(RESULTS.read_text())} if RESULTS.exists() else {}
    here = machine.describe()
    noted = [json.loads(line) for line in NOTED.read_text().splitlines()]
    known |= {row["fault"]: {**row, "machine": here} for row in noted if not row["fault"].startswith(RANDOM)}
    if row := at_random(noted, here):
        known = {name: old for name, old in known.items() if "random ones" not in name} | {row["fault"]: row}
    results = list(known.values())
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table(results)}{END}{after}")
    print(PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
