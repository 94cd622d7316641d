"""What the user described: `stack.yaml` and flags as frozen data, with every rule that the description alone can break."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from grpo_stack import parallelism, pins, schema, server_options, split, words
from grpo_stack.errors import DescriptionError
from grpo_stack.schema import Scalar
from grpo_stack.split import Split
from grpo_stack.words import Variable, Word

EPHEMERAL_PORTS = range(32768, 61000)
"""Linux's default range for outgoing connections (ip_local_port_range): any of them may be taken at any time."""

COMPLETION_TOKENS = {"cuda": 1024, "cpu": 512}
"""`max_completion_length` where the description gives none. TRL's own 512 cut most reasoning short."""

PARALLELISMS = ("ddp", "fsdp2", "zero2", "zero3")

MISMATCH = ("warn", "stop", "off")

DTYPES = ("auto", "bfloat16", "float16", "float32")
"""What both vLLM's `--dtype` and TRL's take (ModelConfig of TRL 1.16)."""

BRIDGE, NVLINK = "bridge", "nvlink"

_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

_HUB_ID = re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?")
"""As the Hub allows them (huggingface_hub, validate_repo_id), with or without an organisation."""


def _model(value: object) -> Word:
    word = words.parse(_filled(value))
    if not is_path(word) and not _HUB_ID.fullmatch(words.literal(word)):
        raise schema.Invalid(
            f"{schema.show(value)} is neither a folder, as in ./my-model, nor a Hub id, as in organisation/name"
        )
    return word


def _run_name(value: object) -> Word:
    word = words.parse(_filled(value))
    if not _RUN.fullmatch(words.literal(word)):
        raise schema.Invalid(
            f"{schema.show(value)} is no folder name; use letters, digits, `.`, `_` and `-`, at most 100"
        )
    return word


def _filled(value: object) -> str:
    text = schema.text(value)
    if not text.strip():
        raise schema.Invalid(f"{text!r} found where text belongs; give it some, or leave the key out")
    return text


def _filled_or_nothing(value: object) -> str | None:
    return None if value is None else _filled(value)


def _path(value: object) -> str:
    text = _filled(value)
    if text.startswith("~"):
        raise schema.Invalid(f"{schema.show(text)} starts with the home of nobody here; write the path out")
    return text


def _mismatch(value: object) -> str:
    # YAML reads the word `off` as false.
    return "off" if value is False else schema.text(value)


def _reward_names(value: object) -> tuple[str, ...]:
    return schema.items(_reward_name, value)


def _reward_name(value: object) -> str:
    name = _path(value)
    file = name.rpartition(":")[0] if is_reward_file(name) else ""
    if file:
        module = posixpath.basename(file).removesuffix(".py")
        if not module or module.startswith("-") or "." in module:
            raise schema.Invalid(f"{schema.show(file)} cannot be imported; rename the file to a plain word and .py")
    elif name.endswith((".py", ".py:")):
        raise schema.Invalid(f"{schema.show(name)} names a file without a function; write {name.rstrip(':')}:FUNCTION")
    elif not all(part.isidentifier() for part in re.split(r"[.:]", name)) or name.count(":") > 1:
        raise schema.Invalid(
            f"{schema.show(name)} is no reward; write a name of trl.rewards, package.module:function or file.py:function"
        )
    return name


def _checked(parse: Any, default: Any) -> Any:
    return field(default=default, metadata={"parse": parse})


@dataclass(frozen=True)
class Data:
    dataset: str = _checked(_path, "trl-lib/DeepMath-103K")
    """Hub id, a local .jsonl, .json or .parquet file, or the built-in `two-digit-sums`."""
    config: str | None = _checked(_filled_or_nothing, None)
    """Configuration of a Hub dataset that has several."""
    split: str = _checked(_filled, "train")
    """Split of the dataset to train on."""
    revision: str | None = _checked(_filled_or_nothing, None)
    """Commit, tag or branch of the Hub dataset."""
    max_prompt_length: int = 512
    """Longest prompt in tokens, chat template included. The server makes room for it and a completion; TRL 1.16 cuts no
    prompt, and the server refuses a longer one."""
    rewards: tuple[str, ...] = _checked(_reward_names, ("accuracy_reward",))
    """Names in `trl.rewards`, `package.module:function`, or `file.py:function` of this host; several are summed, with
    the weights of `trainer.args.reward_weights`."""


@dataclass(frozen=True)
class Server:
    port: int = 8000
    """HTTP port inside the private network."""
    publish: int | None = None
    """Port on this host's 127.0.0.1; anyone who reaches it can overwrite the model, so there is none by default."""
    max_model_len: int | None = None
    """Longest prompt + completion in tokens; default: `data.max_prompt_length` + `max_completion_length`, and not less."""
    gpu_memory_utilization: float | None = None
    """Share of each server GPU; default: vLLM's own, 0.92. A weight push takes 3 to 5 GiB beside it, so that GPUs of 80 GiB and
    less need a smaller one; the checks before a start say which."""
    dtype: str | None = None
    """Default: bfloat16 on GPUs, float32 on the CPU, on both sides."""
    boot_timeout_s: int = 1800
    """How long the model may take from container start to its first completion."""
    extra_args: tuple[str, ...] = ()
    """Further words for `vllm serve`."""


