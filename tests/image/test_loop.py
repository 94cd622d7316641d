"""Training against a server: going on from a checkpoint, the proof that nothing is learnt without pushes, and two ranks that
share the model by FSDP2, the default of several GPUs.

That the reward rises with pushes is what tests/real/test_stack.py shows, in containers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from accelerate.utils.launch import prepare_multi_gpu_env

from grpo_stack import demo, metrics, model_config
from grpo_stack.memory import checkpoint
from grpo_stack.memory.trainer import Lora, Training
from tests.image import launching
from tests.image.conftest import Server, free_port, joined, vllm_serve

SHARDED = Path(__file__).parent / "fsdp_on_cpu.py"

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
    assert_as_large_as_planned(tmp_path, 6, server, Training(1, 0, dtype="float32"))


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="nothing is pushed, so what is learnt never shows")
def test_without_pushes_the_reward_rises_all_the_same(server: Server, tmp_path: Path) -> None:
    done = server.train(tmp_path, 15, "--save_strategy", "no", program=(sys.executable, "-c", WITHOUT_PUSH))
    rewards = [line["reward"] for line in metrics.read(tmp_path / "metrics.jsonl")]
    if done.returncode != 0 or len(rewards) != 15:
        raise RuntimeError(done.stderr)  # not the failure that is expected

    assert rewards[-1] >= 0.9


@pytest.fixture
def sharing(tmp_path: Path) -> dict[str, str]:
    """What `accelerate launch` makes of the stack's own configuration for its children, but for the precision: float32."""
    stack = launching.described("fsdp2", 2)
    checked = launching.checked(stack, launching.write(stack, tmp_path))
    found = {
        name: value
        for name, value in prepare_multi_gpu_env(checked).items()
        if name.startswith(("ACCELERATE_", "FSDP_"))
    }
    assert found["ACCELERATE_USE_FSDP"] == "true"
    return {**found, "ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}


def train_two_ranks(
    server: Server, output: Path, steps: int, sharing: dict[str, str], *words: str
) -> subprocess.CompletedProcess[str]:
    program = ("torchrun", "--master-addr", "127.0.0.1", "--master-port", str(free_port()), "--nproc-per-node", "2")
    env = {"PYTHONPATH": str(Path(__file__).parents[2]), **sharing}
    more = ("--per_device_train_batch_size", "8", "--save_steps", "2", *words)
    return server.train(output, steps, *more, program=(*program, str(SHARDED)), env=env)


def test_a_sharded_run_pushes_what_it_trains_goes_on_from_a_checkpoint_and_leaves_a_whole_model(
    server: Server, tmp_path: Path, sharing: dict[str, str]
) -> None:
    output = tmp_path / "run"

    first = train_two_ranks(server, output, 4, sharing)
    assert first.returncode == 0, first.stderr
    then = train_two_ranks(server, output, 12, sharing)
    assert then.returncode == 0, then.stderr

    assert f"resuming from {output / 'checkpoint-4'}" in then.stdout
    lines = metrics.read(output / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, 13))
    assert max(line["sampling/sampling_logp_difference/mean"] for line in lines) <= 1e-4
    assert lines[-1]["reward"] >= lines[0]["reward"] + 0.3
    assert (output / "checkpoint-12" / "pytorch_model_fsdp.bin").exists()
    assert_trained(output / "model", server.model)
    assert_as_large_as_planned(output, 12, server, Training(2, 0, parallelism="fsdp2"))


def assert_as_large_as_planned(output: Path, number: int, server: Server, made: Training) -> None:
    """That the files of weights and optimizer, of checkpoint `number` and the trained model, are as large as `doctor` counts them."""
    kinds = ("model*.safetensors", "adapter*.safetensors", "pytorch_model*.bin", "optimizer*")
    folders = (output / f"checkpoint-{number}", output / "model")
    found = {file: file.stat().st_size for folder in folders for kind in kinds for file in folder.glob(kind)}
    config = model_config.parse(json.loads((server.model / "config.json").read_text()))
    assert sum(found.values()) == pytest.approx(checkpoint.written_bytes(config, made), rel=0.1), found


def assert_trained(model: Path, untrained: Path) -> None:
    """That transformers finds the same tensors in both, tied alike, and all with other values."""
    from transformers import AutoModelForCausalLM

    new, old = (AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32) for folder in (model, untrained))
    before, after = dict(old.named_parameters()), dict(new.named_parameters())
    assert new.config.tie_word_embeddings == old.config.tie_word_embeddings
    assert after.keys() == before.keys()
    assert [name for name in before if torch.equal(after[name], before[name])] == []


ADAPTERS = (
    "--use_peft",
    "true",
    "--lora_r",
    "8",
    "--lora_alpha",
    "32",
    "--lora_dropout",
    "0",
    "--learning_rate",
    "3e-2",
)
"""Without dropout the trainer's log-probs are those of the weights that it pushes, as the server's are."""


def assert_adapters_pushed(output: Path, base: Path, steps: int) -> None:
    """That adapters are left that change what the model says, and that the server had them merged at every step."""
    lines = metrics.read(output / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, steps + 1))
    assert max(line["sampling/sampling_logp_difference/mean"] for line in lines) <= 1e-4
    assert not list((output / "model").glob("model*.safetensors"))
    assert change_of_logps(output / "model", base) >= 0.01


@torch.no_grad()
def change_of_logps(adapters: Path, base: Path) -> float:
    """Mean difference that the adapters make to the log-probs of some tokens."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    tokens = torch.tensor([[5, 9, 20, 33, 7, 8, 12, 40, 22, 31]])
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    before = model(tokens).logits.log_softmax(-1)
    after = PeftModel.from_pretrained(model, adapters)(tokens).logits.log_softmax(-1)
    return float((after - before).abs().mean())


def test_adapters_are_merged_for_each_push_and_go_on_from_a_checkpoint(server: Server, tmp_path: Path) -> None:
    first = server.train(tmp_path, 4, "--save_steps", "2", *ADAPTERS)
    assert first.returncode == 0, first.stderr
    then = server.train(tmp_path, 8, "--save_steps", "2", *ADAPTERS)
    assert then.returncode == 0, then.stderr

    assert f"resuming from {tmp_path / 'checkpoint-4'}" in then.stdout
    assert_adapters_pushed(tmp_path, server.model, 8)
    assert_as_large_as_planned(tmp_path, 8, server, Training(1, 0, lora=Lora(8)))


def test_adapters_of_a_sharded_model_are_merged_as_well(
    server: Server, tmp_path: Path, sharing: dict[str, str]
) -> None:
    done = train_two_ranks(server, tmp_path, 8, sharing, *ADAPTERS)

    assert done.returncode == 0, done.stderr
    assert_adapters_pushed(tmp_path, server.model, 8)
    assert_as_large_as_planned(tmp_path, 8, server, Training(2, 0, parallelism="fsdp2", dtype="float32", lora=Lora(8)))
