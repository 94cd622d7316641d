"""`grpo-stack supervise server`: runs vLLM, and starts it again when it ends or is stuck.

A server that ends is never a success: vLLM exits with 0 after its engine died (measured, 0.28), so whatever end was not asked
for is followed by a new start, and its exit code is only told. What counts as stuck, and what cannot be mistaken for it, is
written down in `evidence`. Asked to stop (SIGTERM, as `docker stop` sends it), it hands that on and ends with exit code 0.
"""

from __future__ import annotations

import math
import os
import signal
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo_stack import activity_api, http_call, private_network
from grpo_stack.errors import DescriptionError, RunError
from grpo_stack.stopping import Stop, asked_to_stop
from grpo_stack.supervise import child
from grpo_stack.supervise.backoff import Restarts
from grpo_stack.supervise.events import say, show
from grpo_stack.supervise.evidence import COUNTERS, Evidence, Limits, Look

POLL_S = 0.5
"""Seconds between two looks."""

COUNTERS_S = 5.0
"""Seconds of generating without anything completed after which the counters are read: they cost the API server some
milliseconds each time, and most batches are done before."""

CALL_S = 5.0
"""For one call. The API server answers late while it reads a large batch; only its silence over `stuck_s` counts."""

QUICK_GRACE_S = 3.0
"""For a server that is ended because it is stuck or broken. One that can ends within 1 s of being asked, and one whose engine
waits in NCCL never does (both measured on an H200)."""

FIRST_STARTS = 2
"""Restarts that a server gets which has never answered: what it lacks, another try will hardly bring."""

USAGE = 2
"""The exit code of a program that refuses its arguments (argparse), as vLLM does."""


@dataclass(frozen=True)
class Settings:
    """The options of `grpo-stack supervise server`."""

    url: str
    limits: Limits
    restarts: int
    """Starts in a row without anything generated, or any weights updated, before it gives up."""

    memo: Path | None
    """The health check's memo that the server has generated: removed before each start."""

    grace_s: float
    """What the server has to end in when this program is asked to."""


@dataclass(frozen=True)
class Life:
    """How one instance went."""

    end: str
    """Why it is over, to be continued after `vLLM `."""

    evidence: Evidence
    exit_code: int | None
    """If it ended by itself."""

    last_lines: list[str]


def run(settings: Settings, argv: Sequence[str]) -> int:
    """Run `argv` until asked to stop; then 0. Each event is one line on stderr.

    Raises RunError when it gives up, with the server's last lines shown before, and DescriptionError when the command
    cannot be run, or is a vLLM without the middleware.
    """
    _check(settings)
    child.adopt_orphans()
    restarts = Restarts(settings.restarts)
    known_good = False
    with asked_to_stop() as stop:
        while True:
            life = _live(settings, argv, stop)
            if stop.is_set():
                say("vLLM was ended, as asked")
                return 0
            known_good = known_good or life.evidence.report is not None
            restarts = restarts.after(life.evidence.progress)
            if hopeless := _hopeless(restarts, known_good, life):
                show(life.last_lines)
                raise RunError(f"vLLM {life.end}; {hopeless}; its last lines are above")
            count = f"restart {restarts.used} of {restarts.limit}"
            say(f"vLLM {life.end}; starting it again in {restarts.delay_s:g} s ({count})")
            if stop.wait(restarts.delay_s):
                say("asked to stop, while vLLM was not running")
                return 0


def _check(settings: Settings) -> None:
    try:
        http_call.check_url(settings.url)
    except ValueError as error:
        raise DescriptionError(f"supervise server: --url: {error}") from None
    limits = settings.limits
    for seconds in (limits.boot_s, limits.stuck_s, limits.update_s, settings.grace_s):
        if not 0 < seconds < math.inf:
            raise DescriptionError(f"supervise server: {seconds:g} s is no time limit; give positive seconds")
    if settings.restarts < 0:
        raise DescriptionError(f"supervise server: --restarts {settings.restarts}: give 0 or more")


