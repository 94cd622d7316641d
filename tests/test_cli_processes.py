"""The command line for runs of processes."""

import json
import os
import sys
from contextlib import contextmanager

import pytest

from grpo_stack import cli, engine, lifecycle, process_tree, run_state
from grpo_stack.errors import HostError
from grpo_stack.facts import Container
from tests.test_cli import CPU, run, without_docker


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

    for command in ("down", "status"):
        assert cli.main([command, "--runtime", "process"]) == 0
        assert capsys.readouterr().err == "no process of grpo-stack is running\n"
    assert cli.main(["logs", "--runtime", "process"]) == 3
    assert capsys.readouterr().err == (
        "grpo-stack: no process of grpo-stack is running; name a run that is over: --run NAME\n"
    )
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


@pytest.fixture
def over(tmp_path, monkeypatch):
    """The folder of a run of processes that has ended, on a host without Docker."""
    without_docker(monkeypatch, tmp_path)
    folder = tmp_path / "outputs" / "over"
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "trainer.log").write_text("step 1\n")
    (folder / "logs" / "prefetch.log").write_text("all there\n")
    gone = process_tree.Process(os.getpid(), -1)
    with run_state.claim(folder) as record:
        roles = (run_state.Member("trainer", gone, 3), run_state.Member("vllm-server", gone))
        record.write(run_state.State("grpo-stack", process_tree.boot(), run_state.Member("up", gone), roles))
    return folder


RUNTIME = pytest.mark.parametrize("runtime", [[], ["--runtime", "process"]], ids=["any", "process"])


@RUNTIME
def test_of_a_run_that_is_over_status_tells_how_it_ended_and_down_that_nothing_runs(runtime, over, capsys):
    assert cli.main(["status", "--run", "over", *runtime]) == 0
    assert capsys.readouterr().out == "trainer      exited with exit code 3  over\nvllm-server  gone  over\n"
    assert cli.main(["down", "--run", "over", *runtime]) == 0
    assert capsys.readouterr() == ("", "nothing of run over is running\n")


@RUNTIME
def test_the_logs_of_a_run_that_is_over_are_shown(runtime, over, monkeypatch):
    monkeypatch.setenv("PATH", os.defpath)

    every = run("logs", "--run", "over", *runtime, cwd=over.parent.parent)
    one = run("logs", "--run", "over", "trainer", *runtime, cwd=over.parent.parent)

    assert (every.returncode, every.stderr) == (0, "")
    assert "all there\n" in every.stdout
    assert "step 1\n" in every.stdout
    assert (one.returncode, one.stdout) == (0, "step 1\n")


def test_a_service_that_has_left_no_log_is_told_apart_from_one_that_does_not_exist(over, capsys):
    assert cli.main(["logs", "--run", "over", "vllm-server"]) == 3
    assert capsys.readouterr().err == (
        f"grpo-stack: there is no log of vllm-server in {over}/logs; logs that are there: prefetch, trainer\n"
    )
    for runtime in ("process", "docker"):
        assert cli.main(["logs", "--runtime", runtime, "--run", "over", "trainer", "vllm"]) == 2
        assert capsys.readouterr().err == (
            "grpo-stack: logs: there is no service 'vllm'; the services are prefetch, vllm-server, trainer\n"
        )


@pytest.mark.parametrize("command", ["status", "logs", "down"])
@pytest.mark.parametrize("runtime", [[], ["--runtime", "process"], ["--runtime", "docker"]])
@pytest.mark.parametrize("name", ["typo", "", "x" * 300, "over/processes.json"])
def test_a_run_that_does_not_exist_is_nobody_elses(name, runtime, command, over, capsys):
    assert cli.main([command, "--run", name, *runtime]) == 3
    assert capsys.readouterr().err == (
        f"grpo-stack: run {name!r}: there is no such folder in {over.parent}; see: ls {over.parent}\n"
    )


@pytest.mark.parametrize("command", ["status", "logs", "down"])
@pytest.mark.parametrize("name", ["typo", "stack.yaml", ""])
def test_a_folder_of_runs_that_does_not_exist_is_said_to_be_none(name, command, over, capsys):
    (over.parent.parent / "stack.yaml").touch()

    assert cli.main([command, "--outputs", name]) == 3
    assert capsys.readouterr().err == (
        f"grpo-stack: outputs: {name!r} is no folder; name that of the runs: --outputs DIR\n"
    )


@pytest.mark.parametrize("command", ["status", "logs", "down"])
@pytest.mark.parametrize(
    ("runtime", "told"),
    [
        ([], "processes or containers; name the project of its containers instead: --project NAME"),
        (["--runtime", "process"], "processes; if it ran in containers, leave out --runtime process"),
        (["--runtime", "docker"], "containers; name their project instead: --project NAME"),
    ],
)
def test_a_folder_that_tells_of_no_run_is_no_reason_to_touch_another(runtime, told, command, over, capsys):
    (over / run_state.FILE).write_text("{")

    assert cli.main([command, "--run", "over", *runtime]) == 3
    assert capsys.readouterr().err == f"grpo-stack: run 'over': {over} tells of no {told}\n"


