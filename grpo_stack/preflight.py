"""Can this host run that plan? Decides on facts that others have read; asks nothing itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from grpo_stack.facts import DatasetFile, Engine, GpuReading, Host, ModelFolder
from grpo_stack.plan import StackPlan
from grpo_stack.split import SHARED, Split

ENGINE, COMPOSE = (25, 0), (2, 24)
"""What `healthcheck.start_interval` needs (Docker's documentation)."""

IMAGE_BYTES = {"cuda": 30 * 10**9, "cpu": 9 * 10**9}
"""Free space that building the images takes: layers, build cache and unpacking, about three times the image."""

REBUILD_BYTES = 10**9

CHECKPOINT_BYTES = 2 * 10**9


@dataclass(frozen=True)
class Finding:
    """The outcome of one check."""

    check: str
    level: str
    """`ok`, `warning` or `problem`."""
    found: str
    fix: str = ""
    """What to do about it."""
    described: bool = False
    """The description is wrong, not the host."""

    def __str__(self) -> str:
        return f"{self.check}: {self.found}" + (f"; {self.fix}" if self.fix else "")


@dataclass(frozen=True)
class Facts:
    """All that was found before a start; None: it was not read."""

    host: Host
    engine: Engine | None
    engine_problem: str = ""
    """Why there is no engine; empty as well as `engine` None: nobody asked."""
    images_built: bool = False
    """An earlier build left images, so that a new one adds little."""
    gpus: GpuReading = GpuReading(())
    model: ModelFolder | None = None
    dataset: DatasetFile | None = None
    missing_files: tuple[str, ...] = ()
    """Reward files that the description names and that are not there."""


def check(plan: StackPlan, facts: Facts) -> tuple[Finding, ...]:
    """Every finding at once, problems or not."""
    findings = [*_engine(facts), *_images(plan, facts), *_gpus(plan, facts), *_folders(facts)]
    findings += [*_ports(plan, facts.host), *_model(facts.model), *_dataset(facts.dataset)]
    findings += [
        Finding("data.rewards", "problem", f"there is no file {file}", "mind the path", described=True)
        for file in facts.missing_files
    ]
    return tuple(findings)


def _engine(facts: Facts) -> Iterable[Finding]:
    engine = facts.engine
    if engine is None:
        if facts.engine_problem:
            yield Finding("docker", "problem", facts.engine_problem)
        return
    if engine.podman:
        yield Finding(
            "docker", "problem", "podman answers in Docker's name and ignores GPU reservations", "use Docker Engine"
        )
    if _version(engine.version) < ENGINE:
        yield Finding(
            "docker", "problem", f"Engine {engine.version} found, 25 needed", "upgrade it, or let `make build` do that"
        )
    if _version(engine.compose_version) < COMPOSE:
        yield Finding(
            "docker",
            "problem",
            f"Compose {engine.compose_version} found, 2.24 needed",
            "upgrade it, or let `make build` do that",
        )
    yield Finding("docker", "ok", f"Engine {engine.version}, Compose {engine.compose_version}")


def _images(plan: StackPlan, facts: Facts) -> Iterable[Finding]:
    engine = facts.engine
    if engine is None or engine.data_root_free_bytes is None:
        return
    needed = REBUILD_BYTES if facts.images_built else IMAGE_BYTES[plan.accelerator]
    free = engine.data_root_free_bytes
    found = f"{_gigabytes(free)} free in {engine.data_root}"
    if free < needed:
        fix = f"building the images takes {_gigabytes(needed)}; free some (docker system df shows what takes it)"
        yield Finding("image space", "problem", found, fix)
    else:
        yield Finding("image space", "ok", found)


def _gpus(plan: StackPlan, facts: Facts) -> Iterable[Finding]:
    if plan.split is None:
        return
    gpus = facts.gpus.gpus
    if not gpus:
        reason = facts.gpus.problem or "this host has none"
        yield Finding("gpus", "problem", f"no GPU found ({reason})", "run the CPU demo instead: make up, without MODEL")
        return
    known = {name: gpu.index for gpu in gpus for name in (str(gpu.index), gpu.uuid) if name}
    missing = [gpu for gpu in plan.split.gpus if gpu not in known]
    if missing:
        text = f"the split names GPU {', '.join(missing)}, this host has {len(gpus)} ({gpus[0].index}-{gpus[-1].index})"
        yield Finding("gpus", "problem", text, f"choose another split, {suggest(len(gpus))} for example")
    elif twice := _named_twice(plan.split, known):
        yield Finding("gpus", "problem", f"{twice} are one GPU", "name each GPU once, by index or by UUID")
    else:
        yield Finding("gpus", "ok", f"{len(gpus)} found, {len(plan.split.gpus)} used")
    if plan.split.mode == SHARED:
        fix = "give each side its own GPUs for real runs"
        yield Finding("split", "warning", "server and trainer share one GPU, which is for development only", fix)
    if facts.engine and facts.engine.gpus_usable is False:
        fix = "install and configure the NVIDIA Container Toolkit (docs.nvidia.com, `nvidia-ctk runtime configure`)"
        yield Finding("container toolkit", "problem", "the engine has neither NVIDIA's runtime nor a CDI device", fix)


def _named_twice(split: Split, known: Mapping[str, int]) -> str:
    """The first two names of the split that are one GPU, an index and a UUID."""
    seen: dict[int, str] = {}
    for name in split.gpus:
        if known[name] in seen:
            return f"{seen[known[name]]} and {name}"
        seen[known[name]] = name
    return ""


def suggest(count: int) -> str:
    """A split for `count` GPUs: the server gets the largest power of two that leaves the trainer at least as many."""
    if count < 2:
        return "shared"
    server = 1
    while server * 4 <= count:
        server *= 2
    return f"{server}:{count - server}"


def _folders(facts: Facts) -> Iterable[Finding]:
    for folder in facts.host.folders:
        if folder.writable is False:
            yield Finding(
                "outputs", "problem", f"{folder.path} is not writable", "change its owner, or name another folder"
            )
        elif folder.free_bytes is not None and folder.free_bytes < CHECKPOINT_BYTES:
            text = f"{_gigabytes(folder.free_bytes)} free in {folder.path}"
            yield Finding(
                "outputs", "problem", text, f"a checkpoint needs {_gigabytes(CHECKPOINT_BYTES)} or more; free some"
            )
        else:
            yield Finding("outputs", "ok", f"{folder.path} is writable")


def _ports(plan: StackPlan, host: Host) -> Iterable[Finding]:
    taken = {entry.port for entry in host.ports_in_use}
    if plan.server and plan.server.publish in taken:
        text = f"port {plan.server.publish} of 127.0.0.1 is taken"
        yield Finding("server.publish", "problem", text, "choose another, or leave it out to publish none")


def _model(model: ModelFolder | None) -> Iterable[Finding]:
    if model is None:
        return
    if not model.exists:
        yield Finding("model", "problem", f"there is no folder {model.path}", "mind the path, or give a Hub id", True)
    elif not model.has_config:
        yield Finding(
            "model", "problem", f"{model.path} holds no config.json", "name the folder that a model was saved to", True
        )
    elif model.unreadable:
        text = f"{', '.join(model.unreadable[:3])} in {model.path} cannot be read by the containers' user"
        yield Finding("model", "problem", text, f"run: chmod a+r {model.path}/*")
    else:
        yield Finding("model", "ok", f"{model.path} holds a model")


def _dataset(dataset: DatasetFile | None) -> Iterable[Finding]:
    if dataset is None:
        return
    if not dataset.exists:
        yield Finding(
            "data.dataset", "problem", f"there is no file {dataset.path}", "mind the path, or give a Hub id", True
        )
    elif dataset.problem:
        yield Finding(
            "data.dataset", "problem", f"{dataset.path}: {dataset.problem}", "write one JSON object a line", True
        )
    elif dataset.columns is not None and "prompt" not in dataset.columns:
        columns = ", ".join(dataset.columns) or "none"
        text = f"{dataset.path} has no column `prompt` (found: {columns})"
        yield Finding("data.dataset", "problem", text, "GRPO needs one: text, or a list of messages", True)
    else:
        yield Finding("data.dataset", "ok", f"{dataset.path} has prompts")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])


def _gigabytes(count: int) -> str:
    return f"{count / 10**9:.1f} GB"
