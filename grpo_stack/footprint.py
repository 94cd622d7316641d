"""What each GPU of a described stack holds: the description in the terms of `memory`, and the answer as text or data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from grpo_stack import launch, parallelism, pins, programs, spec, training_options
from grpo_stack.facts import Gpu, ModelConfig
from grpo_stack.memory import server, shares, trainer
from grpo_stack.memory.server import Serving
from grpo_stack.memory.shares import Side
from grpo_stack.memory.trainer import Lora, Training
from grpo_stack.spec import StackSpec
from grpo_stack.split import COLOCATE, SEPARATE, SHARED

_DTYPES = {"half": "float16", "float": "float32", **{name: name for name in shares.DTYPE_BYTES}}

_BATCH, _OPTIMIZER = Training.per_device_batch, Training.optimizer


@dataclass(frozen=True)
class Capacities:
    """Memory of the smallest GPU of each side; None: not known, and nothing is said about that side."""

    server_gib: float | None = None
    trainer_gib: float | None = None


def capacities(described: StackSpec, gpus: Iterable[Gpu]) -> Capacities:
    """Those of the GPUs that the description names, as NVML sees them."""
    known = {name: gpu.memory_total_mib for gpu in gpus for name in (str(gpu.index), gpu.uuid) if name}

    def smallest(names: tuple[str, ...]) -> float | None:
        found = [known.get(name) for name in names]
        sizes = [size for size in found if size is not None]
        return min(sizes) / 1024 if sizes and len(sizes) == len(found) else None

    split = described.gpus
    return Capacities(smallest(split.server or split.trainer), smallest(split.trainer))


def sides(described: StackSpec, config: ModelConfig, capacity: Capacities) -> tuple[Side, ...]:
    """Server and trainer, as far as their GPUs are known and can hold the model; none for the CPU stack.

    Where both share a GPU, the trainer has what the server's share leaves of it.
    """
    if described.accelerator == "cpu":
        return ()
    found, mode = [], programs.mode(described)
    if capacity.server_gib is not None and serves(described, config):
        side = server.estimate(config, capacity.server_gib, serving(described, config))
        if mode == COLOCATE:
            side = replace(side, role="vLLM in the trainer", gpus=launch.processes(described))
        found.append(side)
    if capacity.trainer_gib is not None:
        left = 1 - (programs.utilization(described) or 0)
        rest = {SHARED: min(programs.SHARED_TRAINER_MEMORY, left), COLOCATE: left}
        found.append(trainer.estimate(config, capacity.trainer_gib * rest.get(mode, 1.0), training(described)))
    return tuple(found)


def serves(described: StackSpec, config: ModelConfig) -> bool:
    """Whether the server's GPUs can hold the model in the way that the stack starts it: all of them as one copy."""
    layout = parallelism.check(config, _server_gpus(described), whole_experts(described))
    return not layout.problems and layout.data_parallel == 1


def whole_experts(described: StackSpec) -> bool:
    """Whether --enable-expert-parallel is among vLLM's further arguments."""
    return any(word.replace("_", "-") == "--enable-expert-parallel" for word in described.server.extra_args)


def serving(described: StackSpec, config: ModelConfig) -> Serving:
    """How the described server runs, further arguments of vLLM included."""
    extra = described.server.extra_args
    cache = option(extra, "--kv-cache-dtype") or ""
    pushed = trainer.pushed_dtype(training(described))
    # TRL's own engine, in colocate, is told none (trl.generation.vllm_generation).
    dtype = _dtype(None if programs.mode(described) == COLOCATE else programs.dtype(described), config)
    return Serving(
        max_model_len=spec.model_length(described),
        tensor_parallel=_server_gpus(described),
        utilization=programs.utilization(described),
        dtype=dtype,
        kv_dtype_bytes=1 if cache.startswith("fp8") else None,
        max_num_seqs=number(option(extra, "--max-num-seqs"), 0) or None,
        max_num_batched_tokens=number(option(extra, "--max-num-batched-tokens"), 0) or None,
        pushed_dtype=pushed if programs.mode(described) == SEPARATE else dtype,
    )


def training(described: StackSpec) -> Training:
    """How the described trainer runs; TRL's defaults where nothing is said."""
    args = spec.training_args(described)
    completion = spec.completion_tokens(described)
    lora = _lora(args)
    return Training(
        processes=launch.processes(described),
        length=parallelism.needed_length(described.data.max_prompt_length, completion),
        parallelism=described.trainer.parallelism if described.accelerator == "cuda" else "ddp",
        per_device_batch=max(1, number(args.get("per_device_train_batch_size"), _BATCH)),
        dtype=_dtype(str(args.get("dtype") or programs.dtype(described)), None),
        optimizer=str(args.get("optim", _OPTIMIZER)),
        gradient_checkpointing=training_options.flag(args.get("gradient_checkpointing", True)),
        lora=lora,
        reference=lora is None and _nonzero(args.get("beta")),
        full_logits=0 if pins.find(described.pins).trl.startswith("1.16.") else completion,
    )


def lines(found: Iterable[Side]) -> list[str]:
    """The sides as a table."""
    shown: list[str] = []
    for side in found:
        ending = f", --gpu-memory-utilization {side.utilization:.2f}" if side.utilization else ""
        shown += [f"{side.role}: {side.gpus} GPU{'s' * (side.gpus > 1)}, {side.capacity_gib:.1f} GiB each{ending}"]
        rows = shares.rows(side)
        width = max(len(label) for label, _, _ in rows)
        shown += [f"  {label:{width}}  {gib:>8} GiB  {note}".rstrip() for label, gib, note in rows]
        if side.kv:
            shown += [f"  {side.kv.sequences:.1f} sequences of full length at once"]
        verdict = shares.problem(side)
        shown += [f"  {verdict.removeprefix(f'{side.role}: ')}"] if verdict else []
    return shown


def as_data(found: Iterable[Side]) -> list[dict[str, Any]]:
    """The sides for programs; `free_gib` and `verdict` (`ok`, `warning` or `problem`) beside their fields."""
    return [{**asdict(side), "free_gib": side.free_gib, "verdict": shares.severity(side)} for side in found]


def number(value: object, default: int) -> int:
    """A whole number, or the text of one, as a command line reads it; else `default`."""
    text = "" if isinstance(value, bool) else str(value).strip()
    return int(text) if text.isascii() and text.removeprefix("-").isdecimal() else default


def option(argv: tuple[str, ...], name: str) -> str | None:
    """The value of option `name` in `--name value` or `--name=value`; the last one counts."""
    found = None
    for place, word in enumerate(argv):
        key, equals, value = word.partition("=")
        if key.replace("_", "-") == name:
            found = value if equals else "".join(argv[place + 1 : place + 2])
    return found


def _server_gpus(described: StackSpec) -> int:
    return len(described.gpus.server) or 1


def _lora(args: Mapping[str, object]) -> Lora | None:
    if not training_options.flag(args.get("use_peft", False)):
        return None
    given = args.get("lora_target_modules") or Lora.targets
    targets = given if isinstance(given, tuple) else (str(given),)
    return Lora(number(args.get("lora_r"), Lora.rank), tuple(str(target) for target in targets))


def _dtype(name: str | None, config: ModelConfig | None) -> str:
    """What vLLM makes of `auto`: the config's own 16 bits, and bfloat16 for float32 (config/model.py)."""
    if name in _DTYPES:
        return _DTYPES[name]
    return "float16" if config and config.dtype == "float16" else "bfloat16"


def _nonzero(value: object) -> bool:
    try:
        return float(str(value)) != 0
    except ValueError:
        return False
