"""From a description to a stack that may start: what to run on, what this host offers, and the files of the run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from grpo_stack import bundle, description, engine, host, preflight, presets, programs, spec, words
from grpo_stack.description import Description
from grpo_stack.errors import DescriptionError, HostError
from grpo_stack.facts import Engine, GpuReading
from grpo_stack.lifecycle import Stack
from grpo_stack.plan import StackPlan
from grpo_stack.preflight import Facts, Finding
from grpo_stack.render import compose
from grpo_stack.spec import StackSpec
from grpo_stack.words import Variable

CONTAINER_UID = 10001
"""Owner of the run's files while root's own stack runs: containers never run as root."""


def choose(described: Description, found: GpuReading) -> Description:
    """The description to run: where neither it nor a flag says so, the split for this host's GPUs, or the CPU demo.

    A model or a split that was asked for is kept on a host without a GPU, so that the checks can say what is missing.
    """
    if described.file or described.preset or described.spec.accelerator == "cpu":
        return described
    if not found.gpus:
        asked = {"model", "split", "accelerator"} & set(described.overrides)
        return described if asked else description.changed(described, {}, base=presets.PRESETS["cpu"])
    if "split" in described.overrides:
        return described
    if len(found.gpus) == 1:
        return description.changed(described, {"split": "colocate"})
    return description.changed(described, {"split": preflight.suggest(len(found.gpus))})


def named(described: Description, now: time.struct_time) -> Description:
    """The same description with a run name of its own, unless it has one: the model's name and the time."""
    if not isinstance(described.spec.run, Variable):
        return described
    stem = re.sub(r"[^a-z0-9.]+", "-", Path(words.literal(described.spec.model)).name.lower()).strip("-.") or "run"
    return description.changed(described, {"run": f"{stem[:60]}-{time.strftime('%Y%m%d-%H%M%S', now)}"})


def settled(described: Description, environment: Mapping[str, str]) -> Description:
    """The same description with the values that the environment gives to what it leaves open."""
    fields = {"model": described.spec.model, "run": described.spec.run}
    given = {key: environment.get(value.name) for key, value in fields.items() if isinstance(value, Variable)}
    overrides = {key: value for key, value in given.items() if value}
    return description.changed(described, overrides) if overrides else described


def check(
    described: Description, planned: StackPlan, found: GpuReading, with_engine: bool = True
) -> tuple[Finding, ...]:
    """Every finding about this host and the files that the description names; `with_engine` asks Docker too."""
    stack, directory = described.spec, described.directory
    docker, problem = _engine() if with_engine else (None, "")
    local_model = spec.is_path(stack.model)
    facts = Facts(
        host=host.read([description.absolute(stack.outputs, directory)], [p for p in [stack.server.publish] if p]),
        engine=docker,
        engine_problem=problem,
        images_built=docker is not None and _images_built(docker, planned.tag),
        gpus=found,
        model=host.model_folder(description.absolute(words.literal(stack.model), directory), owner()[0])
        if local_model
        else None,
        dataset=host.dataset_file(description.absolute(stack.data.dataset, directory))
        if spec.is_file(stack.data.dataset)
        else None,
        missing_files=tuple(file for file in _files(described) if not Path(file).is_file()),
    )
    source = _source(stack, directory)
    return (*preflight.check(planned, facts), *([source] if source else []))


def demand(findings: tuple[Finding, ...]) -> None:
    """DescriptionError or HostError with every problem among `findings`; nothing if there is none."""
    problems = [finding for finding in findings if finding.level == "problem"]
    if problems:
        kind = DescriptionError if any(problem.described for problem in problems) else HostError
        raise kind(str(problem) for problem in problems)


def write(described: Description, planned: StackPlan, project: str) -> Stack:
    """Make the run's folder, with the description and the Compose file in it, and say how to run it."""
    directory = described.directory.absolute()
    outputs = Path(description.absolute(described.spec.outputs, directory))
    run = outputs / words.literal(described.spec.run)
    (run / "logs").mkdir(parents=True, exist_ok=True)
    for name, text in bundle.files(described, "grpo-stack up   (a record of this run)").items():
        (run / name).write_text(text, encoding="utf-8")
    uid, gid = owner()
    for folder in (run, run / "logs"):
        if os.getuid() == 0:
            shutil.chown(folder, uid, gid)
    env = {**os.environ, "GRPO_STACK_UID": str(uid), "GRPO_STACK_GID": str(gid)}
    services = tuple(role.name for role in planned.roles)
    return Stack(project, run / compose.FILE, directory, run, env, engine.find_client(), services)


def owner() -> tuple[int, int]:
    """User and group of the containers: the caller's, the one behind sudo, or for root itself one without rights."""
    uid, gid = os.getuid(), os.getgid()
    if uid == 0:
        uid = int(os.environ.get("SUDO_UID", "0"))
        gid = int(os.environ.get("SUDO_GID", "0"))
    return (uid, gid) if uid else (CONTAINER_UID, CONTAINER_UID)


def hand_over(stack: Stack) -> None:
    """Give the run's files to whoever called; only root's own stacks need it, since their containers are not root."""
    if os.getuid() == 0 and "SUDO_UID" not in os.environ:
        for folder, names, files in os.walk(stack.run_folder):
            for name in (folder, *(os.path.join(folder, entry) for entry in (*names, *files))):  # noqa: PTH118
                os.chown(name, 0, 0, follow_symlinks=False)


def _engine() -> tuple[Engine | None, str]:
    """The engine, or why there is none to use."""
    try:
        return engine.read(), ""
    except HostError as fault:
        return None, str(fault)


def _files(described: Description) -> list[str]:
    rewards = [reward.rpartition(":")[0] for reward in described.spec.data.rewards if spec.is_reward_file(reward)]
    return [description.absolute(file, described.directory) for file in rewards]


def _images_built(docker: Engine, tag: str) -> bool:
    """Whether an earlier build left both images."""
    names = [f"grpo-stack/{name}:{tag}" for name in (programs.SERVER, programs.TRAINER)]
    argv = [docker.client, "image", "inspect", "--format", "{{.Id}}", *names]
    return subprocess.run(argv, capture_output=True, timeout=30, check=False).returncode == 0


def _source(stack: StackSpec, directory: Path) -> Finding | None:
    """A problem if the checkout that images are built from is not where the description says."""
    dockerfile = Path(description.absolute(stack.source, directory)) / "docker" / "Dockerfile"
    if dockerfile.is_file():
        return None
    fix = "run it in the checkout, or set `source` to its folder"
    return Finding("source", "problem", f"there is no {dockerfile}", fix, described=True)
