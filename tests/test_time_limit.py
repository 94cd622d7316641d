from __future__ import annotations

import threading

import pytest

from grpo_stack import time_limit


def test_what_the_work_returns_is_handed_on() -> None:
    assert time_limit.call(lambda: 7, 5) == 7
    assert time_limit.call(lambda: None, 5) is None


def test_what_the_work_raises_is_handed_on() -> None:
    with pytest.raises(ZeroDivisionError):
        time_limit.call(lambda: 1 // 0, 5)


@pytest.mark.parametrize("limit_s", [0.05, 0, -1])
def test_work_without_an_end_is_given_up_at_the_limit(limit_s: float) -> None:
    never = threading.Event()
    try:
        with pytest.raises(TimeoutError, match="no end within"):
            time_limit.call(never.wait, limit_s)
    finally:
        never.set()


def test_work_that_is_given_up_does_not_keep_the_process_alive() -> None:
    running: list[threading.Thread] = []
    never = threading.Event()

    def work() -> None:
        running.append(threading.current_thread())
        never.wait()

    try:
        with pytest.raises(TimeoutError):
            time_limit.call(work, 0.05)
        assert [thread.daemon for thread in running] == [True]
    finally:
        never.set()


def test_what_is_begun_runs_before_anyone_waits_for_it() -> None:
    ran = threading.Event()

    wait = time_limit.begin(lambda: ran.set() or "done")

    assert ran.wait(5)
    assert wait(5) == "done"
