"""One start of the training command: the process, its heartbeats, and what is learnt of the server meanwhile."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from grpo_stack import heartbeat, readiness
from grpo_stack.supervise import peer
from grpo_stack.supervise.child import Child
from grpo_stack.supervise.events import Events
from grpo_stack.supervise.gate import Gate
from grpo_stack.supervise.watch import Observation


class Attempt:
    """Runs from the moment this is made; `end` must follow."""

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        server: readiness.Expectation | None,
        budget_s: float,
        log: Events,
    ) -> None:
        """Start `argv`, and wait meanwhile for up to `budget_s` seconds for `server`, if there is one.

        Raises DescriptionError when `argv` cannot be run.
        """
        self.instance: str | None = None
        """The server process that training was let go for."""
        self._server = server
        self._folder = Path(tempfile.mkdtemp(prefix="grpo-stack-"))
        self._watcher: peer.Watcher | None = None
        self._ended = False
        try:
            self.process = Child(argv, {**environment, heartbeat.FOLDER: str(self._folder)})
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        self._gate = Gate(server, budget_s, log) if server else None

    @property
    def is_open(self) -> bool:
        """Whether the gate is open; there is none without a server."""
        return self._gate is None or self._gate.answer is not None

    @property
    def waited_s(self) -> float:
        """How long the gate took to open."""
        return self._gate.waited_s if self._gate else 0.0

    def look(self, stops: int) -> Observation:
        """What is to be seen now."""
        exit_code = self.process.poll()  # before the heartbeat, so that the last one is not missed
        return Observation(
            time.monotonic(),
            exit_code,
            heartbeat.read(self._folder),
            self._watcher.newest if self._watcher else None,
            self._gate.failure if self._gate else "",
            stops,
        )

    def let_go(self, ask_s: float, call_s: float) -> None:
        """The gate is open: training may touch the server, which is asked how it is every `ask_s` seconds from now on."""
        if self._server and self._gate and self._gate.answer:
            self.instance = self._gate.answer.instance
            self._watcher = peer.Watcher(self._server.url, ask_s, call_s)
        heartbeat.go(self._folder)

    def ask_to_stop(self, by_signal: bool) -> None:
        """End after this step, with a checkpoint; `by_signal` for a program that does not look into the folder."""
        heartbeat.ask_to_stop(self._folder)
        if by_signal:
            self.process.terminate()

    def end(self, grace_s: float) -> list[int]:
        """End every rank, and what they started; returns the ids of what could not be ended. Again: nothing happens."""
        if self._ended:
            return []
        self._ended = True
        if self._gate:
            self._gate.call_off()
        if self._watcher:
            self._watcher.stop()
        left = self.process.end(grace_s)
        shutil.rmtree(self._folder, ignore_errors=True)
        return left
