"""What each GPU of the trainer holds: under TRL's GRPOTrainer, accelerate, and one way of sharing the model.

What stays for the whole run (weights, gradients, optimizer state) and the larger of what comes and goes: the backward
pass of a micro-batch, or a weight push. The first process also sends the weights, so it is the one described.
"""

from __future__ import annotations

from dataclasses import dataclass

from grpo_stack.facts import ModelConfig
from grpo_stack.memory import push, tensors
from grpo_stack.memory.shares import DTYPE_BYTES, GIB, RESERVE, RUNTIME_GIB, Share, Side

SHARDED = ("fsdp2", "zero2", "zero3")

EIGHT_BIT = ("adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit")
"""Optimizers of transformers (`OptimizerNames`) that keep a byte for each moment."""

BUCKET_ENTRIES = 500_000_000
"""DeepSpeed's reduce_bucket_size and allgather_bucket_size, 5e8 entries each (its documentation, "ZeRO Optimizations")."""

LIVE_ENTRIES = 1_000_000_000
"""DeepSpeed's stage3_max_live_parameters."""

TILE_TOKENS, TILE_COLUMNS = 4096, 32768
"""TRL 1.16 scores tokens against the vocabulary in tiles (kernels/chunked_logprob.py, trainer/utils.py)."""

EAGER, EAGER_BYTES = ("gemma2",), 8
"""Families whose attention transformers computes in full (it caps the scores, which no fused kernel of torch does), and
the bytes that each score then keeps."""


@dataclass(frozen=True)
class Lora:
    """Adapters are trained, and the model itself stays as it is."""

    rank: int = 16
    targets: tuple[str, ...] = ("q_proj", "v_proj")
    """Projections, or `all-linear`. PEFT's own default for Llama and Qwen is q_proj and v_proj."""


@dataclass(frozen=True)
class Training:
    """How the trainer runs."""

    processes: int

    length: int
    """Tokens of prompt and completion together."""

    parallelism: str = "fsdp2"
    """`ddp`, `fsdp2`, `zero2` or `zero3`; a single process uses none of them."""

    per_device_batch: int = 8
    """per_device_train_batch_size; transformers' default."""

    dtype: str = "bfloat16"
    """What the weights are loaded as; with mixed precision, computing is in 16 bits in any case."""

    optimizer: str = "adamw_torch_fused"
    """`optim`; what is not known counts as AdamW, which keeps two numbers for each parameter."""

    gradient_checkpointing: bool = True
    """TRL's default."""

    lora: Lora | None = None

    reference: bool = False
    """A second copy of the model for the KL term: when `beta` is not 0 and there are no adapters."""

    full_logits: int = 0
    """Completion tokens whose whole logits are kept: max_completion_length for TRL before 1.16, 0 since."""


def pushed_dtype(training: Training) -> str:
    """What the server receives: FSDP2 keeps trained weights as float32 and TRL sends them as they are kept.

    accelerate 1.15, `fsdp2_prepare_model` (utils/fsdp_utils.py) upcasts whatever is trained under mixed precision; TRL
    1.16, `_iter_fsdp2_params` (generation/vllm_generation.py) yields `param.full_tensor()`. So a push has twice the bytes.
    """
    upcast = sharding(training) == "fsdp2" and training.lora is None
    return "float32" if upcast else training.dtype


def estimate(config: ModelConfig, capacity_gib: float, training: Training) -> Side:
    """What a trainer GPU of `capacity_gib` holds."""
    resident = _resident(config, training)
    passing = (_gathered(config, training), _activations(config, training), _head(config, training))
    sending = _push_bytes(config, training) / GIB
    coming_and_going = sum(share.gib for share in passing)
    beyond = max(0.0, sending - coming_and_going)
    where = "more than the activations it replaces" if beyond else "fits where the activations were"
    shares = (
        *resident,
        *(share for share in passing if share.gib),
        Share("weight push", beyond, f"{sending:.2f} GiB, {where}"),
        Share("CUDA and NCCL", RUNTIME_GIB, "estimate"),
        Share("reserve", RESERVE * capacity_gib, "kept free"),
    )
    needed = sum(share.gib for share in shares)
    batched = sum(share.gib for share in passing[1:]) * (1 - 1 / training.per_device_batch)
    remedies = tuple(_remedies(training, smaller_batch=needed - batched < capacity_gib))
    return Side("trainer", training.processes, capacity_gib, shares, needed, needed / capacity_gib, remedies)


