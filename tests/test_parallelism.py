"""Which numbers of GPUs serve a model, and which batches TRL takes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_stack import parallelism
from grpo_stack.facts import ModelConfig
from tests.configs import NAMES, config

# Of up to 8 GPUs. vLLM 0.28's own classes of the dense models and of Mixtral and Qwen3-30B-A3B were built on 1, 2, 3, 4, 6, 7
# and 8 pretended ranks and accepted what is accepted here (bench/memory_check.py rules); SmolLM3 on 8 and StarCoder2 on 4 and
# 8 as well, with half and quarter KV heads. Mixtral on 7 is copies of one, whose experts are cut over all.
WORKS = {
    "qwen2.5-0.5b": (1, 2),
    "qwen2.5-1.5b": (1, 2, 4),
    "qwen2.5-3b": (1, 2, 4, 8),
    "qwen2.5-7b": (1, 2, 4),
    "qwen2.5-14b": (1, 2, 4, 8),
    "qwen2.5-72b": (1, 2, 4, 8),
    "qwen3-0.6b": (1, 2, 4, 8),
    "qwen3-8b-fp8": (1, 2, 4, 8),
    "llama-3.2-3b": (1, 2, 4, 8),
    "llama-3.1-70b": (1, 2, 4, 8),
    "smollm2-135m": (1, 3),
    "gemma-2-2b": (1, 2, 4, 8),
    "gemma-3-1b": (1, 2, 4),
    "phi-4": (1, 2),
    "granite-3.1-2b": (1, 2, 4, 8),
    "mixtral-8x7b": (1, 2, 4, 7, 8),
    "deepseek-v3": (1, 2, 4, 8),
    "smollm3-3b": (1, 2, 4),
    "starcoder2-3b": (1, 2),
}


@pytest.mark.parametrize("name", WORKS)
def test_the_numbers_of_gpus_that_serve_a_known_model(name: str) -> None:
    assert parallelism.sizes(config(name), 8) == WORKS[name]


def test_qwen_7b_on_six_gpus_is_refused_with_the_nearest_splits() -> None:
    assert parallelism.split_problem(config("qwen2.5-7b"), server=6, trainer=2, total=8) == (
        "6 GPUs cannot serve Qwen2ForCausalLM: 28 attention heads do not divide by 6; 4 KV heads can neither be divided "
        "by 6 nor be kept 6/4 times; intermediate size 18944 does not divide by 6; it can be served on 1, 2 or 4 of up "
        "to 8: use 4:4, 2:6 or 4:2 (2 idle)"
    )


def test_a_split_that_works_has_no_problem() -> None:
    assert parallelism.split_problem(config("qwen2.5-7b"), server=4, trainer=4, total=8) is None


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("total", [1, 2, 4, 8, 16])
def test_every_way_out_that_is_named_works(name: str, total: int) -> None:
    model = config(name)
    for server in range(1, total):
        problem = parallelism.split_problem(model, server, total - server, total)
        if problem:
            ways = problem.rpartition(": use ")[2].replace(" idle)", "").replace(" or ", ", ").replace(" (", "+")
            for way in ways.split(", "):
                serving, _, training = way.partition("+")[0].partition(":")
                assert parallelism.check(model, int(serving)).problems == ()
                assert int(training) >= 1
                assert int(serving) + int(training) + int(way.partition("+")[2] or 0) == total


@pytest.mark.parametrize("name", NAMES)
def test_one_gpu_always_serves(name: str) -> None:
    assert parallelism.check(config(name), 1) == parallelism.Layout(1)


def test_a_dense_model_is_never_copied() -> None:
    layouts = [parallelism.check(config("qwen2.5-7b"), gpus) for gpus in range(1, 17)]

    assert {layout.data_parallel for layout in layouts} == {1}


def test_experts_on_six_gpus_are_served_by_three_copies_of_two() -> None:
    assert parallelism.check(config("qwen3-30b-a3b"), 6) == parallelism.Layout(2, 3)


def test_experts_whose_size_the_gpus_do_not_divide_are_refused() -> None:
    problems = parallelism.check(config("qwen3-30b-a3b"), 5).problems

    assert "an expert's size 768 does not divide by 5" in problems


def test_more_gpus_than_experts_are_not_one_group_for_qwen() -> None:
    few = replace(config("qwen3-30b-a3b"), num_experts=2)

    assert parallelism.check(few, 4) == parallelism.Layout(2, 2)
    assert parallelism.check(replace(few, architecture="MixtralForCausalLM"), 4) == parallelism.Layout(4, 1)


def test_weights_with_one_scale_a_block_are_cut_at_blocks() -> None:
    fp8 = replace(config("qwen3-8b"), quantization="fp8", quantization_block=128, intermediate_size=12288 + 64 * 8)

    assert parallelism.check(replace(fp8, quantization_block=None), 8).problems == ()
    assert "intermediate size 12800 does not divide by 8 in blocks of 128" in parallelism.check(fp8, 8).problems


def test_narrow_heads_with_one_scale_a_block_are_not_cut_below_a_block() -> None:
    narrow = replace(config("qwen3-8b-fp8"), head_dim=64)

    assert "key width 512 does not divide by 8 in blocks of 128" in parallelism.check(narrow, 8).problems


def test_a_vocabulary_is_padded_before_it_is_cut() -> None:
    odd = replace(config("qwen2.5-7b"), vocab_size=152001)  # 152001 is odd; vLLM pads it to 152064

    assert parallelism.check(odd, 4).problems == ()


@given(
    heads_each=st.integers(1, 8), kv_heads=st.integers(1, 16), intermediate=st.integers(1, 60), size=st.integers(1, 16)
)
def test_a_dense_size_is_accepted_just_when_everything_that_is_cut_divides(
    heads_each: int, kv_heads: int, intermediate: int, size: int
) -> None:
    model = ModelConfig(
        "X", 2, 64, intermediate, heads_each * kv_heads, kv_heads, 8, vocab_size=1000, max_position_embeddings=None
    )

    accepted = parallelism.check(model, size).problems == ()

    kv_ok = kv_heads % size == 0 if kv_heads >= size else size % kv_heads == 0
    cut = [heads_each * kv_heads, 1024, intermediate]
    assert accepted == (kv_ok and all(number % size == 0 for number in cut))


@given(
    processes=st.integers(1, 16),
    batch=st.integers(1, 33),
    accumulation=st.integers(1, 17),
    generations=st.integers(2, 64),
)
def test_a_batch_is_refused_just_when_trl_refuses_it_and_what_is_named_instead_works(
    processes: int, batch: int, accumulation: int, generations: int
) -> None:
    problem = parallelism.batch_problem(processes, batch, accumulation, generations)

    assert (problem is None) == (processes * batch * accumulation % generations == 0)
    if problem:
        key = ""
        for way in problem.partition("nearest: ")[2].replace(" or ", ", ").split(", "):
            words = way.split()
            key = words[0] if len(words) == 2 else key
            changed = {"gradient_accumulation_steps": accumulation, "per_device_train_batch_size": batch}
            changed = {**changed, "num_generations": generations, key: int(words[-1])}
            assert parallelism.batch_problem(processes, *changed.values()) is None


def test_the_batch_that_does_not_divide_is_said_with_what_is_near() -> None:
    assert parallelism.batch_problem(6, 4, 1, 16) == (
        "6 processes * 4 per_device_train_batch_size * 1 gradient_accumulation_steps = 24 completions, which 16 "
        "num_generations do not divide; nearest: gradient_accumulation_steps 2, per_device_train_batch_size 8 or "
        "num_generations 12 or 24"
    )


def test_a_single_generation_is_refused() -> None:
    assert "use 2 or more" in str(parallelism.batch_problem(4, 8, 1, 1))


def test_a_batch_of_nothing_is_refused() -> None:
    assert "must be 1 or more" in str(parallelism.batch_problem(4, 0, 1, 8))


@pytest.mark.parametrize(
    ("wanted", "prompt", "completion", "problem"),
    [
        (None, 1024, 512, None),
        (1536, 1024, 512, None),
        (4096, 1024, 512, None),
        (1535, 1024, 512, "1535 tokens do not hold 1024 of the prompt + 512 of the completion; use 1536, or leave it out"),
        (None, 131072, 1, "131073 tokens (131072 of the prompt + 1 of the completion) are more than the 131072 that the model was made for; shorten one of them"),
    ],
)  # fmt: skip
def test_the_longest_sequence_must_hold_prompt_and_completion(
    wanted: int | None, prompt: int, completion: int, problem: str | None
) -> None:
    assert parallelism.length_problem(config("qwen2.5-7b"), wanted, prompt, completion) == problem


def test_a_model_that_says_no_longest_context_is_not_held_to_one() -> None:
    silent = replace(config("qwen2.5-7b"), max_position_embeddings=None)

    assert parallelism.length_problem(silent, None, 10**6, 10**6) is None
    assert parallelism.length_problem(None, None, 10**6, 10**6) is None


@given(value=st.integers(1, 100), divisor=st.integers(2, 64), others=st.integers(1, 64))
def test_near_values_lie_on_both_sides(value: int, divisor: int, others: int) -> None:
    near = [int(word) for word in parallelism._near(value, divisor, others).split(" or ")]
    step = divisor // math.gcd(divisor, others)

    assert all(abs(number - value) <= step for number in near)
