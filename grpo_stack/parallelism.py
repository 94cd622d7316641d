"""How the server's GPUs and the trainer's processes can share a model and a batch; sizes that cannot work are refused.

The rules are those of vLLM 0.28 and TRL 1.16, each with the place where it stands in their source. vLLM applies its own
only while the engine starts, as assertions or one line from a worker, after minutes of loading.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `render` needs none of the facts, and their classes take a tenth of its time to make
    from grpo_stack.facts import ModelConfig

VOCABULARY_PADDING = 64
"""Rows to which vLLM pads the embedding: `DEFAULT_VOCAB_PADDING_SIZE` (layers/vocab_parallel_embedding.py)."""

GENERIC = ("GPTBigCodeForCausalLM", "OlmoForCausalLM", "Olmo2ForCausalLM", "SmolLM3ForCausalLM", "Starcoder2ForCausalLM",
           "VaultGemmaForCausalLM")  # fmt: skip
"""Architectures that vLLM runs with transformers' own modules (models/registry.py, `_TRANSFORMERS_SUPPORTED_MODELS`)."""


@dataclass(frozen=True)
class Layout:
    """How a number of GPUs serves a model, or why it cannot."""

    tensor_parallel: int
    """GPUs that hold a copy of the model together."""

    data_parallel: int = 1
    """Copies; the experts of a mixture-of-experts model are still cut over all GPUs."""

    problems: tuple[str, ...] = ()
    """Why these GPUs cannot serve it, a few words each; empty: they can."""


