"""What is refused before a GPU is touched, and what is only said."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_stack import fit, footprint, parallelism, rules
from grpo_stack.facts import Gpu
from grpo_stack.fit import Capacities
from tests.configs import NAMES, config

H100_GIB, H200_GIB = 79.6, 139.8
H100, H200 = Capacities(H100_GIB, H100_GIB), Capacities(H200_GIB, H200_GIB)
QWEN = config("qwen2.5-7b")


def findings(data=None, model=QWEN, capacity=H200, total=8):
    return fit.findings(rules.read(data), model, capacity, total)


def levels(found):
    return {finding.check: finding.level for finding in found}


def problem(found):
    (finding,) = [finding for finding in found if finding.level == "problem"]
    return finding


def gpu(index, mib, uuid=None):
    nothing = dict.fromkeys(Gpu.__dataclass_fields__)
    return Gpu(**{**nothing, "index": index, "uuid": uuid, "memory_total_mib": mib})


def test_the_published_recipe_fits_its_gpus():
    assert levels(findings()) == dict.fromkeys(
        ("batch", "length", "tensor-parallel", "server-memory", "trainer-memory"), "ok"
    )


def test_every_name_that_trl_does_not_know_is_refused_with_the_nearest():
    found = findings({"trainer": {"args": {"max_stpes": 5, "xyzzy": 1, "max-steps": 5, "no_bf16": "true"}}})

    assert [str(finding) for finding in found if finding.check == "arguments"] == [
        "arguments: trainer.args.max_stpes: TRL knows no such option; did you mean max_steps?",
        "arguments: trainer.args.xyzzy: TRL knows no such option; see TRL's GRPOConfig and ModelConfig for those that there are",
    ]


@pytest.mark.parametrize("given", [{"load_in_4bit": True}, {"load-in-8bit": "true"}])
@pytest.mark.parametrize("stack", [{}, {"split": "shared"}, {"accelerator": "cpu"}])
def test_weights_that_no_server_can_take_are_refused(stack, given):
    (option,) = given

    found = findings({**stack, "trainer": {"args": given}}, model=None)

    assert problem(found).check == "arguments"
    assert problem(found).found.startswith(f"trainer.args.{option.replace('-', '_')}: bitsandbytes packs the weights")


def test_weights_that_are_not_packed_or_not_pushed_are_not_refused():
    for data in (
        {"split": "colocate", "trainer": {"args": {"load_in_4bit": True}}},
        {"trainer": {"args": {"load_in_4bit": False}}},
    ):
        assert levels(findings(data, model=None)).get("arguments") is None


def test_a_model_that_is_packed_already_is_refused_where_it_would_be_pushed():
    packed = replace(QWEN, quantization="bitsandbytes")

    assert levels(findings(model=packed))["model"] == "problem"
    assert "model" not in levels(findings({"split": "colocate"}, model=packed))
    assert "model" not in levels(findings(model=replace(QWEN, quantization="fp8")))


def test_a_checkpoint_in_float16_that_is_sampled_as_such_is_told():
    half = replace(QWEN, dtype="float16")

    (told,) = [finding for finding in findings({"split": "colocate"}, model=half) if finding.check == "model"]
    assert (told.level, told.fix) == ("warning", "split: shared has one dtype on both sides")
    assert told.found == "in colocate its checkpoint's float16 is what is sampled in, while bfloat16 is trained"
    alike = {"split": "colocate", "trainer": {"args": {"dtype": "float16"}}}
    for data, model in ((alike, half), ({"split": "colocate"}, QWEN), ({"split": "1:1"}, half)):
        assert "model" not in levels(findings(data, model=model))


def test_every_check_has_its_meaning():
    found = [*findings(), *findings(model=None), *findings({"trainer": {"args": {"xyzzy": 1}}})]

    assert {finding.check for finding in found} == set(fit.CHECKS)


def test_a_split_that_cannot_serve_the_model_is_refused_with_those_that_can():
    found = findings({"split": "6:2"})

    assert str(problem(found)).startswith("tensor-parallel: 6 GPUs cannot serve Qwen2ForCausalLM: 28 attention heads")
    assert problem(found).fix == "use 4:4, 2:6 or 4:2 (2 idle)"
    assert problem(found).described
    assert "server-memory" not in levels(found)


def test_ways_out_use_no_more_gpus_than_the_split_where_the_host_is_not_known():
    assert problem(findings({"split": "3:1"}, total=None)).fix == "use 2:2, 1:3 or 2:1 (1 idle)"


def test_experts_that_do_not_divide_may_be_given_whole():
    """Qwen3-30B-A3B in 8 bits: experts of 768 with one scale for each 128 cannot be cut in four."""
    eight_bits = replace(config("qwen3-30b-a3b"), quantization="fp8", quantization_block=128)

    (refused,) = (finding for finding in findings(model=eight_bits) if finding.check == "tensor-parallel")
    whole = findings({"server": {"extra_args": ["--enable-expert-parallel"]}}, eight_bits)

    assert refused.level == "problem"
    assert "an expert's size 768 does not divide by 4 in blocks of 128" in refused.found
    assert refused.fix.endswith("or give each GPU whole experts: server.extra_args: [--enable-expert-parallel]")
    assert levels(whole)["tensor-parallel"] == "ok"
    assert "server-memory" in levels(whole)


def test_experts_that_only_copies_could_serve_are_refused_with_the_counts_that_work():
    model = config("mixtral-8x7b")
    assert parallelism.check(model, 7).data_parallel == 7

    finding = problem(findings({"split": "7:1"}, model, Capacities()))

    assert finding.found == (
        "7 GPUs serve MixtralForCausalLM only as 7 copies of 1, and the stack starts one: "
        "no push to several was ever measured"
    )
    assert finding.fix == "serve on one of 1, 2, 4, 8 GPUs"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"num_generations": 7}, "32 completions, which 7 num_generations do not divide; nearest: "),
        ({"num_generations": 1}, "num_generations 1: an advantage compares completions of one prompt"),
        ({"per_device_train_batch_size": "3"}, "3 per_device_train_batch_size * 1 gradient_accumulation_steps = 12"),
        ({"steps_per_generation": 3, "num_generations": 5}, "nearest: steps_per_generation 5"),
        (
            {"generation_batch_size": 40},
            "generation_batch_size 40 does not divide by 32 (processes * per_device_train_batch_size) and by "
            "num_generations 8; nearest: 32 or 64",
        ),
        ({"generation_batch_size": 64, "steps_per_generation": 2}, "exclude each other; nearest: give one of them"),
    ],
)
def test_a_batch_that_trl_would_refuse_is_named_with_the_nearest_that_work(args, words):
    finding = problem(findings({"trainer": {"args": args}}))

    assert (finding.check, finding.described) == ("batch", True)
    assert words in str(finding)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({}, "32 completions a generation: 4 prompts, 8 each"),
        (
            {"gradient-accumulation-steps": 2, "num_generations": "16"},
            "64 completions a generation: 4 prompts, 16 each",
        ),
        ({"generation_batch_size": 64}, "64 completions a generation: 8 prompts, 8 each"),
        ({"steps_per_generation": 4, "gradient_accumulation_steps": 3}, "128 completions a generation"),
    ],
)
def test_a_batch_that_trl_takes_is_spelled_out(args, words):
    (finding,) = [finding for finding in findings({"trainer": {"args": args}}) if finding.check == "batch"]

    assert finding.level == "ok"
    assert finding.found.startswith(words)


counts = st.integers(1, 6)


@given(
    st.integers(1, 7), counts, st.integers(2, 9), st.one_of(st.none(), counts), st.one_of(st.none(), st.integers(1, 90))
)
def test_batches_are_judged_as_trl_does(processes, per_device, generations, steps, whole):
    args = {"per_device_train_batch_size": per_device, "num_generations": generations}
    args |= {"steps_per_generation": steps} if steps else {}
    args |= {"generation_batch_size": whole} if whole else {}

    found = findings({"split": f"1:{processes}", "trainer": {"args": args}}, capacity=Capacities())

    size = whole or processes * per_device * (steps or 1)
    taken = not (steps and whole) and size % (processes * per_device) == 0 and size % generations == 0
    assert levels(found)["batch"] == ("ok" if taken else "problem")


def test_more_than_the_model_was_made_for_is_refused():
    short = replace(QWEN, max_position_embeddings=1000)

    finding = problem(findings(model=short))

    assert finding.check == "length"
    assert finding.found.startswith("1536 tokens (512 of the prompt + 1024 of the completion) are more than the 1000")
    assert finding.fix == "shorten one of them"


def test_a_model_whose_config_is_not_to_be_had_leaves_the_other_checks():
    found = findings({"trainer": {"args": {"num_generations": 7}}}, model=None)

    assert levels(found) == {"model": "warning", "batch": "problem", "length": "ok"}
    assert str(found[0]).startswith("model: not checked: ")
    assert "tensor parallelism, longest context, GPU memory" in found[0].found


def test_a_model_that_is_too_large_is_refused_on_both_sides_with_a_way_out():
    found = findings({"split": "1:1"}, config("qwen2.5-72b"), H100)

    assert levels(found)["server-memory"] == levels(found)["trainer-memory"] == "problem"
    for finding in found:
        if finding.level == "problem":
            assert finding.found.startswith("does not fit: about ")
            assert finding.fix
            assert not finding.described


def test_a_share_of_the_memory_that_leaves_no_room_for_a_push_is_warned_about():
    small = Capacities(23.5, H200_GIB)

    found = [finding for finding in findings(capacity=small) if finding.level == "warning"]

    assert [finding.check for finding in found] == ["server-memory"]
    assert found[0].fix.startswith("set server.gpu_memory_utilization to 0.")
    given = {"server": {"gpu_memory_utilization": float(found[0].fix.split()[-1])}}
    assert levels(findings(given, capacity=small))["server-memory"] == "ok"


@pytest.mark.parametrize("split", ["shared", "colocate"])
def test_two_roles_on_one_gpu_have_its_shares_and_are_refused_what_exceeds_them_by_far(split):
    described = rules.read({"split": split})

    server, trainer = fit.sides(described, config("qwen2.5-72b"), H100)

    assert server.utilization == 0.3
    assert trainer.capacity_gib < H100_GIB
    found = findings({"split": split}, config("qwen2.5-72b"), H100)
    assert levels(found)["server-memory"] == levels(found)["trainer-memory"] == "problem"


def test_what_a_server_takes_of_a_shared_gpu_the_trainer_does_not_have():
    given = {"split": "shared", "server": {"gpu_memory_utilization": 0.9}}

    _, trainer = fit.sides(rules.read(given), QWEN, H100)

    assert trainer.capacity_gib == pytest.approx(0.1 * H100_GIB)
    assert levels(findings(given, capacity=H100))["trainer-memory"] == "problem"


def test_two_roles_on_one_gpu_are_only_warned_of_what_the_estimate_cannot_tell():
    _, trainer = fit.sides(rules.read({"split": "shared"}), QWEN, H100)
    fits = H100_GIB * trainer.load

    def level(times):
        capacity = Capacities(fits / times, fits / times)
        return levels(findings({"split": "shared"}, capacity=capacity))["trainer-memory"]

    assert [level(times) for times in (0.9, 1.1, 1.2)] == ["ok", "warning", "problem"]


def test_a_share_of_a_shared_gpu_that_cannot_take_the_weights_is_refused_however_close_it_is():
    server, _ = fit.sides(rules.read({"split": "shared"}), QWEN, H100)
    weights = next(share.gib for share in server.shares if share.label == "weights")

    def level(utilization):
        given = {"split": "shared", "server": {"gpu_memory_utilization": round(utilization, 3)}}
        found = findings(given, capacity=H100)
        return levels(found)["server-memory"]

    assert level(0.98 * weights / H100_GIB) == "problem"
    assert level(1.03 * weights / H100_GIB) == "warning"


def test_the_cpu_stack_has_no_gpu_to_fit():
    found = findings({"accelerator": "cpu"}, config("smollm2-135m"))

    assert levels(found) == {"batch": "ok", "length": "ok"}
    assert fit.sides(rules.read({"accelerator": "cpu"}), config("smollm2-135m"), H100) == ()


def test_unknown_capacities_leave_their_side_out():
    assert [side.role for side in fit.sides(rules.read(None), QWEN, Capacities(None, H100_GIB))] == ["trainer"]
    assert fit.sides(rules.read(None), QWEN, Capacities()) == ()


def test_capacities_are_those_of_the_smallest_gpu_of_each_side_by_index_or_uuid():
    uuid = "GPU-11111111-2222-3333-4444-555555555555"
    gpus = [gpu(0, 1024 * 80), gpu(1, 1024 * 40, uuid), gpu(2, 1024 * 24), gpu(3, None)]

    assert fit.capacities(rules.read({"split": f"0,{uuid}:2"}), gpus) == Capacities(40, 24)
    assert fit.capacities(rules.read({"split": "0,1:3"}), gpus) == Capacities(40, None)
    assert fit.capacities(rules.read({"split": "0,7:2,3"}), gpus) == Capacities(None, None)
    assert fit.capacities(rules.read({"split": "colocate:0,1"}), gpus) == Capacities(40, 40)


def test_the_description_reaches_the_estimates():
    args = {
        "per_device_train_batch_size": 2,
        "optim": "adamw_8bit",
        "gradient_checkpointing": False,
        "use_peft": True,
        "lora_r": 32,
        "lora_target_modules": "all-linear",
        "beta": 0.04,
    }
    extra = ["--max-num-seqs", "64", "--kv_cache_dtype=fp8", "--max-num-batched-tokens=4096"]
    described = rules.read(
        {"split": "2:3", "server": {"extra_args": extra}, "trainer": {"args": args, "parallelism": "ddp"}}
    )

    trained, served = footprint.training(described), footprint.serving(described, QWEN)

    assert (trained.processes, trained.length, trained.parallelism) == (3, 1536, "ddp")
    assert (trained.per_device_batch, trained.optimizer, trained.gradient_checkpointing) == (2, "adamw_8bit", False)
    assert trained.lora == footprint.Lora(32, ("all-linear",))
    assert not trained.reference
    assert (served.max_model_len, served.tensor_parallel, served.max_num_seqs) == (1536, 2, 64)
    assert (served.kv_dtype_bytes, served.max_num_batched_tokens, served.pushed_dtype) == (1, 4096, "bfloat16")
    assert footprint.training(rules.read({"trainer": {"args": {"beta": 0.04}}})).reference


def test_older_trl_keeps_whole_logits():
    assert footprint.training(rules.read({"pins": "trl-1.13"})).full_logits == 1024
    assert footprint.training(rules.read(None)).full_logits == 0


def test_the_table_and_the_data_tell_the_same():
    sides = fit.sides(rules.read({"split": "1:1"}), QWEN, Capacities(H200_GIB, 40.0))

    text = fit.lines(sides)
    data = json.loads(json.dumps(fit.as_data(sides)))

    assert text[0] == "vllm-server: 1 GPU, 139.8 GiB each, --gpu-memory-utilization 0.92"
    assert [side["role"] for side in data] == ["vllm-server", "trainer"]
    for side in data:
        for share in side["shares"]:
            assert any(share["label"] in line and f"{share['gib']:.2f} GiB" in line for line in text)
    assert data[1]["verdict"] == "problem"
    assert any("does not fit" in line for line in text)
    assert data[0]["kv"]["tokens"] > 0


@settings(deadline=None, max_examples=150)
@given(
    name=st.sampled_from(NAMES),
    split=st.sampled_from(["1:1", "4:4", "6:2", "2:6", "3:5", "7:1", "shared", "colocate", "colocate:0-3"]),
    parallelism=st.sampled_from(rules.PARALLELISMS),
    capacity=st.sampled_from([15.5, H100_GIB, H200_GIB, None]),
    prompt=st.sampled_from([16, 512, 30000]),
)
def test_any_model_on_any_split_gets_a_verdict_and_every_problem_a_way_out(name, split, parallelism, capacity, prompt):
    data = {"split": split, "data": {"max_prompt_length": prompt}, "trainer": {"parallelism": parallelism}}

    found = findings(data, config(name), Capacities(capacity, capacity), None)

    assert {finding.level for finding in found} <= {"ok", "warning", "problem"}
    assert all(finding.fix for finding in found if finding.level != "ok")
    fit.lines(fit.sides(rules.read(data), config(name), Capacities(capacity, capacity)))
