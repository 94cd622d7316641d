"""Does the server sample from the weights that are trained? Judged from how far their log-probs of the same tokens differ.

`sampling/sampling_logp_difference/mean` is what TRL logs of it. It is never quite 0 on GPUs, since vLLM's kernels and
transformers' round differently; it stays where it is while pushes arrive, and leaves when they do not.
"""

from __future__ import annotations

import math
from collections import deque

MODES = ("warn", "stop", "off")

LIMITS = {"float32": 1e-3, "float16": 0.1, "bfloat16": 0.1}
"""Highest healthy value by dtype. float32 on the CPU stack: at most 1e-5 at every step. bfloat16: 0.005 to 0.01 with
trained models of 0.5B to 7B; a flat 0.052 with random weights of 7.6B, whose logits are nearly level."""

ABOVE = 3
"""Lines in a row above the limit before it counts: one line can hold a single odd completion."""

WINDOW = 10
"""Lines looked at for growth."""

INVERSIONS = 4
"""Of the window's 45 pairs, how many may fall instead of rise. Noise around a level does that well in 1 window of 5,600
(649 of the 10! orders), and then still has to double."""

GROWTH = 2.0
"""How far the median of the window's last three must be above that of its first three."""

FLOOR = 5
"""Growth below a fifth of the limit is nothing yet: a float32 run that goes from 1e-7 to 1e-5 is well."""

CAUSES = (
    "likely causes: pushes do not reach the server, tied embeddings are not refreshed after a push, "
    "the server runs without --logprobs-mode processed_logprobs or in another dtype"
)


def limit_for(dtype: str | None, mixed: bool) -> float:
    """The limit for weights of `dtype`, trained under bf16 or fp16 autocast if `mixed`; unknown dtypes count as 16 bits."""
    if dtype == "float32" and not mixed:
        return LIMITS["float32"]
    return LIMITS["bfloat16"]


class Guard:
    """Takes the difference of each logged line, in their order."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._values: deque[float] = deque(maxlen=WINDOW)
        self._above = 0
        self._said = False

    def observe(self, value: float | None) -> str | None:
        """What is wrong, when it begins to be: again only after it was well in between. None: TRL could not compute it
        (NaN), which counts as above any limit."""
        if value is None or not math.isfinite(value):
            value = math.inf
        self._values.append(value)
        self._above = self._above + 1 if value > self.limit else 0
        found = self._judge()
        news = found if found and not self._said else None
        self._said = bool(found)
        return news

    def _judge(self) -> str | None:
        now = self._values[-1]
        if self._above >= ABOVE:
            return f"{now:.2g} is above the limit of {self.limit:g} for {self._above} lines in a row; {CAUSES}"
        if self._grows():
            return f"it grew from {self._values[0]:.2g} to {now:.2g} within {WINDOW} lines (limit {self.limit:g}); {CAUSES}"
        return None

    def _grows(self) -> bool:
        values = list(self._values)
        if len(values) < WINDOW:
            return False
        falling = sum(later <= earlier for i, earlier in enumerate(values) for later in values[i + 1 :])
        first, last = sorted(values[:3])[1], sorted(values[-3:])[1]
        return falling <= INVERSIONS and last >= GROWTH * first and last >= self.limit / FLOOR
