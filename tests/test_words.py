from hypothesis import given
from hypothesis import strategies as st

from grpo_stack import words
from grpo_stack.words import Variable


def test_a_variable_stands_for_its_default_where_nothing_is_set():
    word = words.join("/outputs/", Variable("RUN", "run"))

    assert words.literal(word) == "/outputs/run"
    assert words.parts(word) == ("/outputs/", Variable("RUN", "run"))


@given(st.lists(st.text()))
def test_plain_text_joined_is_plain_text(texts):
    assert words.join(*texts) == "".join(texts)


@given(st.text())
def test_text_is_its_own_literal_unless_it_is_wholly_a_variable(text):
    assert isinstance(words.parse(text), Variable) or words.literal(text) == text
