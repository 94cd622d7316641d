"""Whatever dies or hangs, the run goes on by itself from its last checkpoint, and ends at its target."""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from tests.real.conftest import ROOT, Stack
from tests.real.faults import ENGINE, RANK, SERVER, TRAINER, VLLM, Live, corrupt

pytestmark = pytest.mark.docker

SAVE_STEPS = 2

MOMENTS = {"generate": "while generating", "push": "during a push", "idle": "while optimizing"}

HERE = {**os.environ, "PYTHONPATH": str(ROOT)}

ENGINE_SCRIPT = ROOT / "docker" / "setup" / "engine.sh"

STARTED_HERE = ROOT / ".cache" / "engine" / "started-here"

QUICK = {"stuck_after_s": 20, "update_limit_s": 20, "phase_floor_s": 20, "restarts": 5}
"""Deadlines for steps of a second or two; the defaults are for steps of minutes."""


@pytest.fixture
def start(make_stack: Callable[..., Stack]) -> Iterator[Callable[..., Live]]:
    """`start(max_steps, *words_of_up, **trainer_args)`: a stack that trains."""
    started: list[Live] = []

    def begin(max_steps: int, *words: str, **trainer_args: object) -> Live:
        args = {"save_strategy": "steps", "save_steps": SAVE_STEPS, **trainer_args}
        stack = make_stack(recovery=QUICK, max_steps=max_steps, **args)
        started.append(Live(stack, *words))
        return started[-1]

    yield begin
    for live in started:
        live.end()


def the_run_is_whole(live: Live, steps: int) -> None:
    """Every step once, in order; the reward reached; sampler and trainer alike; a model; nothing left running."""
    assert live.finish() == 0, "".join(live.told)
    metrics = live.metrics()
    assert [line["step"] for line in metrics] == list(range(1, steps + 1))
    assert statistics.mean(line["reward"] for line in metrics[-5:]) >= 0.9
    assert max(line["sampling/sampling_logp_difference/mean"] for line in metrics) <= 1e-4
    assert (live.folder / "model" / "config.json").is_file()
    assert live.stack.left() == []


def test_whatever_dies_or_hangs_the_run_goes_on_from_its_last_checkpoint_and_ends_at_its_target(start):
    # One run for all of them: each start of a stack costs a minute.
    live = start(58)
    live.until_step(3)

    training_dies(live)
    the_server_dies_or_hangs(live)

    the_run_is_whole(live, 58)


def training_dies(live: Live) -> None:
    for moment, name in MOMENTS.items():
        fault = live.strike(moment, TRAINER, RANK)
        found = live.recovered(f"trainer process SIGKILL {name}", fault)
        assert found.lost_steps <= SAVE_STEPS
        live.until_step(fault.before + 4)

    fault = live.strike("idle", TRAINER, RANK)
    newest = max((live.folder).glob("checkpoint-*/model.safetensors"), key=lambda file: file.stat().st_mtime)
    corrupt(newest)
    found = live.recovered("newest checkpoint cut in half, trainer process SIGKILL", fault)
    assert 0 < found.lost_steps <= 2 * SAVE_STEPS
    live.until_step(fault.before + 4)


def the_server_dies_or_hangs(live: Live) -> None:
    for moment in ("generate", "push"):
        fault = live.strike(moment, SERVER, ENGINE)
        live.recovered(f"engine process SIGKILL {MOMENTS[moment]}", fault)
        live.until_step(fault.before + 4)

    fault = live.strike("generate", SERVER, VLLM, signal.SIGSTOP)
    found = live.recovered("engine processes SIGSTOP while generating", fault)
    assert found.noticed_s is not None
    assert found.noticed_s <= QUICK["stuck_after_s"] + 30
    live.until_step(fault.before + 4)

    live.recovered("server container SIGKILL during a push", live.strike("push", SERVER))


