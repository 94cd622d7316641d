import dataclasses
import json
from pathlib import Path

import pytest

from grpo_stack import findings, pins, plan, preflight, rules
from grpo_stack.facts import (
    CacheVolume,
    DatasetFile,
    Engine,
    FolderSpace,
    Gpu,
    GpuReading,
    Host,
    ModelFolder,
    NamedFile,
    PortInUse,
    TokenFile,
)
from grpo_stack.preflight import Facts

GB = 10**9

ENGINE = Engine(
    version="26.1.5",
    api_version="1.45",
    client="/usr/bin/docker",
    compose_version="2.26.1",
    podman=False,
    rootless=False,
    cgroup_driver="systemd",
    runtimes=("nvidia", "runc"),
    default_runtime="runc",
    cdi_devices=(),
    cdi_spec_dirs=(),
    data_root="/var/lib/docker",
    data_root_free_bytes=100 * GB,
    gpus_usable=True,
)

HOST = Host(
    cpus=8,
    memory_total_bytes=64 * GB,
    memory_available_bytes=60 * GB,
    shm_free_bytes=GB,
    folders=(FolderSpace("/x/outputs", 100 * GB, True),),
)


def gpus(count):
    fields = {field.name: None for field in dataclasses.fields(Gpu)} | {"links": (), "driver_version": "580.95.05"}
    return GpuReading(tuple(Gpu(**{**fields, "index": index, "uuid": uuid(index)}) for index in range(count)))


def uuid(index):
    return f"GPU-8a1c6c1e-0000-1111-2222-33334444555{index}"


WELL = Facts(host=HOST, engine=ENGINE, gpus=gpus(8))


def check(data=None, **changes):
    return preflight.check(plan.derive(rules.read(data)), dataclasses.replace(WELL, **changes))


def problems(data=None, **changes):
    return [str(finding) for finding in check(data, **changes) if finding.level == "problem"]


def test_a_good_host_has_no_problem_and_says_what_it_has():
    assert {finding.level for finding in check()} == {"ok"}
    assert {"engine: Engine 26.1.5", "compose: Compose 2.26.1"} <= set(map(str, check()))


@pytest.mark.parametrize(
    ("data", "changes", "message"),
    [
        (None, {"engine": None, "engine_problems": ("no answer",)}, "engine: no answer"),
        (
            None,
            {"engine": None, "engine_problems": ("no permission for Docker at /x; run: y",)},
            "permission: no permission for Docker at /x; run: y",
        ),
        (
            None,
            {
                "engine": None,
                "engine_problems": ("no Docker Compose with /usr/bin/docker; let `make build` install it",),
            },
            "compose: no Docker Compose with /usr/bin/docker; let `make build` install it",
        ),
        (
            None,
            {"engine": dataclasses.replace(ENGINE, version="20.10.24")},
            "engine: Engine 20.10.24 found, 25 needed; upgrade it, or let `make build` do that",
        ),
        (
            None,
            {"engine": dataclasses.replace(ENGINE, compose_version="2.23.3")},
            "compose: Compose 2.23.3 found, 2.24 needed; upgrade it, or let `make build` do that",
        ),
        (None, {"engine": dataclasses.replace(ENGINE, podman=True)}, "engine: podman answers in Docker's name"),
        (
            None,
            {"engine": dataclasses.replace(ENGINE, data_root_free_bytes=5 * GB)},
            "image-space: 5.0 GB free in /var/lib/docker; building the images takes 30.0 GB",
        ),
        (None, {"engine": dataclasses.replace(ENGINE, gpus_usable=False)}, "toolkit: the engine has neither"),
        (None, {"gpus": GpuReading((), "no driver")}, "gpus: no GPU found (no driver); run the CPU demo instead"),
        (
            None,
            {"gpus": gpus(4)},
            "gpus: the split names GPU 4, 5, 6, 7, this host has 4 (0-3); choose another split, 2:2 for example",
        ),
        (
            {"server": {"publish": 8000}},
            {"host": dataclasses.replace(HOST, ports_in_use=(PortInUse(8000, "127.0.0.1"),))},
            "server.publish: port 8000 of 127.0.0.1 is taken",
        ),
        (
            None,
            {"host": dataclasses.replace(HOST, folders=(FolderSpace("/x", GB, False),))},
            "outputs: /x is not writable",
        ),
        (
            None,
            {"host": dataclasses.replace(HOST, folders=(FolderSpace("/x", GB, True),))},
            "outputs: 1.0 GB free in /x",
        ),
        (None, {"model": ModelFolder("/m", False)}, "model: there is no folder /m"),
        (None, {"model": ModelFolder("/m", True)}, "model: /m holds no config.json"),
        (
            None,
            {"model": ModelFolder("/m", True, True, ("model.safetensors",))},
            "model: model.safetensors in /m cannot be read by the containers' user; run: chmod a+r /m/*",
        ),
        (None, {"dataset": DatasetFile("/d.jsonl", False)}, "data.dataset: there is no file /d.jsonl"),
        (
            None,
            {"dataset": DatasetFile("/d.jsonl", True, ("question", "answer"))},
            "data.dataset: /d.jsonl has no column `prompt` (found: question, answer)",
        ),
        (None, {"dataset": DatasetFile("/d.jsonl", True, None, "it is empty")}, "data.dataset: /d.jsonl: it is empty"),
        (None, {"files": (NamedFile("data.rewards", "/r.py", False),)}, "data.rewards: there is no file /r.py"),
        (
            None,
            {"files": (NamedFile("data.rewards", "/r.py", True, False),)},
            "data.rewards: /r.py cannot be read by the containers' user; run: chmod a+r /r.py",
        ),
        (
            None,
            {"files": (NamedFile("trainer.env_file", "/keys", True, False, secret=True),)},
            "trainer.env_file: /keys cannot be read by the containers' user; give them a copy that they can read, outside",
        ),
    ],
)
def test_what_stands_in_the_way_is_found_and_says_the_way_out(data, changes, message):
    (found,) = problems(data, **changes)

    assert found.startswith(message)


