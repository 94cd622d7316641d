"""The server as the trainer's supervisor sees it: what it answers about its activity, and the word that an update is lost.

No generation is ever asked for here, since one that meets a weight update would end the engine.
"""

from __future__ import annotations

import socket
import threading
import time

from grpo_stack import activity_api, http_call
from grpo_stack.supervise.events import Events
from grpo_stack.supervise.watch import GONE, SILENT, UP, Answer

CALL_S = 5.0
"""Time-out of one call. The API's event loop answers in milliseconds; while it takes in a large batch, in a second or two."""


def ask(url: str, timeout_s: float = CALL_S) -> Answer:
    """One look at the server at `url`; never raises for what a server may do."""
    try:
        answer = http_call.send("GET", url.rstrip("/") + activity_api.REPORT, timeout_s=timeout_s)
    except http_call.CallError as error:
        return Answer(GONE if _is_gone(error.__cause__) else SILENT, str(error), time.monotonic())
    now, text = time.monotonic(), f"HTTP {answer.status}"
    try:
        report = activity_api.read(answer.body if answer.status == 200 else b"")
    except ValueError:
        return Answer(UP, text, now)  # a vLLM without our middleware
    is_open = report.update_open_s is not None and not report.abandoned
    return Answer(UP, f"{text}, instance {report.instance[:8]}", now, report.instance, is_open)


def report_orphan(url: str, events: Events, timeout_s: float = CALL_S) -> Answer:
    """Look at the server at a time when no rank of ours can be in a weight update: one that is open has lost its sender.

    Then the server is told so, and its own supervisor starts it anew: vLLM cannot leave a half-done update.
    """
    answer = ask(url, timeout_s)
    if answer.update_open:
        try:
            sent = http_call.send("POST", url.rstrip("/") + activity_api.ABANDON, {}, timeout_s=CALL_S)
            told = f"HTTP {sent.status}"
        except http_call.CallError as error:
            told = str(error)
        line = "a weight update was left open, and nobody is left to finish it: the server must start anew"
        events.record("noticed", line, what="update-abandoned", evidence=line, instance=answer.instance, told=told)
    return answer


class Watcher:
    """Asks every `period_s` seconds, in a thread of its own, so that a silent server delays nobody."""

    def __init__(self, url: str, period_s: float, call_s: float = CALL_S) -> None:
        self.newest: Answer | None = None
        self._url = url
        self._period_s = period_s
        self._call_s = call_s
        self._over = threading.Event()
        threading.Thread(target=self._ask, daemon=True).start()

    def stop(self) -> None:
        self._over.set()

    def _ask(self) -> None:
        while not self._over.is_set():
            self.newest = ask(self._url, self._call_s)
            self._over.wait(self._period_s)


def _is_gone(cause: BaseException | None) -> bool:
    """Nobody listens there, or the name is unknown, as a stopped container's is. Where this side has no network at all,
    no name is known, and that says nothing about the server."""
    if isinstance(cause, socket.gaierror):
        return any(name != "lo" for _, name in socket.if_nameindex())
    return isinstance(cause, ConnectionRefusedError)
