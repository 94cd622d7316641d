"""What a person watching sees: phases as lines, what goes on inside them as one line that changes."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.status import Status
from rich.text import Text

QUIET_S = 20
"""Where there is no terminal, a detail is printed at most this often."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Go on, unseen; rich's own way is to end the program."""
        self.quiet = True


class Progress:
    """Lines on `stream`; the detail line only where it is a terminal, else now and then as a line of its own.

    A reader that has gone away, or a full disk behind the stream, is no reason to end a run, or not to take it down.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = _Console(file=stream, highlight=False, soft_wrap=True)
        self._clock = clock
        self._start = clock()
        self._shown = ("", float("-inf"))
        self._status = Status("", console=self._console) if self._console.is_terminal else None

    def __enter__(self) -> Progress:
        if self._status:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status:
            self._status.stop()

    def phase(self, text: str) -> None:
        """Something began or ended: always a line, with the time since the start."""
        if self._status:
            self._status.update("")
        self._print(f"{self._elapsed()}  {text}")

    def detail(self, text: str) -> None:
        """What is going on inside the phase."""
        if self._status:
            self._status.update(Text(_clip(text, self._console.width - 12), style="dim"))
            return
        last, when = self._shown
        if text != last and self._clock() - when >= QUIET_S:
            self._shown = (text, self._clock())
            self._print(f"{self._elapsed()}    {_clip(text, 160)}")

    def _print(self, line: str) -> None:
        with suppress(OSError):
            self._console.print(Text(line))

    def _elapsed(self) -> str:
        seconds = int(self._clock() - self._start)
        return f"{seconds // 60:3d}:{seconds % 60:02d}"


def _clip(text: str, width: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else line[: max(0, width - 1)] + "…"
