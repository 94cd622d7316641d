"""Can this host run that plan? Decides on facts that others have read; asks nothing itself."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from grpo_stack import devices, inputs, pins, words
from grpo_stack.facts import CacheVolume, DatasetFile, Engine, GpuReading, Host, ModelFolder, NamedFile, TokenFile
from grpo_stack.findings import OK, PROBLEM, WARNING, Finding
from grpo_stack.plan import StackPlan
from grpo_stack.programs import SERVER, TRAINER

__all__ = ["Facts", "Finding", "check", "images_bytes", "memory", "token_file"]

ENGINE, COMPOSE = (25, 0), (2, 24)
"""What `healthcheck.start_interval` needs (Docker's documentation)."""

IMAGE_BYTES = {"cuda": 30 * 10**9, "cpu": 9 * 10**9}
"""Free space that building the images takes: layers, build cache and unpacking, about three times the image."""

REBUILD_BYTES = 10**9

MEMORY_BYTES = {"cuda": 24 * 10**9, "cpu": 9 * 10**9}
"""Memory of this host that both roles take: an estimate, and the peaks of the CPU demo's containers (docs/benchmarks.md) together.
Less is only warned about."""

_OWN_NAMES = (SERVER, TRAINER)
"""Host names inside the private network."""


@dataclass(frozen=True)
class Facts:
    """All that was found before a start; None: it was not read."""

    host: Host
    engine: Engine | None
    engine_problems: tuple[str, ...] = ()
    """Why there is no engine; empty as well as `engine` None: nobody asked."""
    images_built: bool = False
    """An earlier build left images, so that a new one adds little."""
    gpus: GpuReading = GpuReading(())
    model: ModelFolder | None = None
    dataset: DatasetFile | None = None
    files: tuple[NamedFile, ...] = ()
    """Files beside the dataset that the description names."""
    token: TokenFile | None = None
    """None: HF_TOKEN_PATH names no file."""
    token_in_environment: bool = False
    """HF_TOKEN holds a token, which no container is given."""
    offline: bool = False
    """HF_HUB_OFFLINE is set: nothing will be fetched."""
    cache: CacheVolume | None = None


def check(plan: StackPlan, facts: Facts) -> tuple[Finding, ...]:
    """Every finding at once, problems or not, those of the GPUs among them."""
    findings = [*_engine(facts), *_images(plan, facts), *devices.check(plan, facts.gpus, facts.engine)]
    findings += _ports(plan, facts.host)
    findings += [_shm(plan, facts.host), memory(plan, facts.host), _token(facts)]
    findings += [*_weight_path(plan), *_clock(facts.host)]
    findings += [*_proxies(plan, facts.host), *_offline(facts)]
    findings += inputs.check(facts.host.folders, facts.model, facts.dataset, facts.files)
    return tuple(findings)


def images_bytes(plan: StackPlan, facts: Facts) -> int:
    """Free space that building the images will take."""
    return REBUILD_BYTES if facts.images_built else IMAGE_BYTES[plan.accelerator]


def _engine(facts: Facts) -> Iterable[Finding]:
    engine = facts.engine
    for problem in facts.engine_problems:
        found, _, fix = problem.partition("; ")
        yield Finding(_subject(problem), PROBLEM, found, fix)
    if engine is None:
        return
    yield Finding("permission", OK, "this user may use Docker")
    if engine.podman:
        found = "podman answers in Docker's name and ignores GPU reservations"
        yield Finding("engine", PROBLEM, found, "use Docker Engine")
    for name, title, version, needed in (
        ("engine", "Engine", engine.version, ENGINE),
        ("compose", "Compose", engine.compose_version, COMPOSE),
    ):
        if _version(version) < needed:
            found = f"{title} {version} found, {'.'.join(map(str, needed)).removesuffix('.0')} needed"
            yield Finding(name, PROBLEM, found, "upgrade it, or let `make build` do that")
        else:
            yield Finding(name, OK, f"{title} {version}")


def _subject(problem: str) -> str:
    """The check that one of the engine's own error lines belongs to."""
    if problem.startswith("no permission"):
        return "permission"
    return "compose" if problem.startswith("no Docker Compose") else "engine"


def _images(plan: StackPlan, facts: Facts) -> Iterable[Finding]:
    engine = facts.engine
    if engine is None or engine.data_root_free_bytes is None:
        return
    needed = images_bytes(plan, facts)
    free = engine.data_root_free_bytes
    found = f"{_gigabytes(free)} free in {engine.data_root}"
    if free < needed:
        fix = f"building the images takes {_gigabytes(needed)}; free some (docker system df shows what takes it)"
        yield Finding("image-space", PROBLEM, found, fix)
    else:
        yield Finding("image-space", OK, found)


def _ports(plan: StackPlan, host: Host) -> Iterable[Finding]:
    taken = {entry.port for entry in host.ports_in_use}
    if plan.server and plan.server.publish in taken:
        text = f"port {plan.server.publish} of 127.0.0.1 is taken"
        yield Finding("server.publish", PROBLEM, text, "choose another, or leave it out to publish none")


def _shm(plan: StackPlan, host: Host) -> Finding:
    shared = {role.name: _bytes(role.shm) for role in (plan.server, plan.trainer) if role}
    sizes = ", ".join(f"{name} {_gigabytes(size)}" for name, size in shared.items())
    # A container's /dev/shm is memory of this host, taken only as it fills.
    free = host.memory_available_bytes
    if free < sum(shared.values()):
        found = f"{sizes} may be asked for, {_gigabytes(free)} are available"
        return Finding("shm", WARNING, found, "end other programs")
    return Finding("shm", OK, f"of their own: {sizes}")


def memory(plan: StackPlan, host: Host) -> Finding:
    """Whether this host has memory for both roles, containers or not."""
    free, needed = host.memory_available_bytes, MEMORY_BYTES[plan.accelerator]
    found = f"{_gigabytes(free)} of {_gigabytes(host.memory_total_bytes)} available"
    if free < needed:
        fix = f"loading and training take {_gigabytes(needed)} or more; end other programs"
        return Finding("memory", WARNING, found, fix)
    return Finding("memory", OK, found)


def _weight_path(plan: StackPlan) -> Iterable[Finding]:
    if plan.trainer.joined:
        found = (
            "nvlink: both containers see all GPUs of the split, the host's shared memory and one /tmp; not measured yet"
        )
        yield Finding("weight-path", WARNING, found, "leave `weight_path` out if the first push fails")


def _clock(host: Host) -> Iterable[Finding]:
    if host.now is None:
        return
    behind_s = pins.LOCKED_AT - host.now
    if behind_s > 0:
        found = f"{behind_s / 86400:.1f} days behind the day on which these versions were locked; certificates will be refused"
        yield Finding("clock", PROBLEM, found, "set it: sudo timedatectl set-ntp true")
    else:
        yield Finding("clock", OK, "not behind these versions")


def _token(facts: Facts) -> Finding:
    if facts.token:
        return token_file(
            facts.token, "the containers' user", "give them a copy that they can read, outside of the checkout"
        )
    if facts.token_in_environment:
        fix = "write it into a file and name that: export HF_TOKEN_PATH=FILE"
        return Finding("token", WARNING, "HF_TOKEN is set, which no container is given", fix)
    return Finding("token", OK, "none, which does for public models (HF_TOKEN_PATH names a file with one)")


def token_file(token: TokenFile, reader: str, unreadable_fix: str) -> Finding:
    """Whether `reader` can take a token from the file that HF_TOKEN_PATH names."""
    if not token.exists:
        found = f"HF_TOKEN_PATH names {token.path}, which is no file"
        return Finding("token", PROBLEM, found, "mind the path, or unset it")
    if not token.readable:
        return Finding("token", PROBLEM, f"{token.path} cannot be read by {reader}", unreadable_fix)
    if token.empty:
        return Finding("token", WARNING, f"{token.path} is empty", "write a token into it, or unset HF_TOKEN_PATH")
    return Finding("token", OK, f"in {token.path}")


def _proxies(plan: StackPlan, host: Host) -> Iterable[Finding]:
    names = {name for name, _ in host.proxies}
    exempt = all(set(_OWN_NAMES) <= set(words.literal(role.env.get("NO_PROXY", "")).split(",")) for role in plan.roles)
    if not exempt:
        found = f"{', '.join(_OWN_NAMES)} are not exempt in every container"
        yield Finding("proxies", PROBLEM, found, "calls between the roles would go to a proxy; this is a fault of ours")
    for name, value in host.proxies:
        if name.lower() != "no_proxy" and re.match(r"(\w+://)?(localhost|127\.|\[::1\])", value):
            found = f"{name}={value} means the container itself inside of one"
            yield Finding("proxies", WARNING, found, "name the proxy by an address that containers reach")
    for name in ("http_proxy", "https_proxy"):
        if name in names and name.upper() not in names:
            found = f"{name} is set, but containers are given {name.upper()}"
            yield Finding("proxies", WARNING, found, f"run: export {name.upper()}=${name}")
    if exempt:
        set_ones = ", ".join(sorted(names)) or "none set"
        yield Finding("proxies", OK, f"{set_ones}; the roles reach each other without one")


def _offline(facts: Facts) -> Iterable[Finding]:
    if not facts.offline:
        return
    found, fix = "HF_HUB_OFFLINE is set", "run once with HF_HUB_OFFLINE=0, which fills it"
    cache = facts.cache
    if cache is not None and cache.exists is False:
        yield Finding("offline", PROBLEM, f"{found}, and this project has no cache volume yet", fix)
    elif cache is not None and cache.missing:
        lacks = ", ".join(cache.missing[:3]) + (f" and {len(cache.missing) - 3} more" if len(cache.missing) > 3 else "")
        yield Finding("offline", PROBLEM, f"{found}, and the cache volume lacks {lacks}", fix)
    elif cache is not None and cache.missing is not None:
        yield Finding("offline", OK, f"{found}; the cache volume holds the model's weights; its dataset is not checked")
    else:
        found += ": only what the cache volume holds will be used; whether model and dataset are complete there is not"
        yield Finding(
            "offline", OK, f"{found} checked, as only root may look; the prefetch service does, before a GPU is taken"
        )


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])


def _bytes(size: str) -> int:
    """Docker's notation: `16gb` is binary."""
    return int(size.removesuffix("gb")) * 2**30


def _gigabytes(count: int) -> str:
    return f"{count / 10**9:.1f} GB"
