"""What a GPU has to hold: exact counts, the points that were measured, and what must hold for every model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_stack import parallelism
from grpo_stack.facts import ModelConfig
from grpo_stack.memory import checkpoint, push, server, shares, tensors, trainer
from grpo_stack.memory.server import Serving
from grpo_stack.memory.shares import GIB, Side
from grpo_stack.memory.trainer import Lora, Training
from tests.configs import COUNTS, NAMES, config

H100_GIB, H200_GIB = 79.6, 139.8
LENGTH = 4096

names = st.sampled_from(NAMES)
parallelisms = st.sampled_from(["ddp", "fsdp2", "zero2", "zero3"])


def share(side: Side, label: str) -> float:
    return next(share.gib for share in side.shares if share.label == label)


def served(name: str, capacity_gib: float = H100_GIB, **settings: object) -> Side:
    return server.estimate(config(name), capacity_gib, replace(Serving(LENGTH), **settings))  # type: ignore[arg-type]


def training(name: str, processes: int, **settings: object) -> Side:
    return trainer.estimate(config(name), H100_GIB, replace(Training(processes, LENGTH), **settings))  # type: ignore[arg-type]


# counts


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_counted_as_transformers_counts_them(name: str) -> None:
    assert tensors.parameters(config(name)) == COUNTS[name]


def test_every_config_has_its_count() -> None:
    assert sorted(COUNTS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_push_sends_every_parameter_once(name: str) -> None:
    assert sum(tensors.pushed(config(name))) == COUNTS[name]


@pytest.mark.parametrize("name", NAMES)
def test_one_gpu_holds_all_and_several_hold_it_between_them(name: str) -> None:
    model = config(name)

    def held(size: int) -> int:
        return sum(tensors.per_gpu(tensor, model, size, size) * tensor.layers for tensor in tensors.of(model))

    padded = -model.vocab_size % 64 * model.hidden_size * (1 if model.tie_word_embeddings else 2)
    assert held(1) == COUNTS[name] + padded
    for size in parallelism.sizes(model, 8):
        assert size * held(size) >= held(1)


def test_kv_heads_are_kept_several_times_where_there_are_fewer_than_gpus() -> None:
    model = replace(config("qwen2.5-3b"), attention_bias=False)  # 2 KV heads of 128, width 2048
    keys = next(tensor for tensor in tensors.of(model) if tensor.name == "k_proj")

    assert [tensors.per_gpu(keys, model, size, size) // 2048 for size in (1, 2, 4, 8)] == [256, 128, 128, 128]


def test_adapters_are_counted_for_each_projection() -> None:
    llama = config("llama-3.1-8b")  # width 4096, KV width 1024, 32 layers

    assert tensors.adapters(llama, 16, ("q_proj", "v_proj")) == 32 * 16 * ((4096 + 4096) + (4096 + 1024))


# measured points


@pytest.mark.parametrize(
    ("name", "weights", "activations", "graphs", "cache_gib", "tokens"),
    [("qwen2.5-7b", 14.32, 1.13, 0.89, 26.27, 491_920), ("qwen2.5-0.5b", 0.93, 0.35, 0.39, 40.43, 3_533_120)],
)
def test_a_server_takes_what_it_took_on_an_h200(
    name: str, weights: float, activations: float, graphs: float, cache_gib: float, tokens: int
) -> None:
    """vLLM 0.26 with --gpu-memory-utilization 0.3, as its log said it."""
    side = served(name, H200_GIB, utilization=0.3)

    assert share(side, "weights") == pytest.approx(weights, abs=0.06)
    assert share(side, "activations") == pytest.approx(activations, rel=0.05)
    assert share(side, "CUDA graphs") == pytest.approx(graphs, abs=0.005)
    assert share(side, "libraries") == 0.22
    assert side.kv is not None
    assert side.kv.gib == pytest.approx(cache_gib, abs=0.03)
    assert side.kv.tokens == pytest.approx(tokens, rel=0.002)


def test_graphs_are_inside_the_utilization_for_the_first_model_runner_and_outside_for_the_second() -> None:
    def left_for_the_cache(name: str) -> tuple[float, float]:
        side = served(name, H200_GIB, utilization=0.8)
        labels = [share.label for share in side.shares]
        counted = {"weights", "activations", "libraries"} | ({"CUDA graphs"} if labels.index("CUDA graphs") < labels.index("KV cache") else set())  # fmt: skip
        assert side.kv is not None
        return side.kv.gib, 0.8 * H200_GIB - sum(share(side, label) for label in counted)

    for name, late in {"qwen2.5-14b": True, "qwen1.5-moe-a2.7b": True, "olmoe-1b-7b": False, "mixtral-8x7b": False}.items():  # fmt: skip
        labels = [share.label for share in served(name, H200_GIB).shares]
        assert (labels.index("CUDA graphs") > labels.index("KV cache")) == late
        have, expected = left_for_the_cache(name)
        assert have == pytest.approx(expected)


def test_what_sampling_may_take_beyond_the_profile_finds_room_outside() -> None:
    small = served("qwen2.5-0.5b", H100_GIB)

    assert share(small, "weight push") == pytest.approx(1024 * 151936 * 14 / GIB)
    assert share(served("qwen2.5-0.5b", H100_GIB, max_num_seqs=16), "weight push") < share(small, "weight push")


def test_blackwell_captures_twice_as_many_tokens() -> None:
    assert share(served("qwen2.5-7b", 180.0), "CUDA graphs") > share(served("qwen2.5-7b", H200_GIB), "CUDA graphs")


@pytest.mark.parametrize(
    ("size", "counted"),
    [(1, 512), (512, 512), (513, 1024), (9 * 2**20, 9 * 2**20), (23 * 2**20, 24 * 2**20), (24 * 2**20 + 2**19, 24 * 2**20 + 2**19)],
)  # fmt: skip
def test_torch_rounds_blocks_up(size: int, counted: int) -> None:
    assert tensors.allocated(size) == counted


def test_the_kv_cache_of_qwen_7b_takes_56_kib_a_token() -> None:
    assert server.bytes_per_token(config("qwen2.5-7b"), Serving(LENGTH)) == 2 * 28 * 4 * 128 * 2


def test_latent_attention_keeps_one_vector_on_every_gpu() -> None:
    model = config("deepseek-v2-lite")

    assert server.bytes_per_token(model, Serving(LENGTH, tensor_parallel=1)) == 27 * 576 * 2
    assert server.bytes_per_token(model, Serving(LENGTH, tensor_parallel=8)) == 27 * 576 * 2


def test_windowed_layers_keep_their_window() -> None:
    model, long = config("gemma-3-4b"), Serving(100_000, max_num_batched_tokens=2048)
    whole = replace(model, sliding_window=None, sliding_layers=0)

    assert server.sequence_bytes(model, long, H100_GIB) < server.sequence_bytes(whole, long, H100_GIB) / 3


# pushes


def test_a_chunk_is_closed_once_it_is_larger_than_a_gibibyte() -> None:
    mib = 2**20

    assert push.chunks([600 * mib, 600 * mib, 1024 * mib, 1, 5]) == [1200 * mib, 1024 * mib + 1, 5]


def test_a_receiver_holds_three_chunks_and_a_gathering_sender_too() -> None:
    sizes = [2 * GIB, 2 * GIB, 3 * GIB, 1]

    assert push.receiver_bytes(sizes) == 7 * GIB
    assert push.sender_bytes(sizes, gathered=False) == 5 * GIB
    assert push.sender_bytes(sizes, gathered=True) == 8 * GIB


@given(st.lists(st.integers(1, 3 * GIB), max_size=30))
def test_chunks_hold_everything_that_is_sent(sizes: list[int]) -> None:
    assert sum(push.chunks(sizes)) == sum(sizes)


def test_fsdp2_sends_float32_and_the_others_what_was_loaded() -> None:
    sent = {
        kind: trainer.pushed_dtype(Training(4, LENGTH, parallelism=kind)) for kind in ("ddp", "fsdp2", "zero2", "zero3")
    }

    assert sent == {"ddp": "bfloat16", "fsdp2": "float32", "zero2": "bfloat16", "zero3": "bfloat16"}
    assert trainer.pushed_dtype(Training(1, LENGTH)) == "bfloat16"
    assert trainer.pushed_dtype(Training(4, LENGTH, lora=Lora())) == "bfloat16"


# the trainer's states


@pytest.mark.parametrize(
    ("settings", "weights", "gradients", "optimizer"),
    [
        ({"processes": 1}, 2, 2, 4),
        ({"processes": 4, "parallelism": "ddp"}, 2, 4, 4),
        ({"processes": 4, "parallelism": "fsdp2"}, 1, 1, 2),
        ({"processes": 4, "parallelism": "zero2"}, 3, 0.5, 2),
        ({"processes": 4, "parallelism": "zero3"}, 1.5, 0.5, 2),
        ({"processes": 1, "dtype": "float32"}, 4, 4, 8),
    ],
    ids=str,
)
def test_what_a_parameter_takes_on_each_gpu(
    settings: dict[str, object], weights: float, gradients: float, optimizer: float
) -> None:
    side = training("qwen2.5-7b", **{"processes": 1, **settings})  # type: ignore[arg-type]
    entries = COUNTS["qwen2.5-7b"] / GIB

    assert share(side, "weights") == pytest.approx(weights * entries)
    assert share(side, "gradients") == pytest.approx(gradients * entries)
    assert share(side, "optimizer state") == pytest.approx(optimizer * entries)


def test_eight_bits_leave_the_embedding_at_32() -> None:
    side = training("qwen2.5-7b", 1, optimizer="adamw_bnb_8bit", dtype="float32")
    embedding = 152064 * 3584
    rest = COUNTS["qwen2.5-7b"] - embedding

    assert share(side, "optimizer state") == pytest.approx((8 * embedding + 2.03125 * rest) / GIB)


def test_a_reference_model_is_a_second_copy() -> None:
    side = training("qwen2.5-7b", 2, parallelism="ddp", reference=True)

    assert share(side, "reference model") == pytest.approx(2 * COUNTS["qwen2.5-7b"] / GIB)


def test_adapters_under_zero3_gather_the_whole_model_for_a_push() -> None:
    settings = {"lora": Lora(), "per_device_batch": 1, "parallelism": "zero3"}

    assert training("qwen2.5-14b", 8, **settings).needed_gib > 2 * COUNTS["qwen2.5-14b"] / GIB


# verdicts


def test_what_fits_has_no_problem() -> None:
    side = training("qwen2.5-7b", 4)

    assert (shares.severity(side), shares.problem(side)) == ("ok", None)


def test_what_does_not_fit_says_what_is_large_and_what_to_change() -> None:
    line = shares.problem(training("qwen2.5-7b", 4, parallelism="ddp"))

    assert line is not None
    assert line.startswith("trainer: does not fit: about ")
    assert "GiB needed on each GPU of 79.6 GiB" in line
    assert "set trainer.parallelism to fsdp2" in line


def test_a_smaller_batch_is_only_named_where_it_helps() -> None:
    assert "per_device_train_batch_size" in str(shares.problem(training("qwen2.5-7b", 4, per_device_batch=32)))
    assert "per_device_train_batch_size" not in str(shares.problem(training("qwen2.5-72b", 4)))


@pytest.mark.parametrize(("load", "severity"), [(0.95, "ok"), (0.951, "warning"), (1.0, "warning"), (1.001, "problem")])
def test_above_95_percent_warns_and_above_100_is_a_problem(load: float, severity: str) -> None:
    side = Side("trainer", 1, 80, (shares.Share("weights", 80 * load),), 80 * load, load, ("train on more GPUs",))

    assert shares.severity(side) == severity
    assert (shares.problem(side) is None) == (severity == "ok")


def test_a_model_that_one_gpu_cannot_serve_is_refused() -> None:
    side = served("llama-3.1-70b")

    assert shares.severity(side) == "problem"
    assert "serve on more GPUs" in str(shares.problem(side))


def test_a_utilization_without_room_for_the_push_is_refused_with_one_that_has() -> None:
    side = served("qwen2.5-7b", utilization=0.98)

    assert shares.severity(side) == "problem"
    proposed = served("qwen2.5-7b").utilization
    assert f"set server.gpu_memory_utilization to {proposed:.2f}" in str(shares.problem(side))


def test_a_utilization_without_room_for_one_sequence_is_refused() -> None:
    assert shares.severity(served("qwen2.5-7b", utilization=0.19)) == "problem"


@given(names, st.floats(20, 300), st.sampled_from([1, 2, 4, 8]))
def test_the_proposed_utilization_leaves_what_lies_outside_it(name: str, capacity_gib: float, size: int) -> None:
    side = served(name, capacity_gib, tensor_parallel=size)
    labels = [share.label for share in side.shares]
    outside = sum(share.gib for share in side.shares[labels.index("KV cache") + 1 :])

    assert side.utilization is not None
    assert side.utilization <= 0.92
    assert side.utilization * capacity_gib + outside <= capacity_gib + 1e-6 or side.utilization == 0.01


@given(names, st.floats(20, 300))
def test_rows_add_up_to_the_gpu(name: str, capacity_gib: float) -> None:
    side = trainer.estimate(config(name), capacity_gib, Training(4, LENGTH))

    assert sum(float(gib) for _, gib, _ in shares.rows(side)) == pytest.approx(capacity_gib, abs=0.1)


# what must hold for every model


@given(names, st.booleans())
def test_more_gpus_never_need_more_on_each_to_serve(name: str, push_float32: bool) -> None:
    model = config(name)
    dtype = "float32" if push_float32 else "bfloat16"
    sizes = [size for size in parallelism.sizes(model, 8) if parallelism.check(model, size).data_parallel == 1]
    needed = [served(name, tensor_parallel=size, pushed_dtype=dtype).needed_gib for size in sizes]

    assert needed == sorted(needed, reverse=True)


@given(names, parallelisms, st.integers(2, 63), st.integers(1, 64))
def test_more_gpus_never_need_more_on_each_to_train(name: str, kind: str, processes: int, more: int) -> None:
    few, many = (training(name, count, parallelism=kind).needed_gib for count in (processes, processes + more))

    assert many <= few + 1e-9


@given(names, parallelisms, st.integers(1, 16))
def test_tied_never_needs_more_than_untied(name: str, kind: str, processes: int) -> None:
    tied, untied = (replace(config(name), tie_word_embeddings=tie) for tie in (True, False))

    def both(model: ModelConfig) -> tuple[float, float]:
        wanted = Training(processes, LENGTH, parallelism=kind)
        serving = Serving(LENGTH, pushed_dtype=trainer.pushed_dtype(wanted))
        return server.estimate(model, H200_GIB, serving).needed_gib, trainer.estimate(
            model, H200_GIB, wanted
        ).needed_gib

    assert both(tied) <= both(untied)
    assert both(tied)[1] <= both(untied)[1]


@given(names, parallelisms, st.integers(1, 16), st.sampled_from([8, 64]))
def test_adapters_never_need_more_than_all_parameters_while_nothing_is_sent(
    name: str, kind: str, processes: int, rank: int
) -> None:
    model = config(name)
    whole = Training(processes, LENGTH, parallelism=kind)
    adapted = replace(whole, lora=Lora(rank, ("all-linear",)))

    def standing(wanted: Training) -> float:
        side = trainer.estimate(model, H100_GIB, wanted)
        return sum(share.gib for share in side.shares if share.label != "weight push")

    assert standing(adapted) <= standing(whole)


@given(names, st.sampled_from([64, 1000, 4096, 32768]), st.integers(1, 20000), parallelisms)
def test_longer_never_needs_less(name: str, length: int, more: int, kind: str) -> None:
    def needed(tokens: int) -> tuple[float, float]:
        wanted = Training(4, tokens, parallelism=kind)
        return served(name, max_model_len=tokens).needed_gib, trainer.estimate(config(name), 80, wanted).needed_gib

    assert all(long >= short for long, short in zip(needed(length + more), needed(length), strict=True))


@given(names, st.integers(1, 63), st.integers(1, 64), st.booleans())
def test_a_larger_batch_never_needs_less(name: str, batch: int, more: int, checkpointing: bool) -> None:
    small, large = (
        training(name, 4, per_device_batch=size, gradient_checkpointing=checkpointing).needed_gib
        for size in (batch, batch + more)
    )

    assert small <= large


@given(names, parallelisms)
def test_checkpointing_and_8_bits_never_need_more(name: str, kind: str) -> None:
    plain = training(name, 4, parallelism=kind).needed_gib

    assert plain <= training(name, 4, parallelism=kind, gradient_checkpointing=False).needed_gib
    assert training(name, 4, parallelism=kind, optimizer="adamw_bnb_8bit").needed_gib <= plain


@given(names)
def test_fp8_never_needs_more_than_16_bits_to_serve(name: str) -> None:
    model = replace(config(name), quantization=None)
    fp8 = replace(model, quantization="fp8", quantization_block=128)

    assert share(server.estimate(fp8, H100_GIB, Serving(LENGTH)), "weights") < share(
        server.estimate(model, H100_GIB, Serving(LENGTH)), "weights"
    )


@given(names, st.floats(30, 200), st.floats(0, 100))
def test_a_larger_gpu_of_the_same_kind_holds_no_fewer_tokens(name: str, capacity_gib: float, more: float) -> None:
    same = {"max_num_seqs": 256, "max_num_batched_tokens": 8192}
    small, large = (served(name, size, **same).kv for size in (capacity_gib, capacity_gib + more))

    assert small is not None
    assert large is not None
    # the proposed utilization comes in hundredths
    assert large.gib >= small.gib - 0.01 * (capacity_gib + more)


def test_unknown_families_and_other_parts_are_said_to_be_estimates() -> None:
    unknown = replace(config("qwen2.5-7b"), known_family=False)
    side = server.estimate(unknown, H100_GIB, Serving(LENGTH))

    assert ("weights", "family not known: counted like Llama") in [(row[0], row[2]) for row in shares.rows(side)]
    assert ("weights", "text part only") in [(row[0], row[2]) for row in shares.rows(served("gemma-3-4b"))]


# what is written


@pytest.mark.parametrize(
    ("settings", "for_each"),
    [
        ({}, 8),
        ({"dtype": "float32"}, 16),
        ({"processes": 4, "parallelism": "ddp"}, 8),
        ({"processes": 4, "parallelism": "fsdp2"}, 20),
        ({"processes": 4, "parallelism": "zero2"}, 18),
        ({"processes": 4, "parallelism": "zero3"}, 18),
    ],
)
def test_a_checkpoint_and_the_trained_model_are_as_large_as_what_is_trained(
    settings: dict[str, Any], for_each: int
) -> None:
    made = Training(**{"processes": 1, "length": LENGTH, **settings})

    assert checkpoint.written_bytes(config("qwen2.5-7b"), made) == for_each * COUNTS["qwen2.5-7b"]


def test_fsdp2_writes_a_tied_head_a_second_time() -> None:
    small = config("qwen2.5-0.5b")
    made = Training(4, LENGTH)
    head = small.vocab_size * small.hidden_size

    assert checkpoint.written_bytes(small, made) == 20 * COUNTS["qwen2.5-0.5b"] + 4 * head
    adapters = checkpoint.written_bytes(small, replace(made, lora=Lora()))
    assert adapters - 20 * tensors.adapters(small, 16, ("q_proj", "v_proj")) == 2 * head


@given(names, parallelisms, st.sampled_from([1, 4]))
def test_adapters_and_small_moments_take_less_room_on_the_disk(name: str, parallelism: str, processes: int) -> None:
    made = Training(processes, LENGTH, parallelism=parallelism)
    whole = checkpoint.written_bytes(config(name), made)

    assert checkpoint.written_bytes(config(name), replace(made, lora=Lora())) < whole / 10
    assert checkpoint.written_bytes(config(name), replace(made, optimizer="adamw_8bit")) < whole
