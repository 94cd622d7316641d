"""From the description to what runs: command, environment, GPUs, mounts and probe of each role.

Every renderer prints this plan, so the targets cannot drift apart.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from grpo_stack import launch, pins, programs, words
from grpo_stack.pins import Pins
from grpo_stack.programs import PREFETCH, SERVER, TRAINER
from grpo_stack.spec import NVLINK, StackSpec, is_file, is_path, is_reward_file
from grpo_stack.split import COLOCATE, SHARED, Split
from grpo_stack.words import Word

CACHES = {"hf-cache": "/cache/huggingface", "vllm-cache": "/cache/vllm", "triton-cache": "/cache/triton"}
"""Volumes that outlive a run, so that nothing is downloaded or compiled twice, and where the images expect them."""

SOCKETS = {"NCCL_SOCKET_NTHREADS": "2", "NCCL_NSOCKS_PERTHREAD": "4", "NCCL_MIN_NCHANNELS": "8"}
"""For NCCL over sockets. With these a whole push of 15.2 GB takes 1.1 s where NCCL's own choice takes 3.9 s and four threads
take 1.3 s (one H200, 16 cores; on 8 cores 2.9, 3.7 and 3.3 s: docs/benchmarks-gpu.md)."""

JOINED = {
    "NCCL_HOSTID": "grpo-stack",
    "NCCL_CUMEM_ENABLE": "1",
    "NCCL_IPC_USE_ABSTRACT_SOCKET": "0",
    "NCCL_NVLS_ENABLE": "0",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
}
"""Both sides alike, for NVLink between two containers: one host to NCCL, its memory handles passed through a socket in the
shared /tmp and not in the network namespace (NCCL 2.29), and no multicast, which needs more than that. Each side's own
GPUs come first in CUDA_VISIBLE_DEVICES: none is hidden, or NCCL would choose a path that it cannot open and fail."""

CPU_ENGINE = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1"}
"""vLLM on the CPU: threads free to share the cores with the trainer, and 1 GiB of KV cache, which is plenty there."""

ULIMITS = {
    "cuda": {"memlock": -1, "stack": 67108864, "nofile": 65536},
    "cpu": {"memlock": 8388608, "stack": 67108864, "nofile": 16384},
}
"""Per role. GPUs need pinned memory without a limit, and NCCL a socket for each of many channels; the CPU stack stays within
what an engine may grant that cannot raise its own limits (rootless, or itself in a container)."""

SECOND_NETWORK = {"GRPO_STACK_PRIVATE_NETWORK": "1"}
"""For a role that also is on a network which the other side is not on: its supervisor names the shared one to NCCL and vLLM."""

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
    supervisor: tuple[Word, ...] = ()
    """Words in front of `argv` that run it and look after it."""
    env: Mapping[str, Word] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    """NVML indices or UUIDs of those that it uses."""
    other_gpus: tuple[str, ...] = ()
    """Further ones that are visible to it, and that it leaves alone; no others are."""
    joined: bool = False
    """Whether it shares the host's IPC namespace, and /tmp with the other side, so that NCCL may pass memory between them."""
    mounts: tuple[Mount, ...] = ()
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """YAML files by their path in the container, where they are written as it starts; their content is this data."""
    probe: tuple[Word, ...] = ()
    """A command that succeeds once the role is ready; empty: there is nothing to wait for."""
    needs_token: bool = False
    internet: bool = False
    """Whether it may reach anything outside the private network."""
    publish: int | None = None
    """Port on the host's 127.0.0.1; being reached that way lets it reach nothing itself."""
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
    def tag(self) -> str:
        """Tag of the images: what they run on, and the set that they hold unless it is the default one."""
        return self.accelerator if self.pins.name == pins.DEFAULT else f"{self.accelerator}-{self.pins.name}"

    @property
    def roles(self) -> tuple[Role, ...]:
        """All of them, in the order in which they start."""
        return tuple(role for role in (self.prefetch, self.server, self.trainer) if role)


def derive(spec: StackSpec) -> StackPlan:
    """The plan for `spec`; it depends on nothing else, and the same spec gives the same plan."""
    return StackPlan(
        prefetch=_prefetch(spec),
        server=None if programs.mode(spec) == COLOCATE else _server(spec),
        trainer=_trainer(spec),
        split=None if spec.accelerator == "cpu" else spec.gpus,
        accelerator=spec.accelerator,
        pins=pins.find(spec.pins),
        source=spec.source,
        run=spec.run,
        boot_timeout_s=spec.server.boot_timeout_s,
    )


def _prefetch(spec: StackSpec) -> Role:
    return Role(
        name=PREFETCH,
        image=TRAINER,
        argv=programs.prefetch(spec),
        env={
            "HF_HUB_OFFLINE": words.Variable("HF_HUB_OFFLINE", "0"),
            "TRANSFORMERS_OFFLINE": words.Variable("TRANSFORMERS_OFFLINE", "0"),
            "HF_ENDPOINT": words.Variable("HF_ENDPOINT", "https://huggingface.co"),
            **_module_path(spec),
            **_proxies(),
        },
        mounts=_trainer_mounts(spec),
        needs_token=True,
        internet=True,
        ulimits=ULIMITS[spec.accelerator],
        stop_grace_s=10,
    )


