"""The clock of a step, the file of metrics, and the page at the end."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from grpo_stack import metrics
from grpo_stack.errors import HostError


class Time:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds

    def spend(self, seconds: float) -> None:
        self.seconds += seconds


def a_step(clock: metrics.StepClock, time: Time, push: float = 0.0) -> None:
    clock.begin()
    if push:
        clock.timed("push", time.spend)(push)
    with clock.measure("generate"):
        time.spend(3)
    time.spend(1)
    clock.end()


def test_a_step_is_split_into_its_phases_and_the_rest_is_the_optimizers() -> None:
    time = Time()
    clock = metrics.StepClock(time, push_bytes=lambda: 4_000_000_000)

    a_step(clock, time, push=2)

    assert clock.take() == {
        "seconds/generate": 3.0,
        "seconds/push": 2.0,
        "seconds/reward": 0.0,
        "seconds/optimize": 1.0,
        "seconds/step": 6.0,
        "push/gigabytes_per_s": 2.0,
    }


def test_steps_between_two_lines_are_averaged_and_a_step_without_a_push_does_not_slow_it() -> None:
    time = Time()
    clock = metrics.StepClock(time, push_bytes=lambda: 4_000_000_000)

    a_step(clock, time, push=2)
    a_step(clock, time)
    line = clock.take()

    assert line["seconds/step"] == 5.0
    assert line["seconds/push"] == 1.0
    assert line["push/gigabytes_per_s"] == 2.0
    assert clock.take() == {}


def test_time_between_steps_belongs_to_none() -> None:
    time = Time()
    clock = metrics.StepClock(time)

    a_step(clock, time)
    with clock.measure("generate"):
        time.spend(50)
    a_step(clock, time)

    assert clock.take()["seconds/step"] == 4.0


def test_each_phase_is_told_as_it_begins_and_the_optimizer_has_the_rest() -> None:
    told: list[str] = []
    clock = metrics.StepClock(on_phase=told.append)

    clock.timed("push", lambda: None)()
    clock.timed("generate", lambda: None)()

    assert told == ["push", "optimize", "generate", "optimize"]


def test_a_push_weighs_what_its_tensors_weigh() -> None:
    assert metrics.bytes_of([("a", "float32", [3, 4]), ("b", "bfloat16", [5])]) == 58
    assert metrics.bytes_of(None) == 0


def test_each_line_is_in_the_file_as_soon_as_it_is_appended(tmp_path: Path) -> None:
    file = metrics.MetricsFile(tmp_path / "run")
    file.open_at(0)

    file.append({"step": 1, "max_steps": 2, "reward": float("nan")})

    assert (tmp_path / "run" / "metrics.jsonl").read_text() == '{"step": 1, "max_steps": 2, "reward": null}\n'


def test_a_full_disk_is_said_and_the_lines_before_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = metrics.MetricsFile(tmp_path)
    file.open_at(0)
    file.append({"step": 1})
    kept = file.path.read_text()

    def full(*arguments: object, **named: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(HostError, match=r"outputs: no space left for metrics\.jsonl \("):
        file.open_at(1)
    file.path.unlink()
    file.path.symlink_to("/dev/full")
    with pytest.raises(HostError, match=r"outputs: no space left for metrics\.jsonl \("):
        file.append({"step": 2})

    assert kept == '{"step": 1}\n'


def test_a_resumed_run_writes_its_steps_again_and_keeps_the_earlier_ones(tmp_path: Path) -> None:
    file = metrics.MetricsFile(tmp_path)
    file.path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"ste')

    file.open_at(2)
    file.append({"step": 3, "reward": 0.5})

    assert [json.loads(line) for line in file.path.read_text().splitlines()] == [
        {"step": 1},
        {"step": 2},
        {"step": 3, "reward": 0.5},
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_the_line_for_the_terminal() -> None:
    line = {"step": 3, "max_steps": 25, "reward": 0.1234, "loss": None, "seconds/step": 14.21}

    assert metrics.step_line(line) == "step 3/25  reward 0.123  14.2 s"


def test_the_page_at_the_end() -> None:
    lines = [
        {
            "step": step,
            "max_steps": 4,
            "reward": step / 4,
            metrics.LOGP_DIFFERENCE: 1e-6,
            "seconds/step": 2.0,
            "seconds/generate": 1.0,
            "seconds/push": 0.25,
            "seconds/reward": 0.0,
            "seconds/optimize": 0.75,
            "push/gigabytes_per_s": 1.5,
        }
        for step in (1, 2, 3, 4)
    ]

    assert metrics.summary(lines, 125.0, {"model": Path("/outputs/run/model")}).splitlines() == [
        "steps                4 of 4 in 2 min 5 s",
        "reward               0.250 → 1.000  ▁▃▆█",
        "seconds a step       2.00  (generate 1.00  push 0.25  reward 0.00  optimize 0.75)",
        "log-prob difference  mean 1e-06, worst step 1e-06",
        "push                 1.50 GB/s",
        "model                /outputs/run/model",
    ]


def test_rewards_that_are_not_finite_end_neither_line_nor_page(tmp_path: Path) -> None:
    file = metrics.MetricsFile(tmp_path)
    for step, reward in enumerate((0.5, float("-inf"), float("nan"), 1.0), start=1):
        file.append({"step": step, "max_steps": 4, "reward": reward, "seconds/step": None, "push": object()})
    with file.path.open("a") as stream:
        stream.write('{"total": 9}\n{"step": null}\n{"step": 5, "reward": -Infinity}\n{"step": 6, "reward": "high"}\n')

    lines = metrics.read(file.path)
    file.open_at(5)

    assert [metrics.step_line(line) for line in lines] == [
        "step 1/4  reward 0.5",
        "step 2/4",
        "step 3/4",
        "step 4/4  reward 1",
        "step 5/?  reward -inf",
        "step 6/?",
    ]
    assert metrics.summary(lines, 3.0, {}).splitlines() == ["steps   6 of ? in 3 s", "reward  0.500 → 1.000  ▁█"]
    assert [line["step"] for line in metrics.read(file.path)] == [1, 2, 3, 4, 5]


def test_a_run_without_a_step_says_so() -> None:
    assert metrics.summary([], 3.0, {}) == "no step was made\n"


@pytest.mark.parametrize("count", [1, 7, 60, 61, 1000])
def test_a_sparkline_is_never_wider_than_asked_and_rises_with_its_values(count: int) -> None:
    bars = metrics.sparkline([float(i) for i in range(count)])

    assert len(bars) == min(count, 60)
    assert list(bars) == sorted(bars)
