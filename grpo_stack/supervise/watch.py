"""What was seen of a training run, look by look, as data: what happened when is told, and no clock is read."""

from __future__ import annotations

from dataclasses import dataclass, replace

from grpo_stack.heartbeat import Beat
from grpo_stack.supervise.deadlines import BOOT, WAITING, Deadlines

UP, GONE, SILENT = "up", "gone", "silent"

STALLED_S = 5.0
"""A gap between two looks from which on the supervisor itself did not run, its container paused for example: then neither
did training, and the gap counts towards no deadline."""

UNSAVED = frozenset({*BOOT, WAITING})
"""Phases in which there is nothing to save."""


@dataclass(frozen=True)
class Answer:
    """What the server said when it was asked for its activity."""

    state: str
    """UP: something answers over HTTP. GONE: refused, or no such name. SILENT: none of the two can be said."""

    text: str
    """The same for people."""

    at: float
    """When it was said, on the clock of the heartbeats."""

    instance: str | None = None
    """Id of the server's present process; None where the server does not tell."""

    update_open: bool = False
    """Whether a weight update has been started and neither finished nor given up."""


@dataclass(frozen=True)
class Observation:
    """One look."""

    now: float
    exit_code: int | None = None
    """Of the training command; negative for a signal, None while it runs."""

    beat: Beat | None = None
    answer: Answer | None = None
    """The newest one since training was let go."""

    gate: str = ""
    """Why the readiness gate will never open; empty while it may."""

    stops: int = 0
    """How often the supervisor was asked to stop."""


@dataclass(frozen=True)
class Watch:
    """All that is known of the attempt that runs, folded from its observations."""

    deadlines: Deadlines
    looked_at: float
    highest: int = 0
    """The highest number of completed steps that this run has ever shown."""

    instance: str | None = None
    """The server process that training is bound to."""

    go_at: float | None = None
    """When training was let go; None while it waits for the server."""

    beat: Beat | None = None
    since: float = 0.0
    """When the present phase began, later if time in between does not count."""

    base: int | None = None
    """Completed steps when this attempt began to train."""

    gone_since: float | None = None
    stop_at: float | None = None

    def next_attempt(self, now: float) -> Watch:
        """Only what outlives a process."""
        return Watch(self.deadlines.next_attempt(), now, self.highest)

    def let_go(self, now: float, instance: str | None) -> Watch:
        """The server is ready, and training may touch it."""
        return replace(self, go_at=now, instance=instance)

    def after(self, seen: Observation) -> Watch:
        """With one more observation."""
        gap_s = seen.now - self.looked_at
        known = replace(self, looked_at=seen.now, since=self.since + (gap_s if gap_s > STALLED_S else 0.0))
        if seen.beat is not None and seen.beat != self.beat:
            known = known._with(seen.beat)
        if seen.stops and known.stop_at is None:
            known = replace(known, stop_at=seen.now)
        if seen.answer is None or seen.answer.state != GONE:
            return replace(known, gone_since=None)
        return replace(known, gone_since=seen.answer.at if known.gone_since is None else known.gone_since)

    def _with(self, beat: Beat) -> Watch:
        deadlines = self.deadlines
        if self.beat is not None:
            deadlines = deadlines.after(self.beat.phase, max(0.0, beat.at - self.since))
        base, highest = self.base, self.highest
        if beat.phase not in UNSAVED:
            base = beat.step if base is None else base
            highest = max(highest, beat.step)
        return replace(self, deadlines=deadlines, beat=beat, since=beat.at, base=base, highest=highest)

    @property
    def phase(self) -> str:
        return self.beat.phase if self.beat else ""

    @property
    def step(self) -> int:
        return self.beat.step if self.beat else 0

    @property
    def has_stepped(self) -> bool:
        """Whether this attempt has completed a step."""
        return self.base is not None and self.step > self.base

    @property
    def is_past_last_step(self) -> bool:
        return self.beat is not None and 0 < self.beat.max_steps <= self.beat.step
