"""Whether a run's folder is in use, by whichever runtime: a second trainer would go on from the first one's checkpoints."""

from __future__ import annotations

import os
from pathlib import Path

from grpo_stack import engine, run_state
from grpo_stack.errors import HostError
from grpo_stack.render import compose

RUNNING = ("running", "restarting", "paused")
"""States of a container that works, or will go on to."""

_WRITERS = ("--outputs", "--output_dir")
"""What download and training are told their run's folder by, in whichever Compose file (`programs`)."""


def require_free(folder: Path, *, with_docker: bool) -> None:
    """Return if nothing works on the run in `folder`; else HostError that says what does, and how to end it.

    Containers outlive an `up` that was killed, and with it the lock on the folder, and a plain `docker compose up` holds none, so
    Docker is asked; one that does not answer is an error only `with_docker`.
    """
    _require_no_containers(folder, with_docker)
    run_state.require_idle(folder)


def _require_no_containers(folder: Path, with_docker: bool) -> None:
    if not os.path.exists(folder.parent):  # noqa: PTH110  # fails for no name, and for no folder that is closed to this user
        return  # Docker has made whatever is mounted
    file = folder / compose.FILE
    try:
        found = [*engine.told_to_write(folder, _WRITERS).items()]
        if os.path.exists(file):  # noqa: PTH110  # the same
            found += engine.made_from(file).items()  # a server that is left, too
    except HostError:
        if with_docker:
            raise
        return
    for project, boxes in found:
        if running := ", ".join(box.service for box in boxes if box.state in RUNNING):
            raise HostError(
                f"run {folder.name} is running already, in containers of the project {project} ({running}); "
                f"stop it with `grpo-stack down --project {project}`, or choose another --run"
            )
