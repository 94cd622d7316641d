"""The plan as a Compose file.

Needs Compose 2.24 (`start_interval`) and Engine 25. Only the variables that the plan names, and those of `SETTINGS`, are
taken from the environment of `docker compose`, and the header lists them; every other `$` is doubled.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from typing import Any

from grpo_stack import plan as planning
from grpo_stack import words
from grpo_stack.plan import Mount, Role, StackPlan
from grpo_stack.render import yamltext
from grpo_stack.split import SHARED
from grpo_stack.words import Variable, Word

FILE = "compose.yaml"
MADE_BY = "Made by: "
"""How the first line of a rendered file begins."""

PROJECT = "grpo-stack"

SETTINGS = {
    "HF_TOKEN_PATH": "file with a Hugging Face token, for gated models (default: none)",
    "HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE": "1: fetch nothing, use what the cache volume holds",
    "HF_ENDPOINT": "a mirror of the Hub",
    "HTTP_PROXY, HTTPS_PROXY, NO_PROXY": "the way to the Hub",
    "GRPO_STACK_UID, GRPO_STACK_GID": "owner of the files in the output folder (default: 1000)",
    "BASE_IMAGE, INDEX_URL, EXTRA_INDEX_URL, WHEELS_DIR, CA_BUNDLE": "what images are built from; see docs/images.md",
}
"""Host variables that every Compose file of the stack understands."""

CHOICES = {"MODEL": "Hub id", "RUN": "folder in the output folder; one that is there is continued"}
"""Those that a description may leave open."""

_PRIVATE, _OUTSIDE, _PUBLISHED = "stack", "outside", "published"

_NO_WAY_OUT = {"driver_opts": {"com.docker.network.bridge.enable_ip_masquerade": "false"}}
"""For a network that is reached from this host, and from which no answer comes back that was asked for outside."""

_SHARED_TMP = "shared-tmp"
"""The volume that is /tmp on both sides where NCCL's sockets must be seen by both."""


def render(plan: StackPlan, command: str) -> dict[str, str]:
    """`{"compose.yaml": text}`; `command` is what the header names as its maker."""
    services = {role.name: _service(role, plan) for role in plan.roles}
    document = {
        "name": PROJECT,
        "services": services,
        "networks": {
            _PRIVATE: {"internal": True},
            _OUTSIDE: {},
            **({_PUBLISHED: _NO_WAY_OUT} if _is_published(plan) else {}),
        },
        "volumes": {name: {} for name in (*planning.CACHES, *({_SHARED_TMP} if _is_joined(plan) else ()))},
        "secrets": {
            "hf_token": {"file": "${HF_TOKEN_PATH:-/dev/null}"},
            "ca_bundle": {"file": "${CA_BUNDLE:-/dev/null}"},
        },
    }
    return {FILE: yamltext.dump(document, _header(plan, command))}


def _header(plan: StackPlan, command: str) -> tuple[str, ...]:
    lines = [f"{MADE_BY}{command}", "Change the description and render again; edits here are lost.", ""]
    for role in plan.roles[1:]:
        lines += [f"{role.name}:", f"    {shell_line(role.argv)}", ""]
    if plan.split and plan.split.mode == SHARED:
        lines += ["Both sides share one GPU: for development and tests, not for production.", ""]
    if _is_joined(plan):
        lines += ["Weights go from GPU to GPU (weight_path: nvlink); that was not measured yet.", ""]
    lines.append("Taken from the environment of `docker compose`:")
    lines += [f"    {name}: {meaning}" for name, meaning in {**_choices(plan), **SETTINGS}.items()]
    return tuple(lines)


def _choices(plan: StackPlan) -> dict[str, str]:
    """The variables of the description, as far as the plan still holds them, with what stands for each."""
    found = {
        part for role in plan.roles for word in role.argv for part in words.parts(word) if isinstance(part, Variable)
    }
    return {
        part.name: f"{CHOICES.get(part.name, 'named in stack.yaml')} (default: {part.default})"
        for part in sorted(found, key=lambda part: part.name)
    }


def shell_line(argv: tuple[Word, ...]) -> str:
    """`argv` as one line that a shell reads back as the same words, defaults standing for host variables."""
    return " ".join(_quote(words.literal(word)) for word in argv)


def _quote(text: str) -> str:
    if text.isprintable():
        return shlex.quote(text)
    return "$" + "'" + text.encode("unicode_escape").decode().replace("'", "\\'") + "'"


def _service(role: Role, plan: StackPlan) -> dict[str, Any]:
    service: dict[str, Any] = {
        "image": f"grpo-stack/{role.image}:{plan.tag}",
        "build": _build(role, plan),
        "hostname": role.name,
        "user": "${GRPO_STACK_UID:-1000}:${GRPO_STACK_GID:-1000}",
    }
    if role.files or role.supervisor:
        service["entrypoint"] = [_text(word) for word in (*_writer(role), *role.supervisor)]
    service["command"] = [_text(word) for word in role.argv]
    service["environment"] = {name: _text(value) for name, value in role.env.items()}
    service["environment"] |= {_variable(path): _escape(yamltext.dump(data)) for path, data in role.files.items()}
    if role.needs_token:
        service["environment"] |= {"HF_TOKEN_PATH": "/run/secrets/hf_token", "CA_BUNDLE_PATH": "/run/secrets/ca_bundle"}
        service["secrets"] = ["hf_token", "ca_bundle"]
    service["volumes"] = _volumes(role)
    service["networks"] = _networks(role)
    if role.publish:
        service["ports"] = [f"127.0.0.1:{role.publish}:{_port(role)}"]
    if role.gpus:
        service["deploy"] = _reservation((*role.gpus, *role.other_gpus))
    if role.probe:
        service["healthcheck"] = _healthcheck(role.probe, plan.boot_timeout_s)
    service["depends_on"] = _dependencies(role, plan)
    return {key: value for key, value in {**service, **_hardening(role)}.items() if value not in ({}, [])}


