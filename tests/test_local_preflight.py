import dataclasses

from grpo_stack import local_preflight, packages, plan, rules
from grpo_stack.facts import FolderSpace, PortInUse, TokenFile
from grpo_stack.local_preflight import Packages
from grpo_stack.preflight import Facts
from tests.test_preflight import GB, HOST, gpus

LOCKED = {"vllm": "0.28.0", "trl": "1.16.0", "torch": "2.13.0+cu130", "accelerate": "1.15.0", "datasets": "5.2.0"}
HOLDS = Packages("/venv/bin/python", {**LOCKED, "grpo-stack": "0.1.0"}, {"vllm": True, "accelerate": True})


def check(data=None, holds=HOLDS, visible=None, **changes):
    facts = dataclasses.replace(Facts(host=HOST, engine=None, gpus=gpus(8)), **changes)
    return local_preflight.check(plan.derive(rules.read(data)), facts, holds, visible)


def problems(*args, **changes):
    return [str(finding) for finding in check(*args, **changes) if finding.level == "problem"]


def of(**versions):
    return dataclasses.replace(HOLDS, versions={**HOLDS.versions, **versions})


def test_a_good_host_has_no_problem_and_says_that_docker_is_not_asked():
    found = {(finding.level, finding.check): finding.found for finding in check()}

    assert {level for level, _ in found} == {"ok", "skipped"}
    assert found["ok", "packages"] == "vllm 0.28.0, trl 1.16.0, torch 2.13.0+cu130"
    assert "processes of this host" in found["skipped", "engine"]


def test_what_is_not_installed_is_named_with_the_command_that_installs_it():
    bare = Packages("/venv/bin/python", {"grpo-stack": "0.1.0", "torch": "2.13.0"}, {"vllm": False, "accelerate": True})

    assert problems(holds=bare) == [
        "packages: /venv/bin/python does not have vllm, trl, accelerate, datasets, the command vllm; "
        "run, in the checkout of grpo-stack: /venv/bin/python -m pip install '.[train]'"
    ]


def test_zero_needs_deepspeed_besides():
    by_zero = {"split": "4:4", "trainer": {"parallelism": "zero3"}}

    (problem,) = problems(by_zero)

    assert problem.startswith("packages: /venv/bin/python does not have deepspeed; ")
    assert problem.endswith("pip install '.[train,zero]'")
    assert problems(by_zero, of(deepspeed="0.19.8")) == []


def test_a_vllm_that_this_trl_does_not_accept_is_refused_with_the_nearest():
    (problem,) = problems(holds=of(vllm="0.33.0"))

    assert problem.startswith("packages: TRL 1.16.0 accepts vLLM 0.22.0 to 0.31.0, not 0.33.0; nearest: 0.31.0")


def test_releases_that_go_together_and_are_not_the_locked_ones_are_a_warning():
    (warning,) = (finding for finding in check(holds=of(vllm="0.26.0", torch="2.11.0")) if finding.level == "warning")

    assert "vllm 0.26.0" in warning.found
    assert "vllm 0.28.0, trl 1.16.0, torch 2.13.0" in warning.fix


def test_both_ports_must_be_free():
    taken = dataclasses.replace(HOST, ports_in_use=(PortInUse(8000, "127.0.0.1"), PortInUse(61216, "127.0.0.1")))

    assert problems(host=taken) == [
        "server.port: port 8000 of 127.0.0.1 is taken; choose another: --set server.port=PORT",
        "trainer.group_port: port 61216 of 127.0.0.1 is taken; choose another: --set trainer.group_port=PORT",
    ]
    assert problems({"split": "colocate"}, host=taken) == []


def test_two_listeners_of_one_host_cannot_have_one_port():
    assert problems({"server": {"port": 61216}}) == [
        "server.port: port 61216 is trainer.group_port too, and both are ports of this host; "
        "choose another: --set server.port=PORT",
        "trainer.group_port: port 61216 is server.port too, and both are ports of this host; "
        "choose another: --set trainer.group_port=PORT",
    ]


def test_gpus_that_the_batch_job_was_not_granted_are_refused():
    assert problems({"split": "2,3:4,5"}, visible="2,3,4,5") == []
    assert problems({"split": "shared"}, visible="GPU-8a1c6c1e-0000-1111-2222-333344445550") == []
    (problem,) = problems({"split": "0,1:2,3"}, visible="2,3")
    assert problem.startswith("gpus: CUDA_VISIBLE_DEVICES=2,3 does not grant GPU 0, 1, which the split names")


def test_memory_outputs_and_token_are_judged_as_for_containers():
    small = dataclasses.replace(HOST, memory_available_bytes=GB, folders=(FolderSpace("/x", GB, False),))
    token = TokenFile("/t", exists=True, readable=False)

    found = {(finding.level, finding.check) for finding in check(host=small, token=token)}

    assert {("warning", "memory"), ("problem", "outputs"), ("problem", "token")} <= found
    empty = [finding for finding in check(token=TokenFile("/t", exists=True, empty=True)) if finding.check == "token"]
    assert [(finding.level, finding.found) for finding in empty] == [("warning", "/t is empty")]
    assert problems(token=TokenFile("/t", exists=False)) == [
        "token: HF_TOKEN_PATH names /t, which is no file; mind the path, or unset it"
    ]


def test_a_python_is_asked_for_what_it_holds(tmp_path, monkeypatch):
    for name, version in (("vllm", "0.28.0+cpu"), ("trl", "1.16.0")):
        info = tmp_path / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    command = tmp_path / "accelerate"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    monkeypatch.syspath_prepend(tmp_path)

    found = packages.read(str(tmp_path / "python"), {"PATH": "/nowhere"})

    assert (found.versions["vllm"], found.versions["trl"]) == ("0.28.0+cpu", "1.16.0")
    assert found.commands == {"vllm": False, "accelerate": True}
