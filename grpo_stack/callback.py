"""Hooks the metrics into transformers' Trainer; imports transformers, which `metrics` does without."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from grpo_stack.metrics import MetricsFile, StepClock, step_line


class MetricsCallback(TrainerCallback):
    """Writes and prints a line for each step, on rank 0 only."""

    def __init__(self, clock: StepClock, file: MetricsFile) -> None:
        self.clock = clock
        self.file = file

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the file, or take it up where the checkpoint ends."""
        if state.is_world_process_zero:
            self.file.open_at(state.global_step)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A step starts, with the generation for it."""
        self.clock.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The optimizer has stepped; the log comes after this."""
        self.clock.end()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Write what was logged, unless it is not about steps, as the Trainer's totals at the end are not."""
        if not state.is_world_process_zero or not logs or "loss" not in logs:
            return
        line = {"step": state.global_step, "max_steps": state.max_steps, **logs, **self.clock.take()}
        self.file.append(line)
        print(step_line(line), flush=True)
