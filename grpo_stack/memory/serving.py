"""How a vLLM server runs, in the terms that its memory depends on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Serving:
    """How the server runs."""

    max_model_len: int
    """Longest prompt and completion together, in tokens."""

    tensor_parallel: int = 1
    data_parallel: int = 1

    utilization: float | None = None
    """--gpu-memory-utilization; None: propose one."""

    dtype: str = "bfloat16"

    kv_dtype_bytes: int | None = None
    """Bytes of a number in the KV cache; None: those of `dtype`; 1 with --kv-cache-dtype fp8."""

    max_num_seqs: int | None = None
    """Sequences that may run at once; None: vLLM's default for this GPU."""

    max_num_batched_tokens: int | None = None
    """Tokens of one forward pass; None: vLLM's default for this GPU."""

    pushed_dtype: str = "bfloat16"
    """What the trainer sends: `trainer.pushed_dtype`."""


def batched_tokens(serving: Serving, capacity_gib: float) -> int:
    """`EngineArgs.get_batch_defaults` (engine/arg_utils.py), for a server; an A100 gets 2048."""
    if serving.max_num_batched_tokens:
        return serving.max_num_batched_tokens
    return 16384 if capacity_gib >= 160 else 8192 if capacity_gib >= 70 else 2048


def batched_sequences(serving: Serving, capacity_gib: float) -> int:
    """The same function's default of --max-num-seqs."""
    return serving.max_num_seqs or (1024 if capacity_gib >= 70 else 256)
