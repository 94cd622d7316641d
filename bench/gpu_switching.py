"""What each side gives back to the GPU after a weight push, another thing each time: for bench/gpu_costs.py.

The trainer loads it as its reward, the server by way of gpu_switching_worker.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpu_reward import digits

WAYS = ("its own", "all", "nothing")
"""What the push alone had taken, as the stack does; all that torch has cached; or nothing."""

SIDES = ("trainer", "server")

SWITCHED: list[str] = []


def way(side: str, step: int) -> str:
    """Of WAYS, the one of this step's push; in nine steps each of one side meets each of the other."""
    return WAYS[(step if side == "trainer" else step // len(WAYS)) % len(WAYS)]


def switch(side: str, number: int) -> None:
    """Have the pushes of this process, of which `number` is the next one, go another way each time."""
    import torch

    from grpo_stack.transfer import nccl

    used, release = nccl.OwnMemory.used, nccl.OwnMemory.release

    @contextmanager
    def in_turn(self: Any) -> Iterator[None]:
        with used(self) if way(side, number) == "its own" else nullcontext():
            yield

    def released(self: Any) -> None:
        nonlocal number
        release(self)
        if way(side, number) == "all":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        print(f"{side}: reserved {torch.cuda.memory_reserved()} after push {number}, {way(side, number)}", flush=True)
        number += 1

    nccl.OwnMemory.used, nccl.OwnMemory.release = in_turn, released  # type: ignore[method-assign]


def switching(completions: list[list[dict[str, Any]]], **kwargs: Any) -> list[float]:
    """`digits`; the first one comes after the first push."""
    if not SWITCHED:
        SWITCHED.append("trainer")
        switch("trainer", 2)
    return digits(completions, **kwargs)
