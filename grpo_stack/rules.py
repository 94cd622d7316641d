"""What a description may say: its mapping and flags read into a spec, and every rule that the description alone can break."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Any

from grpo_stack import parallelism, pins, schema, server_options, split
from grpo_stack.errors import DescriptionError
from grpo_stack.spec import (
    BRIDGE,
    NVLINK,
    Recovery,
    Server,
    StackSpec,
    Trainer,
    completion_tokens,
    is_reward_file,
    training_args,
)

EPHEMERAL_PORTS = range(32768, 61000)
"""Linux's default range for outgoing connections (ip_local_port_range): any of them may be taken at any time."""

PARALLELISMS = ("ddp", "fsdp2", "zero2", "zero3")

MISMATCH = ("warn", "stop", "off")

DTYPES = ("auto", "bfloat16", "float16", "float32")
"""What both vLLM's `--dtype` and TRL's take (ModelConfig of TRL 1.16)."""

OWNED = {
    "model_name_or_path": "model",
    "model_revision": "revision",
    "dataset": "data.dataset",
    "dataset_config": "data.config",
    "dataset_split": "data.split",
    "dataset_revision": "data.revision",
    "rewards": "data.rewards",
    "output_dir": "run",
    "use_vllm": None,
    "vllm_mode": None,
    "vllm_server_base_url": None,
    "vllm_server_host": None,
    "vllm_server_port": "server.port",
    "vllm_group_port": "trainer.group_port",
    "vllm_gpu_memory_utilization": "server.gpu_memory_utilization",
    "vllm_max_model_length": "server.max_model_len",
    "vllm_tensor_parallel_size": "split",
    "mismatch": "recovery.mismatch",
    "mismatch_limit": "recovery.mismatch_limit",
}
"""Training arguments that the stack sets itself, and the key that governs each (None: nothing does)."""


def read(data: object, overrides: Mapping[str, Any] | None = None, where: str = "stack.yaml") -> StackSpec:
    """The spec that `data` (the mapping in stack.yaml, or nothing) and `overrides` (`data.dataset` → value) describe.

    DescriptionError holds every problem found, each with its key.
    """
    values, problems = schema.read(StackSpec, merge(data, overrides or {}))
    spec = StackSpec(**values)
    problems += _rules(spec)
    if problems:
        raise DescriptionError(f"{where}: {problem}" for problem in problems)
    return spec


def merge(data: Any, overrides: Mapping[str, Any]) -> Any:
    """`data` with the values of `overrides` (`trainer.args.max_steps` → value) at their keys; the inputs stay as they are."""
    if data is None:
        data = {}
    if not isinstance(data, Mapping):
        return data
    merged = dict(data)
    for path, value in overrides.items():
        key, _, rest = path.partition(".")
        merged[key] = merge(merged.get(key), {rest: value}) if rest else value
    return merged


def _rules(spec: StackSpec) -> list[str]:
    problems = [*_stack_rules(spec), *_port_rules(spec), *_server_rules(spec.server), *_trainer_rules(spec.trainer)]
    return problems + _colocate_rules(spec) + _length_rules(spec) + _recovery_rules(spec.recovery)


def _stack_rules(spec: StackSpec) -> list[str]:
    problems = []
    if spec.accelerator not in ("cuda", "cpu"):
        problems.append(f"accelerator: {spec.accelerator!r} is not known; use cuda or cpu")
    if spec.accelerator == "cpu" and spec.split is not None:
        problems.append("split: the CPU stack uses no GPU; leave it out, or set accelerator: cuda")
    if spec.accelerator == "cuda" and spec.trainer.processes != Trainer.processes:
        problems.append("trainer.processes: on GPUs there is one for each of the trainer's; set `split`")
    problems += _weight_path_rules(spec)
    if spec.pins not in pins.SETS:
        problems.append(f"pins: there is no locked set {spec.pins!r}; known: {', '.join(pins.SETS)}")
    if not spec.data.rewards:
        problems.append("data.rewards: empty; name at least one reward function")
    if set(spec.source) & set("{}"):
        problems.append(
            f"source: {spec.source!r} holds a brace, which Compose takes for one of a variable; rename the folder"
        )
    files = sorted(
        {posixpath.normpath(reward.rpartition(":")[0]) for reward in spec.data.rewards if is_reward_file(reward)}
    )
    names = [file.rpartition("/")[2] for file in files]
    for name in sorted({name for name in names if names.count(name) > 1}):
        both = " and ".join(file for file in files if file.rpartition("/")[2] == name)
        problems.append(f"data.rewards: {both} would be one module in the containers; rename one of them")
    return problems


