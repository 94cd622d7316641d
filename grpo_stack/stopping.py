"""Signals that ask a program to end: counted, or obeyed as Ctrl-C is. In the main thread only, as Python has it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
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
    """Counts signals instead of ending at them."""
    stop = Stop()

    def count(number: int, frame: object) -> None:
        stop.count += 1

    with _handled_by(count):
        yield stop


class Interrupt:
    """Whether a signal still ends the block."""

    def __init__(self) -> None:
        self.obeyed = True
        """Set to False as the first thing of a `finally`: between its beginning and a mere assignment no handler runs, while
        a call, even one that only ignores the signals, may itself be interrupted."""


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """The first signal ends the block as Ctrl-C does; later ones change nothing, nor does any while none is `obeyed`.

    They are caught and dropped, not ignored: what is started meanwhile would inherit that, and could not be ended.
    """
    signals = Interrupt()

    def interrupt(number: int, frame: object) -> None:
        if signals.obeyed:
            signals.obeyed = False
            raise KeyboardInterrupt

    with _handled_by(interrupt):
        yield signals


@contextmanager
def _handled_by(handler: Callable[[int, object], None]) -> Iterator[None]:
    # Under nohup a terminal that closes is to change nothing. SIGINT is heard all the same: shells ignore it for what they run in
    # the background, where it is sent on purpose alone.
    heard = [sign for sign in SIGNALS if sign != signal.SIGHUP or signal.getsignal(sign) != signal.SIG_IGN]
    before: dict[signal.Signals, Any] = {sign: signal.signal(sign, handler) for sign in heard}
    try:
        yield
    finally:
        for sign, known in before.items():
            signal.signal(sign, known)
