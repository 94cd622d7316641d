import json
import os
import sys
from pathlib import Path

import pytest

from grpo_stack import description, local_start, plan, process_tree, run_state
from grpo_stack.errors import HostError


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(**flags):
        described = description.load(None, None, {"split": "1:1", "run": "mine", **flags}, [])
        return local_start.write(described, plan.derive(described.spec), "stack")

    return write


def test_the_folder_of_a_run_holds_its_description_and_its_command_lines(write, tmp_path):
    run = write(model="org/name")

    assert run.folder == tmp_path / "outputs" / "mine"
    assert (run.folder / "logs").is_dir()
    assert "model: org/name" in (run.folder / "stack.yaml").read_text()
    commands = json.loads((run.folder / "commands.json").read_text())
    assert list(commands) == ["prefetch", "vllm-server", "trainer"]
    assert commands["trainer"][0] == sys.executable


def test_a_checkout_is_on_the_module_path_of_what_it_starts(write):
    run = write(model="org/name")

    checkout = str(Path(local_start.__file__).parent.parent)
    assert all(checkout in program.env["PYTHONPATH"].split(":") for program in run.programs)


def test_a_relative_path_of_the_environment_is_seen_from_where_the_caller_is(write, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN_PATH", "./token")

    (prefetch, *_) = write(model="org/name").programs

    assert prefetch.env["HF_TOKEN_PATH"] == str(tmp_path / "token")


@pytest.mark.parametrize(
    ("flags", "fetches"),
    [
        ({"model": "org/name", "data.dataset": "two-digit-sums"}, True),
        ({"model": "./mine", "data.dataset": "org/data"}, True),
        ({"model": "./mine", "data.dataset": "rows.jsonl"}, False),
        ({"model": "./mine", "data.dataset": "two-digit-sums"}, False),
    ],
)
def test_only_what_is_not_on_this_host_is_fetched(write, flags, fetches):
    assert write(**flags).fetches is fetches


def test_a_run_that_is_running_is_refused_before_its_files_are_touched(write):
    folder = write(model="org/name").folder
    own = run_state.Member("up", process_tree.find(os.getpid()))
    with run_state.claim(folder) as record:
        record.write(run_state.State("stack", process_tree.boot(), own))

    with pytest.raises(HostError, match="run mine is running already; stop it with `grpo-stack down"):
        write(model="org/other")

    assert "model: org/name" in (folder / "stack.yaml").read_text()
