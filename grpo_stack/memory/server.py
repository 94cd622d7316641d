"""What each GPU of the vLLM server holds, and how many tokens fit in what is left.

Inside `--gpu-memory-utilization` vLLM puts weights, the peak of a run, what libraries took since it first looked, and
gives the rest to the KV cache (v1/worker/gpu_worker.py, `determine_available_memory`). Outside stay what was there before
(CUDA's context) and what comes after everything was shared out: the buffers of a weight push and, for most models, the
CUDA graphs (`profile`).
"""

from __future__ import annotations

import math
from collections import defaultdict

from grpo_stack.facts import ModelConfig
from grpo_stack.memory import profile, push, tensors
from grpo_stack.memory.serving import Serving, batched_tokens
from grpo_stack.memory.shares import DTYPE_BYTES, GIB, RESERVE, RUNTIME_GIB, KvCache, Share, Side

__all__ = ["HIGHEST_UTILIZATION", "Serving", "bytes_per_token", "estimate", "sequence_bytes"]

HIGHEST_UTILIZATION = 0.92
"""vLLM's own default (config/cache.py); more is not proposed."""

BLOCK_TOKENS = 16
"""Tokens of a KV block on CUDA."""

LIBRARIES_GIB = 0.22
"""What CUDA's libraries take while the model runs, in vLLM's log "non-torch memory": measured on one H200, for two models.
NCCL's buffers of tensor parallelism come to it and were not measured."""

QUANTIZED_BYTES = {"fp8": 1.0, "modelopt": 1.0, "compressed-tensors": 1.0, "bitsandbytes": 0.56, "awq": 0.56, "gptq": 0.56, "mxfp4": 0.53}  # fmt: skip
"""Bytes of a weight inside the layers, its share of the scales included; 4 bits and a 16-bit scale and zero for each 128
or 32. What is not listed counts as one byte."""


def estimate(config: ModelConfig, capacity_gib: float, serving: Serving) -> Side:
    """What a server GPU of `capacity_gib` holds."""
    graphs = Share("CUDA graphs", profile.graphs_gib(config, serving, capacity_gib), "by two measurements")
    late = profile.second_runner(config)
    inside = (
        _weights(config, serving),
        Share("activations", profile.activation_gib(config, serving, capacity_gib), "estimate"),
        Share("libraries", LIBRARIES_GIB, "by measurement on one GPU"),
        *(() if late else (graphs,)),
    )
    outside = (*((graphs,) if late else ()), *_outside(config, serving, capacity_gib))
    inside_gib, outside_gib = sum(share.gib for share in inside), sum(share.gib for share in outside)
    proposed = _proposed(capacity_gib, outside_gib)
    utilization = serving.utilization or proposed
    given_gib = utilization * capacity_gib
    sequence = sequence_bytes(config, serving, capacity_gib)
    kv = _kv_cache(config, serving, max(0.0, given_gib - inside_gib), sequence)
    needed = inside_gib + sequence / GIB + outside_gib
    load = max(needed / capacity_gib, (inside_gib + sequence / GIB) / given_gib)
    if serving.utilization and given_gib + outside_gib > capacity_gib:
        load = max(load, (given_gib + outside_gib) / capacity_gib)
    remedies: tuple[str, ...] = (
        "serve on more GPUs",
        f"allow shorter sequences than {serving.max_model_len} tokens",
        "take a smaller model",
    )
    if needed <= capacity_gib and serving.utilization:
        remedies = (f"set server.gpu_memory_utilization to {proposed:.2f}",)
    shares = (*inside, Share("KV cache", kv.gib, f"{kv.tokens} tokens"), *outside)
    gpus = serving.tensor_parallel * serving.data_parallel
    return Side("vllm-server", gpus, capacity_gib, shares, needed, load, remedies, kv, utilization)


def bytes_per_token(config: ModelConfig, serving: Serving) -> int:
    """Of the KV cache on each GPU, for a token that every layer keeps.

    2 * layers * KV heads on this GPU * head width * bytes (`AttentionSpec`, v1/kv_cache_interface.py); with latent
    attention one vector, which every GPU keeps (`MLAAttentionSpec`).
    """
    return config.num_hidden_layers * _layer_token_bytes(config, serving)


