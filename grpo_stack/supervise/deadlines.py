"""How long a phase of training may take before it counts as hung: never a fixed time, always one that this run has shown.

A step of a small model takes a second, and a generation of a large one with long answers half an hour, so no constant
fits both. The longest time that a phase has taken in this run sets its limit. All times are in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

FACTOR = 5.0
"""Times the longest seen. Completions get longer as a model learns to reason, and a busy host or disk slows a phase down
two- or threefold; a hang lasts for ever. So a wide margin costs one longer wait, a narrow one a needless restart."""

FIRST = 4.0
"""Times the floor for the first time that a process goes through a phase: kernels compile, pages are cold, optimizer state
is allocated. torch.compile took 22 s of a 7B model's start, a cold disk as much again."""

BOOT = frozenset({"start", "load"})
"""Imports, model and dataset from a cold and perhaps shared disk: these two take as long as the server's start may."""

ENDING = frozenset({"done", "stopped", "failed"})
ENDING_S = 60.0
"""All files are written then, and nothing is left but the end of the processes. Torn-down NCCL groups can hang there."""

WAITING = "waiting"
"""Waits for the server; the gate's budget limits that."""


@dataclass(frozen=True)
class Deadlines:
    """What has been seen of each phase, and the limits that follow from it."""

    floor_s: float = 300.0
    """No limit is below this one. Five minutes are more than a checkpoint of 120 GB takes at 1 GB/s, and less than people
    take to notice."""

    boot_s: float = 1800.0
    """The floor of `start` and `load`: the budget that the server has, too."""

    longest_s: Mapping[str, float] = field(default_factory=dict)
    """The longest that each phase took and still ended well, in any attempt of this run."""

    passed: frozenset[str] = frozenset()
    """Phases that the present attempt has been through at least once."""

    def limit_s(self, phase: str) -> float:
        """How long `phase` may take now; infinite for the one that waits for the server."""
        if phase == WAITING:
            return math.inf
        if phase in ENDING:
            return ENDING_S
        if phase in BOOT:
            floor_s = max(self.boot_s, self.floor_s)
        else:
            floor_s = self.floor_s * (1.0 if phase in self.passed else FIRST)
        return max(floor_s, FACTOR * self.longest_s.get(phase, 0.0))

    def after(self, phase: str, took_s: float) -> Deadlines:
        """What is known once `phase` has ended well."""
        longest_s = {**self.longest_s, phase: max(took_s, self.longest_s.get(phase, 0.0))}
        return replace(self, longest_s=longest_s, passed=self.passed | {phase})

    def next_attempt(self) -> Deadlines:
        """For a new process, to which everything happens for the first time again."""
        return replace(self, passed=frozenset())
