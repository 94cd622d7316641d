"""Does the described run fit model, GPUs and batch? What vLLM and TRL would refuse only after minutes of loading.

Decides on the model's config and the GPUs' memory, which others have read; asks nothing itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from grpo_stack import footprint, launch, parallelism, programs, spec, training_options
from grpo_stack.facts import ModelConfig
from grpo_stack.footprint import Capacities, as_data, capacities, lines, number, sides
from grpo_stack.memory import shares
from grpo_stack.memory.server import HIGHEST_UTILIZATION
from grpo_stack.memory.shares import Side
from grpo_stack.memory.trainer import Training
from grpo_stack.preflight import Finding
from grpo_stack.spec import StackSpec
from grpo_stack.split import COLOCATE, SEPARATE

__all__ = ["CHECKS", "Capacities", "as_data", "capacities", "findings", "lines", "sides"]

CHECKS = {
    "model": "its config can be read",
    "tensor-parallel": "the server's GPUs can hold the model between them",
    "arguments": "TRL knows every name in `trainer.args`, and the server can take what is trained with them",
    "batch": "TRL can make whole groups of completions of it",
    "length": "prompt and completion fit into what the model was made for",
    "server-memory": "each GPU of the server holds weights, a sequence, and a weight push",
    "trainer-memory": "each GPU of the trainer holds weights, gradients, optimizer, activations, and a weight push",
}
"""Every check by name, and what is fine there."""

COUNTED_TWICE = 1.15
"""How much of its share of a GPU, by the estimate, a side may need that has it together with the other one. On an H200 the estimate
of two models was within 4 % of what both sides took (docs/benchmarks-gpu.md)."""

GENERATIONS = 8
"""TRL's default of `num_generations` (1.16, trainer/grpo_config.py)."""


def findings(
    described: StackSpec, config: ModelConfig | None, capacity: Capacities, total_gpus: int | None
) -> tuple[Finding, ...]:
    """Every finding at once, problems or not.

    `config` None: the model's could not be read. `total_gpus` is how many the host has, for the splits that are proposed;
    None: those of the split.
    """
    found = [*_arguments(described), *_packed(described, config), *_precision(described, config)]
    found += [*_batch(described), *_length(described, config)]
    if config is None:
        return (_unread(described), *found)
    if described.accelerator == "cuda":
        found += [*_layout(described, config, total_gpus), *_memory(described, config, capacity)]
    return tuple(found)


def _unread(described: StackSpec) -> Finding:
    checks = ["longest context"]
    if described.accelerator == "cuda":
        checks = ["tensor parallelism", *checks, "GPU memory"]
    text = f"not checked: there is no config.json to go by, so that {', '.join(checks)} may turn out wrong"
    return Finding("model", "warning", text, "name a folder, or let this host reach the Hub once")


def _arguments(described: StackSpec) -> Iterable[Finding]:
    for name, near in training_options.unknown(described.trainer.args).items():
        hint = f"did you mean {near}?" if near else "see TRL's GRPOConfig and ModelConfig for those that there are"
        yield Finding("arguments", "problem", f"trainer.args.{name}: TRL knows no such option", hint, described=True)


def _packed(described: StackSpec, config: ModelConfig | None) -> Iterable[Finding]:
    if described.gpus.mode == COLOCATE:
        return
    why = training_options.WHY_NOT_PACKED
    fix = "leave it out; adapters (use_peft) save what gradients and optimizer would take"
    for name in training_options.packed(spec.training_args(described)):
        yield Finding("arguments", "problem", f"trainer.args.{name}: {why}", fix, described=True)
    if config and config.quantization == "bitsandbytes":
        yield Finding("model", "problem", why, "name the model that this one was made from", described=True)


def _precision(described: StackSpec, config: ModelConfig | None) -> Iterable[Finding]:
    """TRL 1.16 tells the engine that it makes in colocate no dtype (trl/generation/vllm_generation.py), and vLLM keeps float16."""
    if config is None or described.accelerator == "cpu" or described.gpus.mode != COLOCATE:
        return
    sampled, trained = footprint.serving(described, config).dtype, footprint.training(described).dtype
    if sampled == "float16" != trained:
        found = f"in colocate its checkpoint's float16 is what is sampled in, while {trained} is trained"
        yield Finding("model", "warning", found, "split: shared has one dtype on both sides")


def _batch(described: StackSpec) -> Iterable[Finding]:
    """TRL 1.16, `GRPOConfig.__post_init__` (trainer/grpo_config.py)."""
    args = spec.training_args(described)
    processes, generations = launch.processes(described), number(args.get("num_generations"), GENERATIONS)
    per_device = number(args.get("per_device_train_batch_size"), Training.per_device_batch)
    steps_given, batch_given = args.get("steps_per_generation"), args.get("generation_batch_size")
    steps = number(steps_given, number(args.get("gradient_accumulation_steps"), 1))
    problem = parallelism.batch_problem(processes, per_device, steps, generations)
    if steps_given is not None and batch_given is not None:
        problem = "generation_batch_size and steps_per_generation exclude each other; nearest: give one of them"
    elif batch_given is not None and generations >= 2 and per_device >= 1:
        problem = _whole_batch(number(batch_given, 0), processes * per_device, generations)
    elif problem and steps_given is not None:
        problem = problem.replace("gradient_accumulation_steps", "steps_per_generation")
    if problem:
        what, _, ways = problem.partition("; nearest: ")
        yield Finding("batch", "problem", what, f"nearest: {ways}" if ways else "", described=True)
        return
    total = number(batch_given, processes * per_device * steps)
    yield Finding(
        "batch", "ok", f"{total} completions a generation: {total // generations} prompts, {generations} each"
    )


