"""Reads all that a start depends on, the slow things side by side, and has it judged."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from grpo_stack import (
    dataset_file,
    description,
    engine,
    env_file,
    findings,
    fit,
    footprint,
    gpus,
    host,
    hub_token,
    inputs,
    local_preflight,
    models,
    packages,
    paths,
    preflight,
    processes,
    snapshots,
    spec,
    volumes,
    words,
)
from grpo_stack.description import Description
from grpo_stack.errors import DescriptionError, HostError
from grpo_stack.facts import CacheVolume, DatasetFile, Engine, GpuReading, ModelConfig, NamedFile
from grpo_stack.findings import OK, PROBLEM, WARNING, Finding
from grpo_stack.hub_token import HubToken
from grpo_stack.memory import checkpoint, shares, tensors
from grpo_stack.memory.shares import Side
from grpo_stack.models import ModelReading
from grpo_stack.plan import StackPlan
from grpo_stack.preflight import Facts
from grpo_stack.spec import StackSpec

CHECKS = {**fit.CHECKS, **findings.CHECKS}
"""Every check by name, and what is fine there."""

HUB_TIMEOUT_S = 3.0
"""For the model's config. A Hub that cannot be reached must not hold up a start whose model is in the cache."""

ENGINE_TIMEOUT_S = 2 * engine.TOTAL_TIMEOUT_S
"""For the daemon and for Compose, which have limits of their own."""

_TRUE = {"1", "ON", "YES", "TRUE"}


@dataclass(frozen=True)
class Asked:
    """What the engine answered."""

    engine: Engine | None = None
    problems: tuple[str, ...] = ()
    """Why there is no engine; empty as well as `engine` None: it was not asked."""


@dataclass(frozen=True)
class Machine:
    """What is the same for every description: the GPUs, and the engine, whose answer may be still on its way."""

    gpus: GpuReading
    answer: Callable[[], Asked] = Asked
    """Waits for the engine's answer."""

    @cached_property
    def asked(self) -> Asked:
        return self.answer()


@dataclass(frozen=True)
class Caller:
    """Who starts what: the part of the outside that the checks depend on."""

    environment: Mapping[str, str]
    uid: int
    """User of the containers, who must be able to read what is mounted into them."""
    project: str = "grpo-stack"
    """Compose project, whose cache volume is looked at when the Hub must not be asked."""
    runtime: str = "docker"
    """`docker`, or `process` for roles that run as processes of this host."""


def look(docker: Callable[[float], Engine] | None = None) -> Machine:
    """Ask NVML; `docker` waits for the engine, as `engine.begin` returned it. None: Docker is not asked."""
    return Machine(gpus.read(), partial(_answer, docker) if docker else Asked)


