"""A time limit around calls that offer none of their own: name look-ups, drivers, peers that trickle."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def call(work: Callable[[], T], limit_s: float) -> T:
    """Run `work` in a thread and hand on what it returns or raises, at the latest after `limit_s` seconds.

    Raises TimeoutError when it did not end by then.
    """
    return begin(work)(limit_s)


def begin(work: Callable[[], T]) -> Callable[[float], T]:
    """Start `work` in a thread, and return what waits for its outcome, once, for at most so many seconds, as `call` does.

    The thread cannot be ended from outside, so it is a daemon: it keeps neither the caller nor the end of the process
    waiting. Whoever can make `work` end (close its socket) should.
    """
    outcome: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            outcome.put((work(), None))
        except BaseException as error:
            outcome.put((None, error))

    def wait(limit_s: float) -> T:
        try:
            result, error = outcome.get(timeout=max(0.0, limit_s))
        except queue.Empty:
            raise TimeoutError(f"no end within {limit_s:g} s") from None
        if error is not None:
            raise error
        return result  # type: ignore[return-value]  # None only where T allows it

    threading.Thread(target=run, daemon=True).start()
    return wait
