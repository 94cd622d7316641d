"""The readiness gate beside a training process that already imports: it runs in a thread, and can be called off."""

from __future__ import annotations

import threading
import time

from grpo_stack import readiness
from grpo_stack.errors import GrpoStackError
from grpo_stack.supervise import peer
from grpo_stack.supervise.events import Events, say
from grpo_stack.supervise.watch import Answer

LOOK_S = 1.0
"""Time-out of a look for a weight update that lost its sender; one precedes every try but the first, and may not delay it."""

REPORT_S = 10.0
"""Seconds after which what is waited for is said again, though it has not changed."""


class _CalledOffError(Exception):
    pass


class Gate:
    """Opens, once and for all, when the server can generate; or fails for good."""

    def __init__(self, server: readiness.Expectation, budget_s: float, events: Events) -> None:
        self.answer: Answer | None = None
        """What the server said about itself after the gate had opened; None before."""
        self.failure: str = ""
        """Why it will never open; empty otherwise."""
        self.waited_s = 0.0
        self._server = server
        self._budget_s = budget_s
        self._events = events
        self._off = threading.Event()
        self._said = ("", float("-inf"))
        threading.Thread(target=self._wait, daemon=True).start()

    def call_off(self) -> None:
        self._off.set()

    def _wait(self) -> None:
        began = time.monotonic()
        try:
            readiness.wait_until_ready(self._server, budget_s=self._budget_s, sleep=self._sleep, report=self._report)
            self.waited_s = time.monotonic() - began
            self.answer = peer.ask(self._server.url)
        except GrpoStackError as error:
            self.failure = "\n".join(error.problems)
        except _CalledOffError:
            pass
        except Exception as error:
            self.failure = f"the gate broke: {error!r}"  # a fault of ours; nobody may wait for this thread for ever
            raise

    def _sleep(self, seconds: float) -> None:
        if self._off.wait(seconds):
            raise _CalledOffError
        # Not before: as long as the gate is not called off, no rank of ours can have begun an update.
        peer.report_orphan(self._server.url, self._events, LOOK_S)

    def _report(self, phase: str, elapsed_s: float) -> None:
        if phase != self._said[0] or elapsed_s - self._said[1] >= REPORT_S:
            self._said = (phase, elapsed_s)
            say(f"waiting for {self._server.url} ({elapsed_s:.0f} s): {phase}")
