"""What must happen to a stack whatever goes wrong; real containers do the rest, in tests/real."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from grpo_stack import cli, engine, lifecycle, start
from grpo_stack.commands import host
from grpo_stack.errors import HostError
from grpo_stack.facts import Container
from grpo_stack.lifecycle import Stack
from grpo_stack.progress import Progress


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stack:
    """A stack whose docker fails at all but `down`, and notes what it was asked for."""
    client = tmp_path / "docker"
    client.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/asked\ncase "$*" in *" down "*) ;; *) exit 1 ;; esac\n')
    client.chmod(0o755)
    monkeypatch.setattr(engine, "containers", lambda project, log_lines=0: ())
    run_folder = tmp_path / "outputs" / "run"
    (run_folder / "logs").mkdir(parents=True)
    services = ("prefetch", "vllm-server", "trainer")
    return Stack("p", tmp_path / "compose.yaml", tmp_path, run_folder, {}, str(client), services)


def asked(stack: Stack) -> list[str]:
    return (stack.directory / "asked").read_text().splitlines()


def test_images_that_cannot_be_built_end_the_run_and_take_the_stack_down(stack: Stack) -> None:
    with pytest.raises(HostError, match="the images could not be built"):
        lifecycle.up(stack, Progress(io.StringIO()))

    assert asked(stack)[-1].startswith("compose --project-name p down --remove-orphans")
    assert sum(" logs " in words for words in asked(stack)) == 3


def test_logs_that_cannot_be_kept_neither_hide_the_fault_nor_keep_the_stack_running(stack: Stack) -> None:
    for service in stack.services:
        (stack.logs / f"{service}.log").mkdir()

    with pytest.raises(HostError, match="the images could not be built"):
        lifecycle.up(stack, Progress(io.StringIO()))

    assert asked(stack)[-1].startswith("compose --project-name p down --remove-orphans")


@pytest.mark.parametrize("sign", ["INT", "TERM", "HUP"])
def test_a_signal_that_comes_while_the_stack_is_stopped_neither_keeps_it_running_nor_changes_the_exit_code(
    sign: str, stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Path(stack.client)
    client.write_text(
        f'#!/bin/sh\necho "$*" >> {stack.directory}/asked\ncase "$*" in *" logs "*) kill -{sign} $PPID ;; esac\n'
    )
    states = iter([(), (ended("trainer"),)])
    monkeypatch.setattr(engine, "containers", lambda project, log_lines=0: next(states, (ended("trainer"),)))

    assert lifecycle.up(stack, Progress(io.StringIO())) == 0

    assert asked(stack)[-1].startswith("compose --project-name p down --remove-orphans")


def ended(service: str) -> Container:
    return Container(f"p-{service}-1", service, "exited", 0, None, False, ())


def test_a_second_stack_of_one_name_is_refused_before_anything_of_the_first_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    running = Container("p-trainer-1", "trainer", "running", None, None, False, ())
    monkeypatch.setattr(engine, "containers", lambda project, log_lines=0: (running,))
    monkeypatch.setattr(host, "_examined", lambda args, **_: (None, None, ()))
    touched: list[object] = []
    monkeypatch.setattr(start, "begun", lambda *of: touched.append(of))

    assert cli.main(["up", "--project", "p"]) == 3

    assert "a stack called p is running already (trainer)" in capsys.readouterr().err
    assert touched == []