@pytest.fixture
def contained(over, monkeypatch):
    """The folder of a run in containers; which of them there are, by project; and the projects that were taken down."""
    (over / run_state.FILE).unlink()
    (over / "compose.yaml").touch()
    there, stopped = {}, []
    monkeypatch.setattr(engine, "made_from", lambda file: there if file == over / "compose.yaml" else {})
    monkeypatch.setattr(engine, "containers", lambda project: there[project])
    monkeypatch.setattr(engine, "find_client", lambda: "docker")
    monkeypatch.setattr(lifecycle, "down", lambda client, project, limit_s: stopped.append(project))
    return over, there, stopped


def test_a_named_run_in_containers_is_found_whatever_its_project(contained, capsys):
    _, there, stopped = contained
    there["b"] = (Container("b-trainer-1", "trainer", "running", None, None, False),)

    assert cli.main(["status", "--run", "over"]) == 0
    assert cli.main(["down", "--run", "over"]) == 0

    assert capsys.readouterr() == ("trainer      running\n", "")
    assert stopped == ["b"]


def test_without_containers_of_its_own_a_named_run_is_over_and_no_others_are_stopped(contained, capsys):
    _, _, stopped = contained

    for command, told in (("status", "no container of run over\n"), ("down", "nothing of run over is running\n")):
        assert cli.main([command, "--run", "over"]) == 0
        assert capsys.readouterr() == ("", told)
    assert stopped == []


def test_a_named_run_whose_up_still_builds_images_is_not_said_to_be_over(contained, capsys):
    folder, _, stopped = contained

    with run_state.claim(folder):
        assert cli.main(["down", "--run", "over"]) == 3

    assert "run over is in use by another `grpo-stack up`" in capsys.readouterr().err
    assert stopped == []


def test_a_named_run_of_processes_that_is_held_elsewhere_is_not_said_to_be_over(over, capsys):
    with run_state.claim(over):
        assert cli.main(["down", "--run", "over"]) == 3

    assert "run over is in use by another `grpo-stack up`" in capsys.readouterr().err


def test_of_a_run_in_containers_that_is_over_the_saved_logs_are_shown(contained, monkeypatch):
    monkeypatch.setattr(os, "execvp", become)

    with pytest.raises(SystemExit) as became:
        cli.main(["logs", "--run", "over", "trainer"])

    assert became.value.code == ["tail", "--lines", "+1", str(contained[0] / "logs" / "trainer.log")]


def away(*_):
    raise HostError("Docker's daemon does not run")


def become(program, words):
    raise SystemExit(words)


@pytest.mark.parametrize("question", ["made_from", "find_client", "containers"])
@pytest.mark.parametrize("runtime", [[], ["--runtime", "docker"]], ids=["any", "docker"])
def test_where_docker_is_away_the_saved_logs_of_a_run_in_containers_are_shown_with_a_warning(
    runtime, question, contained, capsys, monkeypatch
):
    folder, there, _ = contained
    there["b"] = ()
    monkeypatch.setattr(engine, question, away)
    monkeypatch.setattr(os, "execvp", become)

    with pytest.raises(SystemExit) as became:
        cli.main(["logs", "--run", "over", *runtime])

    assert became.value.code == [
        "tail", "--lines", "+1", str(folder / "logs" / "prefetch.log"), str(folder / "logs" / "trainer.log")
    ]  # fmt: skip
    assert capsys.readouterr().err == (
        "grpo-stack: warning: Docker could not be asked about run over, what its `up` has saved is shown: "
        "Docker's daemon does not run\n"
    )


def test_where_docker_is_away_nothing_else_is_said_of_a_run_in_containers(contained, capsys, monkeypatch):
    folder, _, stopped = contained
    monkeypatch.setattr(engine, "made_from", away)

    for command in ("status", "down"):
        assert cli.main([command, "--run", "over"]) == 3
        assert capsys.readouterr() == ("", "grpo-stack: Docker's daemon does not run\n")
    assert stopped == []
    for log in (folder / "logs").iterdir():
        log.unlink()
    assert cli.main(["logs", "--run", "over"]) == 3
    assert capsys.readouterr().err == "grpo-stack: Docker's daemon does not run\n"


def test_a_log_that_was_not_saved_is_missed_where_docker_is_away(contained, capsys, monkeypatch):
    monkeypatch.setattr(engine, "made_from", away)

    assert cli.main(["logs", "--run", "over", "vllm-server"]) == 3

    assert capsys.readouterr().err.splitlines()[1] == (
        f"grpo-stack: there is no log of vllm-server in {contained[0]}/logs; logs that are there: prefetch, trainer"
    )
