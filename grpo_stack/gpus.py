"""The GPUs of this host, from NVML. The only importer of `pynvml`.

A machine without GPUs, or with a broken driver, is an ordinary finding here: `read` says so and never raises for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from grpo_stack import time_limit
from grpo_stack.facts import Gpu, GpuLink, GpuProcess, GpuReading

TIMEOUT_S = 20.0
"""For the whole reading. NVML itself waits for ever for a GPU that fell off the bus."""

_MIB = 2**20
_AFFINITY_WORDS = 16
"""64-bit words of the NUMA mask: room for 1024 nodes."""


def read(*, timeout_s: float = TIMEOUT_S) -> GpuReading:
    """All GPUs that NVML knows, whatever CUDA_VISIBLE_DEVICES says.

    What one query does not answer is None in that GPU; the others are not lost by it.
    """
    import pynvml

    try:
        return time_limit.call(lambda: _read(pynvml), timeout_s)
    except TimeoutError:
        return GpuReading((), f"NVML did not answer within {timeout_s:g} s: a GPU or the driver hangs; see: dmesg")
    except pynvml.NVMLError as error:
        return GpuReading((), _problem(pynvml, error))


def _problem(nvml: Any, error: Exception) -> str:
    code = getattr(error, "value", None)
    if code == nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return "no NVIDIA driver is installed (libnvidia-ml.so.1 not found)"
    if code == nvml.NVML_ERROR_DRIVER_NOT_LOADED:
        return "the NVIDIA driver is installed but not loaded; run: sudo modprobe nvidia, then nvidia-smi"
    if code == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return "the NVIDIA driver was updated while its old kernel module is loaded; reboot this host"
    if code == nvml.NVML_ERROR_NO_PERMISSION:
        return "no permission for /dev/nvidia*; run as a user who may use the GPUs (group video or render)"
    return f"NVML: {error}; see what nvidia-smi says"


def _read(nvml: Any) -> GpuReading:
    nvml.nvmlInit()
    try:
        driver = _ask(nvml, nvml.nvmlSystemGetDriverVersion)
        cuda = _ask(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2)
        count = nvml.nvmlDeviceGetCount()
        if count == 0:
            return GpuReading((), "the NVIDIA driver runs, but shows no GPU; see: lspci -d 10de:")
        handles = [_ask(nvml, nvml.nvmlDeviceGetHandleByIndex, index) for index in range(count)]
        gpus = tuple(_gpu(nvml, index, handles, driver, cuda) for index in range(count))
    finally:
        _ask(nvml, nvml.nvmlShutdown)
    lost = [str(index) for index, handle in enumerate(handles) if handle is None]
    return GpuReading(gpus, f"NVML cannot open GPU {', '.join(lost)}; see what nvidia-smi says" if lost else None)


def _ask(nvml: Any, query: Callable[..., Any], *of: Any) -> Any:
    """What `query` answers; None when NVML refuses, or when there is no handle to ask about."""
    if None in of:
        return None
    try:
        return query(*of)
    except nvml.NVMLError:
        return None


def _gpu(nvml: Any, index: int, handles: list[Any], driver: str | None, cuda: int | None) -> Gpu:
    def ask(query: Callable[..., Any], *more: Any) -> Any:
        return _ask(nvml, query, handles[index], *more)

    # The second version tells the driver's own reserve apart (615 MiB of an H200), which CUDA does not count either.
    memory = ask(nvml.nvmlDeviceGetMemoryInfo, nvml.nvmlMemory_v2) or ask(nvml.nvmlDeviceGetMemoryInfo)
    capability = ask(nvml.nvmlDeviceGetCudaComputeCapability)
    mig = ask(nvml.nvmlDeviceGetMigMode)
    persistence = ask(nvml.nvmlDeviceGetPersistenceMode)
    affinity = ask(nvml.nvmlDeviceGetMemoryAffinity, _AFFINITY_WORDS, nvml.NVML_AFFINITY_SCOPE_NODE)
    uncorrected = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
    return Gpu(
        index=index,
        uuid=ask(nvml.nvmlDeviceGetUUID),
        name=ask(nvml.nvmlDeviceGetName),
        memory_total_mib=None if memory is None else (memory.total - getattr(memory, "reserved", 0)) // _MIB,
        memory_used_mib=None if memory is None else memory.used // _MIB,
        processes=_processes(nvml, ask),
        driver_version=driver,
        # 13020 is CUDA 13.2: 1000 times the major, 10 times the minor version.
        cuda_version=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        compute_capability=None if capability is None else (capability[0], capability[1]),
        mig_enabled=None if mig is None else mig[0] == nvml.NVML_DEVICE_MIG_ENABLE,
        numa_node=_lowest_bit(affinity or ()),
        ecc_errors=ask(nvml.nvmlDeviceGetTotalEccErrors, *uncorrected),
        persistence=None if persistence is None else persistence == nvml.NVML_FEATURE_ENABLED,
        links=tuple(GpuLink(peer, _path(nvml, ask, other)) for peer, other in enumerate(handles) if peer != index),
    )


def _processes(nvml: Any, ask: Callable[..., Any]) -> tuple[GpuProcess, ...] | None:
    lists = [ask(nvml.nvmlDeviceGetComputeRunningProcesses), ask(nvml.nvmlDeviceGetGraphicsRunningProcesses)]
    if lists == [None, None]:
        return None
    found = {
        process.pid: GpuProcess(
            pid=process.pid,
            name=_ask(nvml, nvml.nvmlSystemGetProcessName, process.pid) or None,
            memory_mib=None if process.usedGpuMemory is None else process.usedGpuMemory // _MIB,
        )
        for processes in lists
        for process in processes or ()
    }
    return tuple(found[pid] for pid in sorted(found))


def _lowest_bit(words: Iterable[int]) -> int | None:
    """Number of the lowest bit that is set in a mask of 64-bit words."""
    mask = sum(word << (64 * place) for place, word in enumerate(words))
    return (mask & -mask).bit_length() - 1 if mask else None


def _path(nvml: Any, ask: Callable[..., Any], other: Any) -> str | None:
    if ask(nvml.nvmlDeviceGetP2PStatus, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK) == nvml.NVML_P2P_STATUS_OK:
        return "nvlink"
    names = {
        nvml.NVML_TOPOLOGY_INTERNAL: "same-board",
        nvml.NVML_TOPOLOGY_SINGLE: "pcie-switch",
        nvml.NVML_TOPOLOGY_MULTIPLE: "pcie-switches",
        nvml.NVML_TOPOLOGY_HOSTBRIDGE: "host-bridge",
        nvml.NVML_TOPOLOGY_NODE: "numa-node",
        nvml.NVML_TOPOLOGY_SYSTEM: "system",
    }
    return names.get(ask(nvml.nvmlDeviceGetTopologyCommonAncestor, other))