def check(described: Description, planned: StackPlan, machine: Machine, caller: Caller) -> tuple[Finding, ...]:
    """Every finding about this host, the model, and the files that the description names."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        as_processes = caller.runtime == "process"
        in_volume = _offline(caller.environment) and not as_processes
        # Offline the engine's volume is looked into; else the Hub is asked while the engine may still be answering.
        volume = _volume(described.spec, machine.asked.engine, caller) if in_volume else None
        asked = pool.submit(_model, described, volume, caller)
        facts = _facts(described, planned, machine, caller, volume)
        if as_processes:
            visible = caller.environment.get("CUDA_VISIBLE_DEVICES")
            host_findings = local_preflight.check(planned, facts, packages.read(sys.executable, os.environ), visible)
        else:
            host_findings = preflight.check(planned, facts)
        reading = asked.result()
    named = _about(reading) if reading else ()
    fitting = _fit(described, reading.config if reading else None, machine.gpus)
    room = _room(described.spec, reading.config, planned, facts) if reading and reading.config else ()
    return (*host_findings, *named, *room, *fitting, *(() if as_processes else _source(described)))


def memory(described: Description, caller: Caller, gpu_gib: float | None = None) -> tuple[tuple[Side, ...], str]:
    """What each GPU of either side will hold, and why nothing is known about that, if so.

    `gpu_gib`: memory of each GPU; None: that of this host's. Raises what a start would, for a model that can be none.
    """
    reading = _model(described, None, caller)
    if reading is None or reading.config is None:
        _require_config(described, caller)
        if reading and reading.refused:
            raise DescriptionError(reading.problem or "")
        return (), reading.problem or "" if reading else ""
    here = gpus.read() if gpu_gib is None else None
    capacity = fit.capacities(described.spec, here.gpus) if here else fit.Capacities(gpu_gib, gpu_gib)
    found = fit.sides(described.spec, reading.config, capacity)
    return (
        found,
        "" if found else "memory: this host's GPUs are not those of the split; say how large they are: --gpu-gib 80",
    )


def _require_config(described: Description, caller: Caller) -> None:
    """Return unless the model is a folder without a config; else DescriptionError or HostError, as the checks judge it."""
    if not spec.is_path(described.spec.model):
        return
    folder = host.model_folder(
        description.absolute(words.literal(described.spec.model), described.directory), caller.uid
    )
    found = [finding for finding in inputs.check((), folder, None) if finding.level == PROBLEM]
    if found and not folder.has_config:
        raise (DescriptionError if found[0].described else HostError)(map(str, found))


def _fit(described: Description, config: ModelConfig | None, found: GpuReading) -> Iterable[Finding]:
    """What the model's facts say about memory, parallelism and batch; that there are none is said elsewhere, with why."""
    capacity = fit.capacities(described.spec, found.gpus)
    judged = fit.findings(described.spec, config, capacity, len(found.gpus) or None)
    return (finding for finding in judged if finding.check != "model")


def _room(described: StackSpec, config: ModelConfig, planned: StackPlan, facts: Facts) -> Iterable[Finding]:
    """Whether the disks hold the model, in two bytes for each parameter unless its config says otherwise."""
    weights = tensors.parameters(config) * shares.DTYPE_BYTES.get(config.dtype or "", 2)
    written = checkpoint.written_bytes(config, footprint.training(described))
    free = facts.engine.data_root_free_bytes if facts.engine else None
    return inputs.room(weights, written, free, preflight.images_bytes(planned, facts), facts.host.folders)


def _facts(
    described: Description, planned: StackPlan, machine: Machine, caller: Caller, volume: CacheVolume | None
) -> Facts:
    stack, directory, environment = described.spec, described.directory, caller.environment
    ports = [port for port in [stack.server.publish] if port]
    if caller.runtime == "process":
        ports = [*processes.ports(planned).values()]
    model = description.absolute(words.literal(stack.model), directory) if spec.is_path(stack.model) else None
    token, docker = _token(caller), machine.asked.engine
    # The demo on the CPU may come with its model in a package; a folder needs no cache.
    fetches = stack.accelerator == "cuda" and model is None
    return Facts(
        host=host.read([description.absolute(stack.outputs, directory)], ports, environment),
        engine=docker,
        engine_problems=machine.asked.problems,
        images_built=docker is not None and volumes.images_built(docker, planned.tag),
        gpus=machine.gpus,
        model=host.model_folder(model, caller.uid, mounted=caller.runtime == "docker") if model else None,
        dataset=_dataset(described, caller),
        files=tuple(_named_files(described, caller)),
        token=host.token_file(str(token.file), caller.uid) if token.file else None,
        token_in_environment=bool(token.text or environment.get("HF_TOKEN")),
        offline=fetches and _offline(environment),
        cache=volume,
    )


def _named_files(described: Description, caller: Caller) -> Iterable[NamedFile]:
    stack, directory = described.spec, described.directory
    for reward in filter(spec.is_reward_file, stack.data.rewards):
        yield _named_file("data.rewards", description.absolute(reward.rpartition(":")[0], directory), caller)
    if stack.trainer.env_file:
        named = _named_file(env_file.KEY, description.absolute(stack.trainer.env_file, directory), caller)
        yield replace(named, secret=True, problems=_variables_problems(named.path) if named.exists else ())