def check(config: ModelConfig, gpus: int, whole_experts: bool = False) -> Layout:
    """How `gpus` GPUs serve the model: tensor parallelism over all of them, or data parallelism on top for experts.

    `whole_experts`: with --enable-expert-parallel, which gives each GPU some experts whole instead of a part of each
    (`FusedMoEParallelConfig.make`, layers/fused_moe/config.py): then their size need not divide.

    Data parallelism is for mixture-of-experts models alone. The copies of a dense model are engines that do not know of
    each other (vLLM, v1/engine/core.py: "Non-MoE DP ranks are completely independent, so treat like DP=1"), and a weight
    update answers with what the first of them said (v1/engine/core_client.py, `call_utility_async`): a copy that failed
    to take the weights would go on generating from the old ones, unseen. Fewer GPUs serve a dense model better, with
    the rest training.
    """
    problems = _problems(config, gpus, gpus, whole_experts)
    if problems and config.num_experts:
        for size in range(gpus - 1, 0, -1):
            if gpus % size == 0 and not _problems(config, size, gpus, whole_experts):
                return Layout(size, gpus // size)
    return Layout(gpus, 1, problems)


def sizes(config: ModelConfig, limit: int, whole_experts: bool = False) -> tuple[int, ...]:
    """The numbers of GPUs, up to `limit`, that can serve the model."""
    return tuple(gpus for gpus in range(1, limit + 1) if not check(config, gpus, whole_experts).problems)


def split_problem(
    config: ModelConfig, server: int, trainer: int, total: int, whole_experts: bool = False
) -> str | None:
    """Why `server` GPUs cannot serve the model, with the splits of `total` GPUs that are nearest; None: they can."""
    layout = check(config, server, whole_experts)
    if not layout.problems:
        return None
    works = sizes(config, max(1, total - 1), whole_experts)
    name = config.architecture or "this model"
    ways = _listed([_split(*way, total) for way in _ways(works, server, trainer, total)], "or")
    return (
        f"{server} GPUs cannot serve {name}: {'; '.join(layout.problems)}; "
        f"it can be served on {_listed(map(str, works), 'or')} of up to {total}: use {ways}"
    )


def _ways(works: tuple[int, ...], server: int, trainer: int, total: int) -> list[tuple[int, int]]:
    """Splits near the wanted one: the two nearest sizes with all other GPUs training, and the trainer left as it is."""
    nearest = sorted(works, key=lambda size: (abs(size - server), -size))[:2]
    ways = [(size, total - size) for size in nearest if total > size]
    smaller = [size for size in works if size < server and 0 < trainer <= total - size]
    if smaller:
        ways.append((max(smaller), trainer))
    return list(dict.fromkeys(ways))


def _split(server: int, trainer: int, total: int) -> str:
    idle = total - server - trainer
    return f"{server}:{trainer}" + (f" ({idle} idle)" if idle else "")


def _problems(config: ModelConfig, size: int, gpus: int, whole_experts: bool) -> tuple[str, ...]:
    """Why tensor parallelism over `size` of `gpus` GPUs cannot work; `gpus` / `size` copies share the experts."""
    if size == 1 and gpus == 1:
        return ()
    found = [_heads(config, size), _kv_heads(config, size), _vocabulary(config, size)]
    found += [_width(config, size), _experts(config, size, gpus, whole_experts)]
    return tuple(problem for problem in found if problem)


def _heads(config: ModelConfig, size: int) -> str | None:
    """`ModelConfig.verify_with_parallel_config` (config/model.py): heads % tensor_parallel_size == 0."""
    return _indivisible(config.num_attention_heads, "attention heads", size)


def _kv_heads(config: ModelConfig, size: int) -> str | None:
    """Divided, or each one kept by the same number of GPUs: the assertions in `Qwen2Attention`, `LlamaAttention`,
    `MixtralAttention` … (models/*.py) and `QKVParallelLinear` (layers/linear.py: num_kv_head_replicas).

    DeepSeek's latent attention keeps one shared vector on every GPU (`ModelConfig.get_num_kv_heads`: 1 with MLA).
    Of the GENERIC ones no head is kept twice: their query, key and value projections become plain column-parallel layers
    (seen by building them: models/transformers/base.py fuses gate and up, and not these), which cut a head in two that
    attention needs whole.
    """
    kv_heads = config.num_key_value_heads
    if config.architecture in GENERIC and kv_heads % size:
        return f"{kv_heads} KV heads do not divide by {size}, and vLLM has no model of its own that keeps them twice"
    if config.latent_attention or kv_heads % size == 0 or size % kv_heads == 0:
        return None
    return f"{kv_heads} KV heads can neither be divided by {size} nor be kept {size}/{kv_heads} times"


def _vocabulary(config: ModelConfig, size: int) -> str | None:
    """`VocabParallelEmbedding` (layers/vocab_parallel_embedding.py) pads the rows to 64, then divides them."""
    padded = math.ceil(config.vocab_size / VOCABULARY_PADDING) * VOCABULARY_PADDING
    return _indivisible(padded, "rows of the padded vocabulary", size)


def _width(config: ModelConfig, size: int) -> str | None:
    """`divide` in `ColumnParallelLinear` and `RowParallelLinear` (layers/linear.py), for dense and shared layers.

    The hidden width is never cut: column-parallel layers take it whole, row-parallel ones give it whole. Weights with one
    scale a block are cut at blocks only: `validate_fp8_block_shape` (quantization/utils/fp8_utils.py).
    """
    unit = config.quantization_block or 1
    widths = {}
    if not config.num_experts or config.dense_layers:
        widths["intermediate size"] = config.intermediate_size
    if config.shared_expert_intermediate_size:
        widths["the shared expert's size"] = config.shared_expert_intermediate_size
    if unit > 1 and not config.latent_attention:  # without blocks, heads already divide
        widths["query width"] = config.num_attention_heads * config.head_dim
        widths["key width"] = max(config.num_key_value_heads, size) * config.head_dim
    for name, width in widths.items():
        if size > 1 and width % (size * unit):
            return f"{name} {width} does not divide by {size}" + _in_blocks(unit)
    return None


def _experts(config: ModelConfig, size: int, gpus: int, whole: bool) -> str | None:
    """`FusedMoEConfig.__post_init__` (layers/fused_moe/config.py): the width of an expert % all GPUs == 0, since
    `FusedMoEParallelConfig.flatten_tp_across_dp_and_pcp` cuts experts over the copies too; with scales by block,
    `Fp8MoEMethod.create_weights` (quantization/fp8.py). More GPUs than experts: `Qwen3MoeSparseMoeBlock` and its kin.
    """
    if not config.num_experts or not config.moe_intermediate_size or gpus == 1:
        return None
    if config.architecture.startswith("Qwen") and size > config.num_experts:
        return f"there are only {config.num_experts} experts"
    unit = config.quantization_block or 1
    if not whole and config.moe_intermediate_size % (gpus * unit):
        return f"an expert's size {config.moe_intermediate_size} does not divide by {gpus}" + _in_blocks(unit)
    return None


def _in_blocks(unit: int) -> str:
    return f" in blocks of {unit}" if unit > 1 else ""


def _indivisible(number: int, what: str, size: int) -> str | None:
    return f"{number} {what} do not divide by {size}" if number % size else None


def batch_problem(processes: int, per_device_batch: int, accumulation: int, num_generations: int) -> str | None:
    """Why TRL would refuse this batch, with the nearest values that work; None: it takes it.

    TRL 1.16, `GRPOConfig.__post_init__` (trainer/grpo_config.py): generation_batch_size, which is per_device_train_
    batch_size * processes * steps_per_generation (by default gradient_accumulation_steps: pass the one that is set),
    must divide by num_generations; that is at least 2.
    """
    if num_generations < 2:
        return f"num_generations {num_generations}: an advantage compares completions of one prompt; use 2 or more"
    if min(processes, per_device_batch, accumulation) < 1:
        return "per_device_train_batch_size and gradient_accumulation_steps must be 1 or more"
    total = processes * per_device_batch * accumulation
    if total % num_generations == 0:
        return None
    ways = [
        f"gradient_accumulation_steps {_near(accumulation, num_generations, processes * per_device_batch)}",
        f"per_device_train_batch_size {_near(per_device_batch, num_generations, processes * accumulation)}",
    ]
    divisors = [number for number in range(2, total + 1) if total % number == 0]
    if divisors:
        ways.append(f"num_generations {_closest(divisors, num_generations)}")
    return (
        f"{processes} processes * {per_device_batch} per_device_train_batch_size * {accumulation} "
        f"gradient_accumulation_steps = {total} completions, which {num_generations} num_generations do not divide; "
        f"nearest: {_listed(ways, 'or')}"
    )


def _near(value: int, divisor: int, others: int) -> str:
    """The values around `value` whose product with `others` divides by `divisor`: multiples of one step."""
    step = divisor // math.gcd(divisor, others)
    below = value // step * step
    return _listed([str(number) for number in (below, below + step) if number], "or")


def _closest(numbers: list[int], value: int) -> str:
    below = [number for number in numbers if number < value][-1:]
    above = [number for number in numbers if number > value][:1]
    return _listed(map(str, below + above), "or")


def needed_length(prompt_tokens: int, completion_tokens: int) -> int:
    """`--max-model-len` for the longest prompt and `max_completion_length`: vLLM counts both together.

    vLLM refuses a prompt that does not leave room for its max_tokens (v1/engine/input_processor.py). TRL 1.16 has no
    max_prompt_length any more, and cuts no prompt: the longest one of the dataset, in tokens, is the limit.
    """
    return prompt_tokens + completion_tokens


def length_problem(
    config: ModelConfig | None, wanted: int | None, prompt_tokens: int, completion_tokens: int
) -> str | None:
    """Why `wanted` (server.max_model_len; None: what is needed) does not hold prompt and completion; None: it does.

    More than the model was made for is refused by vLLM (config/model.py, `_get_and_verify_max_len`).
    """
    needed = needed_length(prompt_tokens, completion_tokens)
    parts = f"{prompt_tokens} of the prompt + {completion_tokens} of the completion"
    if wanted is not None and wanted < needed:
        return f"{wanted} tokens do not hold {parts}; use {needed}, or leave it out"
    longest = config.max_position_embeddings if config else None
    length = wanted or needed
    if longest is not None and length > longest:
        return f"{length} tokens ({parts}) are more than the {longest} that the model was made for; shorten one of them"
    return None


def _listed(words: Iterable[str], last: str) -> str:
    listed = list(words)
    return f"{', '.join(listed[:-1])} {last} {listed[-1]}" if len(listed) > 1 else "".join(listed)
