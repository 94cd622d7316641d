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


WAYS = ("all", "nothing", "its own")
"""What the trainer gives back after a push: all that torch has cached, nothing, or what the push alone had taken."""

CALLS = {"digits": 0}


def way(step: int) -> str:
    """Of WAYS, the one of this step's push."""
    return WAYS[step % len(WAYS)]


def switching(completions: list[list[dict[str, Any]]], **kwargs: Any) -> list[float]:
    """`digits`; and the next step's push goes another of WAYS (bench/gpu_costs.py)."""
    import types

    import torch
    from trl.generation.vllm_client import VLLMClient

    from grpo_stack.transfer import nccl

    if not CALLS["digits"]:
        push = VLLMClient.update_named_params

        def pooled(self: Any, *args: Any, **kwargs: Any) -> None:
            if way(CALLS["digits"] + 1) != "its own":
                return push(self, *args, **kwargs)
            pool = torch.cuda.MemPool()
            with torch.cuda.use_mem_pool(pool):
                push(self, *args, **kwargs)
            torch.cuda.synchronize()
            del pool
            return None

        VLLMClient.update_named_params = pooled
    CALLS["digits"] += 1
    keeping = types.SimpleNamespace(cuda=types.SimpleNamespace(empty_cache=lambda: None))
    nccl.torch = torch if way(CALLS["digits"] + 1) == "all" else keeping
    print(f"reserved {torch.cuda.memory_reserved()}", flush=True)
    return digits(completions, **kwargs)
