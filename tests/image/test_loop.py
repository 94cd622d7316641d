"""Training in two processes: going on from a checkpoint, and the proof that nothing is learnt without pushes.

That the reward rises with them is what tests/real/test_stack.py shows, in containers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_stack import demo, metrics
from tests.image.conftest import Server, free_port, joined, vllm_serve

WITHOUT_PUSH = (
    "import trl.generation.vllm_generation as g; g.VLLMGeneration.sync_weights = lambda self: None; "
    "import sys; from grpo_stack.train import main; sys.exit(main())"
)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("tiny"), free_port())
    demo.write_tiny_model(server.model)
    with vllm_serve(server.model, server.port, {}):
        yield server


@pytest.fixture
def server(running: Server) -> Server:
    """The running server, with the untrained weights in it."""
    with joined(running.model, running.port) as pair:
        pair.push()
    return running


def test_a_run_goes_on_from_its_newest_checkpoint(server: Server, tmp_path: Path) -> None:
    assert server.train(tmp_path, 4, "--save_steps", "2").returncode == 0

    done = server.train(tmp_path, 6, "--save_steps", "2")

    assert done.returncode == 0, done.stderr
    assert f"resuming from {tmp_path / 'checkpoint-4'}" in done.stdout
    assert "step 5/6" in done.stdout
    assert "step 4/6" not in done.stdout
    assert [line["step"] for line in metrics.read(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="nothing is pushed, so what is learnt never shows")
def test_without_pushes_the_reward_rises_all_the_same(server: Server, tmp_path: Path) -> None:
    done = server.train(tmp_path, 15, "--save_strategy", "no", program=WITHOUT_PUSH)
    rewards = [line["reward"] for line in metrics.read(tmp_path / "metrics.jsonl")]
    if done.returncode != 0 or len(rewards) != 15:
        raise RuntimeError(done.stderr)  # not the failure that is expected

    assert rewards[-1] >= 0.9
