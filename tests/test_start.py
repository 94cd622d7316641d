import os
import time
from pathlib import Path

import pytest

from grpo_stack import description, plan, run_state, start, words
from grpo_stack.errors import DescriptionError, HostError
from grpo_stack.facts import GpuReading
from grpo_stack.findings import Finding
from tests.test_devices import changed
from tests.test_preflight import gpus

NO_GPU = GpuReading((), "no driver")
NOON = time.strptime("2026-03-01 12:00:00", "%Y-%m-%d %H:%M:%S")


@pytest.fixture
def no_containers(monkeypatch):
    """A Docker that has none."""
    monkeypatch.setattr(start.engine, "find_client", lambda: "docker")
    monkeypatch.setattr(start.engine, "told_to_write", lambda folder, options: {})


@pytest.fixture
def load(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def load(preset=None, **flags):
        return description.load(None, preset, flags, [])

    return load


@pytest.mark.parametrize(("count", "split"), [(8, "0-3:4-7"), (4, "0-1:2-3"), (2, "0:1")])
def test_the_split_follows_from_the_number_of_gpus(count, split, load):
    assert str(start.choose(load(), gpus(count)).spec.split) == split


def test_a_split_that_was_asked_for_stays(load):
    assert str(start.choose(load(split="2:6"), gpus(8)).spec.split) == "0-1:2-7"
    assert str(start.choose(load(preset="4-4"), gpus(2)).spec.split) == "0-3:4-7"


def test_counted_gpus_are_exchanged_for_free_ones_and_named_ones_are_not(load):
    used = changed(0, memory_used_mib=41000)

    described, sentence = start.placed(load(split="1:2"), used)

    assert (described.spec.gpus.server, described.spec.gpus.trainer) == (("1",), ("2", "3"))
    assert described.data["split"] == "1:2,3"
    assert sentence == "GPU 1 serve, 2,3 train; passed over: GPU 0 (41000 MiB in use, no process listed)"
    for kept in (load(split="0:1,2"), load(split="4:4"), load(preset="cpu")):
        assert start.placed(kept, used) == (kept, "")


def test_a_lone_gpu_on_each_side_stays_an_id_in_the_description(load):
    described, _ = start.placed(load(split="1:1"), changed(0, 3, memory_used_mib=41000))

    assert described.spec.gpus.gpus == ("1", "2")
    assert not described.spec.gpus.counted


def test_without_gpu_and_without_a_wish_it_is_the_cpu_demo_with_the_other_flags_kept(load):
    chosen = start.choose(load(run="mine"), NO_GPU).spec

    assert (chosen.accelerator, chosen.run, chosen.data.dataset) == ("cpu", "mine", "two-digit-sums")


@pytest.mark.parametrize("flags", [{"model": "a/b"}, {"split": "1:1"}])
def test_without_gpu_a_wish_is_kept_for_the_checks_to_answer(flags, load):
    described = load(**flags)

    assert start.choose(described, NO_GPU) == described


def test_one_gpu_means_generating_inside_the_trainer(load):
    assert start.choose(load(), gpus(1)).spec.gpus.mode == "colocate"


def test_one_gpu_is_no_place_for_what_only_a_server_takes(load):
    described = load(**{"server.extra_args": ["--max-num-seqs", "64"]})

    with pytest.raises(
        DescriptionError, match=r"server\.extra_args: split: colocate, which a host with one GPU gets by default"
    ):
        start.choose(described, gpus(1))
    assert start.choose(described, gpus(2)).spec.server.extra_args == ("--max-num-seqs", "64")


def test_a_run_is_named_after_model_and_time_unless_it_has_a_name(load):
    named = start.named(load(model="Org/Some_Model.v2"), NOON)

    assert named.spec.run == named.data["run"] == "some-model.v2-20260301-120000"
    assert start.named(load(run="mine"), NOON).spec.run == "mine"


def test_the_environment_settles_only_what_the_description_leaves_open(load):
    environment = {"MODEL": "from/env", "RUN": "env-run"}

    opened = start.settled(load(), environment).spec
    closed = start.settled(load(model="a/b", run="mine"), environment).spec

    assert (opened.model, opened.run) == ("from/env", "env-run")
    assert (closed.model, closed.run) == ("a/b", "mine")
    assert words.literal(start.settled(load(), {"MODEL": ""}).spec.model) == "Qwen/Qwen2.5-7B"


def test_problems_are_demanded_all_at_once_and_blamed_rightly():
    fine = Finding("a", "ok", "x")
    host, described = Finding("b", "problem", "full", "free some"), Finding("c", "problem", "none", "", True)

    start.demand((fine,))
    assert start.fault((fine,)) is None
    with pytest.raises(HostError, match=r"^b: full; free some$"):
        start.demand((fine, host))
    with pytest.raises(DescriptionError) as caught:
        start.demand((host, described))
    assert caught.value.problems == ("b: full; free some", "c: none")


@pytest.mark.usefixtures("no_containers")
def test_roots_run_belongs_to_the_containers_while_it_runs_and_to_root_after_it_as_often_as_it_is_started(
    load, tmp_path, monkeypatch
):
    owned = {}
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setattr(os, "getgid", lambda: 0)
    monkeypatch.delenv("SUDO_UID", raising=False)
    monkeypatch.setattr(os, "chown", lambda name, uid, gid, **_: owned.update({Path(name).name: (uid, gid)}))
    described = load(preset="cpu", run="mine", outputs=str(tmp_path))
    checkpoint = tmp_path / "mine" / "checkpoint-2" / "model.safetensors"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.touch()

    everything = {"mine", ".lock", "logs", "stack.yaml", "compose.yaml", "checkpoint-2", "model.safetensors"}

    with start.begun(described, plan.derive(described.spec), "project"):
        assert owned == dict.fromkeys(everything, (start.CONTAINER_UID, start.CONTAINER_UID))
    assert owned == dict.fromkeys(everything, (0, 0))


@pytest.mark.usefixtures("no_containers")
@pytest.mark.parametrize("taken", ["out", "out/mine", "out/mine/logs", "out/mine/stack.yaml/x"])
def test_a_run_folder_that_cannot_be_made_is_one_line(taken, load, tmp_path, monkeypatch):
    described = load(preset="cpu", run="mine", outputs=str(tmp_path / "out"))
    (tmp_path / taken).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / taken).touch()

    refused = pytest.raises(HostError, match=r"^outputs: /\S+: .+; name another folder: --outputs FOLDER$")
    with refused, start.begun(described, plan.derive(described.spec), "project"):
        pass


