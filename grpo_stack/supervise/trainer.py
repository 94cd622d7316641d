"""`grpo-stack supervise trainer`: runs training, and starts it again from its newest checkpoint when it or the server fails.

The training command starts at once, so that its imports overlap with the server's loading; it is let go when the readiness
gate opens. `verdict` says what counts as a failure, `deadlines` how long a phase may take.

A program that is not ours can be supervised as well. Without heartbeats it has no deadlines: only its end, and what the
server shows, are evidence. Its exit code 0 is a success and every other one is followed by a new start; it does not wait
for the gate, and of a stop it learns by SIGTERM.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_stack import env_file as env_files
from grpo_stack import http_call, private_network, readiness
from grpo_stack.errors import INTERRUPTED, ChildError, DescriptionError, RunError
from grpo_stack.stopping import Stop, asked_to_stop
from grpo_stack.supervise import child, events, peer
from grpo_stack.supervise.attempt import Attempt
from grpo_stack.supervise.backoff import Restarts
from grpo_stack.supervise.deadlines import Deadlines
from grpo_stack.supervise.events import Events
from grpo_stack.supervise.verdict import Limits, Verdict, judge
from grpo_stack.supervise.watch import Watch

END_GRACE_S = 5.0
"""For ranks that are ended because their attempt has failed. There is nothing to save, and whoever hangs does not listen."""


@dataclass(frozen=True)
class Pace:
    """How often to look, in seconds; tests go faster."""

    look_s: float = 0.25
    """At the child and its heartbeat: a part of the second that may pass between `can generate` and `training starts`."""

    ask_s: float = 1.0
    """At the server: one that is gone is noticed after some three seconds."""

    call_s: float = peer.CALL_S
    """Time-out of asking it."""

    backoff: float = 1.0
    """Times the delay of each restart."""


@dataclass(frozen=True)
class Settings:
    """The options of `grpo-stack supervise trainer`."""

    run_folder: Path
    """Where events.jsonl goes; the checkpoints are the training program's own affair."""

    server: readiness.Expectation | None = None
    """None where vLLM runs inside the training processes: no gate, and no server to watch."""

    gate_budget_s: float = 1800.0
    """For each wait at the gate: a server that was lost gets all of it again."""

    phase_floor_s: float = 300.0
    restarts: int = 5
    """Starts in a row without a step beyond the highest one ever completed, before it gives up."""

    limits: Limits = Limits()
    pace: Pace = Pace()
    env_file: Path | None = None
    """Variables for the training command, beside this program's own."""


def run(settings: Settings, argv: Sequence[str]) -> int:
    """Run `argv` until training is done, and return the exit code.

    Raises ChildError, with the exit code to end with, when it gives up or training has failed for good, and DescriptionError
    when `argv` cannot be run, or a setting cannot be used. Main thread only; the process must have no other children.
    """
    _check(settings)
    child.adopt_orphans()
    with asked_to_stop() as stop:
        return _Supervisor(settings, argv, Events(settings.run_folder / events.FILE), stop).run()


def _check(settings: Settings) -> None:
    if settings.server:
        try:
            http_call.check_url(settings.server.url)
        except ValueError as error:
            raise DescriptionError(f"supervise trainer: --url: {error}") from None
    for seconds in (settings.gate_budget_s, settings.phase_floor_s, settings.limits.grace_s):
        if not 0 < seconds < math.inf:
            raise DescriptionError(f"supervise trainer: {seconds:g} s is no time limit; give positive seconds")
    if settings.restarts < 0:
        raise DescriptionError(f"supervise trainer: --restarts {settings.restarts}: give 0 or more")


def _environment(env_file: Path | None) -> dict[str, str]:
    given = env_files.read(env_file) if env_file else {}
    return {**os.environ, **private_network.environment(os.environ), **given}


