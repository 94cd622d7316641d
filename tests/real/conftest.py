"""Real containers: the images of this checkout, a tiny model, and stacks that leave nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from grpo_stack import engine

ROOT = Path(__file__).parents[2]
IMAGES = ("grpo-stack/vllm-server:cpu", "grpo-stack/trainer:cpu")


@dataclass(frozen=True)
class Run:
    """How one `grpo-stack up` ended."""

    code: int
    out: str
    err: str
    folder: Path

    @property
    def metrics(self) -> list[dict[str, float]]:
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]


class Stack:
    """One description in a folder of its own, under a project name of its own."""

    def __init__(self, folder: Path, docker: str, description: dict[str, object]) -> None:
        self.folder, self.docker = folder, docker
        self.project = f"grpo-stack-test-{uuid.uuid4().hex[:8]}"
        self.run_folder = folder / "outputs" / "run"
        (folder / "stack.yaml").write_text(yaml.safe_dump({**description, "run": "run", "source": str(ROOT)}))

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "grpo_stack.cli", *words, "--project", self.project]

    def start(self, *words: str) -> subprocess.Popen[str]:
        """`grpo-stack up` in the background."""
        return subprocess.Popen(
            self.command("up", *words),
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self, child: subprocess.Popen[str], limit_s: float) -> Run:
        try:
            out, err = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGINT)
            out, err = child.communicate(timeout=60)
            pytest.fail(f"not done within {limit_s} s; it said:\n{err}")
        return Run(child.returncode, out, err, self.run_folder)

    def up(self, *words: str, limit_s: float = 600) -> Run:
        return self.finish(self.start(*words), limit_s)

    def left(self) -> list[str]:
        """Containers and networks of the project that are still there."""
        label = f"label=com.docker.compose.project={self.project}"
        found = []
        for kind in (["ps", "--all"], ["network", "ls"]):
            argv = [self.docker, *kind, "--quiet", "--filter", label]
            found += subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
        return found

    def volumes(self) -> list[str]:
        label = f"label=com.docker.compose.project={self.project}"
        argv = [self.docker, "volume", "ls", "--quiet", "--filter", label]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()

    def clean(self) -> None:
        argv = [self.docker, "compose", "--project-name", self.project, "down", "--volumes", "--timeout", "5"]
        subprocess.run(argv, capture_output=True, check=False, timeout=120)
        if volumes := self.volumes():
            subprocess.run([self.docker, "volume", "rm", *volumes], capture_output=True, check=False, timeout=60)


@pytest.fixture(scope="session")
def docker() -> str:
    """A docker command with Compose, and the CPU images built from this checkout."""
    client = engine.find_client()
    argv = [client, "compose", "--file", str(ROOT / "compose" / "cpu" / "compose.yaml"), "build"]
    built = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=3600)
    assert built.returncode == 0, (
        f"the images cannot be built; `make test` sets up what that needs:\n{built.stderr[-2000:]}"
    )
    return client


@pytest.fixture(scope="session")
def tiny_model(docker: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a Llama of 0.36 M random parameters, which anyone may read."""
    folder = tmp_path_factory.mktemp("models")
    argv = [
        docker,
        "run",
        "--rm",
        "--network",
        "none",
        "--volume",
        f"{folder}:/models",
        "--user",
        f"{os.getuid()}:{os.getgid()}",
    ]
    argv += [IMAGES[1], "python", "-m", "grpo_stack.demo", "tiny-model", "/models/tiny"]
    subprocess.run(argv, check=True, capture_output=True, timeout=300)
    return folder / "tiny"


@pytest.fixture
def make_stack(docker: str, tiny_model: Path, tmp_path: Path) -> Iterator[object]:
    """`make_stack(rewards=…, **trainer_args)`: a stack on the tiny model, cleaned up afterwards whatever happened."""
    made: list[Stack] = []

    def make(
        rewards: tuple[str, ...] = ("digit_share_reward",),
        recovery: dict[str, object] | None = None,
        processes: int = 1,
        env_file: str | None = None,
        **trainer_args: object,
    ) -> Stack:
        args = {
            "per_device_train_batch_size": 16,
            "num_generations": 16,
            "max_completion_length": 16,
            "learning_rate": 5e-3,
            "lr_scheduler_type": "constant",
            "save_strategy": "no",
            **trainer_args,
        }
        stack = Stack(
            tmp_path,
            docker,
            {
                "model": str(tiny_model),
                "accelerator": "cpu",
                "data": {"dataset": "two-digit-sums", "rewards": list(rewards), "max_prompt_length": 128},
                "server": {"max_model_len": 256, "boot_timeout_s": 600},
                "trainer": {"args": args, "processes": processes, "env_file": env_file},
                "recovery": recovery or {},
            },
        )
        made.append(stack)
        return stack

    yield make
    for stack in made:
        stack.clean()
