"""Signals that ask a supervisor to end, counted."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_LOOK_S = 0.1
"""Seconds after which a wait looks again whether a signal has come."""


class Stop:
    """How often one of SIGNALS has come.

    A number, and no threading.Event: a handler runs between two instructions of the main thread, and if those are inside
    `Event.wait`, with the event's lock held, `Event.set` would wait for that lock for ever.
    """

    def __init__(self) -> None:
        self.count = 0

    def is_set(self) -> bool:
        return self.count > 0

    def wait(self, seconds: float) -> bool:
        """Return after `seconds`, or soon after the first signal; whether there was one."""
        until = time.monotonic() + seconds
        while not self.count and (rest_s := until - time.monotonic()) > 0:
            time.sleep(min(rest_s, _LOOK_S))
        return self.is_set()


@contextmanager
def asked_to_stop() -> Iterator[Stop]:
    """Counts signals instead of ending at them. Main thread only."""
    stop = Stop()

    def handle(number: int, frame: object) -> None:
        stop.count += 1

    before: dict[signal.Signals, Any] = {sign: signal.signal(sign, handle) for sign in SIGNALS}
    try:
        yield stop
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)
