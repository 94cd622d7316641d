"""The files between the training process and its supervisor."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from grpo_stack import heartbeat
from grpo_stack.errors import NotReadyError
from grpo_stack.heartbeat import Beat, Heart
from tests.fakes.clock import FakeClock


def test_a_beat_says_the_phase_the_steps_and_the_time(tmp_path: Path) -> None:
    clock = FakeClock()
    heart = Heart(tmp_path, now=clock)

    heart.beat("load", step=3, max_steps=9)
    began = clock()

    assert heartbeat.read(tmp_path) == Beat("load", 3, 9, began)


def test_a_beat_without_steps_keeps_those_of_the_last(tmp_path: Path) -> None:
    heart = Heart(tmp_path)
    heart.beat("generate", step=4, max_steps=9)

    heart.beat("push")

    beat = heartbeat.read(tmp_path)
    assert beat is not None
    assert (beat.phase, beat.step, beat.max_steps) == ("push", 4, 9)


def test_before_the_first_beat_there_is_none(tmp_path: Path) -> None:
    assert heartbeat.read(tmp_path) is None


def test_a_failure_carries_the_exit_code_that_accelerate_hides(tmp_path: Path) -> None:
    heart = Heart(tmp_path)
    heart.beat("save", step=20, max_steps=25)

    heart.fail(3, "outputs: no space left")

    beat = heartbeat.read(tmp_path)
    assert beat is not None
    assert (beat.phase, beat.exit_code, beat.message, beat.step) == ("failed", 3, "outputs: no space left", 20)


def test_a_phase_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such phase: dreaming"):
        Heart(tmp_path).beat("dreaming")


def test_a_reader_never_sees_half_a_beat_nor_goes_back_in_steps(tmp_path: Path) -> None:
    heart = Heart(tmp_path)
    heart.beat("optimize", step=0, max_steps=500)

    def write() -> None:
        for step in range(500):
            heart.beat("optimize", step=step)

    writer = threading.Thread(target=write)
    writer.start()
    seen = []
    while writer.is_alive():
        beat = heartbeat.read(tmp_path)
        assert beat is not None
        seen.append(beat.step)
    writer.join()

    assert seen == sorted(seen)
    assert [path.name for path in tmp_path.iterdir()] == ["beat.json"]


def test_the_time_of_a_beat_compares_with_the_readers_own_clock(tmp_path: Path) -> None:
    program = "import sys; from pathlib import Path; from grpo_stack.heartbeat import Heart; "
    before = time.monotonic()

    subprocess.run([sys.executable, "-c", program + "Heart(Path(sys.argv[1])).beat('start')", tmp_path], check=True)

    beat = heartbeat.read(tmp_path)
    assert beat is not None
    assert before <= beat.at <= time.monotonic()


def test_the_folder_comes_from_the_environment_and_only_the_first_rank_writes(tmp_path: Path) -> None:
    second = Heart.from_environment({"GRPO_STACK_HEARTBEAT": str(tmp_path), "RANK": "1"})
    second.beat("start")
    assert heartbeat.read(tmp_path) is None

    Heart.from_environment({"GRPO_STACK_HEARTBEAT": str(tmp_path), "RANK": "0"}).beat("start")

    assert heartbeat.read(tmp_path) is not None
    assert second.supervised


def test_a_rank_that_alone_meets_a_fault_says_so(tmp_path: Path) -> None:
    second = Heart.from_environment({"GRPO_STACK_HEARTBEAT": str(tmp_path), "RANK": "1"})

    second.fail(3, "outputs: no space left")

    beat = heartbeat.read(tmp_path)
    assert beat is not None
    assert (beat.phase, beat.exit_code) == ("failed", 3)


def test_go_ends_the_wait_of_every_rank(tmp_path: Path) -> None:
    ranks = [Heart.from_environment({"GRPO_STACK_HEARTBEAT": str(tmp_path), "RANK": rank}) for rank in "01"]

    heartbeat.go(tmp_path)

    assert [rank.wait_for_go(limit_s=0) for rank in ranks] == [True, True]


def test_go_is_seen_while_waiting(tmp_path: Path) -> None:
    clock = FakeClock()

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if clock() > 30:
            heartbeat.go(tmp_path)

    assert Heart(tmp_path, now=clock, sleep=sleep).wait_for_go(limit_s=60)


def test_a_stop_ends_the_wait_without_a_go(tmp_path: Path) -> None:
    heart = Heart(tmp_path)
    assert not heart.stop_asked()

    heartbeat.ask_to_stop(tmp_path)

    assert heart.stop_asked()
    assert heart.wait_for_go() is False


def test_the_wait_has_a_limit(tmp_path: Path) -> None:
    clock = FakeClock()

    with pytest.raises(NotReadyError, match="no word for 60 s"):
        Heart(tmp_path, now=clock, sleep=clock.sleep).wait_for_go(limit_s=60)

    assert clock() <= 61


def test_without_a_supervisor_training_goes_at_once_and_tells_nobody() -> None:
    heart = Heart.from_environment({})

    heart.beat("start")
    heart.fail(2, "wrong")

    assert heart.wait_for_go(limit_s=0)
    assert not heart.stop_asked()
    assert not heart.supervised
