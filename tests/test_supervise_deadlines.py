import math

import pytest

from grpo_stack.supervise.deadlines import ENDING_S, FACTOR, FIRST, Deadlines

STEP = ["generate", "push", "reward", "optimize", "save"]
FRESH = Deadlines(floor_s=300, boot_s=1800)


@pytest.mark.parametrize("phase", STEP)
def test_the_first_time_of_a_phase_has_a_multiple_of_the_floor(phase: str) -> None:
    assert FRESH.limit_s(phase) == FIRST * 300


@pytest.mark.parametrize("phase", STEP)
def test_a_phase_that_is_fast_has_the_floor_from_then_on(phase: str) -> None:
    assert FRESH.after(phase, 2).limit_s(phase) == 300


@pytest.mark.parametrize("phase", STEP)
def test_a_phase_that_is_slow_has_a_multiple_of_the_longest_seen(phase: str) -> None:
    seen = FRESH.after(phase, 100).after(phase, 400).after(phase, 200)

    assert seen.limit_s(phase) == FACTOR * 400


def test_one_phase_says_nothing_about_another() -> None:
    assert FRESH.after("generate", 1000).limit_s("optimize") == FIRST * 300


@pytest.mark.parametrize("phase", ["start", "load"])
def test_imports_and_loading_have_the_budget_of_the_gate_or_a_multiple_of_what_they_took(phase: str) -> None:
    assert FRESH.limit_s(phase) == 1800
    assert FRESH.after(phase, 60).limit_s(phase) == 1800
    assert FRESH.after(phase, 1000).limit_s(phase) == FACTOR * 1000
    assert Deadlines(floor_s=300, boot_s=5).limit_s(phase) == 300


def test_waiting_for_the_server_has_no_deadline_since_the_gate_has_a_budget() -> None:
    assert FRESH.limit_s("waiting") == math.inf


@pytest.mark.parametrize("phase", ["done", "stopped", "failed"])
def test_after_its_last_word_training_has_a_minute_to_end(phase: str) -> None:
    assert FRESH.limit_s(phase) == ENDING_S


def test_a_new_process_meets_every_phase_for_the_first_time_and_what_was_slow_stays_known() -> None:
    again = FRESH.after("generate", 2).after("push", 1000).next_attempt()

    assert again.limit_s("generate") == FIRST * 300
    assert again.limit_s("push") == FACTOR * 1000


def test_nothing_is_changed_in_place() -> None:
    FRESH.after("generate", 1000)

    assert Deadlines(floor_s=300, boot_s=1800) == FRESH
