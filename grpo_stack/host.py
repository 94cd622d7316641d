"""What this host's files, disk, memory and ports look like, for `preflight` to judge."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from grpo_stack import snapshots
from grpo_stack.facts import DatasetFile, FolderSpace, Host, ModelFolder, PortInUse, TokenFile

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
    file = Path(path).expanduser().absolute()
    if not file.is_file():
        return TokenFile(str(file), exists=False)
    return TokenFile(str(file), exists=True, readable=_readable(file, uid), empty=file.stat().st_size == 0)


def model_folder(path: str, uid: int) -> ModelFolder:
    """The model folder at `path`, as the user `uid` of the containers will find it."""
    folder = Path(path)
    if not folder.is_dir():
        return ModelFolder(path, exists=False)
    files = sorted(file for file in folder.iterdir() if file.is_file())
    unreadable = tuple(file.name for file in files if not _readable(file, uid))
    has_config, missing = (folder / "config.json").is_file(), snapshots.missing(folder)
    return ModelFolder(path, exists=True, has_config=has_config, unreadable=unreadable, missing=missing)


def dataset_file(path: str) -> DatasetFile:
    """The dataset file at `path`, and the columns of its first record if it is JSON or JSON lines."""
    file = Path(path)
    if not file.is_file():
        return DatasetFile(path, exists=False)
    if file.suffix == ".parquet":
        return DatasetFile(path, exists=True)
    try:
        record = _first_record(file)
    except (OSError, ValueError) as fault:
        return DatasetFile(path, exists=True, problem=str(fault))
    return DatasetFile(path, exists=True, columns=tuple(record))


def _first_record(file: Path) -> dict[str, object]:
    """The first object of a JSON-lines file, or of a JSON list; ValueError says what stands there instead."""
    with file.open(encoding="utf-8") as lines:
        first = next((line for line in lines if line.strip()), "")
        if not first:
            raise ValueError("it is empty")
        try:
            value = json.loads(first)
        except ValueError:
            lines.seek(0)
            try:
                value = json.loads(lines.read())
            except ValueError as fault:
                raise ValueError(f"line 1 is no JSON: {fault}") from None
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, dict):
        raise ValueError(f"its first record is {type(value).__name__}, not an object with columns")
    return value


def _proxies(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    names = [name for upper in _PROXIES for name in (upper, upper.lower())]
    return tuple((name, _without_password(environment[name])) for name in names if environment.get(name))


def _without_password(address: str) -> str:
    """A proxy's address without user and password."""
    if "@" not in address:
        return address
    scheme, mark, rest = address.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}" if mark else address.rpartition("@")[2]


def _readable(file: Path, uid: int) -> bool:
    found = file.stat()
    return bool(found.st_mode & stat.S_IROTH) or (found.st_uid == uid and bool(found.st_mode & stat.S_IRUSR))


def _memory() -> dict[str, int]:
    """/proc/meminfo in bytes."""
    fields = (line.split() for line in _MEMINFO.read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in fields if len(words) > 1}


def _folder(folder: Path) -> FolderSpace:
    parent = folder.absolute()
    while not parent.exists():
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
