"""What a supervisor noticed and did: a line of JSON for programs, and a line on stderr for people.

Recovery times are read from this file, so an event is written at its moment, not when it suits.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

FILE = "events.jsonl"
"""Its name in the run's folder."""

PREFIX = "grpo-stack: "
"""In front of every line for people, as on all that grpo-stack says."""


class Events:
    """Appends to one file; `None` for no file. What cannot be written is left out: a full disk must not end a run."""

    def __init__(self, file: Path | None, *, clock: Callable[[], float] = time.time) -> None:
        """`clock` gives seconds since 1970."""
        self.file = file
        self.clock = clock
        self._torn = False

    def record(self, event: str, line: str = "", **details: Any) -> None:
        """Write `event` with its `details` and its `line`, and say that, unless it is empty, to people."""
        if line:
            say(line)
        if self.file is None:
            return
        now = self.clock()
        stamp = datetime.fromtimestamp(now, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        entry = {"time": stamp, "unix": round(now, 3), "event": event, **({"line": line} if line else {}), **details}
        self._append(json.dumps(entry, ensure_ascii=False, default=str).encode() + b"\n")

    def _append(self, line: bytes) -> None:
        """In one write, so that no reader and no crash sees half a line; after a disk that was full, on a line of its own."""
        assert self.file is not None
        if self._torn:
            line = b"\n" + line
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            target = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                written = os.write(target, line)
            finally:
                os.close(target)
        except OSError:
            return
        self._torn = written < len(line)


def say(line: str) -> None:
    """One line for people; a reader that has gone away is no reason to end."""
    show([f"{PREFIX}{line}"])


def show(lines: Iterable[str]) -> None:
    """Lines of another program, as they are."""
    # AttributeError: started with stderr closed, Python has none.
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write("".join(f"{line}\n" for line in lines))
        sys.stderr.flush()


def read(file: Path) -> Iterator[dict[str, Any]]:
    """The events of a file, oldest first."""
    return parse(file.read_bytes().splitlines())


def parse(lines: Iterable[str | bytes]) -> Iterator[dict[str, Any]]:
    """What lines of JSON hold; one that a full disk cut short is left out."""
    for line in lines:
        with suppress(ValueError):
            entry = json.loads(line)
            if isinstance(entry, dict):
                yield entry
