"""Rewards: found by name or path, checked against the dataset, and the demo's two."""

from __future__ import annotations

import types
from typing import Any

import pytest

from grpo_stack import rewards
from grpo_stack.errors import DescriptionError


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def module(**names: Any) -> types.ModuleType:
    made = types.ModuleType("mine")
    vars(made).update(names)
    return made


def imports(**modules: types.ModuleType) -> Any:
    """An importer that knows these modules, by their name with dots as `__`, and no other."""
    known = {name.replace("__", "."): found for name, found in modules.items()}

    def load(name: str) -> types.ModuleType:
        if name not in known:
            raise ModuleNotFoundError(f"No module named {name!r}")
        return known[name]

    return load


def reward(completions: list[Any], solution: list[str], *, weight: float = 1.0, **kwargs: Any) -> list[float]:
    return [weight] * len(completions)


class Scored:
    def __call__(self, prompts: list[Any], completions: list[Any], level: list[int], **kwargs: Any) -> list[float]:
        return [0.0] * len(completions)


def test_a_name_of_trl_comes_from_trl() -> None:
    trl = module(accuracy_reward=reward)

    assert rewards.resolve(["accuracy_reward"], imports(trl__rewards=trl)) == [reward]


def test_a_factory_of_trl_is_called_with_the_arguments_of_trls_own_script() -> None:
    asked: list[dict[str, int]] = []

    def make(**arguments: int) -> Any:
        asked.append(arguments)
        return reward

    found = rewards.resolve(
        ["get_soft_overlong_punishment"], imports(trl__rewards=module(get_soft_overlong_punishment=make))
    )

    assert found == [reward]
    assert asked == [{"max_completion_len": 1280, "soft_punish_cache": 256}]


@pytest.mark.parametrize("name", ["my.code:reward", "my.code.reward"])
def test_an_import_path_may_be_written_with_a_colon_or_dots(name: str) -> None:
    assert rewards.resolve([name], imports(my__code=module(reward=reward))) == [reward]


def test_the_order_given_is_kept_because_the_weights_follow_it() -> None:
    found = rewards.resolve(["digit_share_reward", "m:reward"], imports(m=module(reward=reward)))

    assert found == [rewards.digit_share_reward, reward]


def test_every_reward_that_stands_for_nothing_is_named_at_once() -> None:
    with pytest.raises(DescriptionError) as caught:
        rewards.resolve(["acuracy", "gone.code:reward", "m:missing", "m:number"], imports(m=module(number=3)))

    assert caught.value.problems == (
        "rewards: acuracy: unknown; use one of accuracy_reward, reasoning_accuracy_reward, think_format_reward, "
        "get_soft_overlong_punishment, two_digit_sum_reward, digit_share_reward, "
        "or an import path such as package.module:function",
        "rewards: gone.code:reward: cannot import gone.code: ModuleNotFoundError: No module named 'gone.code'",
        "rewards: m:missing: m has no missing",
        "rewards: m:number: is a int, not a function",
    )


def test_a_module_that_fails_while_it_is_imported_is_the_users_fault_not_ours() -> None:
    def load(name: str) -> types.ModuleType:
        raise ZeroDivisionError("division by zero\nand more")

    with pytest.raises(DescriptionError, match=r"^rewards: m:f: cannot import m: ZeroDivisionError: division by zero$"):
        rewards.resolve(["m:f"], load)


def test_no_reward_at_all_is_refused() -> None:
    with pytest.raises(DescriptionError, match="none given"):
        rewards.resolve([])


def test_a_column_that_a_reward_needs_and_the_dataset_lacks_is_named() -> None:
    problems = rewards.missing_columns([reward, Scored()], ["prompt", "answer"])

    assert problems == [
        "rewards: reward needs a column `solution`; the dataset has answer, prompt",
        "rewards: Scored needs a column `level`; the dataset has answer, prompt",
    ]


def test_what_the_trainer_passes_itself_is_no_column() -> None:
    def all_given(prompts: Any, completions: Any, completion_ids: Any, trainer_state: Any, **kwargs: Any) -> None: ...

    assert rewards.missing_columns([all_given, reward], ["prompt", "solution"]) == []  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("46", 1.0),
        ("12 + 34 = 46.", 1.0),
        ("I cannot say", 0.0),
        ("", 0.0),
        ("23", 0.15),
        ("92", 0.0),
        ("46 is not 47", 0.3 * 45 / 46),
        ("9" * 5000, 0.0),
    ],
)
def test_a_sum_scores_by_its_last_number(text: str, score: float) -> None:
    assert rewards.two_digit_sum_reward([said(text)], ["46"]) == [pytest.approx(score)]


def test_no_wrong_sum_scores_as_much_as_a_third_of_the_right_one() -> None:
    wrong = [said(str(number)) for number in range(1000) if number != 46]

    scores = rewards.two_digit_sum_reward(wrong, ["46"] * len(wrong))

    assert max(score or 0.0 for score in scores) < 1 / 3


def test_the_share_counts_one_digit_among_all_characters() -> None:
    texts = ["7777", "7a", "12345", ""]

    assert rewards.digit_share_reward([said(text) for text in texts]) == [1.0, 0.5, 0.0, 0.0]
    assert rewards.digit_share_reward(texts) == [1.0, 0.5, 0.0, 0.0]
