"""Rewards by name or import path, and the two that the demo trains on."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

from grpo_stack.errors import DescriptionError

Reward = Callable[..., list[float | None]]

TRL_NAMES = ("accuracy_reward", "reasoning_accuracy_reward", "think_format_reward")
OWN_NAMES = ("two_digit_sum_reward", "digit_share_reward")
FACTORIES = {"get_soft_overlong_punishment": {"max_completion_len": 1280, "soft_punish_cache": 256}}
"""Names that TRL's own script accepts, and the arguments it makes them with (TRL 1.16, `scripts/grpo.py`)."""

GIVEN_BY_TRAINER = {
    "self",
    "prompts",
    "completions",
    "completion_ids",
    "trainer_state",
    "log_extra",
    "log_metric",
    "environments",
}
"""Arguments that GRPOTrainer passes to a reward itself; all others come from columns of the dataset."""


def resolve(names: Sequence[str], load: Callable[[str], ModuleType] = importlib.import_module) -> list[Reward]:
    """The functions that `names` stand for, in their order.

    A name is one of TRL's, one of ours, or an import path such as `package.module:function` or
    `package.module.function`. Raises DescriptionError with a line for each name that stands for nothing.
    """
    found: list[Reward] = []
    problems: list[str] = []
    for name in names:
        try:
            found.append(_resolve_one(name, load))
        except DescriptionError as error:
            problems += error.problems
    if not names:
        problems.append(f"rewards: none given; known names: {_known()}")
    if problems:
        raise DescriptionError(problems)
    return found


def _resolve_one(name: str, load: Callable[[str], ModuleType]) -> Reward:
    if name in OWN_NAMES:
        own: Reward = globals()[name]
        return own
    if name in TRL_NAMES or name in FACTORIES:
        made: Any = getattr(load("trl.rewards"), name)
        return made(**FACTORIES[name]) if name in FACTORIES else made  # type: ignore[no-any-return]
    module_name, separator, attribute = name.partition(":") if ":" in name else name.rpartition(".")
    if not separator or not module_name or not attribute:
        raise DescriptionError(
            f"rewards: {name}: unknown; use one of {_known()}, or an import path such as package.module:function"
        )
    try:
        module = load(module_name)
    except Exception as error:  # whatever the user's module does while it is imported
        raise DescriptionError(f"rewards: {name}: cannot import {module_name}: {_first_line(error)}") from error
    try:
        reward: Any = functools.reduce(getattr, attribute.split("."), module)
    except AttributeError as error:
        raise DescriptionError(f"rewards: {name}: {module_name} has no {attribute}") from error
    if not callable(reward):
        raise DescriptionError(f"rewards: {name}: is a {type(reward).__name__}, not a function")
    return reward  # type: ignore[no-any-return]


def missing_columns(rewards: Iterable[Reward], columns: Iterable[str]) -> list[str]:
    """A problem line for each dataset column that a reward needs and that is not there."""
    have = set(columns)
    problems = []
    for reward in rewards:
        try:
            parameters = inspect.signature(reward).parameters.values()
        except ValueError:  # a callable without a signature in Python, about which nothing can be said beforehand
            continue
        needed = {
            parameter.name
            for parameter in parameters
            if parameter.default is parameter.empty
            and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        }
        for column in sorted(needed - have - GIVEN_BY_TRAINER):
            name = getattr(reward, "__name__", type(reward).__name__)
            problems.append(f"rewards: {name} needs a column `{column}`; the dataset has {', '.join(sorted(have))}")
    return problems


def two_digit_sum_reward(completions: Sequence[Any], solution: Sequence[str], **kwargs: object) -> list[float | None]:
    """1 for the right sum as the last number, less for how near a wrong one is, 0 without a number.

    A sum is all or nothing, and a small model hits it too rarely to learn from that alone in a few steps. So up to 0.3
    are given for being near, on the scale of the answer itself.
    """
    return [
        _sum_score(_text(completion), int(answer)) for completion, answer in zip(completions, solution, strict=True)
    ]


def _sum_score(text: str, answer: int) -> float:
    numbers = re.findall(r"\d+", text)
    if not numbers:
        return 0.0
    said = int(numbers[-1][:9])
    if said == answer:
        return 1.0
    return 0.3 * max(0.0, 1.0 - abs(said - answer) / answer)


def digit_share_reward(completions: Sequence[Any], **kwargs: object) -> list[float | None]:
    """The share of sevens among the characters of a completion; 0 for an empty one."""
    texts = [_text(completion) for completion in completions]
    return [text.count("7") / len(text) if text else 0.0 for text in texts]


def _text(completion: Any) -> str:
    """The text of a completion, which TRL gives as a string or, for conversations, as a list of messages."""
    return str(completion if isinstance(completion, str) else completion[0]["content"])


def _known() -> str:
    return ", ".join((*TRL_NAMES, *FACTORIES, *OWN_NAMES))


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