def _server(spec: StackSpec) -> Role:
    return Role(
        name=SERVER,
        image=SERVER,
        supervisor=programs.server_supervisor(spec),
        argv=programs.server(spec),
        env={
            "VLLM_SERVER_DEV_MODE": "1",
            **(CPU_ENGINE if spec.accelerator == "cpu" else {}),
            **_shared_env(spec, SERVER),
            **(SECOND_NETWORK if spec.server.publish else {}),
        },
        gpus=spec.gpus.server if spec.accelerator == "cuda" else (),
        other_gpus=spec.gpus.trainer if _joined(spec) else (),
        joined=_joined(spec),
        mounts=_model_mounts(spec),
        probe=programs.probe(spec),
        publish=spec.server.publish,
        ulimits=ULIMITS[spec.accelerator],
        shm=_shm(spec),
    )


def _trainer(spec: StackSpec) -> Role:
    sharing = [launch.DEEPSPEED] if launch.uses_deepspeed(spec) else []
    env = {**_module_path(spec, *sharing), **_shared_env(spec, TRAINER)}
    if spec.trainer.internet:
        env |= {**_proxies(), **(SECOND_NETWORK if programs.mode(spec) != COLOCATE else {})}
    accelerate = launch.config(spec)
    if programs.mode(spec) == SHARED:
        env["GRPO_STACK_GPU_MEMORY_FRACTION"] = str(programs.SHARED_TRAINER_MEMORY)
    return Role(
        name=TRAINER,
        image=TRAINER,
        supervisor=programs.trainer_supervisor(spec),
        argv=programs.trainer(spec),
        env=env if programs.mode(spec) == COLOCATE else {"VLLM_HOST_IP": TRAINER, **env},
        gpus=spec.gpus.trainer if spec.accelerator == "cuda" else (),
        other_gpus=spec.gpus.server if _joined(spec) else (),
        joined=_joined(spec),
        mounts=(
            *_trainer_mounts(spec),
            *([Mount(spec.trainer.env_file, programs.ENV_FILE)] if spec.trainer.env_file else []),
        ),
        files={launch.FILE: accelerate} if accelerate else {},
        internet=spec.trainer.internet,
        ulimits=ULIMITS[spec.accelerator],
        shm=_shm(spec),
    )


def _shm(spec: StackSpec) -> str:
    return "16gb" if spec.accelerator == "cuda" else "1gb"


def _shared_env(spec: StackSpec, name: str) -> dict[str, Word]:
    """Environment of both long-running roles. They run offline: `prefetch` has fetched everything into the cache."""
    env: dict[str, Word] = {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        **_no_proxy(),
    }
    if _joined(spec):
        own, other = _sides(spec, name)
        visible = ",".join(_inside(gpu, spec) for gpu in (*own, *other))
        return {**env, **JOINED, "CUDA_VISIBLE_DEVICES": visible}
    if spec.accelerator == "cuda":
        # One host id each keeps NCCL from trying P2P between GPUs that the two containers cannot see.
        env |= {"NCCL_HOSTID": name, **SOCKETS}
    return env


def _joined(spec: StackSpec) -> bool:
    return spec.weight_path == NVLINK


def _sides(spec: StackSpec, name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The GPUs of role `name`, and those of the other one."""
    sides = (spec.gpus.server, spec.gpus.trainer)
    return sides if name == SERVER else (sides[1], sides[0])


def _inside(gpu: str, spec: StackSpec) -> str:
    """A GPU's name inside a container that sees all of the split: its place among them, in the host's order, or its UUID."""
    return str(sorted(map(int, spec.gpus.gpus)).index(int(gpu))) if gpu.isdigit() else gpu


def _module_path(spec: StackSpec, *more: str) -> dict[str, Word]:
    """Where Python looks for modules first: the folder of the user's rewards if there are any, and `more`."""
    folders = ["/rewards"] if any(map(is_reward_file, spec.data.rewards)) else []
    return {"PYTHONPATH": ":".join([*folders, *more])} if folders or more else {}


def _no_proxy(*more: Word) -> dict[str, Word]:
    exempt = words.join(f"{SERVER},{TRAINER},localhost,127.0.0.1", *more)
    return {"NO_PROXY": exempt, "no_proxy": exempt}


def _proxies() -> dict[str, Word]:
    """The way out of a role that has one: the caller's proxies, for all but the names that the caller exempts."""
    proxies = {name: words.Variable(name, "") for name in ("HTTP_PROXY", "HTTPS_PROXY")}
    return {**proxies, **_no_proxy(",", words.Variable("NO_PROXY", ""))}


def _model_mounts(spec: StackSpec) -> tuple[Mount, ...]:
    return (Mount(words.literal(spec.model), words.literal(programs.model(spec))),) if is_path(spec.model) else ()


def _trainer_mounts(spec: StackSpec) -> tuple[Mount, ...]:
    mounts = [*_model_mounts(spec), Mount(spec.outputs, "/outputs", read_only=False)]
    if is_file(spec.data.dataset):
        mounts.append(Mount(spec.data.dataset, programs.dataset(spec)))
    files = [reward.rpartition(":")[0] for reward in spec.data.rewards if is_reward_file(reward)]
    by_name = {posixpath.basename(file): file for file in reversed(files)}  # ./a.py and a.py are one file
    mounts += [Mount(file, f"/rewards/{name}") for name, file in reversed(by_name.items())]
    return tuple(mounts)
