"""From a description to a stack that may start: what to run on, whether the checks allow it, and the files of the run."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_stack import (
    bundle,
    description,
    devices,
    engine,
    occupancy,
    presets,
    processes,
    run_folder,
    run_state,
    topology,
    words,
)
from grpo_stack.description import Description
from grpo_stack.errors import DescriptionError, HostError
from grpo_stack.facts import GpuReading
from grpo_stack.findings import PROBLEM, Finding
from grpo_stack.plan import StackPlan
from grpo_stack.render import compose
from grpo_stack.words import Variable

if TYPE_CHECKING:
    from grpo_stack.lifecycle import Stack

CONTAINER_UID = 10001
"""Owner of the run's files while root's own stack runs: containers never run as root."""

_PATHS = ("HF_TOKEN_PATH", "CA_BUNDLE", "WHEELS_DIR")
"""Variables of the Compose file that name files and folders of this host."""


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
    return description.changed(described, {"split": devices.suggest(len(found.gpus))})


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


def placed(described: Description, found: GpuReading) -> tuple[Description, str]:
    """The same description with GPUs chosen for a split that was given in counts, and a sentence about the choice.

    The sentence is empty, and the description the same one, where the first GPUs are as good as any.
    """
    if described.spec.accelerator == "cpu" or not described.spec.gpus.counted:
        return described, ""
    choice = topology.choose(described.spec.gpus, found.gpus)
    if choice.split.gpus == described.spec.gpus.gpus:
        return described, ""
    return description.changed(described, {"split": topology.text(choice.split)}), str(choice)


def fault(findings: Iterable[Finding]) -> DescriptionError | HostError | None:
    """The error that holds every problem among `findings`, blamed on the description if any of them is; None without."""
    problems = [finding for finding in findings if finding.level == PROBLEM]
    if not problems:
        return None
    kind = DescriptionError if any(problem.described for problem in problems) else HostError
    return kind(str(problem) for problem in problems)


def demand(findings: Iterable[Finding]) -> None:
    """Raise that error if there is one."""
    if error := fault(findings):
        raise error


@contextmanager
def begun(described: Description, planned: StackPlan, project: str) -> Iterator[Stack]:
    """Make the run's folder, with the description and the Compose file in it, and say how to run it.

    The folder is held against any other `up` within the block, and all that is in it belongs to the caller after it. HostError
    if the run is running already, in whichever project or runtime; nothing of it is touched then.
    """
    from grpo_stack.lifecycle import Stack  # brings the progress display, which checks do without

    directory = described.directory.absolute()
    outputs = Path(description.absolute(described.spec.outputs, directory))
    run = outputs / words.literal(described.spec.run)
    occupancy.require_free(run, with_docker=True)
    run_folder.make(run)
    with run_state.claim(run):
        record = bundle.files(described, "grpo-stack up   (a record of this run)")
        run_folder.begin(run, record, without=(run_state.FILE, processes.RECORD))
        uid, gid = owner()
        env = {**_absolute(os.environ), "GRPO_STACK_UID": str(uid), "GRPO_STACK_GID": str(gid)}
        services = tuple(role.name for role in planned.roles)
        try:
            if os.getuid() == 0:
                _give(run, uid, gid)  # all of it: a run that goes on finds what an earlier one left to root
            yield Stack(project, run / compose.FILE, directory, run, env, engine.find_client(), services)
        finally:
            if os.getuid() == 0 and uid == CONTAINER_UID:  # only root's own stacks: their containers are not root
                _give(run, 0, 0)


def _absolute(environment: Mapping[str, str]) -> dict[str, str]:
    """The caller's paths as the caller means them, links left as they are; Compose takes them from the description's folder."""
    return {
        name: os.path.abspath(os.path.expanduser(value)) if name in _PATHS and value else value  # noqa: PTH100, PTH111
        for name, value in environment.items()
    }


def owner() -> tuple[int, int]:
    """User and group of the containers: the caller's, the one behind sudo, or for root itself one without rights."""
    uid, gid = os.getuid(), os.getgid()
    if uid == 0:
        uid, gid = _number("SUDO_UID"), _number("SUDO_GID")
    return (uid, gid) if uid else (CONTAINER_UID, CONTAINER_UID)


def _number(variable: str) -> int:
    """The id that sudo left in the environment; 0 for none, and for what is no id."""
    text = os.environ.get(variable, "")
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else 0


def _give(tree: Path, uid: int, gid: int) -> None:
    for folder, names, files in os.walk(tree):
        for name in (folder, *(os.path.join(folder, entry) for entry in (*names, *files))):  # noqa: PTH118
            os.chown(name, uid, gid, follow_symlinks=False)