def sequence_bytes(config: ModelConfig, serving: Serving, capacity_gib: float) -> int:
    """Of the KV cache on each GPU, for a sequence of `max_model_len`: whole blocks; windowed layers keep their window.

    `SlidingWindowSpec` (v1/kv_cache_interface.py): the window and the tokens of one forward pass, not more.
    """
    length = serving.max_model_len
    windowed = config.sliding_layers if config.sliding_window else 0
    window = min(length, (config.sliding_window or 0) + batched_tokens(serving, capacity_gib))
    tokens = _blocks(length) * (config.num_hidden_layers - windowed) + _blocks(window) * windowed
    return tokens * _layer_token_bytes(config, serving)


def _layer_token_bytes(config: ModelConfig, serving: Serving) -> int:
    size = serving.kv_dtype_bytes or DTYPE_BYTES[serving.dtype]
    latent = config.latent_attention
    if latent:
        return (latent.kv_lora_rank + latent.qk_rope_head_dim) * size
    heads = math.ceil(config.num_key_value_heads / serving.tensor_parallel)
    return 2 * heads * config.head_dim * size


def _blocks(tokens: float) -> int:
    return math.ceil(tokens / BLOCK_TOKENS) * BLOCK_TOKENS


def _kv_cache(config: ModelConfig, serving: Serving, gib: float, sequence: int) -> KvCache:
    sequences = serving.data_parallel * gib * GIB / sequence
    return KvCache(gib, bytes_per_token(config, serving), math.floor(sequences * serving.max_model_len), sequences)


def _weights(config: ModelConfig, serving: Serving) -> Share:
    """Every tensor as vLLM allocates it, and the table of rotary angles (rotary_embedding/base.py: one for all layers).

    Qwen2.5-7B on one GPU: 14.185 GiB of parameters, 0.056 GiB that torch's allocator rounds up, 0.031 GiB of angles;
    14.27 GiB, where vLLM's log said 14.28.
    """
    parts = _tensor_bytes(config, serving).items()
    size = sum(tensors.allocated(size) * layers for (_, _, layers), size in parts) + _angles(config, serving)
    what = "" if config.known_family else "family not known: counted like Llama"
    what = what or ("text part only" if config.other_parts else "")
    return Share("weights", size / GIB, what)


def _tensor_bytes(config: ModelConfig, serving: Serving) -> dict[tuple[str, str, int], int]:
    """Bytes of each of vLLM's tensors in one layer, by its name, place and number of layers."""
    gpus = serving.tensor_parallel * serving.data_parallel
    merged: dict[tuple[str, str, int], float] = defaultdict(float)
    for tensor in tensors.of(config):
        size = _weight_bytes(config, serving) if tensor.linear else DTYPE_BYTES[serving.dtype]
        count = tensors.per_gpu(tensor, config, serving.tensor_parallel, gpus)
        merged[tensor.fused or tensor.name, tensor.place, tensor.layers] += count * size
    return {key: math.ceil(size) for key, size in merged.items()}


def _weight_bytes(config: ModelConfig, serving: Serving) -> float:
    if config.quantization is None:
        return DTYPE_BYTES[serving.dtype]
    return QUANTIZED_BYTES.get(config.quantization, 1.0)


def _angles(config: ModelConfig, serving: Serving) -> int:
    width = config.latent_attention.qk_rope_head_dim if config.latent_attention else config.head_dim
    return (config.max_position_embeddings or serving.max_model_len) * width * DTYPE_BYTES[serving.dtype]


def _outside(config: ModelConfig, serving: Serving, capacity_gib: float) -> tuple[Share, ...]:
    """What stays outside the utilization: the push holds its chunks and the new copy of one tensor
    (model_loader/reload/layerwise.py, `_layerwise_process`). What sampling takes beyond the profile finds room there,
    as nothing is generated during a push."""
    sent = [count * DTYPE_BYTES[serving.pushed_dtype] for count in tensors.pushed(config)]
    held = push.receiver_bytes(sent) + max(_tensor_bytes(config, serving).values())
    sampling = profile.unprofiled_sampling_bytes(config, serving, capacity_gib)
    note = f"chunks of 1 GiB and more, {serving.pushed_dtype}" if held >= sampling else "as much as sampling may take"
    return (
        Share("weight push", max(held, sampling) / GIB, note),
        Share("CUDA and NCCL", RUNTIME_GIB, "estimate"),
        Share("reserve", RESERVE * capacity_gib, "kept free"),
    )


def _proposed(capacity_gib: float, outside_gib: float) -> float:
    """The largest hundredth that leaves room for what is outside; at least one hundredth."""
    share = math.floor((1 - outside_gib / capacity_gib) * 100) / 100
    return min(HIGHEST_UTILIZATION, max(0.01, share))
