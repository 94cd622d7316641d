"""Processes of this host as /proc shows them: who descends from whom, and whether an id still means the same process."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


@dataclass(frozen=True)
class Process:
    """One process, told apart from a later one that was given the same id."""

    pid: int
    started: int
    """Clock ticks between the boot of the system and its start (proc_pid_stat(5), field 22)."""


@dataclass(frozen=True)
class _Seen:
    process: Process
    parent: int
    ended: bool
    """It is a zombie: gone, but for its exit code."""


def adopt_orphans() -> None:
    """Hand every orphan below this process to it, instead of to the system's first process, where none would find it."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def find(pid: int) -> Process | None:
    """The running process with that id."""
    seen = _read(pid)
    return seen.process if seen and not seen.ended else None


def boot() -> str:
    """Another text after each boot of the system, which starts the ticks anew."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def alive(process: Process) -> bool:
    """Whether that very process still runs."""
    return find(process.pid) == process


def below(*ancestors: int) -> set[Process]:
    """Every running process that descends from one of `ancestors`, those not counted."""
    every = [seen for entry in _PROC.glob("[0-9]*") if (seen := _read(int(entry.name)))]
    found = set(ancestors)
    while more := {seen.process.pid for seen in every if seen.parent in found} - found:
        found |= more
    return {seen.process for seen in every if seen.process.pid in found - set(ancestors) and not seen.ended}


def ended_children(parent: int) -> set[Process]:
    """Children of `parent` that have ended and wait for it to take note."""
    every = [seen for entry in _PROC.glob("[0-9]*") if (seen := _read(int(entry.name)))]
    return {seen.process for seen in every if seen.parent == parent and seen.ended}


def send(processes: Iterable[Process], *signs: signal.Signals) -> None:
    """Send `signs` to each that still runs; never to a stranger who was given its id."""
    for process in processes:
        for sign in signs:
            if alive(process):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(process.pid, sign)


def holder(file: int) -> int | None:
    """The process that holds the lock (flock) on an open file, as far as /proc/locks shows it: not one of another container."""
    stat = os.fstat(file)
    place = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"  # proc_locks(5)
    with suppress(OSError):
        for line in (_PROC / "locks").read_text().splitlines():
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5] == place and int(fields[4]) > 0:
                return int(fields[4])
    return None


def until(done: Callable[[], bool], limit_s: float, clock: Callable[[], float], sleep: Callable[[float], None]) -> bool:
    """Whether `done` came true within the limit; asked ten times a second."""
    end = clock() + limit_s
    while not done():
        if clock() >= end:
            return False
        sleep(0.1)
    return True


def _read(pid: int) -> _Seen | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None  # it has ended meanwhile
    # The name in brackets may hold anything, brackets and spaces included; field 3 follows it.
    fields = text.rpartition(")")[2].split()
    return _Seen(Process(pid, int(fields[19])), int(fields[1]), fields[0] in "ZX")
