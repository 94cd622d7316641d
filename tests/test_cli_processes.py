"""The command line for runs of processes."""

import json
import os
import sys
from contextlib import contextmanager

import pytest

from grpo_stack import cli, process_tree, run_state
from tests.test_cli import CPU, without_docker


def test_processes_need_no_docker_but_vllm_and_trl_beside_this_python(capsys, tmp_path, monkeypatch):
    without_docker(monkeypatch, tmp_path)

    assert cli.main(["up", "--runtime", "process", *CPU]) == 3

    printed = capsys.readouterr().err
    assert f"{sys.executable} -m pip install '.[train]'" in printed
    assert "grpo-stack: skipped: engine: not asked" in printed
    assert "Docker is not installed" not in printed


def test_doctor_judges_a_host_for_processes(capsys, tmp_path, monkeypatch):
    without_docker(monkeypatch, tmp_path)

    assert cli.main(["doctor", "--runtime", "process", *CPU, "--skip", "packages"]) == 0

    found = capsys.readouterr().out
    assert "ok       server.port         port 8000 of 127.0.0.1 is free" in found
    assert "source" not in found


def test_without_a_run_of_processes_there_is_nothing_to_stop_or_to_show(capsys, tmp_path, monkeypatch):
    without_docker(monkeypatch, tmp_path)

    assert cli.main(["down", "--runtime", "process"]) == 0
    assert cli.main(["status", "--runtime", "process"]) == 0
    assert "no process of grpo-stack is running" in capsys.readouterr().err
    assert cli.main(["logs", "--runtime", "process"]) == 3
    assert cli.main(["down"]) == 3  # containers, which need Docker


@contextmanager
def running(folder):
    """A run in `folder` whose trainer is this very process."""
    folder.mkdir(parents=True)
    own = run_state.Member("trainer", process_tree.find(os.getpid()))
    with run_state.claim(folder) as record:
        record.write(run_state.State("grpo-stack", process_tree.boot(), own, (own,)))
        yield


@pytest.mark.parametrize("broken", ["modle: x\n", "split: '1:1:1'\n", "a: [\n", "outputs: 5\n"])
def test_a_description_that_cannot_be_read_hides_no_run(broken, capsys, tmp_path, monkeypatch):
    without_docker(monkeypatch, tmp_path)
    (tmp_path / "stack.yaml").write_text(broken)
    shown = f"trainer      running (pid {os.getpid()})  mine\n"

    with running(tmp_path / "outputs" / "mine"):
        assert cli.main(["status"]) == 0
        first = capsys.readouterr()
        assert cli.main(["status", "--outputs", "outputs"]) == 0
        second = capsys.readouterr()

    assert (first.out, second.out) == (shown, shown)
    assert first.err.startswith("grpo-stack: warning: stack.yaml: ")
    assert first.err.endswith("warning: looking for runs in ./outputs; name another folder: --outputs DIR\n")
    assert second.err == ""


def test_a_description_that_cannot_be_read_keeps_no_command_from_the_containers(capsys, tmp_path, monkeypatch):
    without_docker(monkeypatch, tmp_path)
    (tmp_path / "stack.yaml").write_text("modle: x\n")

    for command in ("status", "logs", "down"):
        assert cli.main([command]) == 3
        assert "grpo-stack: Docker is not installed" in capsys.readouterr().err


def test_a_run_that_is_there_is_found_without_being_named(capsys, tmp_path, monkeypatch):
    without_docker(monkeypatch, tmp_path)
    with running(tmp_path / "outputs" / "mine"):
        pass

    assert cli.main(["status"]) == 0
    assert capsys.readouterr().out == f"trainer      running (pid {os.getpid()})  mine\n"
    assert cli.main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["run"] == "mine"
