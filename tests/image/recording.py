"""A reward that remembers what it was asked, and does what a test wants at a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SEEN: list[tuple[int, list[str]]] = []
"""Optimizer steps completed, and the prompts that were generated for, of each call."""

AT: dict[int, Callable[[], object]] = {}
"""What to do when that many steps are completed."""


def reward(prompts: list[Any], completions: list[Any], trainer_state: Any, **kwargs: Any) -> list[float]:
    """The share of one digit, as in the demo, so that there is something to learn."""
    step = trainer_state.global_step
    SEEN.append((step, [prompt[-1]["content"] for prompt in prompts]))
    if step in AT:
        AT.pop(step)()
    texts = [completion[0]["content"] for completion in completions]
    return [text.count("7") / max(len(text), 1) for text in texts]
