import dataclasses

import pytest

from grpo_stack import plan, preflight, spec
from grpo_stack.facts import DatasetFile, Engine, FolderSpace, Gpu, GpuReading, Host, ModelFolder, PortInUse
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
    fields = {field.name: None for field in dataclasses.fields(Gpu)} | {"links": ()}
    return GpuReading(tuple(Gpu(**{**fields, "index": index, "uuid": uuid(index)}) for index in range(count)))


def uuid(index):
    return f"GPU-8a1c6c1e-0000-1111-2222-33334444555{index}"


WELL = Facts(host=HOST, engine=ENGINE, gpus=gpus(8))


def check(data=None, **changes):
    return preflight.check(plan.derive(spec.read(data)), dataclasses.replace(WELL, **changes))


def problems(data=None, **changes):
    return [str(finding) for finding in check(data, **changes) if finding.level == "problem"]


def test_a_good_host_has_no_problem_and_says_what_it_has():
    assert {finding.level for finding in check()} == {"ok"}
    assert "docker: Engine 26.1.5, Compose 2.26.1" in map(str, check())


@pytest.mark.parametrize(
    ("data", "changes", "message"),
    [
        (None, {"engine": None, "engine_problem": "no answer"}, "docker: no answer"),
        (
            None,
            {"engine": dataclasses.replace(ENGINE, version="20.10.24")},
            "docker: Engine 20.10.24 found, 25 needed; upgrade it, or let `make build` do that",
        ),
        (
            None,
            {"engine": dataclasses.replace(ENGINE, compose_version="2.23.3")},
            "docker: Compose 2.23.3 found, 2.24 needed; upgrade it, or let `make build` do that",
        ),
        (None, {"engine": dataclasses.replace(ENGINE, podman=True)}, "docker: podman answers in Docker's name"),
        (
            None,
            {"engine": dataclasses.replace(ENGINE, data_root_free_bytes=5 * GB)},
            "image space: 5.0 GB free in /var/lib/docker; building the images takes 30.0 GB",
        ),
        (None, {"engine": dataclasses.replace(ENGINE, gpus_usable=False)}, "container toolkit: the engine has neither"),
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
        (None, {"missing_files": ("/r.py",)}, "data.rewards: there is no file /r.py"),
    ],
)
def test_what_stands_in_the_way_is_found_and_says_the_way_out(data, changes, message):
    (found,) = problems(data, **changes)

    assert found.startswith(message)


def test_all_problems_come_at_once():
    found = problems(engine=None, engine_problem="down", gpus=gpus(0), dataset=DatasetFile("/d.jsonl", False))

    assert len(found) == 3


def test_the_description_is_blamed_for_its_own_faults_only():
    wrong = {finding.check for finding in check(gpus=gpus(0), model=ModelFolder("/m", False)) if finding.described}

    assert wrong == {"model"}


def test_built_images_need_little_space_and_the_cpu_stack_no_gpu():
    small = dataclasses.replace(ENGINE, data_root_free_bytes=3 * GB, gpus_usable=False)

    assert problems({"accelerator": "cpu"}, engine=small, images_built=True, gpus=gpus(0)) == []


@pytest.mark.parametrize(("count", "split"), [(2, "1:1"), (3, "1:2"), (4, "2:2"), (6, "2:4"), (7, "2:5"), (8, "4:4")])
def test_the_split_for_a_number_of_gpus_gives_the_server_a_power_of_two(count, split):
    assert preflight.suggest(count) == split


def test_a_gpu_named_by_uuid_is_found_and_not_counted_twice():
    assert problems({"split": f"{uuid(0)}:1"}) == []
    assert problems({"split": f"{uuid(1)},0:1"}) == [
        f"gpus: {uuid(1)} and 1 are one GPU; name each GPU once, by index or by UUID"
    ]
    assert problems({"split": f"{uuid(9)}:1"})[0].startswith(
        f"gpus: the split names GPU {uuid(9)}, this host has 8 (0-7)"
    )


def test_a_shared_gpu_is_warned_about():
    (warning,) = [str(finding) for finding in check({"split": "shared"}) if finding.level == "warning"]

    assert "development only" in warning
