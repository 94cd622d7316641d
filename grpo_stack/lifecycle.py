"""Brings a rendered stack up, follows its run to the end, and takes it down again.

Runs `docker compose` as a child, in a process group of its own, so that Ctrl-C reaches this program alone and the stack is
then taken down in order.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from grpo_stack import engine
from grpo_stack.children import child, tail
from grpo_stack.errors import ChildError, HostError, RunError
from grpo_stack.facts import Container
from grpo_stack.follow import GAVE_UP, follow, obituary, quoted
from grpo_stack.occupancy import RUNNING
from grpo_stack.programs import PREFETCH, SERVER, TRAINER
from grpo_stack.progress import Progress
from grpo_stack.stopping import interruptible

BUILD_LIMIT_S = 2 * 3600
"""Downloading and unpacking the CUDA set over a slow line."""

STOP_LIMIT_S = 20
"""Between SIGTERM and SIGKILL when the stack is taken down: time for a checkpoint if the run is interrupted, and little
enough that Ctrl-C is through within half a minute."""

POLL_S = 1.0


@dataclass(frozen=True)
class Stack:
    """A rendered stack on this host."""

    project: str
    """Name of the Compose project; two stacks on one host need two."""
    file: Path
    directory: Path
    """What relative paths in the file are relative to."""
    run_folder: Path
    """Where the trainer writes, on this host."""
    env: Mapping[str, str]
    """Environment of `docker compose`."""
    client: str
    """A docker command that has Compose."""
    services: tuple[str, ...]
    """In the order in which they start; without vllm-server where the trainer generates by itself."""

    def compose(self, *words: str) -> list[str]:
        base = [self.client, "compose", "--project-name", self.project, "--file", str(self.file)]
        return [*base, "--project-directory", str(self.directory), *words]

    @property
    def logs(self) -> Path:
        return self.run_folder / "logs"


def up(stack: Stack, progress: Progress) -> int:
    """Build, start, follow and take down; the trainer's exit code. Whatever happens, nothing keeps running.

    Raises HostError if the project is running already or the images cannot be built, ChildError with the exit code of a service that failed, RunError if the
    server ended before the trainer, KeyboardInterrupt on a signal, which is obeyed until the stack is being taken down.
    """
    with interruptible() as signals:
        refuse_second(stack.project)  # asked last thing: from here on, all of the project's is taken down at the end
        try:
            _build(stack, progress)
            _start(stack, progress)
            return _follow(stack, progress)
        finally:
            signals.obeyed = False
            _save_logs(stack)
            progress.detail("stopping")
            down(stack.client, stack.project, STOP_LIMIT_S)
            progress.phase("stopped; caches and outputs are kept")


def down(client: str, project: str, limit_s: int) -> None:
    """Stop and remove the containers and networks of `project`; its volumes stay. HostError if that does not work."""
    argv = [client, "compose", "--project-name", project, "down", "--remove-orphans", "--timeout", str(limit_s)]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=limit_s + 60, start_new_session=True, check=False
        )
    except subprocess.TimeoutExpired:
        raise HostError(f"docker compose down did not end within {limit_s + 60} s; look at: docker ps") from None
    if done.returncode:
        raise HostError(f"docker compose down failed: {_last_line(done.stderr)}; look at: docker ps")


def refuse_second(project: str) -> None:
    """HostError if containers of `project` run already."""
    running = [box.service for box in engine.containers(project) if box.state in RUNNING]
    if running:
        names = ", ".join(sorted(running))
        raise HostError(
            f"a stack called {project} is running already ({names}); stop it with `grpo-stack down`, "
            "or give this one names of its own with --project and --run"
        )


def _build(stack: Stack, progress: Progress) -> None:
    progress.phase("building the images (minutes the first time, seconds after that)")
    log = stack.logs / "build.log"
    code = _run_logged(stack, ("--progress", "plain", "build"), log, BUILD_LIMIT_S, progress)
    if code:
        raise HostError(f"the images could not be built; the last lines of {log}:\n{quoted(tail(log, 12))}")


def _start(stack: Stack, progress: Progress) -> None:
    """Start all services in order; returns once model and dataset are there, and the others run."""
    log = stack.logs / "up.log"
    with log.open("w") as output, child(stack.compose("up", "--detach", "--no-build"), stack.env, output) as process:
        progress.phase("fetching model and dataset")
        while process.poll() is None:
            boxes = {box.service: box for box in engine.containers(stack.project, log_lines=1)}
            prefetch = boxes.get(PREFETCH)
            if prefetch and prefetch.state == "running":
                progress.detail(prefetch.last_lines[-1] if prefetch.last_lines else "")
            time.sleep(POLL_S)
    if process.returncode:
        _raise_for_failed(stack, tail(log, 3))


def _raise_for_failed(stack: Stack, output: list[str]) -> None:
    """Name the service that failed, with its own last words; the exit code is its own where it means something."""
    boxes = {box.service: box for box in engine.containers(stack.project, log_lines=15)}
    for name in stack.services:
        box = boxes.get(name)
        if box is None or box.state in ("created", "running"):
            continue
        if name == PREFETCH and box.exit_code in (2, 3):
            raise ChildError(box.last_lines, box.exit_code)
        if box.exit_code or name == SERVER:
            raise RunError(_obituary(stack, name, boxes))
    raise RunError(
        f"docker compose up failed: {output[-1] if output else 'it said nothing'}; all it said: {stack.logs / 'up.log'}"
    )


def _obituary(stack: Stack, name: str, boxes: Mapping[str, Container]) -> str:
    box = boxes[name]
    end = "ran out of memory" if box.oom_killed else f"ended with exit code {box.exit_code}"
    said = {name: box.last_lines}
    if box.exit_code in GAVE_UP:
        said |= {other: boxes[other].last_lines for other in (SERVER, TRAINER) if other in boxes}
    return obituary(name, end, said, stack.logs)


def _follow(stack: Stack, progress: Progress) -> int:
    """Show each step until the run ends; the trainer's exit code."""
    box = follow(
        stack.services,
        stack.run_folder,
        progress,
        lambda: engine.containers(stack.project, log_lines=1),
        lambda service: engine.start(stack.project, service),
    )
    if box.service == TRAINER and not box.exit_code:
        return 0
    text = _obituary(
        stack, box.service, {each.service: each for each in engine.containers(stack.project, log_lines=15)}
    )
    raise ChildError(text, box.exit_code or 0) if box.service == TRAINER else RunError(text)


def _save_logs(stack: Stack) -> None:
    """Keep what the services said; best effort, since it must neither hide why the run ended nor keep the stack running."""
    for service in stack.services:
        argv = stack.compose("logs", "--no-color", "--no-log-prefix", "--timestamps", service)
        # OSError: a full disk, for example.
        with (
            suppress(OSError, subprocess.TimeoutExpired),
            (stack.logs / f"{service}.log").open("w") as output,
            child(argv, stack.env, output) as process,
        ):
            process.wait(timeout=30)


def _run_logged(stack: Stack, words: tuple[str, ...], log: Path, limit_s: float, progress: Progress) -> int:
    """Run `docker compose …` with its output in `log`, showing its last line; its exit code, or HostError after the limit."""
    deadline = time.monotonic() + limit_s
    with log.open("w") as output, child(stack.compose(*words), stack.env, output) as process:
        while process.poll() is None:
            if time.monotonic() > deadline:
                raise HostError(f"docker compose {words[-1]} took longer than {limit_s:.0f} s; its output is in {log}")
            if lines := tail(log, 1):
                progress.detail(lines[-1])
            time.sleep(POLL_S)
    return process.returncode


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
