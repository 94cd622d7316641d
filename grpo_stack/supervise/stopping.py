"""Signals that ask a supervisor to end, as an event that it can wait for."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def asked_to_stop() -> Iterator[threading.Event]:
    """An event that is set once one of SIGNALS has come; a second signal changes nothing. Main thread only.

    `Event.wait` in the main thread returns as soon as the handler has run, so nobody needs to look twice.
    """
    event = threading.Event()

    def handle(number: int, frame: object) -> None:
        event.set()

    before: dict[signal.Signals, Any] = {sign: signal.signal(sign, handle) for sign in SIGNALS}
    try:
        yield event
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)
