"""A real vLLM server and TRL's real client for it, shared by the tests of a module."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
import torch

from grpo_stack import demo
from grpo_stack.transfer import client as gloo_client

BOOT_TIMEOUT_S = 600

TRAIN = (sys.executable, "-m", "grpo_stack.train")


@dataclass
class Pair:
    """A server, the client that pushes to it, and the trainer's model, whose weights the server should have."""

    client: Any
    model: Any
    initial: dict[str, torch.Tensor]

    def reset(self) -> None:
        """Give the model its first weights again, and push them."""
        self.model.load_state_dict(self.initial)
        self.push()

    def push(self) -> None:
        self.client.update_model_params(self.model)
        self.client.reset_prefix_cache()

    def push_one_by_one(self) -> None:
        """As Online DPO does: tensor by tensor, within one update."""
        with self.client.weight_update():
            for name, parameter in self.model.named_parameters():
                self.client.update_named_param(name, parameter.data)
        self.client.reset_prefix_cache()

    def difference(self) -> float:
        """The largest gap between the server's log-probs of tokens it sampled and the trainer's of the same tokens."""
        prompt = [5, 9, 20, 33, 7, 8, 12, 40, 22, 31]
        answer = self.client.generate([prompt], n=2, max_tokens=8, logprobs=0)
        worst = 0.0
        for tokens, logprobs in zip(answer["completion_ids"], answer["logprobs"], strict=True):
            with torch.no_grad():
                mine = self.model(torch.tensor([prompt + tokens])).logits[0].log_softmax(-1)
            at = range(len(prompt) - 1, len(prompt) - 1 + len(tokens))
            gaps = [abs(mine[i, token].item() - said[0]) for i, token, said in zip(at, tokens, logprobs, strict=True)]
            worst = max(worst, *gaps)
        return worst


@dataclass(frozen=True)
class Server:
    """A running server and the folder of its model, where the untrained weights are."""

    model: Path
    port: int

    def train(
        self,
        output: Path,
        steps: int,
        *more: str,
        program: tuple[str, ...] = TRAIN,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run the training program, or the words of `program` in its place, in a process of its own.

        16 completions a step, unless one of the arguments in `more` says otherwise; `env` is added to the environment.
        """
        argv = [*program, "--model_name_or_path", str(self.model), "--output_dir", str(output)]
        argv += ["--dataset", "two-digit-sums", "--rewards", "digit_share_reward"]
        argv += ["--vllm_server_base_url", f"http://127.0.0.1:{self.port}", "--vllm_group_port", str(free_port())]
        argv += ["--per_device_train_batch_size", "16", "--num_generations", "16", "--max_completion_length", "16"]
        argv += ["--learning_rate", "5e-3", "--lr_scheduler_type", "constant", "--max_steps", str(steps), *more]
        full = {**os.environ, "HF_HUB_OFFLINE": "1", **(env or {})}
        return subprocess.run(argv, env=full, capture_output=True, text=True, timeout=900, check=False)


def write_model(folder: Path, tied: bool) -> None:
    """A tiny random Qwen2: biases on q, k and v, fewer heads for k and v than for q: every kind of dense weight."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tokenizer = demo.tokenizer()
    torch.manual_seed(1)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=None,  # nothing ends a completion early
    )
    Qwen2ForCausalLM(config).to(torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@contextmanager
def serving(folder: Path, **env: str) -> Iterator[Pair]:
    """Serve the model in `folder`, and join the server."""
    port = free_port()
    with vllm_serve(folder, port, env), joined(folder, port) as pair:
        yield pair


@contextmanager
def joined(folder: Path, port: int) -> Iterator[Pair]:
    """Join the server at `port`, which serves the model in `folder`."""
    from transformers import AutoModelForCausalLM
    from trl.generation.vllm_client import VLLMClient

    gloo_client.install()
    client = VLLMClient(base_url=f"http://127.0.0.1:{port}", group_port=free_port())
    client.init_communicator("cpu")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    yield Pair(client, model, {name: value.clone() for name, value in model.state_dict().items()})
    client.close_communicator()


@contextmanager
def vllm_serve(folder: Path, port: int, env: dict[str, str]) -> Iterator[None]:
    """Run `vllm serve` until the block ends; a server that does not come up fails with the end of its log."""
    argv = [str(Path(sys.executable).with_name("vllm")), "serve", str(folder)]
    argv += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--max-model-len", "128"]
    argv += ["--weight-transfer-config", '{"backend": "gloo"}']
    argv += ["--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1", "--enforce-eager"]
    argv += ["--middleware", "grpo_stack.identity.Identity"]
    settings = {
        **os.environ,
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        **env,
    }
    log = folder / "server.log"
    with log.open("wb") as file:
        server = subprocess.Popen(argv, env=settings, stdout=file, stderr=file, start_new_session=True)
    try:
        wait_for_a_token(server, port, folder, log)
        yield
    finally:
        server.terminate()
        with suppress(subprocess.TimeoutExpired):
            server.wait(60)
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)  # whatever outlived the API process


def wait_for_a_token(server: subprocess.Popen[bytes], port: int, folder: Path, log: Path) -> None:
    """`/health` answers before the first generation is possible, so ask for one."""
    body = {"model": str(folder), "prompt": [5, 6], "max_tokens": 1}
    deadline = time.monotonic() + BOOT_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            if requests.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=60).status_code == 200:
                return
        except requests.ConnectionError:
            pass
        with suppress(subprocess.TimeoutExpired):
            server.wait(0.5)  # ends early when the server does
            break
    pytest.fail(f"no token from the server (exit code {server.poll()}):\n" + log.read_text(errors="replace")[-4000:])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session", autouse=True)
def _dial_back_to_loopback() -> Iterator[None]:
    """What VLLM_HOST_IP is in the trainer's container; the server connects to it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_HOST_IP", "127.0.0.1")
        patch.setenv("NO_PROXY", "127.0.0.1")
        yield