@pytest.mark.soak
def test_a_network_that_is_away_for_a_moment_costs_no_restart_and_for_long_no_more_than_a_deadline(start):
    live = start(40)
    live.until_step(3)

    fault = live.fault(lambda: cut(live, 10))
    live.recovered("network cut for 10 s", fault, restart=False)
    assert [each for each in live.events(fault.at) if each["event"] == "noticed"] == []

    fault = live.fault(lambda: cut(live, 60))
    live.recovered("network cut for 60 s, longer than every deadline", fault)

    the_run_is_whole(live, 40)


def cut(live: Live, seconds: float) -> None:
    """Take the server's network interface down for a while."""
    argv = [live.stack.docker, "inspect", "--format", "{{.State.Pid}}", live.name(SERVER)]
    pid = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
    switch = ["nsenter", "--target", pid, "--net", "ip", "link", "set", "eth0"]
    subprocess.run([*switch, "down"], check=True)
    time.sleep(seconds)
    subprocess.run([*switch, "up"], check=True)


@pytest.mark.soak
def test_whole_containers_that_are_killed_or_restarted_come_back(start):
    live = start(60)
    live.until_step(3)

    for moment, name in MOMENTS.items():
        for service in (TRAINER, SERVER):
            fault = live.strike(moment, service)
            live.recovered(f"{service} container SIGKILL {name}", fault)
            live.until_step(fault.before + 3)
    for services in ((TRAINER,), (SERVER,), (SERVER, TRAINER)):
        fault = live.fault(lambda services=services: live.compose("restart", *services))
        live.recovered(f"docker compose restart {' '.join(services)}", fault)
        live.until_step(fault.before + 3)

    the_run_is_whole(live, 60)


@pytest.mark.soak
def test_one_of_two_ranks_that_dies_takes_the_other_along_and_both_come_back(start):
    live = start(40, per_device_train_batch_size=8, processes=2)
    live.until_step(3)
    one = max(live.pids(TRAINER, RANK))
    live.await_moment("generate")

    fault = live.fault(lambda: os.kill(one, signal.SIGKILL))
    live.recovered("one of two trainer ranks SIGKILL", fault)

    the_run_is_whole(live, 40)


@pytest.mark.soak
def test_a_server_without_memory_is_ended_by_the_kernel_and_started_again(start):
    live = start(40)
    live.until_step(3)

    fault = live.fault(lambda: exhaust_memory(live, SERVER))
    live.recovered("server out of memory", fault)

    the_run_is_whole(live, 40)


def exhaust_memory(live: Live, service: str) -> None:
    """Leave a container 64 MiB more than it uses, and take them inside it; the kernel then ends its largest process."""
    argv = [live.stack.docker, "stats", "--no-stream", "--format", "{{.MemUsage}}", live.name(service)]
    used = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()[0]
    assert used.endswith("GiB")
    limit = str(int(float(used.removesuffix("GiB")) * 2**30) + 64 * 2**20)
    update = [live.stack.docker, "update", live.name(service), "--memory"]
    subprocess.run([*update, limit, "--memory-swap", limit], check=True, capture_output=True)
    hog = ["exec", live.name(service), "python", "-c", "x = [bytearray(2**24) for _ in range(64)]; input()"]
    with subprocess.Popen([live.stack.docker, *hog], stdin=subprocess.PIPE) as taking:
        time.sleep(5)
        taking.kill()
    subprocess.run([*update, "20g", "--memory-swap", "20g"], check=True, capture_output=True)


@pytest.mark.soak
def test_a_full_disk_ends_the_run_with_one_line_and_leaves_the_old_checkpoints_intact(start, tmp_path):
    (tmp_path / "outputs").mkdir(exist_ok=True)
    size = "size=24m,mode=777"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(tmp_path / "outputs")], check=True)
    try:
        live = start(40, "--skip", "outputs")  # the doctor would refuse so small a disk
        live.until_step(3)
        filler = tmp_path / "outputs" / "filler"
        with filler.open("wb") as stream, suppress(OSError):
            while True:
                stream.write(bytes(2**16))

        code = live.finish()

        assert code == 3, "".join(live.told)
        assert "no space left" in "".join(live.told)
        filler.unlink()
        names = sorted(folder.name for folder in live.folder.glob("checkpoint-*"))
        assert names
        assert [name for name in names if "." in name] == []
        again = live.stack.up("--skip", "outputs", "--set", "trainer.args.max_steps=8")
        assert again.code == 0, again.err
        assert live.stack.left() == []
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path / "outputs")], check=True)


