"""Hooks into transformers' Trainer, which `metrics`, `mismatch` and `heartbeat` do without."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback

from grpo_stack.heartbeat import Heart
from grpo_stack.metrics import LOGP_DIFFERENCE, MetricsFile, StepClock, step_line
from grpo_stack.mismatch import Guard

ASKED = "asked to"
"""Why a run stops when its supervisor wants it to."""


class NothingLeftError(Exception):
    """Raised out of the Trainer's loop before its first step, which it would otherwise always make."""


class MetricsCallback(TrainerCallback):
    """Writes and prints a line for each step, on rank 0 only."""

    def __init__(self, clock: StepClock, file: MetricsFile, wall: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.file = file
        self.wall = wall

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
        line = {"step": state.global_step, "max_steps": state.max_steps, "time": self.wall(), **logs}
        line |= self.clock.take()
        self.file.append(line)
        print(step_line(line), flush=True)


class StopCallback(TrainerCallback):
    """Tells the supervisor each step, watches for a mismatch, and ends the run at the end of a step, with a checkpoint.

    `agree` gives every rank what the first one says; all of them call it at the same points.
    """

    def __init__(
        self, heart: Heart, guard: Guard | None, stops: bool, agree: Callable[[str | None], str | None]
    ) -> None:
        self.heart = heart
        self.guard = guard
        self.stops = stops
        self.agree = agree
        self.began = False
        """Whether everything has been loaded."""
        self.reason: str | None = None
        """Why the run ended before its last step."""
        self._mismatch: str | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """All is loaded. A finished run has nothing left to do; one that is to stop does not start."""
        self.began = True
        self.heart.beat("optimize", state.global_step, state.max_steps)
        control.should_training_stop = False  # what a checkpoint made at a stop would restore
        state.compute_steps(args, state.max_steps)  # else the checkpoint's save_steps would outweigh those given now
        if state.global_step >= state.max_steps:
            raise NothingLeftError
        self.reason = self.agree(ASKED if self.heart.stop_asked() else None)
        if self.reason:
            raise NothingLeftError

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A step starts; what comes of it first is neither push nor generation."""
        self.heart.beat("optimize", state.global_step, state.max_steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The optimizer has stepped. Not asked after the last step: the run ends there anyway, and is complete."""
        self.heart.beat("optimize", state.global_step, state.max_steps)
        if control.should_training_stop:
            return
        self.reason = self.agree(ASKED if self.heart.stop_asked() else self._mismatch)
        if self.reason:
            control.should_save = control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Look at the difference of log-probs, where TRL logs one. A stop takes effect at the end of the next step."""
        if self.guard is None or not logs or LOGP_DIFFERENCE not in logs:
            return
        found = self.guard.observe(logs[LOGP_DIFFERENCE])
        if not found or not state.is_world_process_zero:
            return
        line = f"mismatch: {LOGP_DIFFERENCE} at step {state.global_step}: {found}"
        print(line, flush=True)
        if self.stops:
            self._mismatch = line