def _weight_path_rules(spec: StackSpec) -> list[str]:
    if spec.weight_path not in (BRIDGE, NVLINK):
        return [f"weight_path: {spec.weight_path!r} is not known; use {BRIDGE} or {NVLINK}"]
    if spec.weight_path == BRIDGE:
        return []
    if spec.accelerator != "cuda" or spec.gpus.mode != split.SEPARATE:
        return ["weight_path: nvlink joins two sides with GPUs of their own; leave it out, or set a split such as 4:4"]
    if len({gpu.isdigit() for gpu in spec.gpus.gpus}) > 1:
        return ["weight_path: nvlink needs all GPUs of the split named alike; give indices or UUIDs, not both"]
    return []


def _port_rules(spec: StackSpec) -> list[str]:
    problems = []
    ports = {"server.port": spec.server.port, "trainer.group_port": spec.trainer.group_port}
    if spec.server.publish is not None:
        ports["server.publish"] = spec.server.publish
    for key, port in ports.items():
        if not 1024 <= port <= 65535:
            problems.append(f"{key}: {port} is no port that a user may open; take one from 1024 to 65535")
    if spec.trainer.group_port in EPHEMERAL_PORTS:
        problems.append(
            f"trainer.group_port: {spec.trainer.group_port} lies in the range of outgoing connections "
            f"({EPHEMERAL_PORTS.start}-{EPHEMERAL_PORTS.stop - 1}), any of which may take it; use 61216"
        )
    return problems


def _server_rules(server: Server) -> list[str]:
    problems = []
    share = server.gpu_memory_utilization
    if share is not None and not 0 < share <= 1:
        problems.append(f"server.gpu_memory_utilization: {share} is no share of the memory; use more than 0, at most 1")
    if server.boot_timeout_s <= 0:
        problems.append(f"server.boot_timeout_s: {server.boot_timeout_s} leaves no time to load; use seconds above 0")
    if server.dtype not in (None, *DTYPES):
        problems.append(f"server.dtype: {server.dtype!r} is not known; use one of {', '.join(DTYPES)}")
    problems += [f"server.extra_args{line}" for line in server_options.problems(server.extra_args)]
    return problems


def _colocate_rules(spec: StackSpec) -> list[str]:
    """A key whose value would reach nothing; `colocate` may have been chosen for the user, whose host has one GPU."""
    if spec.split is None or spec.split.mode != split.COLOCATE:
        return []
    server = spec.server
    given = {"extra_args": server.extra_args, "publish": server.publish is not None, "dtype": server.dtype is not None}
    why = (
        "split: colocate, which a host with one GPU gets by default, has no server; leave it out, or set split: shared"
    )
    return [f"server.{key}: {why}" for key, value in given.items() if value]


def _length_rules(spec: StackSpec) -> list[str]:
    problems, wanted = [], spec.server.max_model_len
    completion = training_args(spec).get("max_completion_length", 1)
    if type(completion) is not int or completion < 1:
        problems.append(f"trainer.args.max_completion_length: {completion!r} is no number of tokens above 0")
    if spec.data.max_prompt_length < 1:
        problems.append(f"data.max_prompt_length: {spec.data.max_prompt_length} tokens hold no prompt; use 1 or more")
    if wanted is not None and wanted <= 0:
        problems.append(f"server.max_model_len: {wanted} tokens hold nothing; use a number above 0")
    if not problems:
        found = parallelism.length_problem(None, wanted, spec.data.max_prompt_length, completion_tokens(spec))
        problems += [f"server.max_model_len: {found}"] if found else []
    return problems


def _trainer_rules(trainer: Trainer) -> list[str]:
    problems = []
    if trainer.processes < 1:
        problems.append(f"trainer.processes: {trainer.processes} train nothing; use 1 or more")
    if trainer.parallelism not in PARALLELISMS:
        known = ", ".join(PARALLELISMS)
        problems.append(f"trainer.parallelism: {trainer.parallelism!r} is not known; use one of {known}")
    for key in trainer.args:
        name, where = key.replace("-", "_"), schema.join("trainer.args", key)
        if name in OWNED:
            problems.append(f"{where}: is set by the stack; {server_options.governed(OWNED[name])}")
        elif not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", key):
            problems.append(f"{where}: is no option name; write it as GRPOConfig does, without dashes in front")
    return problems


def _recovery_rules(recovery: Recovery) -> list[str]:
    problems = []
    if recovery.restarts < 0:
        problems.append(f"recovery.restarts: {recovery.restarts} is no number of restarts; use 0 or more")
    for key in ("stuck_after_s", "update_limit_s", "phase_floor_s"):
        if (seconds := getattr(recovery, key)) <= 0:
            problems.append(f"recovery.{key}: {seconds} s leaves no time for anything; use seconds above 0")
    if recovery.mismatch not in MISMATCH:
        problems.append(f"recovery.mismatch: {recovery.mismatch!r} is not known; use one of {', '.join(MISMATCH)}")
    if recovery.mismatch_limit is not None and not recovery.mismatch_limit > 0:
        problems.append(f"recovery.mismatch_limit: {recovery.mismatch_limit} is no limit; use a number above 0")
    return problems
