"""The training program's front: what it takes, and what it says of what it cannot take. Training itself is test_loop's."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest

from grpo_stack import assembly, run_arguments, train, training_options
from grpo_stack.errors import DescriptionError

MODEL = ("--model_name_or_path", "/models/m")
ON_CPU = ("--use_cpu", "true", "--bf16", "false")


def problems(*arguments: str) -> tuple[str, ...]:
    with pytest.raises(DescriptionError) as caught:
        run_arguments.parse([*arguments], cuda=False)
    return caught.value.problems


def test_without_arguments_it_is_the_published_recipe_against_a_server() -> None:
    run, training, _ = run_arguments.parse([*MODEL], cuda=False)

    assert (run.dataset, run.rewards) == ("trl-lib/DeepMath-103K", ["accuracy_reward"])
    assert (training.use_vllm, training.vllm_mode) == (True, "server")
    assert (training.logging_steps, training.report_to, training.bf16) == (1, [], False)


def test_what_the_command_line_gives_wins_over_our_defaults_and_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("logging_steps: 5\nsave_steps: 7\nrewards: [digit_share_reward]\n")

    run, training, _ = run_arguments.parse(["--config", str(file), *MODEL, "--save_steps", "9"], cuda=False)

    assert (training.logging_steps, training.save_steps, run.rewards) == (5, 9, ["digit_share_reward"])


def test_trls_own_names_for_dataset_and_rewards_work_too() -> None:
    run, _, _ = run_arguments.parse([*MODEL, "--dataset_name", "org/rows", "--reward_funcs", "a:b", "c:d"], cuda=False)

    assert (run.dataset, run.rewards) == ("org/rows", ["a:b", "c:d"])


def test_every_unknown_option_is_named_with_the_nearest_one() -> None:
    assert problems(*MODEL, "--learnin_rate", "1e-5", "--max-stepz=3") == (
        "arguments: --learnin_rate: unknown option; did you mean --learning_rate?",
        "arguments: --max-stepz: unknown option; did you mean --max-steps?",
    )


def test_the_helper_knows_the_names_that_this_trl_knows() -> None:
    from trl import GRPOConfig, ModelConfig

    fields = {field.name for kind in (GRPOConfig, ModelConfig) for field in dataclasses.fields(kind) if field.init}

    assert sorted(training_options.NAMES ^ fields) == []


def test_a_value_that_is_no_number_is_one_line() -> None:
    (line,) = problems(*MODEL, "--max_steps", "many")

    assert line.startswith("arguments: argument --max_steps/--max-steps: invalid int value: 'many'")


def test_a_batch_that_does_not_hold_whole_groups_is_one_line() -> None:
    (line,) = problems(*MODEL, *ON_CPU, "--per_device_train_batch_size", "6", "--num_generations", "4")

    assert line == "arguments: generation_batch_size (6) must be divisible by num_generations (4)."


def test_an_unknown_key_or_a_broken_file_is_one_line(tmp_path: Path) -> None:
    typo, broken, gone = tmp_path / "typo.yaml", tmp_path / "broken.yaml", tmp_path / "gone.yaml"
    typo.write_text("learnin_rate: 1\n")
    broken.write_text("a: [1\n")

    assert "--learnin_rate" in problems(*MODEL, "--config", str(typo))[0]
    assert "broken.yaml" in problems(*MODEL, "--config", str(broken))[0]
    assert "gone.yaml" in problems(*MODEL, "--config", str(gone))[0]


def test_names_types_and_choices_are_checked_without_a_gpu_even_for_a_run_that_needs_one() -> None:
    _, values, _ = run_arguments.read([*MODEL, "--bf16", "true", "--use_cpu", "false"], cuda=True)
    assert (values.bf16, values.save_steps, values.vllm_mode) == (True, 100, "server")

    for wrong in (["--learnin_rate", "1"], ["--learning_rate", "fast"], ["--save_strategy", "sometimes"]):
        with pytest.raises(DescriptionError, match=wrong[0]):
            run_arguments.read([*MODEL, *wrong], cuda=True)


@pytest.mark.parametrize(("given", "taken"), [("warn", "warn"), ("stop", "stop"), ("off", "off"), ("false", "off")])
def test_the_mismatch_guards_mode(given: str, taken: str) -> None:
    run, _, _ = run_arguments.read([*MODEL, "--mismatch", given], cuda=False)

    assert run.mismatch == taken


def test_a_mode_or_limit_that_the_guard_does_not_have_is_one_line(tmp_path: Path) -> None:
    assert problems(*MODEL, "--mismatch", "maybe") == ("arguments: --mismatch maybe: give warn, stop, off",)
    assert problems(*MODEL, "--mismatch_limit", "0") == ("arguments: --mismatch_limit 0.0: give a number above 0",)
    off = tmp_path / "off.yaml"
    off.write_text("mismatch: off\n")
    assert run_arguments.read(["--config", str(off), *MODEL], cuda=False)[0].mismatch == "off"


def test_an_option_that_needs_a_package_which_is_not_here_is_told_before_the_server_is_waited_for() -> None:
    (line,) = problems(*MODEL, "--optim", "adamw_8bit", "--use_peft", "true")

    assert line.startswith(
        "arguments: --optim adamw_8bit needs the Python module bitsandbytes, which is not installed here"
    )


@pytest.mark.parametrize("bits", [4, 8])
def test_a_model_with_packed_weights_is_for_no_server(bits: int) -> None:
    model = SimpleNamespace(**{f"is_loaded_in_{bits}bit": True})

    server, colocate = (
        SimpleNamespace(model=model, args=SimpleNamespace(use_vllm=True, vllm_mode=mode))
        for mode in ("server", "colocate")
    )

    with pytest.raises(DescriptionError, match=f"model: loaded in {bits} bits; bitsandbytes packs the weights"):
        assembly.require_pushable(server)
    assembly.require_pushable(colocate)


def test_no_model_is_one_line() -> None:
    assert problems() == ("arguments: --model_name_or_path is missing; give a Hub id or a folder",)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (MODEL, "model: /models/m: no such folder; give an existing one or the id of a Hub model"),
        (
            (*MODEL, "--reward_weights", "1", "2"),
            "arguments: 2 --reward_weights for 1 rewards; give one for each",
        ),
    ],
)
def test_the_program_ends_with_one_line_and_code_2(
    arguments: tuple[str, ...], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "run"

    code = train.main([*arguments, "--rewards", "digit_share_reward", "--output_dir", str(output)])

    assert code == 2
    assert line in capsys.readouterr().err.splitlines()
    assert not output.exists()