def _named_file(key: str, file: str, caller: Caller) -> NamedFile:
    exists = paths.is_file(file)
    return NamedFile(key, file, exists, exists and paths.allows(file, caller.uid, paths.READ))


def _variables_problems(file: str) -> tuple[str, ...]:
    """What training would refuse in its file of variables; nothing where this user cannot look into that."""
    if not paths.allows(file, os.getuid(), paths.READ):
        return ()
    try:
        env_file.read(Path(file))
    except DescriptionError as fault:
        return tuple(problem.removeprefix(f"{env_file.KEY}: ") for problem in fault.problems)
    return ()


def _model(described: Description, volume: CacheVolume | None, caller: Caller) -> ModelReading | None:
    """The facts of the model; None for the CPU stack, which no GPU memory or parallelism limits."""
    stack, environment = described.spec, caller.environment
    if stack.accelerator == "cpu":
        return None
    name = words.literal(stack.model)
    if spec.is_path(stack.model):
        name = description.absolute(name, described.directory)
        if not paths.is_file(Path(name) / "config.json"):
            return None  # said already, by the check of the folder itself
    cache = snapshots.cache_folder(environment)
    if volume and volume.readable and volume.folder:
        cache = Path(volume.folder) / volumes.HUB
    hub = models.Hub(
        endpoint=environment.get("HF_ENDPOINT") or models.Hub.endpoint, token=_token(caller), timeout_s=HUB_TIMEOUT_S
    )
    return models.read(name, stack.revision, offline=_offline(environment), cache=cache, hub=hub)


def _dataset(described: Description, caller: Caller) -> DatasetFile | None:
    """The dataset's file; None for one of the Hub. What looks like a path is none of its ids, whatever its ending."""
    name = described.spec.data.dataset
    path = description.absolute(name, described.directory)
    if spec.is_file(name) or spec.is_path(name) or not name or paths.is_file(path):
        return dataset_file.read(path, caller.uid)
    return None


def _volume(stack: StackSpec, docker: Engine | None, caller: Caller) -> CacheVolume:
    """The volume, and what it lacks of the model, as far as this user may look into it."""
    volume = volumes.cache_volume(docker, caller.project)
    if not (volume.readable and volume.folder):
        return volume
    found = snapshots.find(Path(volume.folder) / volumes.HUB, words.literal(stack.model), stack.revision)
    return replace(volume, missing=snapshots.missing(found) if found else ("the model",))


def _about(reading: ModelReading) -> tuple[Finding, ...]:
    if reading.problem is None:
        shown = reading.config.architecture if reading.config else "its config"
        return (Finding("model", OK, f"{shown}, read from the {reading.source}"),)
    found, _, fix = reading.problem.removeprefix("model: ").partition("; ")
    return (Finding("model", PROBLEM if reading.refused else WARNING, found, fix, described=reading.refused),)


def _answer(docker: Callable[[float], Engine]) -> Asked:
    try:
        return Asked(docker(ENGINE_TIMEOUT_S))
    except HostError as fault:
        return Asked(problems=fault.problems)
    except TimeoutError:
        return Asked(problems=(f"Docker was not read within {ENGINE_TIMEOUT_S:g} s; see: docker info",))


def _token(caller: Caller) -> HubToken:
    found = hub_token.of_processes if caller.runtime == "process" else hub_token.of_containers
    return found(caller.environment)


def _offline(environment: Mapping[str, str]) -> bool:
    """As huggingface_hub reads it (constants.py: ENV_VARS_TRUE_VALUES)."""
    return environment.get("HF_HUB_OFFLINE", "").upper() in _TRUE


def _source(described: Description) -> tuple[Finding, ...]:
    """A problem if the checkout that images are built from is not where the description says."""
    dockerfile = Path(description.absolute(described.spec.source, described.directory)) / "docker" / "Dockerfile"
    if paths.is_file(dockerfile):
        return (Finding("source", OK, f"{dockerfile.parent.parent}"),)
    fix = "run it in the checkout, or set `source` to its folder"
    return (Finding("source", PROBLEM, f"there is no {dockerfile}", fix, described=True),)
