"""What a vLLM GPU takes to run: activations, CUDA graphs, sampling; and which of it vLLM sets aside before the KV cache.

vLLM 0.28 runs once at full width and keeps back what that took (v1/worker/gpu_worker.py, `determine_available_memory`).
What that run leaves out comes on top of --gpu-memory-utilization later. How much it leaves out depends on the model
runner (config/vllm.py, `use_v2_model_runner`):

- V1 samples with top-k and top-p in that run, and captures a few CUDA graphs to estimate the rest (on by default:
  VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS, envs.py).
- V2 takes the plainest way to sample, and `profile_cudagraph_memory` returns 0 (v1/worker/gpu/model_runner.py): graphs
  and what sampling takes beyond it are captured and allocated after the KV cache has got all the rest.
"""

from __future__ import annotations

from grpo_stack.facts import ModelConfig
from grpo_stack.memory.serving import Serving, batched_sequences, batched_tokens
from grpo_stack.memory.shares import DTYPE_BYTES, GIB

SECOND_RUNNER_EXPERTS = frozenset(
    {
        "DeepseekV2ForCausalLM",
        "DeepseekV4ForCausalLM",
        "GraniteMoeForCausalLM",
        "InklingForCausalLM",
        "KimiK3ForConditionalGeneration",
        "LongcatFlashNgramForCausalLM",
        "Qwen2MoeForCausalLM",
    }
)
"""Mixtures of experts that V2 runs (config/vllm.py, DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES); it runs every dense model."""

WORKSPACE_BYTES = 32 * 2**20
"""cuBLAS's on Hopper and newer; torch allocates it at the first matrix product."""

SAMPLING_BYTES = 16
"""For each logit that top-k, top-p and log-probs are worked out from: 16 bits from the head, float32 for the sampler, its
sorted copy, 64-bit places (v1/sample/ops/topk_topp_sampler.py). An estimate."""

GRAPH_BYTES = 203_000
"""CUDA graphs, for each layer and captured size. With GRAPH_WIDTH_BYTES calibrated by two measurements on one H200, of 51
sizes: 0.39 GiB for the 24 layers of Qwen2.5-0.5B, 0.89 GiB for the 28 layers of Qwen2.5-7B."""

GRAPH_WIDTH_BYTES = 0.89
"""CUDA graphs, for each captured token and place of the widest layer: what a graph does not share with the others."""


def second_runner(config: ModelConfig) -> bool:
    """Whether model runner V2 serves it. A model that also has layers without attention is not told apart here."""
    return config.num_experts is None or config.architecture in SECOND_RUNNER_EXPERTS


def activation_gib(config: ModelConfig, serving: Serving, capacity_gib: float) -> float:
    """Peak of `profile_run`: the widest layer for a full batch of tokens, or the logits of a full batch of sequences, which
    each GPU gathers whole (layers/logits_processor.py); beside two hidden states and cuBLAS's workspace.

    Qwen2.5-7B on one H200: 1.17 GiB here, 1.13 in vLLM's log; Qwen2.5-0.5B: 0.35, and 0.35.
    """
    size, batch = DTYPE_BYTES[serving.dtype], batched_tokens(serving, capacity_gib)
    layer = batch * size * (3 * config.hidden_size + _width(config, serving))
    logits = _sampled(config, serving, capacity_gib) * (size if second_runner(config) else SAMPLING_BYTES)
    return (WORKSPACE_BYTES + 2 * batch * size * config.hidden_size + max(layer, logits)) / GIB


def unprofiled_sampling_bytes(config: ModelConfig, serving: Serving, capacity_gib: float) -> int:
    """What sampling with top-k, top-p or a temperature takes beyond what `profile_run` saw."""
    beyond = SAMPLING_BYTES - DTYPE_BYTES[serving.dtype]
    return _sampled(config, serving, capacity_gib) * beyond if second_runner(config) else 0


def graphs_gib(config: ModelConfig, serving: Serving, capacity_gib: float) -> float:
    """One graph of each layer for each captured size: 1, 2, 4, then by 8 below 256 and by 16 up to 512 (1024 on
    Blackwell), at most twice the sequences (config/vllm.py, `_set_cudagraph_sizes`)."""
    limit = 1024 if capacity_gib >= 160 else 512
    highest = min(2 * batched_sequences(serving, capacity_gib), limit, batched_tokens(serving, capacity_gib))
    captured = [size for size in (1, 2, 4) if size <= highest]
    captured += [*range(8, min(highest + 1, 256), 8), *range(256, highest + 1, 16)]
    width = 4 * config.hidden_size + _width(config, serving)
    layers = GRAPH_BYTES * config.num_hidden_layers * len(captured)
    return (layers + GRAPH_WIDTH_BYTES * width * sum(captured)) / GIB


def _sampled(config: ModelConfig, serving: Serving, capacity_gib: float) -> int:
    sequences = min(batched_sequences(serving, capacity_gib), batched_tokens(serving, capacity_gib))
    return sequences * config.vocab_size


def _width(config: ModelConfig, serving: Serving) -> float:
    """Entries of a token in the widest part of a layer on one GPU: projections of a feed-forward layer, or attention's."""
    cut = serving.tensor_parallel
    attention = 4 * config.num_attention_heads * config.head_dim / cut
    wide = 3 * config.intermediate_size / cut
    if config.num_experts:
        experts = config.num_experts_per_token or 1
        cut_all = cut * serving.data_parallel
        wide = experts * (3 * (config.moe_intermediate_size or 0) / cut_all + config.hidden_size)
        wide += 3 * (config.shared_expert_intermediate_size or 0) / cut
    return max(attention, wide)
