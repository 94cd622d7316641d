"""Every command of the README, as it stands there. What would run for long is cut short through variables of `make`."""

from __future__ import annotations

import os
import re
import subprocess
import uuid
from pathlib import Path

import pytest

pytestmark = pytest.mark.docker

ROOT = Path(__file__).parents[2]


def readme_commands() -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return [re.sub(r"\s+#.*", "", line.removeprefix("$ ")) for line in lines if line.startswith("$ ")]


def run(command: str, limit_s: float = 900, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **variables}
    return subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env=env, capture_output=True, text=True, timeout=limit_s, check=False
    )


def the_demo_runs(command, tmp_path):
    project = f"grpo-stack-test-{uuid.uuid4().hex[:8]}"
    try:
        short = f"--project {project} --outputs {tmp_path}/outputs --run demo --set trainer.args.max_steps=2"
        done = run(command, ARGS=short)
        again = run(f"make clean PROJECT={project}")
    finally:
        run(f"make down ARGS='--project {project}'")

    assert done.returncode == 0, done.stderr
    assert "step 2/2" in done.stderr
    assert (tmp_path / "outputs" / "demo" / "model" / "model.safetensors").exists()
    assert again.returncode == 0, again.stderr


def a_gpu_is_missed_before_anything_is_done(command, tmp_path):
    done = run(command, ARGS=f"--outputs {tmp_path}")

    assert done.returncode == 2, done.stderr  # make's own exit code for a failed recipe
    assert "gpus: no GPU found" in done.stderr
    assert "run the CPU demo instead: make up, without MODEL" in done.stderr
    assert list(tmp_path.iterdir()) == []


def compose_accepts_the_file(command, tmp_path):
    done = run(re.sub(r" up .*", " config --quiet", command))

    assert (done.returncode, done.stderr) == (0, "")


def make_knows_the_target(command, tmp_path):
    done = run(f"{command} --dry-run")

    assert done.returncode == 0, done.stderr


COMMANDS = {
    "make up": the_demo_runs,
    "make up MODEL=Qwen/Qwen2.5-7B": a_gpu_is_missed_before_anything_is_done,
    "make up MODEL=Qwen/Qwen2.5-7B SPLIT=2:6": a_gpu_is_missed_before_anything_is_done,
    "docker compose up --exit-code-from trainer": compose_accepts_the_file,
    "make test": make_knows_the_target,
    "make test-fast": make_knows_the_target,
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme_does_what_it_says(command, tmp_path, docker):
    COMMANDS[command](command, tmp_path)


def test_every_command_of_the_readme_is_run_here():
    assert set(readme_commands()) == set(COMMANDS)
