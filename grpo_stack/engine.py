"""The Docker Engine: what it is, and what a project's containers do. The only importer of `docker`.

Importing the Docker SDK takes 0.6 s on 2 cores, so it happens inside the functions: `find_client` does without.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from grpo_stack import time_limit
from grpo_stack.errors import HostError
from grpo_stack.facts import Container, Engine

CALL_TIMEOUT_S = 10.0
"""For each answer of the daemon, and for `docker compose version`."""

TOTAL_TIMEOUT_S = 30.0
"""For all that one function here asks the daemon; a daemon that trickles, or an ssh that hangs, is given up then."""

LINE_LIMIT = 1000
"""Characters kept of a log line."""

_PROJECT = "com.docker.compose.project"
_SERVICE = "com.docker.compose.service"
_FILES = "com.docker.compose.project.config_files"
_ONE_OFF = "com.docker.compose.oneoff"
_ENDED = ("exited", "dead", "restarting")
_NVIDIA_HOOK = "nvidia-container-runtime-hook"
_NOT_INSTALLED = "Docker is not installed; let `make build` install it, or see https://docs.docker.com/engine/install/"
_TERMINAL_CODES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")

T = TypeVar("T")


def read() -> Engine:
    """The engine that `docker` on this host talks to, and its Compose.

    Raises HostError, one line for each: no Docker, no Compose, daemon down, no permission, no answer.
    """
    problems: list[str] = []
    # `docker compose version` takes 0.1 s; meanwhile the SDK is imported.
    compose = time_limit.begin(_client_and_compose)
    try:
        version, info, address = _ask(lambda docker: (docker.version(), docker.info(), docker.api.base_url))
    except HostError as error:
        problems += error.problems
    try:
        client, compose_version = compose(TOTAL_TIMEOUT_S)
    except HostError as error:
        problems = [*error.problems, *problems]
    except TimeoutError:
        problems.append(f"`docker compose version` does not end within {TOTAL_TIMEOUT_S:g} s; run it by hand")
    if problems:
        raise HostError(dict.fromkeys(problems))
    # Docker Desktop's engine has a Unix socket here, but lives in a virtual machine.
    local = address == "http+docker://localhost" and info.get("OperatingSystem") != "Docker Desktop"
    return _engine(client, compose_version, version, info, local=local)


def begin() -> Callable[[float], Engine]:
    """Start reading; what waits for `read`'s outcome for at most so many seconds, and raises what it raises."""
    return time_limit.begin(read)


def find_client() -> str:
    """Path of the first `docker` on PATH that has Compose; another one without it may come before.

    Raises HostError when there is none, and says whether Docker or only Compose is missing.
    """
    return _client_and_compose()[0]


def containers(project: str, *, log_lines: int = 0) -> tuple[Container, ...]:
    """The containers of a Compose project in whatever state, by service; `docker compose run` ones are left out.

    `log_lines`: how many of the newest log lines of each to fetch. Raises HostError.
    """

    def find(docker: Any) -> list[Container]:
        # Containers that vanish between the list and the look at each of them are no error.
        boxes = docker.containers.list(all=True, filters={"label": f"{_PROJECT}={project}"}, ignore_removed=True)
        return [_container(box, log_lines) for box in boxes if box.labels.get(_ONE_OFF) != "True"]

    return tuple(sorted(_ask(find), key=lambda container: (container.service, container.name)))


def made_from(file: Path) -> dict[str, tuple[Container, ...]]:
    """The containers in whatever state that Compose made from `file` alone, by project; those of `docker compose run` are
    left out. Raises HostError.

    Compose notes the path that it was given, made absolute (docker/compose, pkg/compose/create.go: ConfigFilesLabel).
    """
    wanted = os.path.realpath(file)

    def find(docker: Any) -> list[tuple[str, Container]]:
        boxes = docker.containers.list(all=True, filters={"label": _FILES}, ignore_removed=True)
        return [
            (box.labels[_PROJECT], _container(box, 0))
            for box in boxes
            if box.labels.get(_ONE_OFF) != "True" and os.path.realpath(box.labels[_FILES]) == wanted
        ]

    return _by_project(_ask(find))


