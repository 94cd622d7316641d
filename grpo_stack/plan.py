"""From the description to what runs: argv, environment, GPUs, mounts and probes of each role.

Every renderer prints this plan, so the targets cannot drift apart. Facts that the values rest on: TRL's server mode reads
`vllm_mode`, `vllm_server_base_url` and `vllm_group_port` (trl.trainer.grpo_config); its weight push needs vLLM's
development routes, a weight-transfer backend, processed log-probs and no log-prob limit (trl.generation.vllm_client).
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from grpo_stack import pins, words
from grpo_stack.pins import Pins
from grpo_stack.schema import Scalar
from grpo_stack.spec import StackSpec, is_file, is_path, is_reward_file
from grpo_stack.split import COLOCATE, SEPARATE, SHARED, Split
from grpo_stack.words import Word

SERVER = "vllm-server"
TRAINER = "trainer"
PREFETCH = "prefetch"

CACHES = {"hf-cache": "/cache/huggingface", "vllm-cache": "/cache/vllm", "triton-cache": "/cache/triton"}
"""Volumes that outlive a run, so that nothing is downloaded or compiled twice, and where the images expect them."""

SOCKETS = {"NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4", "NCCL_MIN_NCHANNELS": "8"}
"""NCCL over a bridge with these: 10.5 GB/s where its defaults reach 3.6 (raw broadcast, 16 cores)."""

CPU_ENGINE = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1"}
"""vLLM on the CPU: threads free to share the cores with the trainer, and 1 GiB of KV cache, which is plenty there."""

TRAINING_DEFAULTS: dict[str, Mapping[str, Scalar | tuple[Scalar, ...]]] = {
    "cuda": {"max_completion_length": 1024, "save_steps": 50},
    "cpu": {},
}
"""What differs from TRL's own defaults: 256 tokens cut most reasoning short, and 500 steps are a long way to lose."""

ULIMITS = {
    "cuda": {"memlock": -1, "stack": 67108864, "nofile": 65536},
    "cpu": {"memlock": 8388608, "stack": 67108864, "nofile": 16384},
}
"""Per role. GPUs need pinned memory without a limit, and NCCL a socket for each of many channels; the CPU stack stays within
what an engine may grant that cannot raise its own limits (rootless, or itself in a container)."""

SHARED_SERVER_MEMORY, SHARED_TRAINER_MEMORY = 0.3, 0.6
"""Shares of one GPU that both sides use: what runs 0.5B and 7.6B models on one H200, with a rest for CUDA itself."""

CALL_TIMEOUT_S = 20
"""How long one readiness check may take in all, its one-token completion included."""


@dataclass(frozen=True)
class Mount:
    """A folder or file of this host inside a container."""

    source: str
    target: str
    read_only: bool = True


@dataclass(frozen=True)
class Role:
    """One container: what it runs, with what, and how it is known to be well."""

    name: str
    image: str
    argv: tuple[Word, ...]
    gate: tuple[Word, ...] = ()
    """Words in front of `argv` that wait for the server and then become the command."""
    env: Mapping[str, Word] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    """NVML indices or UUIDs; nothing else is visible in the container."""
    mounts: tuple[Mount, ...] = ()
    probe: tuple[Word, ...] = ()
    """A command that succeeds once the role is ready; empty: there is nothing to wait for."""
    needs_token: bool = False
    internet: bool = False
    """Whether it may reach anything outside the private network."""
    publish: int | None = None
    """Port on the host's 127.0.0.1."""
    ulimits: Mapping[str, int] = field(default_factory=dict)
    """Soft and hard limit of each kind; -1: none."""
    shm: str = "1gb"
    """Size of /dev/shm; Docker's own 64 MiB break tensor parallelism."""
    stop_grace_s: int = 120
    """Time between SIGTERM and SIGKILL, enough for a checkpoint."""


@dataclass(frozen=True)
class StackPlan:
    prefetch: Role
    server: Role | None
    """None for `colocate`, where the trainer generates by itself."""
    trainer: Role
    split: Split | None
    """None on the CPU."""
    accelerator: str
    pins: Pins
    source: str
    run: Word
    boot_timeout_s: int

    @property
    def roles(self) -> tuple[Role, ...]:
        """All of them, in the order in which they start."""
        return tuple(role for role in (self.prefetch, self.server, self.trainer) if role)


def derive(spec: StackSpec) -> StackPlan:
    """The plan for `spec`; it depends on nothing else, and the same spec gives the same plan."""
    return StackPlan(
        prefetch=_prefetch(spec),
        server=None if _mode(spec) == COLOCATE else _server(spec),
        trainer=_trainer(spec),
        split=None if spec.accelerator == "cpu" else spec.gpus,
        accelerator=spec.accelerator,
        pins=pins.find(spec.pins),
        source=spec.source,
        run=spec.run,
        boot_timeout_s=spec.server.boot_timeout_s,
    )


def server_url(spec: StackSpec) -> str:
    return f"http://{SERVER}:{spec.server.port}"


def run_folder(spec: StackSpec) -> Word:
    """The run's folder inside the containers."""
    return words.join("/outputs/", spec.run)


