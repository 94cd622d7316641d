"""The reward of the GPU measurements: the share of digits. It also notes how much memory the trainer has taken so far."""

from __future__ import annotations

import json
from typing import Any


def digits(completions: list[list[dict[str, Any]]], **kwargs: Any) -> list[float]:
    """Share of digits in each completion."""
    import torch

    if torch.cuda.is_available():
        peak = {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
        print("memory " + json.dumps(peak), flush=True)
    texts = [completion[0]["content"] for completion in completions]
    return [sum(letter.isdigit() for letter in text) / max(1, len(text)) for text in texts]
