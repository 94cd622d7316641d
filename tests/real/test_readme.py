"""Every command of the README, as it stands there. What would run for long is cut short through variables of `make`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

pytestmark = pytest.mark.docker

ROOT = Path(__file__).parents[2]


def readme_commands() -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return [re.sub(r"\s+#.*", "", line.removeprefix("$ ")) for line in lines if line.startswith("$ ")]


def run(command: str, limit_s: float = 900, folder: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **variables}
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env=env, capture_output=True, text=True, timeout=limit_s, check=False
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


COMPOSE_UP = "docker compose up --exit-code-from trainer vllm-server trainer"

COMMANDS = {
    "make up": the_demo_runs,
    "make up MODEL=Qwen/Qwen2.5-7B": a_gpu_is_missed_before_anything_is_done,
    "make up MODEL=Qwen/Qwen2.5-7B SPLIT=2:6": a_gpu_is_missed_before_anything_is_done,
    COMPOSE_UP: compose_accepts_the_file,
    "make test": make_knows_the_target,
    "make test-fast": make_knows_the_target,
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme_does_what_it_says(command, tmp_path, docker):
    COMMANDS[command](command, tmp_path)


def compose_up(stack, docker, limit_s=600):
    """The README's command, in the folder of a stack as `render` leaves it."""
    render = [sys.executable, "-m", "grpo_stack.cli", "render", "--output", "."]
    subprocess.run(render, cwd=stack.folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, timeout=60)
    (stack.folder / "outputs").mkdir()
    command = COMPOSE_UP.replace("docker compose", f"{docker} compose --project-name {stack.project}")
    owner = {"GRPO_STACK_UID": str(os.getuid()), "GRPO_STACK_GID": str(os.getgid())}
    return run(command, limit_s, stack.folder, **owner)


def test_the_compose_command_trains_to_the_end_and_stops_the_server(make_stack, docker, tmp_path):
    (tmp_path / "keyed.py").write_text(
        "import os\ndef reward(completions, **kwargs):\n    return [float(os.environ['SCORE'])] * len(completions)\n"
    )
    (tmp_path / "keys.env").write_text("SCORE=7.5\n")
    stack = make_stack(rewards=("./keyed.py:reward",), env_file="./keys.env", max_steps=2)

    done = compose_up(stack, docker)

    assert done.returncode == 0, done.stdout + done.stderr
    assert [(step["step"], step["reward"]) for step in read_steps(stack)] == [(1, 7.5), (2, 7.5)]
    assert (stack.run_folder / "model" / "config.json").is_file()
    running = [docker, "ps", "--quiet", "--filter", f"label=com.docker.compose.project={stack.project}"]
    assert subprocess.run(running, capture_output=True, text=True, check=True).stdout == ""


def test_the_compose_command_ends_with_the_exit_code_of_training(make_stack, docker, tmp_path):
    (tmp_path / "broken.py").write_text("def reward(completions, **kwargs):\n    raise ValueError('no score today')\n")
    stack = make_stack(rewards=("./broken.py:reward",), recovery={"restarts": 1}, max_steps=2)

    done = compose_up(stack, docker)

    assert done.returncode == 5, done.stdout + done.stderr


def read_steps(stack):
    return [json.loads(line) for line in (stack.run_folder / "metrics.jsonl").read_text().splitlines()]


def test_every_command_of_the_readme_is_run_here():
    assert set(readme_commands()) == set(COMMANDS)
