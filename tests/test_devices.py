import dataclasses

import pytest

from grpo_stack import devices, plan, rules
from grpo_stack.facts import GpuLink, GpuProcess, GpuReading
from tests.test_preflight import ENGINE, gpus, uuid


def check(data=None, reading=None, engine=ENGINE):
    return devices.check(plan.derive(rules.read(data)), reading or gpus(8), engine)


def bad(*args, **keywords):
    return [(finding.level, str(finding)) for finding in check(*args, **keywords) if finding.level != "ok"]


def changed(index, count=8, **changes):
    """A host with `count` GPUs, of which one differs."""
    found = list(gpus(count).gpus)
    found[index] = dataclasses.replace(found[index], **changes)
    return GpuReading(tuple(found))


def linked(*islands, count=4):
    home = {index: island for island in islands for index in island}
    return GpuReading(
        tuple(
            dataclasses.replace(
                gpu,
                links=tuple(
                    GpuLink(peer, "nvlink" if peer in home[gpu.index] else "system")
                    for peer in range(count)
                    if peer != gpu.index
                ),
            )
            for gpu in gpus(count).gpus
        )
    )


@pytest.mark.parametrize(("count", "split"), [(2, "1:1"), (3, "1:2"), (4, "2:2"), (6, "2:4"), (7, "2:5"), (8, "4:4")])
def test_the_split_for_a_number_of_gpus_gives_the_server_a_power_of_two(count, split):
    assert devices.suggest(count) == split


def test_a_gpu_named_by_uuid_is_found_and_not_counted_twice():
    assert bad({"split": f"{uuid(0)}:1"}) == []
    assert bad({"split": f"{uuid(1)},0:1"}) == [
        ("problem", f"gpus: {uuid(1)} and 1 are one GPU; name each GPU once, by index or by UUID")
    ]
    (missing,) = bad({"split": f"{uuid(9)}:1"})
    assert missing[1].startswith(f"gpus: the split names GPU {uuid(9)}, this host has 8 (0-7)")


def test_a_shared_gpu_is_warned_about():
    ((level, text),) = bad({"split": "shared"})

    assert level == "warning"
    assert "development only" in text


@pytest.mark.parametrize(
    ("used", "reason"),
    [
        ({"memory_used_mib": 41000, "processes": ()}, "41000 MiB in use, no process listed"),
        ({"memory_used_mib": 900, "processes": (GpuProcess(77, None, None),)}, "900 MiB in use, process 77"),
    ],
)
def test_a_used_gpu_is_a_problem_even_if_no_process_is_listed(used, reason):
    ((level, text),) = bad({"split": "0:1,2"}, changed(2, **used))

    assert level == "problem"
    assert text.startswith(f"gpus-free: GPU 2 is in use ({reason}); ")


def test_the_reserve_of_an_idle_gpu_and_the_use_of_a_gpu_outside_of_the_split_are_fine():
    assert bad(reading=changed(2, memory_used_mib=620, processes=())) == []
    assert bad({"split": "0:1,2"}, changed(3, memory_used_mib=50000)) == []


@pytest.mark.parametrize(
    ("driver", "level", "text"),
    [
        ("550.54.15", "problem", "driver: 550.54.15 found; CUDA 13.0 of pins trl-1.16 needs 580 or newer; upgrade"),
        (None, "warning", "driver: its version could not be read"),
    ],
)
def test_the_driver_must_run_the_pinned_cuda(driver, level, text):
    found = GpuReading(tuple(dataclasses.replace(gpu, driver_version=driver) for gpu in gpus(8).gpus))

    ((found_level, found_text),) = bad(reading=found)

    assert found_level == level
    assert found_text.startswith(text)


def test_slices_are_a_problem_and_memory_errors_a_warning():
    assert bad(reading=changed(5, mig_enabled=True))[0][0] == "problem"
    assert bad(reading=changed(5, ecc_errors=3))[0] == (
        "warning",
        "ecc: GPU 5: 3 uncorrected since the driver was loaded; "
        "name other GPUs, or reset them while nothing runs: sudo nvidia-smi --gpu-reset -i ID",
    )


def test_sides_that_could_be_linked_better_are_warned_about_with_the_better_split():
    host = linked((0, 2), (1, 3))

    assert bad({"split": "0,1:2,3"}, host) == [
        ("warning", "topology: server: system; trainer: system; --split 0,2:1,3 is linked better")
    ]
    assert bad({"split": "0,2:1,3"}, host) == []
    assert "topology: server: nvlink; trainer: nvlink" in map(str, check({"split": "0,2:1,3"}, host))


def test_an_engine_elsewhere_that_shows_no_gpu_support_is_a_warning_and_one_here_a_problem():
    unknown, none = (dataclasses.replace(ENGINE, gpus_usable=usable) for usable in (None, False))

    assert [(level, text[:7]) for level, text in bad(engine=unknown)] == [("warning", "toolkit")]
    assert [(level, text[:7]) for level, text in bad(engine=none)] == [("problem", "toolkit")]
    assert bad(engine=None) == []


def test_the_cpu_stack_asks_for_no_gpu():
    assert check({"accelerator": "cpu"}, GpuReading(())) == ()
