"""stdout and stderr of a command whose exit code must hold, whoever reads what it says.

A reader that goes away and a full disk behind a stream are noted here and raised nowhere: they end nothing that runs, and
hide no fault that the exit code tells of.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any, TextIO, cast


class Guarded:
    """A stream whose faults are kept, and which says nothing after the first one."""

    def __init__(self, stream: TextIO | None) -> None:
        """`stream` is None where the program was started with it closed."""
        self.stream = stream or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # as long as the program
        self.fault: OSError | None = None
        """The first thing that went wrong."""
        if isinstance(self.stream, io.TextIOWrapper):
            self.stream.reconfigure(errors="backslashreplace")

    def write(self, text: str) -> int:
        if not self.fault:
            try:
                self.stream.write(text)
            except OSError as fault:
                self.fault = fault
        return len(text)

    def flush(self) -> None:
        if not self.fault:
            try:
                self.stream.flush()
            except OSError as fault:
                self.fault = fault

    def settle(self) -> OSError | None:
        """Hand on what is still held back; the first fault of all, if there was one."""
        self.flush()
        if self.fault:
            # What the stream still holds goes nowhere, or the interpreter would fail at it and end with 120.
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())
        return self.fault

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def guarded() -> Iterator[Guarded]:
    """Both streams are guarded within the block; yields stdout."""
    out, err = Guarded(sys.stdout), Guarded(sys.stderr)
    with redirect_stdout(cast(TextIO, out)), redirect_stderr(cast(TextIO, err)):
        try:
            yield out
        finally:
            out.settle()
            err.settle()


def use_utf8() -> None:
    """Let stdout carry the bytes of a file, which is UTF-8 wherever it is made."""
    stream = sys.stdout.stream if isinstance(sys.stdout, Guarded) else sys.stdout
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding="utf-8")