@pytest.mark.usefixtures("no_containers")
def test_the_runs_folder_is_held_until_all_of_it_is_the_callers_again(load, tmp_path, monkeypatch):
    held = []
    monkeypatch.setattr(start, "_give", lambda run, uid, gid: held.append((uid, is_held(run))))
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.delenv("SUDO_UID", raising=False)
    described = load(preset="cpu", run="mine", outputs=str(tmp_path))

    with start.begun(described, plan.derive(described.spec), "project") as stack:
        assert is_held(stack.run_folder)

    assert held == [(start.CONTAINER_UID, True), (0, True)]
    assert not is_held(stack.run_folder)


@pytest.mark.usefixtures("no_containers")
def test_files_that_the_environment_names_are_those_of_the_current_folder(load, tmp_path, monkeypatch):
    (tmp_path / "team").mkdir()
    (tmp_path / "team" / "stack.yaml").write_text("accelerator: cpu\nrun: mine\noutputs: ./out\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(start, "_give", lambda *_: None)
    for name, value in {
        "HF_TOKEN_PATH": "keys/token",
        "CA_BUNDLE": "~/ca.crt",
        "WHEELS_DIR": "",
        "HOME": "/home/me",
    }.items():
        monkeypatch.setenv(name, value)
    described = description.load(Path("team/stack.yaml"), None, {}, [])

    with start.begun(described, plan.derive(described.spec), "project") as stack:
        env = dict(stack.env)

    assert stack.directory == tmp_path / "team"
    assert env["HF_TOKEN_PATH"] == f"{tmp_path}/keys/token"
    assert (env["CA_BUNDLE"], env["WHEELS_DIR"]) == ("/home/me/ca.crt", "")


def is_held(run):
    try:
        run_state.require_idle(run)
    except HostError as refusal:
        return "run mine is in use by another `grpo-stack up`" in str(refusal)
    return False


def test_the_containers_never_run_as_root(monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setattr(os, "getgid", lambda: 0)
    monkeypatch.delenv("SUDO_UID", raising=False)
    assert start.owner() == (start.CONTAINER_UID, start.CONTAINER_UID)

    monkeypatch.setenv("SUDO_UID", "1000")
    monkeypatch.setenv("SUDO_GID", "1001")
    assert start.owner() == (1000, 1001)

    for wrong in ("x", "", "-1", "²", "9" * 30):
        monkeypatch.setenv("SUDO_UID", wrong)
        assert start.owner() == (start.CONTAINER_UID, start.CONTAINER_UID)

    monkeypatch.setattr(os, "getuid", lambda: 1234)
    monkeypatch.setattr(os, "getgid", lambda: 1235)
    assert start.owner() == (1234, 1235)
