"""What a run leaves behind: a line of JSON for every step, and one page at the end."""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_stack import space
from grpo_stack.transfer.wire import TensorSpec

FILE = "metrics.jsonl"
PHASES = ("generate", "push", "reward", "optimize")
"""Where the seconds of a step go. `optimize` is what the others leave: loss, gradients, optimizer."""

LOGP_DIFFERENCE = "sampling/sampling_logp_difference/mean"
BARS = "▁▂▃▄▅▆▇█"


@dataclass
class StepClock:
    """Seconds a step and their phases, on one rank."""

    now: Callable[[], float] = time.perf_counter
    begun: float | None = None
    spent: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    steps: list[dict[str, float]] = field(default_factory=list)
    """One entry for each step since the last line was taken."""
    on_phase: Callable[[str], None] = lambda phase: None
    """Told each phase as it begins; what follows one of the others is "optimize" again."""
    push_bytes: Callable[[], int] = lambda: 0
    """Size of one push; asked after the first, since TRL collects it then."""

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        """Count the time inside towards `phase` of the current step."""
        start = self.now()
        self.on_phase(phase)
        try:
            yield
        finally:
            self.spent[phase] += self.now() - start
            self.on_phase(PHASES[-1])

    def timed(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, with its time counted towards `phase`."""

        def call(*args: Any, **kwargs: Any) -> Any:
            with self.measure(phase):
                return function(*args, **kwargs)

        return call

    def begin(self) -> None:
        """A step starts."""
        self.begun = self.now()
        self.spent.clear()

    def end(self) -> None:
        """The step has ended."""
        if self.begun is None:
            return
        whole = self.now() - self.begun
        known = {phase: self.spent[phase] for phase in PHASES[:-1]}
        step = {**known, "optimize": max(0.0, whole - sum(known.values())), "step": whole}
        self.steps.append(step)
        self.begun = None

    def take(self) -> dict[str, float]:
        """Means over the steps since the last call, under the names they have in the file."""
        if not self.steps:
            return {}
        taken, self.steps = self.steps, []
        line = {f"seconds/{key}": _mean(step[key] for step in taken) for key in taken[0]}
        pushes = [step["push"] for step in taken if step["push"] > 0]
        if pushes and self.push_bytes():
            line["push/gigabytes_per_s"] = self.push_bytes() * len(pushes) / sum(pushes) / 1e9
        return line


def bytes_of(metadata: Iterable[tuple[str, str, list[int]]] | None) -> int:
    """Bytes of a push, from the names, dtypes and shapes that TRL announces it with; 0 before the first."""
    return sum(TensorSpec(name, dtype, tuple(shape)).nbytes for name, dtype, shape in metadata or ())


class MetricsFile:
    """`metrics.jsonl`: appended line by line, each written out at once, so that a reader sees the newest step."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE

    def open_at(self, step: int) -> None:
        """Keep the lines up to `step`, which a resumed run continues from, and drop those it will write again."""
        kept = [line for line in read(self.path) if line["step"] <= step]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_suffix(".tmp")
        with space.guarding(FILE, self.path.parent, undo=lambda: draft.unlink(missing_ok=True)):
            draft.write_text("".join(_json(line) for line in kept), encoding="utf-8")
            draft.replace(self.path)

    def append(self, line: dict[str, Any]) -> None:
        """Add one line; raises NoSpaceError where there is no room for it, as `open_at` does."""
        with space.guarding(FILE, self.path.parent), self.path.open("a", encoding="utf-8") as file:
            file.write(_json(line))


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file about a step; one that a crash cut short is left out. Empty when there is no file."""
    if not path.exists():
        return []
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue
        if isinstance(line, dict) and _is_number(line.get("step")):
            lines.append(line)
    return lines


def step_line(line: dict[str, Any]) -> str:
    """One step for the terminal, such as `step 3/25  reward 0.12  14.2 s`."""
    parts = [f"step {line['step']}/{line.get('max_steps', '?')}"]
    for label, key in (("reward", "reward"), ("loss", "loss"), ("log-prob difference", LOGP_DIFFERENCE)):
        if isinstance(line.get(key), (int, float)):
            parts.append(f"{label} {line[key]:.3g}")
    if _is_number(line.get("seconds/step")):
        parts.append(f"{line['seconds/step']:.1f} s")
    return "  ".join(parts)


def summary(lines: list[dict[str, Any]], seconds: float, places: dict[str, Path]) -> str:
    """One page on a run of `seconds`: what it did, how long each part took, and where things are."""
    if not lines:
        return "no step was made\n"
    rows = [("steps", f"{lines[-1]['step']} of {lines[-1].get('max_steps', '?')} in {_duration(seconds)}")]
    rewards = _column(lines, "reward")
    if rewards:
        rows.append(("reward", f"{rewards[0]:.3f} → {rewards[-1]:.3f}  {sparkline(rewards)}"))
    if whole := _column(lines, "seconds/step"):
        split = "  ".join(f"{phase} {_mean(_column(lines, f'seconds/{phase}') or [0.0]):.2f}" for phase in PHASES)
        rows.append(("seconds a step", f"{_mean(whole):.2f}  ({split})"))
    if difference := _column(lines, LOGP_DIFFERENCE):
        rows.append(("log-prob difference", f"mean {_mean(difference):.2g}, worst step {max(difference):.2g}"))
    if speed := _column(lines, "push/gigabytes_per_s"):
        rows.append(("push", f"{_mean(speed):.2f} GB/s"))
    rows += [(name, str(place)) for name, place in places.items()]
    width = max(len(name) for name, _ in rows)
    return "".join(f"{name:<{width}}  {text}\n" for name, text in rows)


def sparkline(values: list[float], width: int = 60) -> str:
    """Bars from the lowest value to the highest, at most `width` of them, each the mean of its share of `values`."""
    count = min(width, len(values))
    shares = [values[i * len(values) // count : (i + 1) * len(values) // count] for i in range(count)]
    means = [_mean(share) for share in shares]
    low, span = min(means), (max(means) - min(means)) or 1.0
    return "".join(BARS[round((mean - low) / span * (len(BARS) - 1))] for mean in means)


def _column(lines: list[dict[str, Any]], key: str) -> list[float]:
    return [line[key] for line in lines if _is_number(line.get(key))]


def _is_number(value: object) -> bool:
    """Whether a value of a line is one that can be reckoned with; what was not finite is null in the file."""
    return isinstance(value, (int, float)) and math.isfinite(value)


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _json(line: dict[str, Any]) -> str:
    """A line of strict JSON: what is not a finite number becomes null, and what JSON does not know becomes text."""
    clean = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in line.items()
    }
    return json.dumps(clean, default=str) + "\n"
