"""What the user described: the keys of `stack.yaml` as frozen data, with what each value alone may be."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field
from typing import Any

from grpo_stack import module_names, parallelism, pins, schema, split, words
from grpo_stack.schema import Scalar
from grpo_stack.split import Split
from grpo_stack.words import Variable, Word

COMPLETION_TOKENS = {"cuda": 1024, "cpu": 512}
"""`max_completion_length` where the description gives none. TRL's own 512 cut most reasoning short."""

BRIDGE, NVLINK = "bridge", "nvlink"

_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

_VARIABLE = re.compile(r"\$([A-Z_][A-Z0-9_]*|\{[A-Z_][A-Z0-9_]*[^}]*\}?)")
"""What a shell would fill in, and we do not: `model` and `run` as a whole may be `${NAME:-default}`, and nothing else is."""

_HUB_ID = re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?")
"""As the Hub allows them (huggingface_hub, validate_repo_id), with or without an organisation."""


def _model(value: object) -> Word:
    word = words.parse(_filled(value))
    if isinstance(word, str) and (is_path(word) or (word.startswith("$") and "/" in word)):
        _path(word)
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
    if named := text.startswith(("$", "/")) and _VARIABLE.search(text):
        raise schema.Invalid(
            f"{schema.show(text)}: {named[0]} is not filled in; write the path out, with ~ for the home folder, "
            "or with ./ in front if a folder is called so"
        )
    return text


def _path_or_nothing(value: object) -> str | None:
    return None if value is None else _path(value)


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
        if hidden := module_names.hidden_by(module):
            raise schema.Invalid(f"{schema.show(file)} would hide {hidden}; rename the file")
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
    """Port on this host's 127.0.0.1; anyone who reaches it can overwrite the model, so there is none by default. The server still
    reaches nothing but the trainer."""
    max_model_len: int | None = None
    """Longest prompt + completion in tokens; default: `data.max_prompt_length` + `max_completion_length`, and not less."""
    gpu_memory_utilization: float | None = None
    """Share of each server GPU; default: vLLM's own, 0.92. A weight push takes 3 to 5 GiB beside it, so that GPUs of 80 GiB and
    less need a smaller one; the checks before a start say which."""
    dtype: str | None = None
    """Of the weights on both sides, whatever the checkpoint holds; default: bfloat16 on GPUs, float32 on the CPU. In `colocate` TRL
    lets the checkpoint decide what its own engine samples in."""
    boot_timeout_s: int = 1800
    """How long the model may take from container start to its first completion."""
    extra_args: tuple[str, ...] = ()
    """Further words for `vllm serve`."""


@dataclass(frozen=True)
class Trainer:
    group_port: int = 61216
    """Where the server's workers join the weight-push group; outside the ephemeral range."""
    internet: bool = False
    """Let the trainer reach the outside, through the proxies of this host if there are any, for experiment trackers; the server
    never does."""
    env_file: str | None = _checked(_path_or_nothing, None)
    """File of NAME=VALUE lines on this host for the environment of training alone, such as WANDB_API_KEY; its values appear in
    no Compose file, command line or `docker inspect`."""
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
