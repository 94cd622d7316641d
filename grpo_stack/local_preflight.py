"""Can this host run that plan as processes? Decides on facts that others have read; asks nothing itself.

Beside `preflight`, which judges the same for containers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from grpo_stack import devices, inputs, pins, processes
from grpo_stack.errors import DescriptionError
from grpo_stack.facts import Host
from grpo_stack.findings import OK, PROBLEM, SKIPPED, WARNING, Finding
from grpo_stack.plan import StackPlan
from grpo_stack.preflight import Facts, memory, token_file

NEEDED = ("vllm", "trl", "accelerate", "datasets", "torch")
"""Distributions that server and trainer import."""

FOR_ZERO = "deepspeed"
"""What training with ZeRO imports besides."""

PLUGIN = "grpo-stack"
"""The distribution whose entry point gives vLLM this package's weight-transfer engines."""


@dataclass(frozen=True)
class Packages:
    """What the Python that would run the roles holds."""

    python: str
    versions: Mapping[str, str] = field(default_factory=dict)
    """Release of each distribution that is installed, of `NEEDED`, `FOR_ZERO` and `PLUGIN`."""
    commands: Mapping[str, bool] = field(default_factory=dict)
    """Whether each command that the roles start is found beside that Python or on PATH."""


def check(plan: StackPlan, facts: Facts, packages: Packages, visible: str | None = None) -> tuple[Finding, ...]:
    """Every finding at once; `visible` is the CUDA_VISIBLE_DEVICES of the caller."""
    findings = [Finding("engine", SKIPPED, "not asked: server and trainer run as processes of this host")]
    findings += [*_packages(plan, packages), *devices.check(plan, facts.gpus, None), *_granted(plan, visible)]
    findings += [*_ports(plan, facts.host), memory(plan, facts.host), _token(facts)]
    findings += inputs.check(facts.host.folders, facts.model, facts.dataset, facts.files)
    return tuple(findings)


def _packages(plan: StackPlan, packages: Packages) -> Iterable[Finding]:
    by_zero = any(file.get("distributed_type") == "DEEPSPEED" for file in plan.trainer.files.values())
    extras = "train,zero" if by_zero else "train"
    install = f"run, in the checkout of grpo-stack: {packages.python} -m pip install '.[{extras}]'"
    needed = (*NEEDED, *([FOR_ZERO] if by_zero else []), PLUGIN)
    missing = [name for name in needed if name not in packages.versions]
    missing += [f"the command {name}" for name, found in packages.commands.items() if not found]
    if missing:
        yield Finding("packages", PROBLEM, f"{packages.python} does not have {', '.join(missing)}", install)
        return
    trl, vllm = packages.versions["trl"], packages.versions["vllm"]
    try:
        pins.require_fit(trl, vllm)
    except DescriptionError as misfit:
        found, _, fix = str(misfit).removeprefix("pins: ").partition("; ")
        yield Finding("packages", PROBLEM, found, fix or install)
        return
    found = ", ".join(f"{name} {packages.versions[name]}" for name in ("vllm", "trl", "torch"))
    wanted = {"vllm": plan.pins.vllm, "trl": plan.pins.trl, "torch": plan.pins.torch}
    if any(packages.versions[name].split("+")[0] != release for name, release in wanted.items()):
        tested = ", ".join(f"{name} {release}" for name, release in wanted.items())
        yield Finding("packages", WARNING, found, f"they go together, but what is tested is {tested}")
    else:
        yield Finding("packages", OK, found)


def _granted(plan: StackPlan, visible: str | None) -> Iterable[Finding]:
    """Whether the caller, a batch job for example, may use the GPUs of the split: NVML shows it all of them."""
    if visible is None or plan.split is None:
        return
    granted = visible.split(",")
    named_by_index = all(gpu.isdecimal() for gpu in (*plan.split.gpus, *granted))
    if beyond := [gpu for gpu in plan.split.gpus if gpu not in granted] if named_by_index else []:
        found = f"CUDA_VISIBLE_DEVICES={visible} does not grant GPU {', '.join(beyond)}, which the split names"
        yield Finding("gpus", PROBLEM, found, f"name granted ones: --split SERVER:TRAINER out of {visible}", True)


def _ports(plan: StackPlan, host: Host) -> Iterable[Finding]:
    taken = {entry.port for entry in host.ports_in_use}
    ports = processes.ports(plan)
    for key, port in ports.items():
        others = [other for other in ports if other != key and ports[other] == port]
        if others:
            found = f"port {port} is {others[0]} too, and both are ports of this host"
            yield Finding(key, PROBLEM, found, f"choose another: --set {key}=PORT", described=True)
        elif port in taken:
            yield Finding(key, PROBLEM, f"port {port} of 127.0.0.1 is taken", f"choose another: --set {key}=PORT")
        else:
            yield Finding(key, OK, f"port {port} of 127.0.0.1 is free")


def _token(facts: Facts) -> Finding:
    if facts.token:
        return token_file(facts.token, "this user", "mind its owner, or name another file: HF_TOKEN_PATH=FILE")
    if facts.token_in_environment:
        return Finding("token", OK, "in the environment, and given to the download alone")
    return Finding("token", OK, "none, which does for public models (HF_TOKEN, or: hf auth login)")
