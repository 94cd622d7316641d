"""When to try again, and when not to any more."""

from __future__ import annotations

from dataclasses import dataclass

LONGEST_S = 30.0
"""The longest pause before a start; a longer one only costs time, since the limit ends the trying."""


@dataclass(frozen=True)
class Restarts:
    """Restarts in a row without progress, of which `limit` are allowed."""

    limit: int
    used: int = 0

    def after(self, progress: bool) -> Restarts:
        """One more restart; what went before is forgiven if the run that just ended had made progress."""
        return Restarts(self.limit, 1 if progress else self.used + 1)

    @property
    def exhausted(self) -> bool:
        """Whether this restart is one too many."""
        return self.used > self.limit

    @property
    def delay_s(self) -> float:
        """Seconds to wait before this restart: 1, 2, 4 … up to LONGEST_S."""
        return min(LONGEST_S, 2.0 ** (min(max(self.used, 1), 16) - 1))