def _prefetch(spec: StackSpec) -> Role:
    data = spec.data
    argv: list[Word] = ["python", "-m", "grpo_stack.prefetch", "--model", _model(spec)]
    argv += _option("--revision", spec.revision)
    argv += ["--dataset", _dataset(spec)]
    argv += _option("--dataset-config", data.config)
    argv += ["--dataset-split", data.split]
    argv += _option("--dataset-revision", data.revision)
    argv += ["--rewards", *_rewards(spec), "--outputs", run_folder(spec)]
    return Role(
        name=PREFETCH,
        image=TRAINER,
        argv=tuple(argv),
        env={
            "HF_HUB_OFFLINE": words.Variable("HF_HUB_OFFLINE", "0"),
            "TRANSFORMERS_OFFLINE": words.Variable("TRANSFORMERS_OFFLINE", "0"),
            "HF_ENDPOINT": words.Variable("HF_ENDPOINT", "https://huggingface.co"),
            **{name: words.Variable(name, "") for name in ("HTTP_PROXY", "HTTPS_PROXY")},
            **_reward_env(spec),
            **_no_proxy(),
        },
        mounts=_trainer_mounts(spec),
        needs_token=True,
        internet=True,
        ulimits=ULIMITS[spec.accelerator],
        stop_grace_s=10,
    )


def _server(spec: StackSpec) -> Role:
    argv: list[Word] = ["vllm", "serve", _model(spec)]
    argv += ["--host", "0.0.0.0", "--port", str(spec.server.port)]
    if spec.accelerator == "cuda":
        argv += ["--tensor-parallel-size", str(len(spec.gpus.server))]
    argv += ["--weight-transfer-config", json.dumps({"backend": _backend(spec)})]
    argv += ["--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1"]
    argv += _option("--revision", spec.revision)
    argv += _option("--dtype", _dtype(spec) if spec.accelerator == "cpu" else spec.server.dtype)
    argv += _option("--max-model-len", spec.server.max_model_len)
    argv += _option("--gpu-memory-utilization", _utilization(spec))
    return Role(
        name=SERVER,
        image=SERVER,
        argv=(*argv, *spec.server.extra_args),
        env={
            "VLLM_SERVER_DEV_MODE": "1",
            **(CPU_ENGINE if spec.accelerator == "cpu" else {}),
            **_shared_env(spec, SERVER),
        },
        gpus=spec.gpus.server if spec.accelerator == "cuda" else (),
        mounts=_model_mounts(spec),
        probe=("grpo-stack", "wait", "--once", *_readiness(spec, f"http://127.0.0.1:{spec.server.port}")),
        publish=spec.server.publish,
        ulimits=ULIMITS[spec.accelerator],
        shm=_shm(spec),
    )


def _trainer(spec: StackSpec) -> Role:
    env = {**_reward_env(spec), **_shared_env(spec, TRAINER)}
    if _mode(spec) == SHARED:
        env["GRPO_STACK_GPU_MEMORY_FRACTION"] = str(SHARED_TRAINER_MEMORY)
    return Role(
        name=TRAINER,
        image=TRAINER,
        gate=_gate(spec),
        argv=("accelerate", "launch", *_launch(spec), "-m", "grpo_stack.train", *_training(spec)),
        env=env if _mode(spec) == COLOCATE else {"VLLM_HOST_IP": TRAINER, **env},
        gpus=spec.gpus.trainer if spec.accelerator == "cuda" else (),
        mounts=_trainer_mounts(spec),
        internet=spec.trainer.internet,
        ulimits=ULIMITS[spec.accelerator],
        shm=_shm(spec),
    )


def _gate(spec: StackSpec) -> tuple[Word, ...]:
    if _mode(spec) == COLOCATE:
        return ()
    budget = str(spec.server.boot_timeout_s)
    return ("grpo-stack", "wait", *_readiness(spec, server_url(spec)), "--timeout", budget, "--")


def _mode(spec: StackSpec) -> str:
    return spec.gpus.mode if spec.accelerator == "cuda" else SEPARATE


def _utilization(spec: StackSpec) -> float | None:
    """vLLM's share of a GPU; where it does not have the GPU for itself, one that leaves the trainer room."""
    return spec.server.gpu_memory_utilization or (None if _mode(spec) == SEPARATE else SHARED_SERVER_MEMORY)


def _readiness(spec: StackSpec, url: str) -> tuple[Word, ...]:
    """What `grpo-stack wait` must find at `url` before training makes sense."""
    world_size = len(spec.gpus.server) if spec.accelerator == "cuda" else 1
    return ("--url", url, "--model", _model(spec), "--backend", _backend(spec), "--world-size", str(world_size))


