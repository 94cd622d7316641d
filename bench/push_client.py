"""The trainer's half of a weight push, by TRL's own client: `python bench/push_client.py URL PORT CONFIG PUSHES`.

Waits for a line on stdin once all is imported, pushes random bfloat16 weights of the model in CONFIG (a folder), and prints a line
of JSON: seconds of each push, and of its parts.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from trl.generation.vllm_client import VLLMClient

PARTS = ("_start_weight_update", "_finish_weight_update", "reset_prefix_cache")


def timed(client: VLLMClient, name: str, spent: dict[str, list[float]]) -> None:
    inner: Callable[..., Any] = getattr(client, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return inner(*args, **kwargs)
        finally:
            spent.setdefault(name.strip("_"), []).append(time.perf_counter() - began)

    setattr(client, name, call)


def main() -> None:
    url, port, folder, pushes = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.bfloat16)
    print("imported", flush=True)
    sys.stdin.readline()
    weights = {
        name: torch.empty(one.shape, dtype=torch.bfloat16, device="cuda") for name, one in empty.named_parameters()
    }
    for one in weights.values():
        one.normal_(std=0.02)
    client = VLLMClient(base_url=url, group_port=port, connection_timeout=60)
    client.init_communicator(0)
    spent: dict[str, list[float]] = {}
    for name in PARTS:
        timed(client, name, spent)
    metadata = [(name, "bfloat16", list(one.shape)) for name, one in weights.items()]
    whole = []
    for _ in range(pushes):
        torch.cuda.synchronize()
        began = time.perf_counter()
        client.update_named_params(metadata, iter(weights.items()))
        client.reset_prefix_cache()
        torch.cuda.synchronize()
        whole.append(time.perf_counter() - began)
        torch.cuda.empty_cache()
    size = sum(one.nbytes for one in weights.values())
    seconds = statistics.median(whole[1:])
    parts = {name: round(statistics.median(taken[1:]), 4) for name, taken in spent.items()}
    said = {
        "bytes": size,
        "pushes s": [round(one, 3) for one in whole],
        "GB/s": round(size / seconds / 1e9, 2),
        **parts,
    }
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