@dataclass(frozen=True)
class Trainer:
    group_port: int = 61216
    """Where the server's workers join the weight-push group; outside the ephemeral range."""
    internet: bool = False
    """Let the trainer reach the outside, for experiment trackers; the server never does."""
    processes: int = 1
    """Training processes of the CPU stack; on GPUs there is one for each of the trainer's."""
    parallelism: str = "fsdp2"
    """How more than one training process share the model: `ddp` (a copy each), `zero2` (optimizer and gradients sharded),
    `fsdp2` or `zero3` (all of it sharded)."""
    args: dict[str, Scalar | tuple[Scalar, ...]] = field(default_factory=dict)
    """Fields of TRL's GRPOConfig and ModelConfig, passed as they are."""


@dataclass(frozen=True)
class Recovery:
    restarts: int = 5
    """How often each side is started again without getting any further; then it gives up."""
    stuck_after_s: int = 120
    """How long the server may leave a request unanswered while its own counters stand still."""
    update_limit_s: int = 300
    """How long a weight update may stay open; a tenfold of the longest one seen, if that is more."""
    phase_floor_s: int = 300
    """The least time that the trainer gives each phase of a step; what it has seen of a phase makes it more."""
    mismatch: str = _checked(_mismatch, "warn")
    """What happens once the server samples from other weights than the trainer has: `warn`, `stop` or `off`."""
    mismatch_limit: float | None = None
    """Largest healthy mean of `sampling_logp_difference`; default: 0.1 in 16 bits, 0.001 in float32."""


@dataclass(frozen=True)
class StackSpec:
    model: Word = _checked(_model, Variable("MODEL", "Qwen/Qwen2.5-7B"))
    """Hub id or local folder; `${NAME:-default}` leaves the choice to the environment of `docker compose up`."""
    revision: str | None = _checked(_filled_or_nothing, None)
    """Commit, tag or branch of the Hub model."""
    run: Word = _checked(_run_name, Variable("RUN", "run"))
    """Name of the folder in `outputs`."""
    accelerator: str = "cuda"
    """`cuda`, or `cpu` for the real but small stack without a GPU."""
    split: Split | None = _checked(split.parse, None)
    """SERVER:TRAINER in counts or GPU ids, `shared` (one GPU for both, for development) or `colocate` (no server);
    default 4:4. The CPU stack has none."""
    weight_path: str = "bridge"
    """How weights reach the server: over the private network (`bridge`), or, not yet measured, between the GPUs (`nvlink`),
    for which both containers see all GPUs of the split, the host's shared memory and one /tmp."""
    pins: str = pins.DEFAULT
    """Locked set of package versions; `grpo-stack pins` lists them."""
    outputs: str = _checked(_path, "./outputs")
    """Folder on this host, relative to this file."""
    source: str = _checked(_path, ".")
    """The checkout that images are built from, relative to this file."""
    data: Data = Data()
    server: Server = Server()
    trainer: Trainer = field(default_factory=Trainer)
    recovery: Recovery = Recovery()

    @property
    def gpus(self) -> Split:
        """The split of a CUDA stack."""
        return self.split or split.parse("4:4")


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


def training_args(spec: StackSpec) -> dict[str, Scalar | tuple[Scalar, ...]]:
    """`trainer.args` with underscores, as TRL's dataclasses name them."""
    return {key.replace("-", "_"): value for key, value in spec.trainer.args.items()}


def completion_tokens(spec: StackSpec) -> int:
    """The longest completion."""
    given = training_args(spec).get("max_completion_length")
    return given if isinstance(given, int) else COMPLETION_TOKENS.get(spec.accelerator, COMPLETION_TOKENS["cuda"])


def model_length(spec: StackSpec) -> int:
    """vLLM's longest sequence in tokens: what is given, or what prompt and completion need."""
    return spec.server.max_model_len or parallelism.needed_length(spec.data.max_prompt_length, completion_tokens(spec))


def is_path(model: Word) -> bool:
    """Whether a model names a local folder and not a Hub id: it starts with `/`, `./` or `../`, or is `.` or `..`."""
    return isinstance(model, str) and (model in (".", "..") or model.startswith(("/", "./", "../")))


def is_file(dataset: str) -> bool:
    """Whether a dataset names a local file: by its ending."""
    return dataset.endswith((".jsonl", ".json", ".parquet"))


def is_reward_file(reward: str) -> bool:
    """Whether a reward names a function in a local file: `rewards.py:function`."""
    return re.fullmatch(r".*\.py:[A-Za-z_]\w*", reward) is not None


def _rules(spec: StackSpec) -> list[str]:
    problems = [*_stack_rules(spec), *_port_rules(spec), *_server_rules(spec.server), *_trainer_rules(spec.trainer)]
    return problems + _length_rules(spec) + _recovery_rules(spec.recovery)


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
