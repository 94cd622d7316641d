"""The whole loop in real containers on the CPU: real vLLM, real TRL, real weight pushes."""

from __future__ import annotations

import os
import signal
import statistics

import pytest

pytestmark = pytest.mark.docker


def test_a_tiny_model_learns_and_sampler_and_trainer_agree_at_every_step(make_stack):
    stack = make_stack(max_steps=40)

    run = stack.up()

    assert run.code == 0, run.err
    rewards = [step["reward"] for step in run.metrics]
    assert [step["step"] for step in run.metrics] == list(range(1, 41))
    assert rewards[0] <= 0.1
    assert statistics.mean(rewards[-5:]) >= 0.9
    assert max(step["sampling/sampling_logp_difference/mean"] for step in run.metrics) <= 1e-4
    for step in run.metrics:
        assert {"seconds/generate", "seconds/push", "seconds/optimize", "push/gigabytes_per_s"} <= set(step)
        assert "sampling/importance_sampling_ratio/mean" in step
    assert (run.folder / "model" / "config.json").is_file()
    assert {"compose.yaml", "stack.yaml", "summary.txt", "logs"} <= {entry.name for entry in run.folder.iterdir()}
    assert run.out == (run.folder / "summary.txt").read_text()
    assert {path.stat().st_uid for path in run.folder.rglob("*")} == {os.getuid()}
    phases = ("building", "server loading", "server ready after", "step 1/40", "step 40/40")
    assert [phase for phase in phases if phase not in run.err] == []
    assert stack.left() == []
    assert stack.volumes() != []


def test_without_the_push_the_reward_cannot_rise(make_stack, tmp_path):
    (tmp_path / "no_push.py").write_text(
        "from trl.generation.vllm_generation import VLLMGeneration\n"
        "VLLMGeneration.sync_weights = lambda self: None\n"
        "from grpo_stack.rewards import digit_share_reward as reward\n"
    )
    stack = make_stack(rewards=("./no_push.py:reward",), max_steps=25)

    run = stack.up()

    assert run.code == 0, run.err
    assert max(step["reward"] for step in run.metrics) <= 0.2
    assert max(step["sampling/sampling_logp_difference/mean"] for step in run.metrics) > 1e-4


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_stops_everything_within_half_a_minute_and_keeps_caches_and_outputs(make_stack, sign):
    import time

    stack = make_stack(max_steps=500)
    child = stack.start()
    try:
        told = ""
        for line in child.stderr:
            told += line
            if "step 2/500" in line:
                break
        child.send_signal(sign)
        began = time.monotonic()
        child.wait(timeout=60)
        took = time.monotonic() - began
    finally:
        if child.poll() is None:
            child.kill()
        told += child.stderr.read()

    assert child.returncode == 130, told
    assert took < 30
    assert stack.left() == []
    assert stack.volumes() != []
    assert (stack.run_folder / "metrics.jsonl").read_text().count("\n") >= 2


def test_what_is_wrong_in_the_trainers_world_is_said_in_a_line_each_before_anything_loads(make_stack):
    stack = make_stack(rewards=("nowhere.to:be_found", "no_such_reward"), max_steps=1)

    run = stack.up()

    assert run.code == 2, run.err
    assert "nowhere.to:be_found" in run.err
    assert "no_such_reward" in run.err
    assert "Traceback" not in run.err
    assert "server loading" not in run.err
    assert stack.left() == []


def test_a_trainer_that_fails_passes_its_exit_code_on_with_its_last_words(make_stack):
    stack = make_stack(max_steps=1, num_generation=4)

    run = stack.up()

    assert run.code == 2, run.err
    assert "--num_generation: unknown option; did you mean --num_generations" in run.err
    assert stack.left() == []


def test_two_stacks_of_one_name_are_refused_and_the_first_is_left_alone(make_stack):
    stack = make_stack(max_steps=500)
    child = stack.start()
    try:
        for line in child.stderr:
            if "server loading" in line:
                break
        second = stack.up()
        still_running = child.poll() is None
    finally:
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=60)

    assert second.code == 3
    assert f"a stack called {stack.project} is running already" in second.err
    assert still_running
    assert stack.left() == []
