from dataclasses import dataclass, field
from datetime import date

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
        "args.a: nothing found where text or a whole number or a number or true or false or a list belongs",
        "inner.prot: unknown key; did you mean `port`?",
        "inner.port: '80' found where a whole number belongs",
    ]


@pytest.mark.parametrize("value", [7, 1.5, 42798, date(2024, 1, 2)])
def test_what_yaml_made_of_a_text_is_not_taken_for_what_was_written(value):
    _, problems = schema.read(Outer, {"model": value})

    assert problems == [f"model: {value!r} found where text belongs; put it in quotes, as it is written there"]


def test_a_word_that_yaml_took_for_a_truth_is_not_named_as_python_would():
    _, problems = schema.read(Outer, {"model": False})

    assert problems == ["model: False found where text belongs; put the word in quotes"]


def test_every_wrong_item_of_a_list_and_of_a_mapping_has_its_own_line():
    data = {"model": "m", "words": ["a", 1, None], "args": {"a": None, "b": 1, "c": [1, {}], 4: 2}}

    _, problems = schema.read(Outer, data)

    scalar = "text or a whole number or a number or true or false"
    assert problems == [
        "words[1]: 1 found where text belongs; put it in quotes, as it is written there",
        "words[2]: nothing found where text belongs",
        "args.4: 4 found where text belongs; put it in quotes, as it is written there",
        f"args.a: nothing found where {scalar} or a list belongs",
        f"args.c[1]: {{}} found where {scalar} belongs; write a mapping as JSON, in quotes: '{{}}'",
    ]


@pytest.mark.parametrize(
    ("value", "json"),
    [
        ({"attn_implementation": "sdpa", "n": 1}, """{"attn_implementation": "sdpa", "n": 1}"""),
        ({"it's": [True, None]}, """{"it''s": [true, null]}"""),
        ({"x": "y" * 100}, "{...}"),
        ({date(2024, 1, 2): 1}, "{...}"),
        ({"x": 10**5000}, "{...}"),
    ],
)
def test_a_mapping_where_a_text_may_be_is_shown_as_json(value, json):
    _, (problem,) = schema.read(Outer, {"model": "m", "args": {"kwargs": value}})

    assert problem.endswith(f"or a list belongs; write a mapping as JSON, in quotes: '{json}'")


@pytest.mark.parametrize(("text", "number"), [("1e-3", 0.001), ("2.E+1", 20.0), ("-.5e1", -5.0)])
def test_a_number_that_yaml_takes_for_a_text_is_the_number(text, number):
    values, problems = schema.read(Inner, {"share": text})

    assert (values, problems) == ({"share": number}, [])


@pytest.mark.parametrize("text", ["0.5", "e5", "1e", "1e-3 ", "nan", "inf"])
def test_other_texts_are_no_numbers(text):
    assert schema.read(Inner, {"share": text})[1] == [f"share: {text!r} found where a number belongs"]


@pytest.mark.parametrize("wrong", [[], 0, "", False, "text"])
def test_only_nothing_stands_for_an_empty_section(wrong):
    _, problems = schema.read(Outer, {"model": "m", "inner": wrong})

    assert problems == [f"inner: {wrong!r} found where keys and values belong"]
    assert schema.read(Outer, {"model": "m", "inner": None}) == ({"model": "m", "inner": Inner()}, [])


@pytest.mark.parametrize("number", [10**18, -(10**18), 16**5000], ids=["large", "small", "huge"])
def test_a_number_too_large_to_be_meant_is_refused_where_any_number_may_stand(number):
    _, problems = schema.read(Outer, {"model": "m", "args": {"a": number}, "inner": {"port": number, "share": number}})

    assert [problem.partition(": ")[0] for problem in problems] == ["args.a", "inner.port", "inner.share"]
    assert all("is too large for any setting" in problem for problem in problems)


@pytest.mark.parametrize("key", ["", "a\nb", 16**5000, None], ids=["empty", "two lines", "huge", "nothing"])
def test_a_key_that_is_no_plain_text_is_named_in_one_line(key):
    _, problems = schema.read(Outer, {"model": "m", key: 1, "inner": {key: 1}, "args": {key: None}})

    assert len(problems) >= 3
    assert all(line.isprintable() and not line.startswith(":") and ".:" not in line for line in problems)


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
