from __future__ import annotations

import ctypes
import inspect
import sys
import threading
from dataclasses import fields

import pynvml
import pytest

from grpo_stack import gpus
from grpo_stack.facts import Gpu, GpuLink, GpuProcess, GpuReading
from tests.fakes.nvml import MIB, FakeNvml


def read(monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml, **options: float) -> GpuReading:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return gpus.read(**options)


def test_a_healthy_gpu_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(count=2, processes={1: [(4242, 512 * MIB), (77, None)]})

    reading = read(monkeypatch, nvml)

    assert reading.problem is None
    assert reading.gpus[1] == Gpu(
        index=1,
        uuid="GPU-00000000-0000-0000-0000-000000000001",
        name="NVIDIA H200",
        memory_total_mib=143156,  # what CUDA tells of one: 139.80 GiB
        memory_used_mib=0,
        processes=(
            GpuProcess(77, "/usr/bin/program-77", None),
            GpuProcess(4242, "/usr/bin/program-4242", 512),
        ),
        driver_version="580.65.06",
        cuda_version="13.2",
        compute_capability=(9, 0),
        mig_enabled=False,
        numa_node=0,
        ecc_errors=0,
        persistence=True,
        links=(GpuLink(0, "nvlink"),),
    )
    assert not nvml.running, "NVML was not shut down"


def test_gpus_without_nvlink_show_their_way_over_pcie(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = read(monkeypatch, FakeNvml(nvlink=False))

    paths = {link.peer: link.path for link in reading.gpus[3].links}
    assert paths == {0: "numa-node", 1: "numa-node", 2: "numa-node", 4: "system", 5: "system", 6: "system", 7: "system"}
    assert [gpu.numa_node for gpu in reading.gpus] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_a_driver_that_does_not_tell_its_reserve_apart_counts_it_in(monkeypatch: pytest.MonkeyPatch) -> None:
    old = FakeNvml(count=1, broken={"nvmlDeviceGetMemoryInfo_v2": FakeNvml.NVML_ERROR_FUNCTION_NOT_FOUND})

    (gpu,) = read(monkeypatch, old).gpus

    assert (gpu.memory_total_mib, gpu.memory_used_mib) == (143771, 615)


def test_mig_is_told_per_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = read(monkeypatch, FakeNvml(count=3, mig={1}))

    assert [gpu.mig_enabled for gpu in reading.gpus] == [False, True, False]


@pytest.mark.parametrize(
    ("query", "lost"),
    [
        ("nvmlSystemGetDriverVersion", {"driver_version"}),
        ("nvmlSystemGetCudaDriverVersion_v2", {"cuda_version"}),
        ("nvmlDeviceGetUUID", {"uuid"}),
        ("nvmlDeviceGetName", {"name"}),
        ("nvmlDeviceGetMemoryInfo", {"memory_total_mib", "memory_used_mib"}),
        ("nvmlDeviceGetCudaComputeCapability", {"compute_capability"}),
        ("nvmlDeviceGetMigMode", {"mig_enabled"}),
        ("nvmlDeviceGetMemoryAffinity", {"numa_node"}),
        ("nvmlDeviceGetTotalEccErrors", {"ecc_errors"}),
        ("nvmlDeviceGetPersistenceMode", {"persistence"}),
        ("nvmlDeviceGetGraphicsRunningProcesses", set()),
        ("nvmlDeviceGetComputeRunningProcesses", {"processes"}),
        ("nvmlSystemGetProcessName", {"processes"}),
        ("nvmlDeviceGetP2PStatus", {"links"}),
    ],
)
def test_a_query_that_fails_costs_its_own_field_only(
    monkeypatch: pytest.MonkeyPatch, query: str, lost: set[str]
) -> None:
    busy = {0: [(1, MIB)]}
    whole = read(monkeypatch, FakeNvml(count=2, processes=busy)).gpus[0]

    gpu = read(monkeypatch, FakeNvml(count=2, processes=busy, broken={query: 3})).gpus[0]

    assert {field.name for field in fields(Gpu) if getattr(gpu, field.name) != getattr(whole, field.name)} == lost


def test_a_gpu_whose_processes_cannot_be_listed_is_not_called_free(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = {"nvmlDeviceGetComputeRunningProcesses": 3, "nvmlDeviceGetGraphicsRunningProcesses": 3}

    assert read(monkeypatch, FakeNvml(count=1, broken=hidden)).gpus[0].processes is None


def test_a_lost_gpu_stays_in_the_list_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = read(monkeypatch, FakeNvml(count=3, broken={("nvmlDeviceGetHandleByIndex", 1): 15}))

    assert reading.problem == "NVML cannot open GPU 1; see what nvidia-smi says"
    assert [gpu.uuid is None for gpu in reading.gpus] == [False, True, False]
    assert reading.gpus[1].links == (GpuLink(0, None), GpuLink(2, None))
    assert reading.gpus[0].links == (GpuLink(1, None), GpuLink(2, "nvlink"))


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (FakeNvml.NVML_ERROR_LIBRARY_NOT_FOUND, "no NVIDIA driver is installed"),
        (FakeNvml.NVML_ERROR_DRIVER_NOT_LOADED, "modprobe nvidia"),
        (FakeNvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "reboot"),
        (FakeNvml.NVML_ERROR_NO_PERMISSION, "no permission"),
        (999, "NVML error 999; see what nvidia-smi says"),
    ],
)
def test_a_driver_that_does_not_work_is_a_finding_with_a_next_step(
    monkeypatch: pytest.MonkeyPatch, code: int, said: str
) -> None:
    reading = read(monkeypatch, FakeNvml(broken={"nvmlInit": code}))

    assert reading.gpus == ()
    assert said in (reading.problem or "")


def test_a_driver_that_shows_no_gpu_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = read(monkeypatch, FakeNvml(count=0))

    assert reading == GpuReading((), "the NVIDIA driver runs, but shows no GPU; see: lspci -d 10de:")


def test_a_driver_that_hangs_is_given_up_after_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(hangs=threading.Event())
    try:
        reading = read(monkeypatch, nvml, timeout_s=0.05)
    finally:
        assert nvml.hangs is not None
        nvml.hangs.set()

    assert reading.gpus == ()
    assert reading.problem == "NVML did not answer within 0.05 s: a GPU or the driver hangs; see: dmesg"


def test_the_fake_has_the_names_and_values_of_the_real_library() -> None:
    names = [name for name in dir(FakeNvml) if name.lower().startswith("nvml") and name != "NVMLError"]

    assert len(names) > 30
    for name in names:
        if not callable(getattr(FakeNvml, name)):
            assert getattr(FakeNvml, name) == getattr(pynvml, name), name
        else:
            ours = len(inspect.signature(getattr(FakeNvml, name)).parameters) - 1
            inspect.signature(getattr(pynvml, name)).bind(*range(ours))


def test_the_real_library_is_read_in_whatever_state_this_machine_is() -> None:
    reading = gpus.read()

    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        assert reading == GpuReading((), "no NVIDIA driver is installed (libnvidia-ml.so.1 not found)")
        return
    assert reading.gpus or reading.problem
    for gpu in reading.gpus:
        assert gpu.uuid is None or gpu.uuid.startswith("GPU-")
        assert gpu.memory_total_mib is None or gpu.memory_total_mib > (gpu.memory_used_mib or 0) >= 0
        assert [link.peer for link in gpu.links] == [peer.index for peer in reading.gpus if peer is not gpu]