def _whole_batch(size: int, step: int, generations: int) -> str | None:
    """Why `generation_batch_size` is refused: it must divide by a step of all processes, and by `num_generations`."""
    unit = math.lcm(step, generations)
    if size > 0 and size % unit == 0:
        return None
    near = [str(number) for number in (size // unit * unit, size // unit * unit + unit) if number > 0]
    return (
        f"generation_batch_size {size} does not divide by {step} (processes * per_device_train_batch_size) and by "
        f"num_generations {generations}; nearest: {' or '.join(near)}"
    )


def _length(described: StackSpec, config: ModelConfig | None) -> Iterable[Finding]:
    prompt, completion = described.data.max_prompt_length, spec.completion_tokens(described)
    problem = parallelism.length_problem(config, described.server.max_model_len, prompt, completion)
    if problem:
        what, _, fix = problem.partition("; ")
        yield Finding("length", "problem", what, fix, described=True)
    else:
        text = f"{spec.model_length(described)} tokens hold {prompt} of the prompt + {completion} of the completion"
        yield Finding("length", "ok", text)


def _layout(described: StackSpec, config: ModelConfig, total_gpus: int | None) -> Iterable[Finding]:
    split = described.gpus
    if split.mode == COLOCATE:
        return
    gpus, total = len(split.server), max(total_gpus or 0, len(split.gpus))
    name = config.architecture or "this model"
    whole = footprint.whole_experts(described)
    problem = parallelism.split_problem(config, gpus, len(split.trainer), total, whole)
    layout = parallelism.check(config, gpus, whole)
    if problem:
        what, _, ways = problem.partition(": use ")
        fix = f"use {ways}" if ways else ""
    elif layout.data_parallel > 1:
        copies = f"{layout.data_parallel} copies of {layout.tensor_parallel}"
        single = [size for size in parallelism.sizes(config, total, whole) if _one_copy(config, size, whole)]
        what = (
            f"{gpus} GPUs serve {name} only as {copies}, and the stack starts one: no push to several was ever measured"
        )
        fix = f"serve on one of {', '.join(map(str, single))} GPUs"
    else:
        yield Finding("tensor-parallel", "ok", f"{name} on {gpus} of {total} GPUs")
        return
    if not whole and _one_copy(config, gpus, whole=True):
        fix += ", or give each GPU whole experts: server.extra_args: [--enable-expert-parallel]"
    yield Finding("tensor-parallel", "problem", what, fix, described=True)


def _one_copy(config: ModelConfig, gpus: int, whole: bool) -> bool:
    layout = parallelism.check(config, gpus, whole)
    return not layout.problems and layout.data_parallel == 1


def _memory(described: StackSpec, config: ModelConfig, capacity: Capacities) -> Iterable[Finding]:
    own, given = programs.mode(described) == SEPARATE, described.server.gpu_memory_utilization
    for side in sides(described, config, capacity):
        check = "trainer-memory" if side.role == programs.TRAINER else "server-memory"
        finding = _side(check, side, own)
        proposed = side.utilization or HIGHEST_UTILIZATION
        if finding.level == "ok" and own and not given and proposed < HIGHEST_UTILIZATION:
            text = f"vLLM takes {HIGHEST_UTILIZATION} of each GPU, which leaves too little for a weight push"
            finding = Finding(check, "warning", text, f"set server.gpu_memory_utilization to {proposed:.2f}")
        yield finding


def _too_small_for_weights(side: Side) -> bool:
    """Whether vLLM's share of each GPU cannot even take the weights, whose size is known almost exactly."""
    weights = sum(share.gib for share in side.shares if share.label == "weights")
    return side.utilization is not None and weights > side.utilization * side.capacity_gib


def _side(check: str, side: Side, own: bool) -> Finding:
    """`own`: the side has its GPUs for itself. Where it does not, the estimate counts some of it twice, and has a margin."""
    problem = shares.problem(side)
    certain = own or side.load > COUNTED_TWICE or _too_small_for_weights(side)
    if problem:
        what, _, fix = problem.removeprefix(f"{side.role}: ").partition("; ")
        return Finding(check, shares.severity(side) if certain else "warning", what, fix)
    text = f"about {side.needed_gib:.1f} of {side.capacity_gib:.1f} GiB needed on each GPU ({side.gpus})"
    if side.kv:
        text += f"; room for {side.kv.tokens} tokens, {side.kv.sequences:.1f} full sequences at once"
    return Finding(check, "ok", text)
