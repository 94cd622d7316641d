"""Looks at, and ends, a run of processes from outside: by the state in its folder, never by a bare process id."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable
from pathlib import Path

from grpo_stack import process_tree, run_state
from grpo_stack.errors import HostError
from grpo_stack.process_tree import Process
from grpo_stack.programs import TRAINER
from grpo_stack.run_state import Member, State

ASKED_LIMIT_S = 150.0
"""How long a run may take to end when asked: a trainer's checkpoint, and the server after it."""

KILL_LIMIT_S = 10.0
"""How long killed processes may take to go."""


def status(folder: Path) -> list[dict[str, object]]:
    """What is known of each role of the run in `folder`."""
    state = run_state.read(folder)
    live = state.live if state else ()
    return [
        {
            "run": folder.name,
            "service": member.name,
            "state": "running" if member in live else "exited" if member.exit_code is not None else "gone",
            "pid": member.process.pid if member in live else None,
            "exit_code": member.exit_code,
        }
        for member in (state.roles if state else ())
    ]


def down(folder: Path, limit_s: float) -> bool:
    """Stop what is left of the run in `folder`: its `up` takes it down in order; without one, each role is asked here.

    Whether anything was left. `limit_s`: for each to end when asked, before all is killed. HostError if something could not be ended.
    """
    state = run_state.read(folder)
    members = state.live if state else ()
    if not state or not members:
        return False
    tree = process_tree.below(*(member.process.pid for member in members)) | {member.process for member in members}
    for member in _in_order(state, members):
        process_tree.send([member.process], signal.SIGTERM, signal.SIGCONT)
        _until_gone([member.process], limit_s)
    if not _until_gone(tree, 1):
        process_tree.send(_living(tree), signal.SIGKILL)
        if not _until_gone(tree, KILL_LIMIT_S):
            left = ",".join(str(process.pid) for process in _living(tree))
            raise HostError(f"processes {left} of run {folder.name} could not be ended; look at: ps -fp {left}")
    return True


def _in_order(state: State, members: Iterable[Member]) -> list[Member]:
    """Whom to ask: `up` alone if it is there, else the trainer before the server."""
    return [member for member in members if member == state.runner] or sorted(
        members, key=lambda member: member.name != TRAINER
    )


def _until_gone(processes: Iterable[Process], limit_s: float) -> bool:
    known = list(processes)
    return process_tree.until(lambda: not _living(known), limit_s, time.monotonic, time.sleep)


def _living(processes: Iterable[Process]) -> list[Process]:
    return [process for process in processes if process_tree.alive(process)]
