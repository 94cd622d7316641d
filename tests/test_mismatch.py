"""The guard over the difference of log-probs: what it must not take for a fault, and how soon it notices one."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

import pytest

from grpo_stack import mismatch
from grpo_stack.mismatch import Guard, limit_for

BF16, F32 = limit_for("bfloat16", mixed=False), limit_for("float32", mixed=False)


def said(limit: float, values: Iterable[float | None]) -> list[tuple[int, str]]:
    """Each warning, with the number of its line."""
    guard = Guard(limit)
    return [(number, text) for number, value in enumerate(values, 1) if (text := guard.observe(value))]


def noise(low: float, high: float, count: int = 2000) -> list[float]:
    chance = random.Random(1)
    return [chance.uniform(low, high) for _ in range(count)]


def test_the_limit_follows_the_dtype() -> None:
    assert (F32, BF16) == (1e-3, 0.1)
    assert limit_for("float32", mixed=True) == 0.1
    assert [limit_for(dtype, mixed=False) for dtype in ("float16", "auto", None)] == [0.1, 0.1, 0.1]


@pytest.mark.parametrize("limit", [BF16, 0.01, 0.0084])
def test_the_noise_of_a_trained_model_in_bfloat16_never_trips_it(limit: float) -> None:
    assert said(limit, noise(0.0047, 0.0083)) == []


@pytest.mark.parametrize(
    ("limit", "values"),
    [
        (BF16, noise(0.045, 0.060)),  # 7.6B random weights: flat at 0.052
        (F32, noise(0.2e-5, 1e-5)),
        (F32, [0.0] * 50),
        (F32, [10.0 ** (-7 + step / 10) for step in range(20)]),  # rises, and is nothing yet
        (BF16, [0.004 + 0.0001 * step for step in range(100)]),  # a policy that slowly grows sharper
    ],
    ids=["random weights", "float32", "equal", "small", "slow"],
)
def test_a_healthy_run_never_trips_it(limit: float, values: list[float]) -> None:
    assert said(limit, values) == []


def test_heavier_noise_below_the_limit_does_not_trip_it() -> None:
    chance = random.Random(2)

    assert said(BF16, [chance.lognormvariate(-4.0, 0.2) for _ in range(5000)]) == []


def test_a_single_line_above_the_limit_is_nothing_and_the_third_in_a_row_is() -> None:
    assert said(BF16, [0.01, 0.3, 0.3, 0.01, 0.3, 0.3]) == []

    ((number, text),) = said(BF16, [0.01, 0.3, 0.3, 0.31, 0.32])

    assert number == 4
    assert text.startswith("0.31 is above the limit of 0.1 for 3 lines in a row; likely causes: ")
    for cause in ("pushes", "tied embeddings", "processed_logprobs", "dtype"):
        assert cause in text


def test_the_climb_of_a_stale_lm_head_trips_it_in_float32_at_once() -> None:
    climb = [0.03 + 0.02 * step for step in range(25)]

    assert [number for number, _ in said(F32, climb)] == [3]


def test_the_climb_trips_it_in_bfloat16_before_it_reaches_the_limit() -> None:
    chance = random.Random(3)
    climb = [0.03 * (0.5 / 0.03) ** (step / 24) * chance.uniform(0.97, 1.03) for step in range(25)]

    (number, text), *_ = said(BF16, climb)

    assert number == 10
    assert text.startswith("it grew from 0.03 to ")
    assert climb[number - 1] < BF16


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_what_cannot_be_computed_counts_as_above(value: float | None) -> None:
    assert [number for number, _ in said(BF16, [value] * 5)] == [3]


def test_it_is_said_once_and_again_only_after_it_was_well() -> None:
    bad, well = [0.3] * 10, [0.01] * 10

    assert [number for number, _ in said(BF16, [*bad, *well, *bad])] == [3, 23]


def test_the_window_lets_through_as_few_orders_as_its_docstring_says() -> None:
    orders = [1]  # orders of n things by their number of inversions, n = 1
    for things in range(2, mismatch.WINDOW + 1):
        orders = [sum(orders[max(0, k - things + 1) : k + 1]) for k in range(len(orders) + things - 1)]

    assert sum(orders[: mismatch.INVERSIONS + 1]) == 649
    assert sum(orders) == math.factorial(mismatch.WINDOW)