def _launch(spec: StackSpec) -> list[Word]:
    """Options of `accelerate launch`, complete, so that no configuration file of the user's home can change them."""
    if spec.accelerator == "cpu":
        return [
            "--cpu",
            "--num_processes",
            "1",
            "--num_machines",
            "1",
            "--mixed_precision",
            "no",
            "--dynamo_backend",
            "no",
        ]
    processes = len(spec.gpus.trainer)
    argv: list[Word] = ["--num_processes", str(processes), "--num_machines", "1"]
    argv += ["--mixed_precision", "bf16", "--dynamo_backend", "no"]
    if processes == 1:
        return argv
    if spec.trainer.parallelism == "ddp":
        return ["--multi_gpu", *argv]
    return [
        *argv, "--use_fsdp", "--fsdp_version", "2", "--fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP",
        "--fsdp_reshard_after_forward", "true", "--fsdp_state_dict_type", "FULL_STATE_DICT",
    ]  # fmt: skip


def _training(spec: StackSpec) -> list[Word]:
    argv: list[Word] = ["--model_name_or_path", _model(spec)]
    argv += _option("--model_revision", spec.revision)
    argv += ["--dataset", _dataset(spec)]
    argv += _option("--dataset_config", spec.data.config)
    argv += ["--dataset_split", spec.data.split]
    argv += _option("--dataset_revision", spec.data.revision)
    argv += ["--rewards", *_rewards(spec), "--output_dir", run_folder(spec)]
    argv += ["--use_vllm", "true", *_generation(spec)]
    args = {key.replace("-", "_"): value for key, value in spec.trainer.args.items()}
    defaults = {"dtype": _dtype(spec), **TRAINING_DEFAULTS[spec.accelerator]}
    for key, value in {**defaults, **args}.items():
        argv += _option(f"--{key}", value)
    return argv


def _generation(spec: StackSpec) -> list[Word]:
    """Who generates: the server, or vLLM inside the training processes."""
    if _mode(spec) == COLOCATE:
        argv: list[Word] = ["--vllm_mode", "colocate", "--vllm_gpu_memory_utilization", str(_utilization(spec))]
        return argv + _option("--vllm_max_model_length", spec.server.max_model_len)
    argv = ["--vllm_mode", "server", "--vllm_server_base_url", server_url(spec)]
    return [*argv, "--vllm_group_port", str(spec.trainer.group_port), "--vllm_server_timeout", "60"]


def _option(name: str, value: Scalar | Iterable[Scalar] | None) -> list[Word]:
    """The words that set option `name`: none for no value, `--name=value` where the value would look like an option."""
    if value is None:
        return []
    if not isinstance(value, (str, int, float)):
        return [name, *(_text(item) for item in value)]
    text = _text(value)
    return [f"{name}={text}"] if text.startswith("-") else [name, text]


def _text(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _dtype(spec: StackSpec) -> str:
    return spec.server.dtype or ("bfloat16" if spec.accelerator == "cuda" else "float32")


def _backend(spec: StackSpec) -> str:
    return "nccl" if spec.accelerator == "cuda" else "gloo"


def _shm(spec: StackSpec) -> str:
    return "16gb" if spec.accelerator == "cuda" else "1gb"


def _shared_env(spec: StackSpec, name: str) -> dict[str, Word]:
    """Environment of both long-running roles. They run offline: `prefetch` has fetched everything into the cache."""
    env: dict[str, Word] = {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        **_no_proxy(),
    }
    if spec.accelerator == "cuda":
        # One host id each keeps NCCL from trying P2P between GPUs that the two containers cannot see.
        env |= {"NCCL_HOSTID": name, **SOCKETS}
    return env


def _reward_env(spec: StackSpec) -> dict[str, Word]:
    return {"PYTHONPATH": "/rewards"} if any(map(is_reward_file, spec.data.rewards)) else {}


def _no_proxy() -> dict[str, Word]:
    exempt = f"{SERVER},{TRAINER},localhost,127.0.0.1"
    return {"NO_PROXY": exempt, "no_proxy": exempt}


def _model(spec: StackSpec) -> Word:
    """The model's name inside the containers: its Hub id, or where its folder is mounted."""
    if is_path(spec.model):
        return "/models/" + posixpath.basename(posixpath.normpath(words.literal(spec.model)))
    return spec.model


def _dataset(spec: StackSpec) -> str:
    dataset = spec.data.dataset
    return "/data/" + posixpath.basename(dataset) if is_file(dataset) else dataset


def _rewards(spec: StackSpec) -> list[Word]:
    """Reward names inside the containers: a file of this host becomes a module of /rewards, which is on the module path."""
    return [
        posixpath.basename(reward).replace(".py:", ":") if is_reward_file(reward) else reward
        for reward in spec.data.rewards
    ]


def _model_mounts(spec: StackSpec) -> tuple[Mount, ...]:
    return (Mount(words.literal(spec.model), words.literal(_model(spec))),) if is_path(spec.model) else ()


def _trainer_mounts(spec: StackSpec) -> tuple[Mount, ...]:
    mounts = [*_model_mounts(spec), Mount(spec.outputs, "/outputs", read_only=False)]
    if is_file(spec.data.dataset):
        mounts.append(Mount(spec.data.dataset, _dataset(spec)))
    files = dict.fromkeys(reward.rpartition(":")[0] for reward in spec.data.rewards if is_reward_file(reward))
    mounts += [Mount(file, f"/rewards/{posixpath.basename(file)}") for file in files]
    return tuple(mounts)
