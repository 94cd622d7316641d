"""Is the server alive? What was seen so far, and the verdict that follows from it.

A server is taken for stuck only on evidence that nothing healthy gives:

- A long queue, or a long generation: the engine's own counters move, and the time starts anew with each move. They are
  those that only an output of the engine moves (vllm.v1.metrics.loggers), the filling of the KV cache among them, so that
  the prefill of one very long prompt shows as well, which yields no token for a while.
- A long push: generations are held by the middleware while an update is open, and those it holds are not counted. The
  update has a limit of its own, ten times the longest that went well, and never below the one that was set.
- A client that goes before its answer: its generation is no longer in flight, and time without one in flight is not counted.
  It adds up with the next one's, so that clients that give up sooner than `stuck_s` cannot hide a dead engine either.
- A paused container, or a machine too busy to let this process look: each look counts for MAX_GAP_S at most.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from grpo_stack.activity_api import Report

MAX_GAP_S = 15.0
"""The longest time that one look may stand for: two calls that use up their time-outs, and a pause."""

FIRST = 4.0
"""Times `stuck_s` for the first generation of an instance: kernels compile in it, and no counter moves meanwhile (25 s to 80 s
of C++ on 2 cores)."""

COUNTERS = (
    *("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:iteration_tokens_total_count"),
    *("vllm:num_preemptions_total", "vllm:kv_cache_usage_perc", "vllm:num_requests_waiting"),
)
"""What moves on /metrics only when the engine has done something."""


@dataclass(frozen=True)
class Limits:
    """Seconds, each of them watched time."""

    boot_s: float
    """From the start to the first answer."""

    stuck_s: float
    """With a generation in flight and no counter moving; or without any answer."""

    update_s: float
    """For a weight update, or ten times the longest finished one if that is more."""


@dataclass(frozen=True)
class Look:
    """One look at the server."""

    at: float
    """Seconds, of any monotonic clock."""

    report: Report | None
    """None: no answer of ours came."""

    fault: str = ""
    """What came instead."""

    counters: tuple[str, ...] = ()
    """Lines of /metrics for COUNTERS; none when not asked for, or not to be had."""

    blind: bool = False
    """Whether /metrics answered, and had none of them."""


@dataclass(frozen=True)
class Evidence:
    """All that was seen of one instance since its start, folded up."""

    last: Look
    """The latest look; at first one without a report, of the moment of the start."""

    started: float
    """Seconds, of the same clock as the looks."""

    report: Report | None = None
    """The latest answer; None: it has not answered yet."""

    counters: tuple[str, ...] = ()
    """The latest that were to be had."""

    unanswered_s: float = 0.0
    """Without an answer, since the last one or the start."""

    still_s: float = 0.0
    """With a generation in flight and nothing moving."""

    unread_s: float = 0.0
    """With a generation in flight and none completed, since the counters were last read."""

    open_s: float = 0.0
    """With the same weight update open."""

    blind: bool = False
    """Whether /metrics was ever found to have no counters."""

    @classmethod
    def of_start(cls, now: float) -> Evidence:
        """What is known when the server has just been started."""
        return cls(Look(now, None, "no answer yet"), now)

    @property
    def progress(self) -> bool:
        """Whether it has completed anything since its start."""
        return self.report is not None and self.report.generated + self.report.updates > 0

    def after(self, look: Look) -> Evidence:
        """This, and one look more."""
        gap_s = min(look.at - self.last.at, MAX_GAP_S)
        if look.report is None:
            return replace(self, last=look, unanswered_s=self.unanswered_s + gap_s)
        still_s, unread_s = self._still_s(look, look.report, gap_s)
        return Evidence(
            last=look,
            started=self.started,
            report=look.report,
            counters=look.counters or self.counters,
            still_s=still_s,
            unread_s=unread_s,
            open_s=self._open_s(look.report, gap_s),
            blind=self.blind or look.blind,
        )

    def _still_s(self, look: Look, now: Report, gap_s: float) -> tuple[float, float]:
        before = self.report
        if before is None or now.generated != before.generated:
            return 0.0, 0.0
        if look.counters and look.counters != self.counters:
            return 0.0, 0.0
        in_flight = now.generating > 0 and before.generating > 0
        unread_s = self.unread_s + gap_s if in_flight else self.unread_s
        return (self.still_s + unread_s, 0.0) if look.counters else (self.still_s, unread_s)

    def _open_s(self, now: Report, gap_s: float) -> float:
        if now.update_open_s is None:
            return 0.0
        same = self.report is not None and self.report.updates == now.updates
        return min(now.update_open_s, self.open_s + gap_s if same else gap_s)

    def verdict(self, limits: Limits) -> str:
        """Why this instance must be ended, to be continued after `vLLM `; empty while nothing speaks against it."""
        if self.report is None:
            late = self.unanswered_s > limits.boot_s
            return f"did not answer within {limits.boot_s:g} s of its start ({self.last.fault})" if late else ""
        if self.report.abandoned:
            return "is in a weight update that nobody will finish"
        if self.open_s > max(limits.update_s, 10 * self.report.longest_update_s):
            return f"has been in one weight update for {self.open_s:.0f} s"
        if self.still_s > limits.stuck_s * (1.0 if self.report.generated else FIRST):
            return f"has generated nothing for {self.still_s:.0f} s, with {self.report.generating} in flight"
        if self.unanswered_s > limits.stuck_s:
            return f"has not answered for {self.unanswered_s:.0f} s ({self.last.fault})"
        return ""