class _Supervisor:
    """One run, from its first attempt to its end."""

    def __init__(self, settings: Settings, argv: Sequence[str], log: Events, stop: Stop) -> None:
        self.settings = settings
        self.argv = argv
        self.environment = _environment(settings.env_file)
        self.log = log
        self.stop = stop
        self.watch = Watch(Deadlines(settings.phase_floor_s, settings.gate_budget_s), time.monotonic())
        self.restarts = Restarts(settings.restarts)
        self.number = 0
        self.noticed_at: float | None = None
        """When the fault was noticed that the run has not recovered from yet."""

    def run(self) -> int:
        while True:
            before = self.watch.highest
            attempt = self._start()
            try:
                verdict = self._follow(attempt)
                self._end(attempt, verdict)
            finally:
                attempt.end(0)
            if verdict.exit_code is not None:
                return self._finish(verdict)
            self.restarts = self.restarts.after(progress=self.watch.highest > before)
            if end := self._resume(attempt, verdict):
                return self._finish(end)

    def _start(self) -> Attempt:
        self.number += 1
        instance = self._report_orphan()
        attempt = Attempt(self.argv, self.environment, self.settings.server, self.settings.gate_budget_s, self.log)
        self.watch = self.watch.next_attempt(time.monotonic())
        self.log.record("started", attempt=self.number, instance=instance, pid=attempt.process.pid)
        return attempt

    def _report_orphan(self) -> str | None:
        """With no rank alive, whoever has a weight update open is gone. Returns the server's instance, if it tells."""
        server = self.settings.server
        return peer.report_orphan(server.url, self.log).instance if server else None

    def _follow(self, attempt: Attempt) -> Verdict:
        """Watch until the attempt is over."""
        while True:
            seen, was_asked = attempt.look(self.stop.count), self.watch.stop_at is not None
            self.watch = self.watch.after(seen)
            if verdict := judge(self.watch, seen, self.settings.limits):
                return verdict
            if self.watch.stop_at is not None:
                if not was_asked:
                    self._ask_to_stop(attempt)
            elif self.watch.go_at is None and attempt.is_open:
                self._let_go(attempt)
            self._note_recovery()
            time.sleep(self.settings.pace.look_s)

    def _let_go(self, attempt: Attempt) -> None:
        attempt.let_go(self.settings.pace.ask_s, self.settings.pace.call_s)
        self.watch = self.watch.let_go(time.monotonic(), attempt.instance)
        waited_s = round(attempt.waited_s, 3)
        line = f"the server is ready after {waited_s:.0f} s" if self.settings.server else ""
        self.log.record("ready", line, attempt=self.number, seconds=waited_s, instance=attempt.instance)

    def _ask_to_stop(self, attempt: Attempt) -> None:
        line = f"asked to stop: training has {self.settings.limits.grace_s:g} s to end its step and save a checkpoint"
        self.log.record("stopping", line, phase=self.watch.phase, step=self.watch.step)
        attempt.ask_to_stop(by_signal=self.watch.beat is None)

    def _note_recovery(self) -> None:
        if self.noticed_at is None or not self.watch.has_stepped:
            return
        seconds = round(time.monotonic() - self.noticed_at, 3)
        line = f"recovered: step {self.watch.step} is completed, {seconds:.0f} s after the fault was noticed"
        self.log.record("recovered", line, attempt=self.number, step=self.watch.step, seconds=seconds)
        self.noticed_at = None

    def _end(self, attempt: Attempt, verdict: Verdict) -> None:
        """End all ranks, and say why if it is for a fault."""
        begun = time.monotonic()
        if verdict.exit_code not in (0, INTERRUPTED):
            self.noticed_at = begun
            where = f"step {self.watch.step}, {self.watch.phase}: " if self.watch.phase else ""
            known = {"what": verdict.what, "evidence": verdict.evidence, "attempt": self.number}
            line = f"{where}{verdict.evidence}" if verdict.exit_code is None else ""
            self.log.record("noticed", line, **known, phase=self.watch.phase, step=self.watch.step)
        left = attempt.end(0 if verdict.at_once else END_GRACE_S)
        line = (
            f"processes {', '.join(map(str, left))} of training could not be ended; they may keep memory"
            if left
            else ""
        )
        self.log.record("ended", line, attempt=self.number, seconds=round(time.monotonic() - begun, 3), left=left)

    def _resume(self, attempt: Attempt, verdict: Verdict) -> Verdict | None:
        """Wait for the next start; returns the verdict of the whole run if there is none to come."""
        self._report_orphan()
        if self.restarts.exhausted:
            return self._give_up(attempt, verdict)
        delay_s, used = (
            self.restarts.delay_s * self.settings.pace.backoff,
            f"restart {self.restarts.used} of {self.restarts.limit} without progress",
        )
        line = f"starting again in {delay_s:g} s, from the newest complete checkpoint ({used})"
        self.log.record("resuming", line, attempt=self.number + 1, seconds=delay_s, restarts=self.restarts.used)
        if self.stop.wait(delay_s):
            return Verdict("stopped", "asked to stop between two starts", INTERRUPTED)
        return None

    def _give_up(self, attempt: Attempt, verdict: Verdict) -> Verdict:
        """Show once more what there is to see."""
        for text in attempt.process.last_lines():
            events.say(f"| {text}")
        if self.settings.server:
            events.say(f"the server's last answer: {peer.ask(self.settings.server.url).text}")
        problem = (
            f"gave up after {self.restarts.limit} restarts without a new step; the last one: {verdict.evidence}. "
            "Training's last lines are above; mend what they and the server's log show, and start the run again: "
            f"it goes on from the newest complete checkpoint in {self.settings.run_folder}"
        )
        return Verdict(verdict.what, problem, RunError.exit_code)

    def _finish(self, verdict: Verdict) -> int:
        code = verdict.exit_code or 0
        known: dict[str, Any] = {
            "exit_code": code,
            "what": verdict.what,
            "attempts": self.number,
            "step": self.watch.highest,
        }
        if code == 0:
            self.log.record("finished", f"training is done (step {self.watch.highest})", **known)
        elif code == INTERRUPTED:
            self.log.record("stopped", verdict.evidence, **known, evidence=verdict.evidence)
        else:
            self.log.record("gave-up", **known, evidence=verdict.evidence)
            raise ChildError(verdict.evidence.splitlines(), code)
        return code
