"""What this host's files, disk, memory and ports look like, for `preflight` to judge."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from grpo_stack import paths, snapshots
from grpo_stack.facts import FolderSpace, Host, ModelFolder, PortInUse, TokenFile

_MEMINFO = Path("/proc/meminfo")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


def read(folders: Iterable[str] = (), ports: Iterable[int] = (), environment: Mapping[str, str] | None = None) -> Host:
    """This host's size, the space in `folders`, which of `ports` are taken on 127.0.0.1, and `environment`'s proxies."""
    memory = _memory()
    return Host(
        cpus=len(os.sched_getaffinity(0)),
        memory_total_bytes=memory["MemTotal"],
        memory_available_bytes=memory["MemAvailable"],
        shm_free_bytes=_free(Path("/dev/shm")),
        folders=tuple(_folder(Path(folder)) for folder in folders),
        ports_in_use=tuple(PortInUse(port, "127.0.0.1") for port in sorted(ports) if _taken(port)),
        proxies=_proxies(environment or {}),
        now=time.time(),
    )


def token_file(path: str, uid: int) -> TokenFile:
    """The token file at `path`, as the user `uid` of the containers will find it; what stands in it is not kept."""
    file = paths.expanded(path).absolute()
    if not paths.is_file(file):
        return TokenFile(str(file), exists=False)
    readable = paths.allows(file, uid, paths.READ)
    return TokenFile(str(file), exists=True, readable=readable, empty=file.stat().st_size == 0)


def model_folder(path: str, uid: int, mounted: bool = True) -> ModelFolder:
    """The model folder at `path`, as the user `uid` of the containers will find it; `mounted`: there, and not here."""
    folder = Path(path)
    if not paths.is_hidden(path) and not paths.is_folder(path):
        return ModelFolder(path, exists=False)
    if not (os.access(path, paths.ENTER) and paths.allows(path, uid, paths.ENTER)):
        return ModelFolder(path, exists=True, closed=True)
    files = sorted(file for file in folder.iterdir() if paths.is_file(file))
    unreadable = tuple(file.name for file in files if not paths.allows(file, uid, paths.READ))
    has_config, missing = paths.is_file(folder / "config.json"), snapshots.missing(folder)
    leading_out = tuple(file.name for file in files if _leads_out(file)) if mounted else ()
    return ModelFolder(path, True, has_config, unreadable, missing, leading_out=leading_out)


def _leads_out(file: Path) -> bool:
    """Whether `file` is a link that is of no use where its folder has another path and nothing beside it is there."""
    if not file.is_symlink():
        return False
    folder = os.path.realpath(file.parent)
    return file.readlink().is_absolute() or os.path.commonpath([folder, os.path.realpath(file)]) != folder


def _proxies(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    names = [name for upper in _PROXIES for name in (upper, upper.lower())]
    return tuple((name, without_password(environment[name])) for name in names if environment.get(name))


def without_password(address: str) -> str:
    """A proxy's address without user and password."""
    if "@" not in address:
        return address
    scheme, mark, rest = address.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}" if mark else address.rpartition("@")[2]


def _memory() -> dict[str, int]:
    """/proc/meminfo in bytes."""
    fields = (line.split() for line in _MEMINFO.read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in fields if len(words) > 1}


def _folder(folder: Path) -> FolderSpace:
    parent = folder.absolute()
    while not paths.exists(parent):
        parent = parent.parent
    return FolderSpace(str(folder), _free(parent), os.access(parent, os.W_OK) and parent.is_dir())


def _free(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _taken(port: int) -> bool:
    """Whether something already holds `port` on 127.0.0.1; SO_REUSEADDR, as Docker's proxy binds it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False