@pytest.mark.soak
def test_a_docker_daemon_that_is_restarted_takes_both_along_and_both_come_back(start):
    if not STARTED_HERE.exists():
        pytest.skip("this host's Docker daemon was not started by docker/setup/engine.sh; others may depend on it")
    live = start(40)
    live.until_step(3)

    fault = live.fault(restart_daemon)
    live.recovered("docker daemon restarted", fault)

    the_run_is_whole(live, 40)


def restart_daemon() -> None:
    for words in ("stop", "ensure"):
        subprocess.run([ENGINE_SCRIPT, words], check=True, capture_output=True, timeout=180)


@pytest.mark.soak
def test_a_server_with_another_weights_backend_is_refused_by_name_before_training(make_stack):
    stack = make_stack(max_steps=2)
    render = [sys.executable, "-m", "grpo_stack.cli", "render"]
    rendered = subprocess.run(render, cwd=stack.folder, env=HERE, capture_output=True, text=True, check=True).stdout
    ours = '{\\"backend\\": \\"gloo\\"}'
    assert rendered.count(ours) == 1
    file = stack.folder / "compose.yaml"
    file.write_text(rendered.replace(ours, '{\\"backend\\": \\"nccl\\"}'))
    stack.run_folder.mkdir(parents=True)
    stack.run_folder.chmod(0o777)
    compose = [stack.docker, "compose", "--project-name", stack.project, "--file", str(file)]
    subprocess.run([*compose, "up", "--detach", "--no-build"], check=True, capture_output=True, timeout=240)

    code = subprocess.run(
        [*compose, "wait", TRAINER], capture_output=True, text=True, check=False, timeout=300
    ).returncode

    said = subprocess.run([*compose, "logs", TRAINER], capture_output=True, text=True, check=True).stdout
    assert code == 4, said
    assert "nccl" in said.splitlines()[-1]
    assert "gloo" in said.splitlines()[-1]


@pytest.mark.soak
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("at", ["building", "fetching model and dataset", "server loading", "server ready", "step 3/"])
def test_a_signal_at_any_phase_leaves_nothing_running(start, at, sign):
    live = start(400)
    live.until(at, lambda: any(at in line for line in list(live.told)), 240)
    began = time.monotonic()

    live.child.send_signal(sign)

    assert live.finish(60) == 130
    assert time.monotonic() - began < 30
    assert live.stack.left() == []


@pytest.mark.soak
def test_twenty_minutes_of_random_faults_end_at_the_target(start):
    seed = int(os.environ.get("SOAK_SEED") or random.SystemRandom().randrange(10**6))
    print(f"seed {seed}; the same again: make soak SOAK_SEED={seed}")
    chance = random.Random(seed)
    minutes = float(os.environ.get("SOAK_MINUTES") or 20)
    steps, longest_pause = 50 + int(minutes * 12), 30
    live = start(steps, learning_rate=2e-3)
    until = time.monotonic() + 60 * minutes
    live.until_step(3)
    # A fault in the last steps, or after them, is followed by no step to wait for.
    while time.monotonic() < until and live.step() < steps - longest_pause - 10:
        service, text = chance.choice([(TRAINER, RANK), (SERVER, ENGINE), (SERVER, ""), (TRAINER, "")])
        moment = chance.choice(list(MOMENTS))
        fault = live.strike(moment, service, text)
        live.recovered(f"soak: {service} {text or 'container'} SIGKILL {MOMENTS[moment]}", fault)
        live.until_step(fault.before + chance.randint(2, longest_pause))
    the_run_is_whole(live, steps)
