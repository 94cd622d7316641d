"""The weights of a model, tensor by tensor, from its config: what transformers counts and what vLLM cuts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from grpo_stack.facts import LatentAttention, ModelConfig

VOCABULARY_PADDING = 64
"""Rows to which vLLM pads the vocabulary (`pad_vocab_size`, layers/vocab_parallel_embedding.py)."""

MIB = 2**20

_IN_LAYERS = ("layers", "dense", "sparse")


@dataclass(frozen=True)
class Tensor:
    """A tensor of the checkpoint, as transformers 5 names it: the experts of a layer are one."""

    name: str
    """Without the layer: `q_proj`, `q_proj.bias`, `experts.gate_up_proj`, `embed_tokens`."""

    rows: int
    """Output features; entries of a bias or a normalization."""

    columns: int = 1
    """Input features."""

    place: str = "layers"
    """`embedding`, `layers` (in each), `dense` or `sparse` (in each layer of that kind), or `tail`."""

    layers: int = 1
    """How many layers have one like it."""

    experts: int = 1
    """How many matrices of this shape are stacked in it."""

    cut: str = "none"
    """How tensor parallelism cuts it: `even`, `heads` (query, KV or both), `vocabulary`, or `none`: every GPU holds it."""

    queries: int = 0
    """Rows of `rows` that belong to query heads, where `cut` is `heads`; the rest belongs to KV heads."""

    fused: str = ""
    """Tensor of vLLM's model that it becomes a part of; empty: it stays on its own."""

    @property
    def numel(self) -> int:
        """Entries in one layer."""
        return self.rows * self.columns * self.experts

    @property
    def linear(self) -> bool:
        """A projection inside the layers, which quantization makes smaller and LoRA can adapt."""
        return self.columns > 1 and self.name not in ("embed_tokens", "lm_head", "gate", "shared_expert_gate")


def of(config: ModelConfig) -> tuple[Tensor, ...]:
    """All tensors, in the order of the model: embedding, layers, last normalization, head; a tied head is left out."""
    layers, width = config.num_hidden_layers, config.hidden_size
    attention = _latent(config, config.latent_attention) if config.latent_attention else _attention(config)
    norms = [tensor for _ in range(config.norms_per_layer) for tensor in _norm(config)]
    found = [Tensor("embed_tokens", config.vocab_size, width, place="embedding", cut="vocabulary")]
    found += [replace(tensor, layers=layers) for tensor in (*attention, *norms)]
    found += _feed_forward(config)
    found += [replace(tensor, place="tail") for tensor in _norm(config)]
    if not config.tie_word_embeddings:
        found.append(Tensor("lm_head", config.vocab_size, width, place="tail", cut="vocabulary"))
    return tuple(tensor for tensor in found if tensor.layers)


def parameters(config: ModelConfig) -> int:
    """Entries of all tensors: `sum(p.numel() for p in model.parameters())` in transformers, tied ones once."""
    return sum(tensor.numel * tensor.layers for tensor in of(config))


def layer_parameters(config: ModelConfig) -> int:
    """Entries of the largest layer."""
    sizes = {place: sum(tensor.numel for tensor in of(config) if tensor.place == place) for place in _IN_LAYERS}
    return sizes["layers"] + max(sizes["dense"], sizes["sparse"])


def adapters(config: ModelConfig, rank: int, targets: tuple[str, ...]) -> int:
    """Entries that LoRA of `rank` adds: rank * (inputs + outputs) of each adapted projection (Hu et al. 2021, 4.1).

    `targets` are names of projections, or `all-linear`; stacked experts are no modules, and PEFT passes them by.
    """
    adapted = (
        tensor
        for tensor in of(config)
        if tensor.linear and tensor.experts == 1 and ("all-linear" in targets or tensor.name in targets)
    )
    return sum(rank * (tensor.rows + tensor.columns) * tensor.layers for tensor in adapted)


def per_gpu(tensor: Tensor, config: ModelConfig, tensor_parallel: int, gpus: int) -> int:
    """Entries of one layer's tensor that each of the server's GPUs holds.

    Heads as in `QKVParallelLinear` (layers/linear.py): KV heads are kept several times where there are fewer than GPUs.
    Experts are cut over all `gpus`, copies of the model included (`flatten_tp_across_dp_and_pcp`, fused_moe/config.py).
    """
    if tensor.cut == "none":
        return tensor.numel
    if tensor.cut == "vocabulary":
        padded = math.ceil(tensor.rows / VOCABULARY_PADDING) * VOCABULARY_PADDING
        return math.ceil(padded / tensor_parallel) * tensor.columns
    if tensor.cut == "heads":
        kept = max(config.num_key_value_heads, tensor_parallel) / config.num_key_value_heads
        rows = tensor.queries + (tensor.rows - tensor.queries) * kept
        return math.ceil(rows * tensor.columns / tensor_parallel)
    return math.ceil(tensor.numel / (gpus if tensor.experts > 1 else tensor_parallel))


