"""Child processes that never outlive their purpose, and the end of what they log."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def child(argv: list[str], env: Mapping[str, str], output: IO[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A child in a process group of its own that does not outlive the block."""
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=dict(env),
        start_new_session=True,
    )
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    for sign in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, sign)
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                continue
    process.wait()


def tail(log: Path, count: int) -> list[str]:
    """The last `count` lines that are not empty; reads no more than the file's end."""
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - 16384))
        lines = stream.read().decode(errors="replace").splitlines()
    return [line for line in lines if line.strip()][-count:]
