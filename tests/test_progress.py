from __future__ import annotations

import io
import os

import pytest

from grpo_stack import progress
from grpo_stack.progress import Progress
from tests.fakes.clock import FakeClock


def test_a_phase_is_a_line_with_the_time_since_the_start() -> None:
    clock, stream = FakeClock(), io.StringIO()
    told = Progress(stream, clock)
    clock.now += 61

    told.phase("server loading")

    assert stream.getvalue() == "  1:01  server loading\n"


def test_without_a_terminal_a_detail_is_a_line_now_and_then() -> None:
    clock, stream = FakeClock(), io.StringIO()
    told = Progress(stream, clock)

    for text in ("one", "two"):
        told.detail(text)
    clock.now += progress.QUIET_S
    for text in ("one", "three", "four"):
        told.detail(text)

    assert [line.split()[1] for line in stream.getvalue().splitlines()] == ["one", "three"]


def test_a_reader_that_has_gone_away_ends_nothing() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w", buffering=1)
    told = Progress(stream)

    told.phase("server loading")
    told.phase("server ready")

    with pytest.raises(BrokenPipeError):
        stream.close()


def test_a_full_disk_behind_the_stream_ends_nothing() -> None:
    stream = os.fdopen(os.open("/dev/full", os.O_WRONLY), "w", buffering=1)
    told = Progress(stream)

    told.phase("server loading")
    told.detail("downloading")

    with pytest.raises(OSError, match="No space left"):
        stream.close()
