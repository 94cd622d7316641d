import pytest

from grpo_stack import server_options


def problems(*words):
    return list(server_options.problems(words))


def test_an_option_that_the_stack_sets_itself_is_refused_in_each_of_its_spellings():
    taken = ": --max-logprobs is set by the stack; server mode does not work with another value"

    assert problems("--max_logprobs=5", "--max-logprobs", "5") == [taken, taken]
    assert problems("-tp", "8") == [": -tp is set by the stack; use the key `split`"]
    assert problems("--weight-transfer-config.backend=ipc")[0].startswith(": --weight-transfer-config is set")


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("--data-parallel-size=2", "the stack starts one copy of the model: those of a dense one"),
        *((f"--{name}", "by plain HTTP") for name in ("uds", "ssl-keyfile", "ssl_certfile", "root-path", "api-key=x")),
        *((f"--{name}", "is all of one host") for name in ("headless", "nnodes", "data-parallel-size-local=1")),
        ("-pcp", "more GPUs than the split"),
        ("--config", "what the description sets"),
        ("--help", "print and end"),
        ("-h", "print and end"),
    ],
)
def test_an_option_that_breaks_what_the_stack_rests_on_is_refused_with_the_reason(word, why):
    (found,) = problems(word)

    assert found.startswith(f": {word.partition('=')[0].replace('_', '-')}: ")
    assert why in found


@pytest.mark.parametrize("word", ["", " ", "\n"])
def test_an_empty_word_is_refused(word):
    assert problems(word) == [f": {word!r} is no word for `vllm serve`; leave it out"]


@pytest.mark.parametrize("word", ["--max-num-seqs 512", "--port 9", "-tp\t8"])
def test_an_option_and_its_value_in_one_word_are_refused(word):
    (found,) = problems(word)

    assert f"write an option and its value as two: {word.split()}" in found


def test_other_words_pass():
    words = ["--max-num-seqs", "512", '--hf-overrides={"a": 1}', "--enable-expert-parallel", "y z", "-O3"]

    assert problems(*words) == []
