"""Follows a started stack to its end: shows what happens, and brings back a container that was ended from outside.

What goes wrong inside a container, its own supervisor mends, and ends it with an exit code of ours when it gives up. A
container that was killed as a whole, or stopped by somebody else or with the daemon, has nobody inside who could.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_stack.errors import HostError, RunError
from grpo_stack.facts import Container
from grpo_stack.programs import SERVER, TRAINER
from grpo_stack.progress import Progress
from grpo_stack.supervise import events

FROM_OUTSIDE = (0, 130, 137, 143)
"""Exit codes of a server that did not end by its own decision: 0 and 130 after SIGTERM, 137 and 143 by a signal."""

GAVE_UP = (4, 5)
"""Exit codes of a supervisor that has given up on the other side, or cannot tell which side is at fault."""

RETURN_S = 5.0
"""How long a stopped container may take to come back by itself, as with `docker compose restart`."""

SILENCE_S = 180.0
"""How long Docker itself may be away: a restarted daemon, an upgrade of it."""

RESTARTS = 5
"""How often a container is brought back without a new step in between."""

POLL_S = 1.0

AGAIN = "start the run again with the same --run: it goes on from its newest complete checkpoint"


@dataclass(frozen=True)
class Look:
    """One look at the stack: its containers by service, or nothing where Docker does not answer."""

    at: float
    boxes: Mapping[str, Container] | None
    steps: int
    """Steps seen so far."""


@dataclass
class Watcher:
    """Decides, look by look; knows no Docker and no clock."""

    services: tuple[str, ...]
    lost: dict[str, float] = field(default_factory=dict)
    """When each missing container was first seen to be missing."""
    restarts: dict[str, int] = field(default_factory=dict)
    steps: int = 0
    answered: float | None = None

    def decide(self, look: Look) -> tuple[str, str]:
        """`("go on" | "start" | "ended" | "failed", service)`. HostError once Docker is silent for too long, RunError for a
        container that is gone or was brought back too often."""
        if look.boxes is None:
            self.answered = look.at if self.answered is None else self.answered
            if look.at - self.answered > SILENCE_S:
                raise HostError(
                    f"Docker has not answered for {SILENCE_S:.0f} s; the stack's containers may still run: look at "
                    "`grpo-stack status` when it answers again, and end them with `grpo-stack down`"
                )
            return "go on", ""
        self.answered = look.at
        if look.steps > self.steps:
            self.steps, self.restarts = look.steps, {}
        for service in (TRAINER, SERVER):
            if service in self.services and (verdict := self._of(service, look.boxes.get(service), look.at)):
                return verdict, service
        return "go on", ""

    def _of(self, service: str, box: Container | None, now: float) -> str:
        if box is None:
            raise RunError(f"the container of {service} was removed while it ran; {AGAIN}")
        if box.state not in ("exited", "dead"):
            self.lost.pop(service, None)
            return ""
        if service == TRAINER and box.exit_code == 0:
            return "ended"
        if box.exit_code not in FROM_OUTSIDE:
            return "failed"
        if now - self.lost.setdefault(service, now) < RETURN_S:
            return ""
        self.restarts[service] = self.restarts.get(service, 0) + 1
        if self.restarts[service] > RESTARTS:
            raise RunError(
                f"{service} was ended from outside {RESTARTS + 1} times without a step in between; find out what ends it "
                f"(docker events, dmesg), then {AGAIN}"
            )
        self.lost.pop(service)
        return "start"


def follow(
    services: tuple[str, ...],
    run_folder: Path,
    progress: Progress,
    containers: Callable[[], tuple[Container, ...]],
    start: Callable[[str], None],
) -> Container:
    """Show each step and each event until the trainer, or a service for good, has ended; its container.

    `containers` looks at all of them, `start` brings one back. Raises what `Watcher.decide` raises.
    """
    watcher, teller = Watcher(services), Teller(run_folder, progress)
    while True:
        boxes = _boxes(containers)
        steps = teller.tell(boxes or {}, time.monotonic())
        act, service = watcher.decide(Look(time.monotonic(), boxes, steps))
        if act in ("ended", "failed") and boxes:
            return boxes[service]
        if act == "start" and boxes:
            progress.phase(
                f"{service} was ended from outside (exit code {boxes[service].exit_code}); starting it again"
            )
            start(service)
        time.sleep(POLL_S)


def _boxes(containers: Callable[[], tuple[Container, ...]]) -> dict[str, Container] | None:
    try:
        return {box.service: box for box in containers()}
    except HostError:
        return None


class Teller:
    """Tells a person what is new since the last look."""

    def __init__(self, run_folder: Path, progress: Progress) -> None:
        self._progress = progress
        self._steps, self._events = new_lines(run_folder / "metrics.jsonl"), new_lines(run_folder / events.FILE)
        self._loading_since: float | None = None
        self._count = 0

    def tell(self, boxes: Mapping[str, Container], now: float) -> int:
        """Say what is new; how many steps were made so far."""
        server = boxes.get(SERVER)
        self._server(server, now)
        # The first `ready` is what the health of the container says, too; a process has none.
        known = ("ready", 1) if server is None or server.health else None
        for event in events.parse(next(self._events)):
            if event.get("line") and (event.get("event"), event.get("attempt")) != known:
                self._progress.phase(event["line"])
        for metrics in events.parse(next(self._steps)):
            if isinstance(metrics.get("step"), int):
                self._count += 1
                self._progress.phase(describe_step(metrics))
        loading = SERVER if self._loading_since is not None and not self._count else TRAINER
        box = boxes.get(loading)
        if box and box.last_lines and not box.last_lines[-1].startswith("step "):
            self._progress.detail(box.last_lines[-1])
        return self._count

    def _server(self, server: Container | None, now: float) -> None:
        """Say once for each start of the server that it loads, and that it is ready."""
        if server is None or server.state != "running" or server.health is None:
            return
        if server.health == "starting" and self._loading_since is None:
            self._loading_since = now
            self._progress.phase("server loading")
        elif server.health == "healthy" and self._loading_since is not None:
            self._progress.phase(f"server ready after {now - self._loading_since:.0f} s")
            self._loading_since = None


def obituary(service: str, end: str, said: Mapping[str, Sequence[str]], logs: Path) -> str:
    """That a service has `end`ed, its last lines, and those of the other ones that have `said` something."""
    others = [name for name in said if name != service and said[name]]
    blocks = [f"{service} {end}; its last lines:\n{quoted(said.get(service, ()))}"]
    blocks += [f"the last lines of {name}:\n{quoted(said[name])}" for name in others]
    return "\n".join([*blocks, f"all of them: {logs if others else logs / f'{service}.log'}"])


def quoted(lines: Iterable[str]) -> str:
    return "\n".join(f"    {line}" for line in lines)


def describe_step(metrics: Mapping[str, Any]) -> str:
    """`step 3/25  reward 0.41  13.2 s (generate 6.1, push 1.4, optimize 5.5)`, as far as the metrics go.

    What is no number there, as a reward that is not finite (null in the file), is left out.
    """
    known = {key: value for key, value in metrics.items() if isinstance(value, (int, float))}
    text = f"step {known.get('step', '?')}/{known.get('max_steps', '?')}"
    if "reward" in known:
        text += f"  reward {known['reward']:.2f}"
    if "seconds/step" in known:
        names = ("generate", "push", "optimize")
        split = [f"{name} {known[f'seconds/{name}']:.1f}" for name in names if f"seconds/{name}" in known]
        text += f"  {known['seconds/step']:.1f} s" + (f" ({', '.join(split)})" if split else "")
    return text


def new_lines(file: Path) -> Iterator[list[str]]:
    """At each turn, the complete lines that were added to `file` since the last one.

    A file that became shorter, as metrics do when a run goes on from a checkpoint, is read on from its new end.
    """
    at, rest = (file.stat().st_size, b"") if file.exists() else (0, b"")
    while True:
        lines: list[bytes] = []
        if file.exists():
            if file.stat().st_size < at:
                at, rest = file.stat().st_size, b""
            with file.open("rb") as stream:
                stream.seek(at)
                added = stream.read()
            at += len(added)
            *lines, rest = (rest + added).split(b"\n")
        yield [line.decode(errors="replace") for line in lines if line.strip()]
