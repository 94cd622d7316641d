"""Whose a run's folder is, for whoever comes later: `status`, `down`, a second `up`.

The `up` of either runtime holds the lock on a file in the folder for as long as it lives; which processes belong to a run of
processes is written down there.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from grpo_stack import process_tree
from grpo_stack.errors import HostError
from grpo_stack.process_tree import Process

FILE = "processes.json"

LOCK = ".lock"
"""A file, since NFS locks nothing that is not open for writing (flock(2)), as no folder can be. It stays when the run is over:
removing it would let two `up`s hold a lock each."""


@dataclass(frozen=True)
class Member:
    """A process of the run: a role's, or `up` itself."""

    name: str
    process: Process
    exit_code: int | None = None


@dataclass(frozen=True)
class State:
    project: str
    boot: str
    """Of the system when it was written; after another boot, no id means anything."""
    runner: Member
    """The `grpo-stack up` that looks after the roles."""
    roles: tuple[Member, ...] = ()

    @property
    def live(self) -> tuple[Member, ...]:
        """Members that still run, `up` first."""
        if self.boot != process_tree.boot():
            return ()
        return tuple(member for member in (self.runner, *self.roles) if process_tree.alive(member.process))


class Record:
    """The state file of a run that this process holds."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def write(self, state: State) -> None:
        """Replace what stands there, at once for whoever reads it meanwhile."""
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(asdict(state), indent=2) + "\n", encoding="utf-8")
        new.replace(self._file)


@contextmanager
def claim(folder: Path) -> Iterator[Record]:
    """The run's folder, held by this process alone until it ends, however that is; HostError if the run is running."""
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)  # less the umask, as for every file of the run
    except OSError as fault:
        reason = (fault.strerror or str(fault)).lower()
        raise HostError(f"outputs: {fault.filename}: {reason}; name another folder: --outputs FOLDER") from None
    try:
        _lock(lock, fcntl.LOCK_EX, folder)
        _require_no_processes(folder)
        yield Record(folder / FILE)
    finally:
        os.close(lock)


def require_idle(folder: Path) -> None:
    """Return if no `up` holds the run, and no process of it is left; else HostError that names them."""
    _require_no_processes(folder)
    try:
        lock = os.open(folder / LOCK, os.O_RDONLY)  # enough for a shared lock, and does not make the file
    except OSError:
        return  # nobody began the run yet, or none for this user to see, which whoever begins it will be told
    try:
        _lock(lock, fcntl.LOCK_SH, folder)  # shared: two that only ask are not in each other's way
    finally:
        os.close(lock)


def _lock(lock: int, kind: int, folder: Path) -> None:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        _require_no_processes(folder)  # says more
        pid = process_tree.holder(lock)
        raise HostError(
            f"run {folder.name} is in use by another `grpo-stack up`"
            f"{f' (pid {pid})' if pid else ', maybe on another host'}; end that one first, or choose another --run"
        ) from None
    except OSError:
        pass  # some file systems have no locks: what was written down must do


def _require_no_processes(folder: Path) -> None:
    left = read(folder)
    if left is None or not left.live:
        return
    names = ", ".join(f"{member.name} (pid {member.process.pid})" for member in left.live)
    killed = "" if left.runner in left.live else f", left by an `up` that was killed: {names}"
    raise HostError(
        f"run {folder.name} is running already{killed}; stop it with "
        f"`grpo-stack down --runtime process --outputs {folder.parent} --run {folder.name}`, or choose another --run"
    )


def read(folder: Path) -> State | None:
    """What was last written there; None where nothing was, or nothing that this version understands."""
    try:
        data = json.loads((folder / FILE).read_text(encoding="utf-8"))
        return State(data["project"], data["boot"], _member(data["runner"]), tuple(map(_member, data["roles"])))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _member(data: dict[str, object]) -> Member:
    process = data["process"]
    assert isinstance(process, dict)
    code = data["exit_code"]
    return Member(str(data["name"]), Process(int(process["pid"]), int(process["started"])), code)  # type: ignore[arg-type]


def live_runs(outputs: Path, project: str) -> list[Path]:
    """Folders in `outputs` whose run is one of `project` and has processes left."""
    states = {file.parent: read(file.parent) for file in sorted(outputs.glob(f"*/{FILE}"))}
    return [folder for folder, state in states.items() if state and state.live and state.project == project]