def sharding(training: Training) -> str:
    """`parallelism`, or `none` for a single process."""
    return training.parallelism if training.processes > 1 else "none"


def trained(config: ModelConfig, training: Training) -> int:
    """Entries that the optimizer changes."""
    if training.lora is None:
        return tensors.parameters(config)
    return tensors.adapters(config, training.lora.rank, training.lora.targets)


def _resident(config: ModelConfig, training: Training) -> list[Share]:
    """Weights, gradients and optimizer state, as bytes for each trained parameter (N processes, d = bytes of dtype):

        one process, ddp     d                  d, ddp another d     2 d
        fsdp2                4/N                4/N                  8/N
        zero2                d      + 4/N       d/N                  8/N
        zero3                d/N    + 4/N       d/N                  8/N

    and d (shared out where the weights are) for what is frozen. AdamW keeps its two moments as the parameters are kept
    (torch.optim.AdamW); ZeRO and FSDP2 keep a float32 master (Rajbhandari et al. 2020, 3.1; accelerate, `fsdp2_prepare_
    model`). ddp reduces in buckets of their own (torch, DistributedDataParallel: gradient_as_bucket_view=False). Adapters
    are kept as float32 (PEFT: autocast_adapter_dtype).
    """
    size, kind = DTYPE_BYTES[training.dtype], sharding(training)
    count, all_entries = trained(config, training), tensors.parameters(config)
    frozen = all_entries if training.lora else 0
    own = 4 if training.lora or kind == "fsdp2" else size
    cut_weights = training.processes if kind in ("fsdp2", "zero3") else 1
    cut_rest = training.processes if kind in SHARDED else 1
    weights = (frozen * size + count * own) / cut_weights
    if kind in ("zero2", "zero3"):
        weights += 4 * count / cut_rest
    gradients = count * own / cut_rest * (2 if kind == "ddp" else 1)
    keeps = 4 if kind in SHARDED else own
    found = [
        Share("weights", weights / GIB, _weights_note(config, training)),
        Share("gradients", gradients / GIB),
        Share("optimizer state", moments(config, training, count, keeps) / cut_rest / GIB, training.optimizer),
    ]
    if training.reference and not training.lora:
        found.append(Share("reference model", all_entries * size / cut_weights / GIB))
    return found


def _weights_note(config: ModelConfig, training: Training) -> str:
    if not config.known_family:
        return "family not known: counted like Llama"
    if config.other_parts:
        return "text part only"
    return "kept as float32" if sharding(training) in SHARDED and not training.lora else ""


def moments(config: ModelConfig, training: Training, count: int, keeps: int) -> float:
    """Bytes of AdamW's two moments; with 8 bits a byte each and a float32 scale for each block of 256 (Dettmers et al.
    2022, 2.2), while embeddings keep 32 bits (transformers, trainer.py: `register_module_override`)."""
    if training.optimizer not in EIGHT_BIT:
        return 2.0 * keeps * count
    embedding = 0 if training.lora else config.vocab_size * config.hidden_size
    return min(2.0 * keeps * count, 8.0 * embedding + 2 * (1 + 4 / 256) * (count - embedding))


def _gathered(config: ModelConfig, training: Training) -> Share:
    """Whole layers and their gradients while they are used.

    FSDP2: the layer at work and the next one, in 16 bits, with gradients of both, and the head, which stays
    (`fsdp2_prepare_model`: reshard_after_forward=False for the tail). DeepSpeed: its buckets, twice the reducing one
    (overlap_comm), and with stage 3 what its limit of live parameters allows.
    """
    kind, size = sharding(training), DTYPE_BYTES[training.dtype]
    layer, count = tensors.layer_parameters(config), trained(config, training)
    if kind == "fsdp2":
        gradients = 2 * layer if training.lora is None else 0
        entries = 2 * layer + gradients + config.vocab_size * config.hidden_size
        return Share("gathered layers", 2 * entries / GIB, "two layers, their gradients, the head")
    if kind in ("zero2", "zero3"):
        buckets = 2 * min(BUCKET_ENTRIES, count) + min(BUCKET_ENTRIES, tensors.parameters(config))
        live = min(LIVE_ENTRIES, tensors.parameters(config)) if kind == "zero3" else 0
        return Share("DeepSpeed's buffers", (buckets + live) * size / GIB, "its defaults")
    return Share("gathered layers", 0.0)