def told_to_write(folder: Path, options: Collection[str]) -> dict[str, tuple[Container, ...]]:
    """The containers in whatever state, whichever file Compose made them from, whose command names `folder` after one of
    `options`, as they see it through a mount; by project, those of `docker compose run` included. Raises HostError.
    """
    wanted = os.path.realpath(folder)

    def find(docker: Any) -> list[tuple[str, Container]]:
        boxes = docker.containers.list(all=True, filters={"label": _PROJECT}, ignore_removed=True)
        return [
            (box.labels[_PROJECT], _container(box, 0))
            for box in boxes
            if wanted in {os.path.realpath(path) for path in _named_on_this_host(box.attrs, options)}
        ]

    return _by_project(_ask(find))


def start(project: str, service: str) -> None:
    """Start the container of `service` again, as it was made; HostError if it is gone or does not start."""

    def again(docker: Any) -> None:
        labels = [f"{_PROJECT}={project}", f"{_SERVICE}={service}", f"{_ONE_OFF}=False"]
        found = docker.containers.list(all=True, filters={"label": labels})
        if not found:
            raise HostError(f"the container of {service} was removed; run `grpo-stack up` again")
        found[0].start()

    _ask(again)


def _ask(question: Callable[[Any], T]) -> T:
    """Put a question to a Docker SDK client, and explain whatever goes wrong."""
    from docker.client import DockerClient
    from docker.context import ContextAPI
    from docker.errors import DockerException

    address = os.environ.get("DOCKER_HOST", "")

    def talk() -> T:
        nonlocal address
        if address:
            client = DockerClient.from_env(timeout=CALL_TIMEOUT_S, use_ssh_client=True)
        else:
            # Contexts are how rootless Docker and Docker Desktop say where their socket is; from_env ignores them.
            name = os.environ.get("DOCKER_CONTEXT") or None
            context = ContextAPI.get_context(name)
            if context is None:
                raise HostError(f"Docker context {name or 'in use'!r} does not exist; see: docker context ls")
            address = context.Host
            client = DockerClient(
                base_url=address, tls=context.TLSConfig or False, timeout=CALL_TIMEOUT_S, use_ssh_client=True
            )
        with closing(client):
            return question(client)

    try:
        return time_limit.call(talk, TOTAL_TIMEOUT_S)
    except (DockerException, OSError) as error:  # requests' own errors are OSErrors, and so is TimeoutError
        raise HostError(_explain(error, address)) from error


def _explain(error: BaseException, address: str) -> str:
    for cause in _chain(error):
        if isinstance(cause, PermissionError):
            return (
                f"no permission for Docker at {address}; run: sudo usermod -aG docker $USER, then log out and in again"
            )
        if isinstance(cause, FileNotFoundError) and shutil.which("docker") is None:
            return _NOT_INSTALLED
        if isinstance(cause, (FileNotFoundError, ConnectionRefusedError)):
            return f"Docker's daemon does not run (nothing listens at {address}); run: sudo systemctl start docker"
        if isinstance(cause, TimeoutError):
            return f"Docker at {address} does not answer in time; see its log: sudo journalctl -u docker -n 50"
    return f"Docker at {address}: {' '.join(str(error).split())}"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _client_and_compose() -> tuple[str, str]:
    candidates = dict.fromkeys(
        os.path.realpath(path)
        for folder in os.get_exec_path()
        if (path := shutil.which("docker", path=folder or os.curdir))
    )
    for path in candidates:
        version = _compose_version(path)
        if version is not None:
            return path, version
    if not candidates:
        raise HostError(_NOT_INSTALLED)
    raise HostError(
        f"no Docker Compose with {', '.join(candidates)}; let `make build` install it, "
        "or see https://docs.docker.com/compose/install/linux/"
    )


