"""What follows from what was seen of a training run: data in, a verdict out.

Two kinds of evidence say that the server is lost: it answers as another instance, or nobody listens where it was. Silence
is none: a cut network heals, and a busy server answers late. Then the deadlines of the phases decide.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from grpo_stack.errors import INTERRUPTED, NotReadyError
from grpo_stack.heartbeat import Beat
from grpo_stack.supervise.deadlines import ENDING, WAITING
from grpo_stack.supervise.watch import UNSAVED, UP, Answer, Observation, Watch

SIGNALS = {2: "SIGINT", 6: "SIGABRT", 7: "SIGBUS", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}
"""Names of the signals that end training programs, by number (signal(7))."""

OWN_CODES = {"done": 0, "stopped": INTERRUPTED}
"""What the run ends with after these phases; after "failed" the heartbeat says it."""

NEEDS_SERVER = frozenset({"generate", "push"})


@dataclass(frozen=True)
class Limits:
    """What is not a matter of phases, in seconds."""

    grace_s: float = 100.0
    """What training has to end its step and save a checkpoint in, when it is asked to stop."""

    gone_s: float = 2.0
    """A server that is gone stays gone for at least this long, and is asked at least twice; a name server's hiccup passes."""


@dataclass(frozen=True)
class Verdict:
    """The attempt is over."""

    what: str
    """One word for programs."""

    evidence: str
    """What was seen, for people."""

    exit_code: int | None = None
    """What the supervisor ends with; None: start again."""

    at_once: bool = False
    """Leave no time for an orderly end."""


def judge(watch: Watch, seen: Observation, limits: Limits) -> Verdict | None:
    """What follows from `seen`, which is already part of `watch`; None: go on."""
    if seen.exit_code is not None:
        return _ended(watch, seen.exit_code, seen.answer)
    if watch.stop_at is not None:
        return _stopping(watch, seen, limits, watch.stop_at)
    if seen.gate and watch.go_at is None:
        return Verdict("server-not-ready", seen.gate, NotReadyError.exit_code)
    return _lost(watch, seen, limits.gone_s) or _overdue(watch, seen.now)


def _ended(watch: Watch, exit_code: int, answer: Answer | None) -> Verdict:
    if own := _own_end(watch.beat):
        return own
    if watch.stop_at is not None:
        return Verdict("stopped", f"training ended with {_code(exit_code)} after it was asked to stop", INTERRUPTED)
    if exit_code == 0:
        return Verdict("done", "training ended with exit code 0", 0)
    server = f"; the server: {answer.text}" if answer is not None and answer.state != UP else ""
    return Verdict("child-ended", f"training ended with {_code(exit_code)}{server}")


def _own_end(beat: Beat | None) -> Verdict | None:
    """The end that training itself has announced, if it has."""
    if beat is None or beat.phase not in ENDING:
        return None
    code = beat.exit_code if beat.phase == "failed" else OWN_CODES[beat.phase]
    if code is None:
        return None
    return Verdict(beat.phase, beat.message or f"training says that it is {beat.phase}", code)


def _stopping(watch: Watch, seen: Observation, limits: Limits, stop_at: float) -> Verdict | None:
    if seen.stops > 1:
        return Verdict("stopped", "asked to stop twice", INTERRUPTED, at_once=True)
    if watch.phase in UNSAVED:
        return Verdict("stopped", "nothing was there to save yet", INTERRUPTED)
    if watch.phase in NEEDS_SERVER and (lost := _lost(watch, seen, limits.gone_s)):
        return Verdict("stopped", f"the step cannot end any more: {lost.evidence}", INTERRUPTED)
    if seen.now >= stop_at + limits.grace_s:
        late = Verdict("stopped", f"training did not end within {limits.grace_s:g} s", INTERRUPTED)
        return replace(_own_end(watch.beat) or late, at_once=True)
    return None


def _lost(watch: Watch, seen: Observation, gone_s: float) -> Verdict | None:
    """Whether the server that training is bound to is no more. After the last step nobody needs it."""
    answer = seen.answer
    if watch.go_at is None or answer is None or watch.phase in ENDING or watch.is_past_last_step:
        return None
    if watch.instance and answer.instance and answer.instance != watch.instance:
        evidence = f"the server was started anew (instance {answer.instance[:8]}, not {watch.instance[:8]})"
        return Verdict("server-restarted", evidence)
    if watch.gone_since is not None and answer.at - watch.gone_since >= gone_s:
        return Verdict("server-gone", f"the server is gone ({answer.text})")
    return None


def _overdue(watch: Watch, now: float) -> Verdict | None:
    if watch.beat is None:
        return None
    limit_s, since = watch.deadlines.limit_s(watch.phase), watch.since
    if watch.phase == WAITING and watch.go_at is not None:
        limit_s, since = watch.deadlines.floor_s, max(since, watch.go_at)
    if now - since <= limit_s:
        return None
    if own := _own_end(watch.beat):
        return own
    return Verdict("phase-overdue", f"no end of {watch.phase} after {now - since:.0f} s, its limit is {limit_s:.0f} s")


def _code(exit_code: int) -> str:
    if exit_code >= 0:
        return f"exit code {exit_code}"
    return SIGNALS.get(-exit_code, f"signal {-exit_code}")