def pushed(config: ModelConfig) -> Iterator[int]:
    """Entries of each tensor, in the order in which the trainer sends them: layer by layer, dense ones first."""
    tensors = of(config)
    dense_layers = config.dense_layers if config.num_experts else config.num_hidden_layers
    yield from (tensor.numel for tensor in tensors if tensor.place == "embedding")
    for layer in range(config.num_hidden_layers):
        kind = "dense" if layer < dense_layers else "sparse"
        yield from (tensor.numel for tensor in tensors if tensor.place in ("layers", kind))
    yield from (tensor.numel for tensor in tensors if tensor.place == "tail")


def allocated(size: int) -> int:
    """Bytes that torch's CUDA allocator counts for a block of `size` bytes.

    Multiples of 512; from 10 MiB on a block gets a segment of whole 2 MiB to itself, and keeps the rest of it when that
    is 1 MiB or less (c10/core/AllocatorConfig.h: kMinLargeAlloc, kRoundLarge, kSmallSize; `should_split`).
    """
    size = math.ceil(size / 512) * 512
    if size < 10 * MIB:
        return size
    segment = math.ceil(size / (2 * MIB)) * 2 * MIB
    return segment if segment - size <= MIB else size


def _attention(config: ModelConfig) -> list[Tensor]:
    width, head = config.hidden_size, config.head_dim
    queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
    parts = {"q_proj": (queries, queries), "k_proj": (keys, 0), "v_proj": (keys, 0)}
    if config.fused_projections:
        parts = {"qkv_proj": (queries + 2 * keys, queries)}
    found = []
    for name, (rows, of_queries) in parts.items():
        found.append(Tensor(name, rows, width, cut="heads", queries=of_queries, fused="qkv_proj"))
        if config.attention_bias:
            found.append(Tensor(f"{name}.bias", rows, cut="heads", queries=of_queries, fused="qkv_proj.bias"))
    found.append(Tensor("o_proj", width, queries, cut="even"))
    if config.attention_output_bias:
        found.append(Tensor("o_proj.bias", width))
    if config.query_key_norm == "head":
        found += [Tensor("q_norm", head), Tensor("k_norm", head)]
    if config.query_key_norm == "width":
        found += [Tensor("q_norm", queries), Tensor("k_norm", keys)]
    return found


def _latent(config: ModelConfig, latent: LatentAttention) -> list[Tensor]:
    """DeepSeek's (transformers, models/deepseek_v3; vLLM, models/deepseek_v2.py: the down projections are replicated)."""
    width, heads = config.hidden_size, config.num_attention_heads
    queries = heads * (latent.qk_nope_head_dim + latent.qk_rope_head_dim)
    squeezed = latent.kv_lora_rank + latent.qk_rope_head_dim
    found = [Tensor("q_proj", queries, width, cut="even")]
    if latent.q_lora_rank:
        found = [Tensor("q_a_proj", latent.q_lora_rank, width), Tensor("q_a_layernorm", latent.q_lora_rank)]
        found.append(Tensor("q_b_proj", queries, latent.q_lora_rank, cut="even"))
    unfolded = heads * (latent.qk_nope_head_dim + latent.v_head_dim)
    found += [Tensor("kv_a_proj_with_mqa", squeezed, width), Tensor("kv_a_layernorm", latent.kv_lora_rank)]
    found.append(Tensor("kv_b_proj", unfolded, latent.kv_lora_rank, cut="even"))
    found.append(Tensor("o_proj", width, heads * latent.v_head_dim, cut="even"))
    return found


def _feed_forward(config: ModelConfig) -> list[Tensor]:
    layers, experts = config.num_hidden_layers, config.num_experts or 0
    dense = config.dense_layers if experts else layers
    found = [replace(part, place="dense", layers=dense) for part in _mlp(config, "", config.intermediate_size)]
    if not experts:
        return found
    width, size, shared = config.hidden_size, config.moe_intermediate_size or 0, config.shared_expert_intermediate_size
    sparse = [
        Tensor("gate", experts, width),
        Tensor("experts.gate_up_proj", 2 * size, width, experts=experts, cut="even"),
        Tensor("experts.down_proj", width, size, experts=experts, cut="even"),
    ]
    sparse += _mlp(config, "shared_expert.", shared) if shared else []
    sparse += [Tensor("shared_expert_gate", 1, width)] if config.shared_expert_gate else []
    return found + [replace(tensor, place="sparse", layers=layers - dense) for tensor in sparse]


def _mlp(config: ModelConfig, prefix: str, size: int) -> list[Tensor]:
    width = config.hidden_size
    ups = {"gate_proj": size, "up_proj": size} if config.gated_mlp else {"up_proj": size}
    if config.fused_projections:
        ups = {"gate_up_proj": 2 * size}
    found = [
        Tensor(prefix + name, rows, width, cut="even", fused=f"{prefix}gate_up_proj") for name, rows in ups.items()
    ]
    found.append(Tensor(prefix + "down_proj", width, size, cut="even"))
    if config.mlp_bias:
        found += [Tensor(f"{prefix}{name}.bias", rows, cut="even") for name, rows in ups.items()]
        found.append(Tensor(f"{prefix}down_proj.bias", width))
    return found


def _norm(config: ModelConfig) -> list[Tensor]:
    return [Tensor(name, config.hidden_size) for name in (["norm", "norm.bias"] if config.norm_bias else ["norm"])]
