"""What the checks of a host found: one form for all of them, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from grpo_stack.errors import DescriptionError

OK, WARNING, PROBLEM, SKIPPED = "ok", "warning", "problem", "skipped"

CHECKS = {
    "engine": "Docker Engine 25 or newer runs, and is not podman",
    "compose": "Compose 2.24 or newer",
    "permission": "this user may use Docker",
    "image-space": "space for the images",
    "model-space": "space for the model beside the images, and for a checkpoint of it and the trained model",
    "gpus": "there are GPUs, enough of them, each named once",
    "gpus-free": "nobody uses them, listed process or not",
    "driver": "the NVIDIA driver runs the pinned CUDA",
    "toolkit": "the engine can hand GPUs to containers (NVIDIA's runtime, its hook, or CDI)",
    "mig": "they are whole GPUs",
    "ecc": "no uncorrected memory errors",
    "topology": "each side's GPUs are as well linked as this host allows",
    "split": "server and trainer have GPUs of their own",
    "server.publish": "the published port is free",
    "memory": "memory of this host",
    "shm": "memory for what the containers' /dev/shm may hold",
    "weight-path": "weights go over the private network",
    "clock": "this host's clock is not behind these versions",
    "token": "the token file, if one is named, can be read and is not empty",
    "proxies": "proxies can be reached from containers, and do not stand between the roles",
    "offline": "with HF_HUB_OFFLINE: there is a cache to use, and it holds the weights, as far as this user may look",
    "outputs": "the outputs folder can be written, and a checkpoint fits",
    "model": "the model's folder is complete and readable; its config can be read, or the Hub shows it",
    "data.dataset": "the dataset file can be read and has prompts",
    "data.rewards": "the reward files are there, and readable",
    "trainer.env_file": "the file of variables is there, readable, and made of NAME=VALUE lines",
    "packages": "with --runtime process: this Python holds vLLM and TRL, in releases that go together",
    "server.port": "with --runtime process: the server's port is free",
    "trainer.group_port": "with --runtime process: the port for weight pushes is free",
    "source": "the checkout that images are built from is there",
}
"""Every check by name, and what is fine there; names never change. With a dot: a key of the description."""


@dataclass(frozen=True)
class Finding:
    """The outcome of one check."""

    check: str
    """The check's name, or the key of the description that it is about."""
    level: str
    """`ok`, `warning` or `problem`; `skipped` when it was left out on request."""
    found: str
    fix: str = ""
    """What to do about it."""
    described: bool = False
    """The description is wrong, not the host."""

    def __str__(self) -> str:
        return f"{self.check}: {self.found}" + (f"; {self.fix}" if self.fix else "")


def require_known(names: Iterable[str], known: Iterable[str]) -> None:
    """Return if every one of `names` is a check; else DescriptionError, naming the `known` ones."""
    listed = tuple(known)
    unknown = [name for name in names if name not in listed]
    if unknown:
        raise DescriptionError(f"--skip: there is no check {name!r}; known: {', '.join(listed)}" for name in unknown)


def leave_out(findings: Iterable[Finding], names: Iterable[str]) -> tuple[Finding, ...]:
    """The findings without those of the checks in `names`, each of which is said to be skipped instead."""
    left_out = tuple(dict.fromkeys(names))
    skipped = (
        Finding(name, SKIPPED, "left out on request; what it would find shows when it fails") for name in left_out
    )
    return (*(finding for finding in findings if finding.check not in left_out), *skipped)


def table(findings: Sequence[Finding]) -> list[str]:
    """A line for each finding, and one below it with what to do where there is something to do."""
    width = max((len(finding.check) for finding in findings), default=0)
    lines = []
    for finding in findings:
        lines.append(f"{finding.level:8} {finding.check:{width}}  {finding.found}")
        if finding.fix:
            lines.append(f"{'':8} {'':{width}}  → {finding.fix}")
    return lines


def summary(findings: Sequence[Finding]) -> str:
    """How many of each level there are."""
    counts = {level: sum(finding.level == level for finding in findings) for level in (PROBLEM, WARNING, OK, SKIPPED)}
    return ", ".join(f"{count} {level}" for level, count in counts.items() if count or level == PROBLEM)


def as_data(findings: Sequence[Finding]) -> dict[str, Any]:
    """The findings for programs: `ready`, and under `checks` the fields of each."""
    return {
        "ready": not any(finding.level == PROBLEM for finding in findings),
        "checks": [asdict(finding) for finding in findings],
    }
