import signal
from typing import Any

import pytest

from grpo_stack import stopping


@pytest.mark.parametrize("sign", stopping.SIGNALS)
def test_a_signal_is_counted_and_ends_a_wait_and_the_handlers_are_put_back(sign: signal.Signals) -> None:
    before = signal.getsignal(sign)

    with stopping.asked_to_stop() as stop:
        assert (stop.is_set(), stop.wait(0)) == (False, False)
        signal.raise_signal(sign)
        assert stop.wait(3600)
        signal.raise_signal(sign)
        assert stop.count == 2

    assert signal.getsignal(sign) == before


def test_without_a_signal_a_wait_ends_by_itself() -> None:
    with stopping.asked_to_stop() as stop:
        assert not stop.wait(0.001)


def test_a_signal_in_the_middle_of_a_wait_is_heard() -> None:
    with stopping.asked_to_stop() as stop:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        before = signal.signal(signal.SIGALRM, lambda number, frame: signal.raise_signal(signal.SIGTERM))
        try:
            assert stop.wait(3600)
        finally:
            signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("block", [stopping.interruptible, stopping.asked_to_stop])
def test_a_terminal_that_closes_changes_nothing_under_nohup(block: Any) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with block() as heard:
            signal.raise_signal(signal.SIGHUP)
            assert vars(heard) in ({"obeyed": True}, {"count": 0})
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("sign", stopping.SIGNALS)
def test_a_signal_ends_the_block_as_ctrl_c_does_and_leaves_the_handlers_as_they_were(sign: signal.Signals) -> None:
    before = signal.getsignal(sign)

    with pytest.raises(KeyboardInterrupt), stopping.interruptible():
        signal.raise_signal(sign)

    assert signal.getsignal(sign) == before


def test_a_second_signal_does_not_disturb_the_cleaning_up() -> None:
    cleaned = []

    def work() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.raise_signal(signal.SIGINT)
            cleaned.append(True)

    with pytest.raises(KeyboardInterrupt), stopping.interruptible():
        work()

    assert cleaned == [True]


@pytest.mark.parametrize("sign", stopping.SIGNALS)
def test_a_first_signal_that_comes_while_cleaning_up_changes_nothing(sign: signal.Signals) -> None:
    cleaned = []

    def work() -> str:
        with stopping.interruptible() as signals:
            try:
                return "done"
            finally:
                signals.obeyed = False
                signal.raise_signal(sign)
                cleaned.append(True)

    assert (work(), cleaned) == ("done", [True])