def _compose_version(client: str) -> str | None:
    try:
        done = subprocess.run(
            [client, "compose", "version", "--short"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=CALL_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = done.stdout.strip().removeprefix("v")
    # A client without the plugin prints its own help, and that with exit code 0 in some versions.
    return version if done.returncode == 0 and re.fullmatch(r"\d\S*", version) else None


def _engine(client: str, compose_version: str, version: Any, info: Any, *, local: bool) -> Engine:
    names = [component.get("Name", "") for component in version.get("Components") or ()]
    runtimes = tuple(sorted(info.get("Runtimes") or {}))
    spec_dirs = tuple(info.get("CDISpecDirs") or ())
    devices = _cdi_devices(info, spec_dirs if local else ())
    nvidia = "nvidia" in runtimes or any(device.startswith("nvidia.com/gpu=") for device in devices)
    if local:
        nvidia = nvidia or shutil.which(_NVIDIA_HOOK) is not None
    data_root = info.get("DockerRootDir") or None
    return Engine(
        version=version.get("Version", ""),
        api_version=version.get("ApiVersion", ""),
        client=client,
        compose_version=compose_version,
        podman=any("podman" in name.lower() for name in names),
        rootless=any("rootless" in option for option in info.get("SecurityOptions") or ()),
        cgroup_driver=info.get("CgroupDriver") or None,
        runtimes=runtimes,
        default_runtime=info.get("DefaultRuntime") or None,
        cdi_devices=devices,
        cdi_spec_dirs=spec_dirs,
        data_root=data_root,
        data_root_free_bytes=_free_bytes(data_root) if local else None,
        gpus_usable=nvidia or (False if local else None),
    )


def _cdi_devices(info: Any, spec_dirs: tuple[str, ...]) -> tuple[str, ...]:
    """What Engine 28.2 and newer lists; from an older one with CDI switched on, what the specs on this host say."""
    listed = {device.get("ID", "") for device in info.get("DiscoveredDevices") or () if device.get("Source") == "cdi"}
    for folder in spec_dirs if not listed else ():
        for path in sorted(Path(folder).glob("*")):
            listed.update(_devices_of_spec(path))
    return tuple(sorted(listed))


def _devices_of_spec(path: Path) -> list[str]:
    with suppress(OSError, ValueError):
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            return _named(json.loads(text))
        if path.suffix in (".yaml", ".yml"):
            import yaml

            with suppress(yaml.YAMLError):
                return _named(yaml.safe_load(text))
    return []


def _named(spec: Any) -> list[str]:
    devices = spec.get("devices") if isinstance(spec, dict) else None
    return [f"{spec.get('kind')}={device.get('name')}" for device in devices or () if isinstance(device, dict)]


def _free_bytes(folder: str | None) -> int | None:
    with suppress(OSError):
        return shutil.disk_usage(folder).free if folder else None
    return None


def _by_project(found: Iterable[tuple[str, Container]]) -> dict[str, tuple[Container, ...]]:
    by_project: dict[str, tuple[Container, ...]] = {}
    for project, container in sorted(found, key=lambda pair: (pair[0], pair[1].service, pair[1].name)):
        by_project[project] = (*by_project.get(project, ()), container)
    return by_project


def _named_on_this_host(attrs: Any, options: Collection[str]) -> list[str]:
    """What a container's command names after one of `options`, where that lies under a mount: the paths outside."""
    # Of what Compose gives a container, Args holds the entrypoint's further words and the command's.
    values = [value for option, value in pairwise(attrs["Args"] or ()) if option in options]
    return [
        os.path.join(mount["Source"], os.path.relpath(value, mount["Destination"]))  # noqa: PTH118
        for value in values
        for mount in attrs["Mounts"] or ()
        if mount.get("Source") and PurePosixPath(value).is_relative_to(mount["Destination"])
    ]


def _container(box: Any, log_lines: int) -> Container:
    state = box.attrs["State"]
    health = (state.get("Health") or {}).get("Status")
    return Container(
        name=box.name,
        service=box.labels.get(_SERVICE, ""),
        state=state["Status"],
        exit_code=state["ExitCode"] if state["Status"] in _ENDED else None,
        health=None if health == "none" else health,
        oom_killed=bool(state.get("OOMKilled")),
        last_lines=_last_lines(box, log_lines) if log_lines else (),
    )


def _last_lines(box: Any, count: int) -> tuple[str, ...]:
    from docker.errors import APIError

    try:
        text = box.logs(tail=count).decode("utf-8", "replace")
    except APIError:
        return ()  # gone since, or a log driver that cannot be read
    # A progress bar rewrites its line: what is to be seen is what follows the last carriage return.
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    clean = [_TERMINAL_CODES.sub("", line).rstrip()[:LINE_LIMIT] for line in lines]
    return tuple(line for line in clean if line)[-count:]