def test_all_problems_come_at_once():
    found = problems(engine=None, engine_problems=("down",), gpus=gpus(0), dataset=DatasetFile("/d.jsonl", False))

    assert len(found) == 3


def test_the_description_is_blamed_for_its_own_faults_only():
    wrong = {finding.check for finding in check(gpus=gpus(0), model=ModelFolder("/m", False)) if finding.described}

    assert wrong == {"model"}


def test_built_images_need_little_space_and_the_cpu_stack_no_gpu():
    small = dataclasses.replace(ENGINE, data_root_free_bytes=3 * GB, gpus_usable=False)

    assert problems({"accelerator": "cpu"}, engine=small, images_built=True, gpus=gpus(0)) == []


@pytest.mark.parametrize(
    ("token", "level", "found"),
    [
        (TokenFile("/t", exists=False), "problem", "HF_TOKEN_PATH names /t, which is no file"),
        (TokenFile("/t", exists=True, readable=False), "problem", "/t cannot be read by the containers' user"),
        (TokenFile("/t", exists=True, empty=True), "warning", "/t is empty"),
        (TokenFile("/t", exists=True), "ok", "in /t"),
    ],
)
def test_a_token_file_must_be_of_use_to_the_containers(token, level, found):
    (finding,) = (finding for finding in check(token=token) if finding.check == "token")

    assert (finding.level, finding.found) == (level, found)


def test_a_token_in_the_environment_reaches_no_container():
    (finding,) = (finding for finding in check(token_in_environment=True) if finding.check == "token")

    assert (finding.level, finding.found) == ("warning", "HF_TOKEN is set, which no container is given")


@pytest.mark.parametrize(
    ("proxies", "warnings"),
    [
        ((("HTTPS_PROXY", "http://proxy:3128"), ("https_proxy", "http://proxy:3128")), []),
        (
            (("HTTPS_PROXY", "http://127.0.0.1:3128"),),
            ["HTTPS_PROXY=http://127.0.0.1:3128 means the container itself inside of one"],
        ),
        ((("HTTP_PROXY", "localhost:8080"),), ["HTTP_PROXY=localhost:8080 means the container itself inside of one"]),
        ((("https_proxy", "http://proxy"),), ["https_proxy is set, but containers are given HTTPS_PROXY"]),
        ((("NO_PROXY", "localhost"),), []),
    ],
)
def test_proxies_must_be_within_reach_of_containers_and_in_the_names_that_they_are_given(proxies, warnings):
    found = check(host=dataclasses.replace(HOST, proxies=proxies))

    assert [finding.found for finding in found if finding.level != "ok"] == warnings


def test_a_plan_that_sends_its_roles_through_a_proxy_is_a_problem():
    planned = plan.derive(rules.read(None))
    trainer = dataclasses.replace(planned.trainer, env={"NO_PROXY": "vllm-server.example"})

    found = preflight.check(dataclasses.replace(planned, trainer=trainer), WELL)

    assert [finding.check for finding in found if finding.level == "problem"] == ["proxies"]


def test_offline_needs_a_cache_volume():
    assert problems(offline=True, cache=CacheVolume(exists=False))[0].startswith("offline: HF_HUB_OFFLINE is set, and")
    assert problems(offline=True, cache=CacheVolume(exists=None)) == []
    assert "offline" in {finding.check for finding in check(offline=True, cache=CacheVolume(exists=True))}
    assert "offline" not in {finding.check for finding in check()}


def test_little_memory_is_warned_about():
    small = dataclasses.replace(HOST, memory_available_bytes=20 * GB)

    assert [finding.check for finding in check(host=small) if finding.level == "warning"] == ["shm", "memory"]
    assert {finding.level for finding in check({"accelerator": "cpu"}, host=small)} == {"ok"}


def test_the_cpu_demo_takes_what_both_its_containers_took():
    rows = json.loads((Path(__file__).parent.parent / "docs" / "benchmarks.json").read_text())
    took = max(row["memory GiB"]["vllm-server"] + row["memory GiB"]["trainer"] for row in rows) * 2**30
    assert took <= preflight.MEMORY_BYTES["cpu"]

    small = dataclasses.replace(HOST, memory_available_bytes=8 * GB)
    (warned,) = [found for found in check({"accelerator": "cpu"}, host=small) if found.level == "warning"]
    assert (warned.check, warned.found) == ("memory", "8.0 GB of 64.0 GB available")
    assert "take 9.0 GB or more" in warned.fix


def test_every_check_has_a_name_that_skip_knows():
    assert {finding.check for finding in check()} <= set(findings.CHECKS)


def test_a_weight_path_that_was_never_measured_is_warned_about():
    found = [finding for finding in check({"weight_path": "nvlink"}) if finding.check == "weight-path"]

    assert [finding.level for finding in found] == ["warning"]
    assert "not measured yet" in str(found[0])
    assert found[0].check in findings.CHECKS


@pytest.mark.parametrize(
    ("now", "level"), [(0.0, "problem"), (pins.LOCKED_AT - 1.0, "problem"), (float(pins.LOCKED_AT), "ok")]
)
def test_a_clock_from_before_the_locks_cannot_be_right(now, level):
    found = [finding for finding in check(host=dataclasses.replace(HOST, now=now)) if finding.check == "clock"]

    assert [finding.level for finding in found] == [level]
    assert found[0].check in findings.CHECKS
