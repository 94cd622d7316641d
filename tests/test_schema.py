from dataclasses import dataclass, field

import pytest

from grpo_stack import schema


@dataclass(frozen=True)
class Inner:
    port: int = 1
    share: float | None = None


@dataclass(frozen=True)
class Outer:
    model: str
    on: bool = False
    words: tuple[str, ...] = ()
    args: dict[str, str | int | float | bool | tuple[str | int | float | bool, ...]] = field(default_factory=dict)
    inner: Inner = Inner()


def test_values_arrive_with_their_types():
    data = {
        "model": "m",
        "words": ["a", "b"],
        "args": {"lr": 1e-5, "names": ["x", 2], "on": True},
        "inner": {"share": 1},
    }

    values, problems = schema.read(Outer, data)

    assert problems == []
    assert values == {
        "model": "m",
        "words": ("a", "b"),
        "args": {"lr": 1e-5, "names": ("x", 2), "on": True},
        "inner": Inner(port=1, share=1.0),
    }


def test_all_problems_are_found_at_once_each_with_its_key():
    data = {"modell": "m", "on": "yes", "words": "a", "inner": {"port": "80", "prot": 1}, "args": {"a": None}}

    _, problems = schema.read(Outer, data)

    assert problems == [
        "modell: unknown key; did you mean `model`?",
        "model: missing, and it has no default",
        "on: 'yes' found where true or false belongs",
        "words: 'a' found where a list belongs",
        "args: nothing found where text or a whole number or a number or true or false or a list belongs",
        "inner.prot: unknown key; did you mean `port`?",
        "inner.port: '80' found where a whole number belongs",
    ]


def test_a_number_where_text_belongs_is_shown_in_quotes():
    _, problems = schema.read(Outer, {"model": 7})

    assert problems == ['model: 7 found where text belongs; put it in quotes: "7"']


def test_true_is_no_number_and_a_number_is_no_truth():
    _, problems = schema.read(Outer, {"model": "m", "on": 1, "inner": {"port": True}})

    assert problems == [
        "on: 1 found where true or false belongs",
        "inner.port: True found where a whole number belongs",
    ]


@pytest.mark.parametrize("data", [None, [], "text", 3])
def test_anything_but_keys_and_values_is_refused(data):
    _, problems = schema.read(Outer, data)

    assert len(problems) == 1
    assert problems[0].endswith("found where keys and values belong")


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
def test_text_that_no_command_line_can_carry_is_refused(text):
    _, problems = schema.read(Outer, {"model": text})

    assert problems == ["model: holds a NUL or half a surrogate pair, which no command line can carry"]
