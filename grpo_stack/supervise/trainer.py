"""`grpo-stack supervise trainer`: runs the training command, and resumes it from its last checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo_stack.errors import DescriptionError


@dataclass(frozen=True)
class Settings:
    """The options of `grpo-stack supervise trainer`."""

    url: str | None
    model: str | None
    backend: str
    world_size: int | None
    timeout_s: float
    run_folder: Path
    phase_floor_s: float
    restarts: int
    grace_s: float


def run(settings: Settings, argv: Sequence[str]) -> int:
    """Run `argv` to its end; the exit code of the run."""
    raise DescriptionError("supervise: the trainer's supervisor is not written yet; run its command by itself")