def _hopeless(restarts: Restarts, known_good: bool, life: Life) -> str:
    """Why not to start again; empty if that may help."""
    if not known_good and life.exit_code == USAGE:
        return "it refuses its arguments"
    if not known_good and restarts.used > FIRST_STARTS:
        return f"gave up after {restarts.used} starts without an answer"
    if restarts.exhausted:
        plural = "s" if restarts.limit != 1 else ""
        return f"gave up after {restarts.limit} restart{plural} without anything generated"
    return ""


def _live(settings: Settings, argv: Sequence[str], stop: Stop) -> Life:
    """One instance, from its start until nothing of it is left."""
    if settings.memo:
        try:
            settings.memo.unlink(missing_ok=True)
        except OSError as fault:
            reason = (fault.strerror or str(fault)).lower()
            raise DescriptionError(f"supervise server: --memo: {settings.memo}: {reason}; name another file") from None
    instance = uuid.uuid4().hex
    evidence = Evidence.of_start(time.monotonic())
    environment = {**os.environ, **private_network.environment(os.environ), activity_api.INSTANCE: instance}
    process = child.Child(argv, environment)
    say(f"started vLLM as instance {instance[:8]}")
    grace_s, code = QUICK_GRACE_S, None
    try:
        end = ""
        while not end:
            if stop.wait(POLL_S):
                # One that still loads has nothing to finish, and may not hear: vLLM 0.28 was seen to swallow SIGTERM then.
                grace_s = settings.grace_s if evidence.report else min(QUICK_GRACE_S, settings.grace_s)
                end = "was ended"
                say(f"asked to stop: vLLM has {grace_s:g} s to end")
            elif (code := process.poll()) is not None:
                end = f"ended by itself ({_how(code)})"
            else:
                evidence = watched(settings.url, instance, evidence, min(COUNTERS_S, settings.limits.stuck_s / 4))
                end = evidence.verdict(settings.limits)
    finally:
        if left := process.end(grace_s):
            say(f"processes {', '.join(map(str, left))} of vLLM could not be ended; they may keep its memory")
    return Life(end, evidence, code, process.last_lines())


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    hint = "; often for lack of memory" if code == -signal.SIGKILL else ""
    return f"killed by {signal.Signals(-code).name}{hint}"


def watched(url: str, instance: str, evidence: Evidence, counters_s: float = COUNTERS_S) -> Evidence:
    """The evidence with one look more, at the counters too if they were not read for `counters_s`; says what is new in it."""
    now = look(url, instance, counters=evidence.unread_s >= counters_s)
    seen = evidence.after(now)
    if now.report and not evidence.report:
        say(f"vLLM answers {now.at - evidence.started:.0f} s after its start")
    if now.blind and not evidence.blind:
        say("/metrics shows no counters (is it --disable-log-stats?), so generation that is stuck cannot be noticed")
    return seen


def look(url: str, instance: str, *, counters: bool = True) -> Look:
    """Ask the middleware, and while something is being generated the `counters` too."""
    base = url.rstrip("/")
    try:
        answer = http_call.send("GET", base + activity_api.REPORT, timeout_s=CALL_S)
    except http_call.CallError as error:
        return Look(time.monotonic(), None, str(error))
    if answer.status == 404:
        raise DescriptionError(
            f"supervise: the server at {url} lacks {activity_api.REPORT}; start vLLM with --middleware "
            "grpo_stack.activity.Activity"
        )
    if answer.status != 200:
        return Look(time.monotonic(), None, f"HTTP {answer.status}")
    try:
        report = activity_api.read(answer.body)
    except ValueError as error:
        return Look(time.monotonic(), None, str(error))
    if report.instance != instance:
        return Look(time.monotonic(), None, f"another server answers at {url}")
    lines = _counters(base) if counters and report.generating else None
    return Look(time.monotonic(), report, counters=lines or (), blind=lines == ())


def _counters(base: str) -> tuple[str, ...] | None:
    """The lines of /metrics that show whether the engine works; None when there was no answer."""
    try:
        answer = http_call.send("GET", f"{base}/metrics", timeout_s=CALL_S)
    except http_call.CallError:
        return None
    lines = answer.body.decode(errors="replace").splitlines()
    return tuple(line for line in lines if line.startswith(COUNTERS)) if answer.status == 200 else None
