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
from trl.generation import vllm_client
from trl.generation.vllm_client import VLLMClient

PARTS = ("_start_weight_update", "_finish_weight_update", "reset_prefix_cache")
SENDERS = ("NCCLWeightTransferEngine.trainer_send_weights", "packed_nccl_broadcast_producer")
"""What packs and broadcasts in TRL's client, with vLLM up to 0.27 and from 0.28 on."""


def timed(owner: Any, name: str, label: str, spent: dict[str, list[float]]) -> None:
    inner: Callable[..., Any] = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return inner(*args, **kwargs)
        finally:
            torch.cuda.synchronize()
            spent.setdefault(label, []).append(time.perf_counter() - began)

    setattr(owner, name, call)


def time_sender(spent: dict[str, list[float]]) -> None:
    for path in SENDERS:
        *owners, name = path.split(".")
        owner: Any = vllm_client
        for part in owners:
            owner = getattr(owner, part, None)
        if hasattr(owner, name):
            timed(owner, name, "send", spent)


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
        timed(client, name, name.strip("_"), spent)
    time_sender(spent)
    metadata = [(name, "bfloat16", list(one.shape)) for name, one in weights.items()]
    whole = []
    for _ in range(pushes):
        torch.cuda.synchronize()
        began = time.perf_counter()
        client.update_named_params(metadata, iter(weights.items()))
        client.reset_prefix_cache()
        torch.cuda.empty_cache()  # as the stack's trainer does
        whole.append(time.perf_counter() - began)
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