def _activations(config: ModelConfig, training: Training) -> Share:
    """What the backward pass needs of the forward pass, in 16 bits, for batch * length tokens.

    With checkpointing the input of each layer, and one layer's own with its gradients while it is computed again;
    without, every layer's own (Korthikanti et al. 2022, 4; the terms are those of Llama's modules, `_layer_bytes`).
    """
    tokens = training.per_device_batch * training.length
    mask = training.per_device_batch * training.length**2
    own = tokens * _layer_bytes(config, training.length)
    if training.gradient_checkpointing:
        size = config.num_hidden_layers * tokens * config.hidden_size * 2 + 1.5 * own + mask
        return Share("activations", size / GIB, "with gradient checkpointing; estimate")
    return Share("activations", ((config.num_hidden_layers + 0.5) * own + mask) / GIB, "estimate")


def _layer_bytes(config: ModelConfig, length: int = 0) -> int:
    """For each token in one layer, with 16-bit weights (transformers, models/llama/modeling_llama.py).

    A norm keeps its input as float32, the normalized value and its output, 8 bytes for each place (a fused LayerNorm 4);
    attention queries, keys and values, before and after the rotation, and its output; a feed-forward layer gate, up, the
    activated gate and their product. Experts keep those for each expert that a token visits, and the token's copy. Up
    to 10 % above what autograd saves in the layers of Llama, Qwen, Mixtral and StarCoder (`bench/memory_check.py`).
    """
    width, head = config.hidden_size, config.head_dim
    queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
    kept, in_norm = 4 if config.gated_mlp else 2, 4 if config.norm_bias else 8
    wide = kept * config.intermediate_size
    if config.num_experts:
        shared, routed = config.shared_expert_intermediate_size or 0, config.num_experts_per_token or 1
        wide = kept * (routed * (config.moe_intermediate_size or 0) + shared) + 2 * routed * width
    size = in_norm * config.norms_per_layer * width + 2 * (3 * queries + 3 * keys + wide)
    size += 8 * (queries + keys) if config.query_key_norm else 0
    quadratic = EAGER_BYTES * config.num_attention_heads * length if config.model_type in EAGER else 0
    return size + quadratic


def _head(config: ModelConfig, training: Training) -> Share:
    """Log-probs of the completions. TRL 1.16 never holds all logits (`ChunkedLogProbFunction.backward`): a float32
    gradient of the head and its copy in the weight's dtype, one of the hidden states, and a tile of logits. Before, the
    logits, the same divided by the temperature, log-softmax and two gradients, 2 bytes each."""
    tokens = training.per_device_batch * training.length
    head = config.vocab_size * config.hidden_size
    tile = 2 * (min(tokens, TILE_TOKENS) * TILE_COLUMNS + TILE_COLUMNS * config.hidden_size)
    if training.full_logits:
        kept = training.per_device_batch * min(training.full_logits, training.length)
        return Share("logits", 10 * kept * config.vocab_size / GIB, "of the completions, several copies")
    gradient = 6 * head if training.lora is None else 0
    return Share("log-probs", (gradient + 6 * tokens * config.hidden_size + tile) / GIB, "gradient of the head, a tile")


def _push_bytes(config: ModelConfig, training: Training) -> int:
    """On the first process; adapters under ZeRO-3 are merged with the whole model gathered, on every process
    (TRL, generation/vllm_generation.py, `_iter_named_params`)."""
    size, kind = DTYPE_BYTES[pushed_dtype(training)], sharding(training)
    sent = push.sender_bytes([count * size for count in tensors.pushed(config)], kind in ("fsdp2", "zero3"))
    whole = tensors.parameters(config) * size if training.lora and kind == "zero3" else 0
    return sent + whole


def _remedies(training: Training, smaller_batch: bool) -> list[str]:
    found = []
    if not training.gradient_checkpointing:
        found.append("set trainer.args.gradient_checkpointing to true")
    if training.per_device_batch > 1 and smaller_batch:
        found.append("lower trainer.args.per_device_train_batch_size and raise gradient_accumulation_steps")
    if sharding(training) in ("ddp", "zero2"):
        found.append("set trainer.parallelism to fsdp2")
    found.append("train on more GPUs" if training.lora else "train on more GPUs, or adapters (use_peft)")
    return found
