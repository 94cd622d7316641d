"""The whole loop in real containers on the CPU: real vLLM, real TRL, real weight pushes."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import threading
import time

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
        parts = [step[f"seconds/{phase}"] for phase in ("generate", "push", "reward", "optimize")]
        assert sum(parts) == pytest.approx(step["seconds/step"])
        assert step["push/gigabytes_per_s"] > 0
        assert step["sampling/importance_sampling_ratio/mean"] == pytest.approx(1.0, abs=1e-3)
    assert (run.folder / "model" / "config.json").is_file()
    assert {"compose.yaml", "stack.yaml", "summary.txt", "logs"} <= {entry.name for entry in run.folder.iterdir()}
    assert run.out == (run.folder / "summary.txt").read_text()
    assert {path.stat().st_uid for path in run.folder.rglob("*")} == {os.getuid()}
    phases = ("building", "server loading", "server ready after", "step 1/40", "step 40/40")
    assert [phase for phase in phases if phase not in run.err] == []
    assert stack.left() == []
    assert stack.volumes() != []


def said_until(child, text, limit_s=300):
    """What `up` says until `text`; the test fails where that does not come in time."""
    killer = threading.Timer(limit_s, child.kill)
    killer.start()
    told = ""
    for line in child.stderr:
        told += line
        if text in line:
            killer.cancel()
            return told
    killer.cancel()
    pytest.fail(f"{text!r} was not said within {limit_s} s, but:\n{told}")


def interrupt(child, at, sign):
    """Send `sign` once `at` was said; what was said in all, and the seconds until the end."""
    told = said_until(child, at)
    child.send_signal(sign)
    began = time.monotonic()
    try:
        child.wait(timeout=60)
    except subprocess.TimeoutExpired:
        child.kill()
    return told + child.stderr.read(), time.monotonic() - began


def test_an_interrupted_run_stops_everything_within_half_a_minute_and_keeps_caches_and_outputs(make_stack):
    stack = make_stack(max_steps=500)
    child = stack.start()

    told, took = interrupt(child, "step 2/500", signal.SIGINT)

    assert child.returncode == 130, told
    assert took < 30
    assert stack.left() == []
    assert stack.volumes() != []
    assert (stack.run_folder / "metrics.jsonl").read_text().count("\n") >= 2


def test_a_second_stack_of_one_name_is_refused_and_the_first_goes_on_until_it_is_told_to_end(make_stack):
    stack = make_stack(max_steps=500)
    child = stack.start()
    said_until(child, "fetching model and dataset")
    second = stack.up()
    assert child.poll() is None

    told, took = interrupt(child, "server loading", signal.SIGTERM)

    assert second.code == 3
    assert f"a stack called {stack.project} is running already" in second.err
    assert child.returncode == 130, told
    assert took < 30
    assert stack.left() == []


def test_what_is_wrong_in_the_trainers_world_is_said_in_a_line_each_before_anything_loads(make_stack):
    stack = make_stack(rewards=("nowhere.to:be_found", "no_such_reward"), max_steps=1)

    run = stack.up()

    assert run.code == 2, run.err
    assert "nowhere.to:be_found" in run.err
    assert "no_such_reward" in run.err
    assert "Traceback" not in run.err
    assert "server loading" not in run.err
    assert stack.left() == []


def test_a_wrong_training_argument_is_refused_while_the_server_loads(make_stack):
    stack = make_stack(max_steps=1, temperature="warm")

    run = stack.up()

    assert run.code == 2, run.err
    assert "argument --temperature: invalid float value: 'warm'" in run.err
    assert "server ready" not in run.err
    assert stack.left() == []


def test_a_trainer_that_fails_for_good_ends_the_stack_with_its_exit_code_and_last_words(make_stack, tmp_path):
    (tmp_path / "broken.py").write_text("def reward(completions, **kwargs):\n    raise ValueError('no score today')\n")
    stack = make_stack(rewards=("./broken.py:reward",), recovery={"restarts": 0}, max_steps=1)

    run = stack.up()

    assert run.code == 5, run.err
    assert "trainer ended with exit code 5; its last lines:" in run.err
    assert "ValueError: no score today" in run.err
    assert "the last lines of vllm-server:" in run.err
    assert stack.left() == []