def _writer(role: Role) -> tuple[str, ...]:
    """Words in front of a command that write the role's files first.

    Compose copies a config with inline content into the container, which a read-only one refuses (docker/compose#12031);
    and a path to a file of this host would have to be right from every folder that the stack is started in.
    """
    if not role.files:
        return ()
    writes = [f'printf %s "${_variable(path)}" > {shlex.quote(path)} && ' for path in role.files]
    return ("sh", "-c", "".join(writes) + 'exec "$@"', "sh")


def _variable(path: str) -> str:
    """The environment variable that carries a file into its container: ACCELERATE_YAML for /tmp/accelerate.yaml."""
    return re.sub(r"\W", "_", posixpath.basename(path)).upper()


def _build(role: Role, plan: StackPlan) -> dict[str, Any]:
    return {
        "context": _escape(plan.source),
        "dockerfile": "docker/Dockerfile",
        "target": role.image,
        "args": {
            "ACCELERATOR": plan.accelerator,
            "PINS": plan.pins.name,
            "BASE_IMAGE": "${BASE_IMAGE:-debian:bookworm-20250520-slim}",
            "INDEX_URL": "${INDEX_URL:-}",
            "EXTRA_INDEX_URL": "${EXTRA_INDEX_URL:-}",
        },
        "additional_contexts": {"wheels": "${WHEELS_DIR:-" + _escape(plan.source).rstrip("/") + "/docker/wheels}"},
        "secrets": ["ca_bundle"],
    }


def _networks(role: Role) -> list[str]:
    outside = [_OUTSIDE] if role.internet else []
    # Docker publishes no port of a container that is on an internal network alone.
    published = [_PUBLISHED] if role.publish else []
    return outside if role.needs_token else [_PRIVATE, *outside, *published]


def _volumes(role: Role) -> list[dict[str, Any]]:
    caches = [{"type": "volume", "source": name, "target": target} for name, target in planning.CACHES.items()]
    shared = [{"type": "volume", "source": _SHARED_TMP, "target": "/tmp"}] if role.joined else []
    return [*caches, *shared, *(_bind(mount) for mount in role.mounts)]


def _is_joined(plan: StackPlan) -> bool:
    return any(role.joined for role in plan.roles)


def _is_published(plan: StackPlan) -> bool:
    return any(role.publish for role in plan.roles)


def _bind(mount: Mount) -> dict[str, Any]:
    """A bind mount that fails where its source is missing, instead of leaving an empty folder that root owns."""
    bind = {"type": "bind", "source": _escape(mount.source), "target": _escape(mount.target)}
    return {**bind, "read_only": mount.read_only, "bind": {"create_host_path": False}}


def _reservation(gpus: tuple[str, ...]) -> dict[str, Any]:
    device = {"driver": "nvidia", "device_ids": list(gpus), "capabilities": ["gpu"]}
    return {"resources": {"reservations": {"devices": [device]}}}


def _healthcheck(probe: tuple[Word, ...], boot_timeout_s: int) -> dict[str, Any]:
    limit = planning.CALL_TIMEOUT_S
    return {
        "test": ["CMD", *(_text(word) for word in probe), "--timeout", str(limit)],
        "start_period": f"{boot_timeout_s}s",
        "start_interval": "3s",
        "interval": "30s",
        "timeout": f"{limit + 5}s",
        "retries": 3,
    }


def _dependencies(role: Role, plan: StackPlan) -> dict[str, Any]:
    if role is plan.prefetch:
        return {}
    needs = {plan.prefetch.name: {"condition": "service_completed_successfully"}}
    if role is plan.trainer and plan.server:
        # Not service_healthy: the trainer imports while the server loads, and goes no further before its own gate says so.
        needs[plan.server.name] = {"condition": "service_started"}
    return needs


def _hardening(role: Role) -> dict[str, Any]:
    return {
        "init": True,
        "read_only": True,
        "tmpfs": [*([] if role.joined else ["/tmp:exec,mode=1777"]), "/home/stack:exec,mode=1777"],
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        # The host's own /dev/shm has the host's own size.
        **({"ipc": "host"} if role.joined else {"shm_size": role.shm}),
        "ulimits": dict(role.ulimits),
        "stop_grace_period": f"{role.stop_grace_s}s",
        "logging": {"driver": "json-file", "options": {"max-size": "50m", "max-file": "5"}},
    }


def _port(role: Role) -> str:
    return words.literal(role.argv[role.argv.index("--port") + 1])


def _text(word: Word) -> str:
    """A word as Compose reads it: its variables to be expanded, its other dollars not."""
    return "".join(
        _escape(part) if isinstance(part, str) else f"${{{part.name}:-{part.default}}}" for part in words.parts(word)
    )


def _escape(text: str) -> str:
    return text.replace("$", "$$")
