"""NVML as `pynvml` shows it: eight H200 by default, and each function can be made to fail.

Strict: a name that this file does not know is an AttributeError, and so is any call before nvmlInit.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace

MIB = 2**20


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


@dataclass
class FakeNvml:
    """What `import pynvml` gives. `broken` maps a function's name, or (name, GPU index), to an error code."""

    count: int = 8
    broken: dict[object, int] = field(default_factory=dict)
    hangs: threading.Event | None = None
    """nvmlInit waits for it."""

    processes: dict[int, list[tuple[int, int | None]]] = field(default_factory=dict)
    """GPU index → (pid, bytes)."""

    mig: set[int] = field(default_factory=set)
    nvlink: bool = True
    """False: no NVLink, and two PCIe sockets of four GPUs each."""

    running: bool = False

    NVMLError = NVMLError
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_NO_PERMISSION = 4
    NVML_ERROR_DRIVER_NOT_LOADED = 9
    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NVML_ERROR_FUNCTION_NOT_FOUND = 13
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18
    NVML_DEVICE_MIG_ENABLE = 1
    nvmlMemory_v2 = 0x02000028  # noqa: N815
    NVML_FEATURE_ENABLED = 1
    NVML_AFFINITY_SCOPE_NODE = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_P2P_CAPS_INDEX_NVLINK = 2
    NVML_P2P_STATUS_OK = 0
    NVML_P2P_STATUS_NOT_SUPPORTED = 5
    NVML_TOPOLOGY_INTERNAL = 0
    NVML_TOPOLOGY_SINGLE = 10
    NVML_TOPOLOGY_MULTIPLE = 20
    NVML_TOPOLOGY_HOSTBRIDGE = 30
    NVML_TOPOLOGY_NODE = 40
    NVML_TOPOLOGY_SYSTEM = 50

    def _check(self, name: str, handle: str | None = None) -> int:
        assert self.running or name == "nvmlInit", f"{name} before nvmlInit"
        index = -1 if handle is None else int(handle.removeprefix("handle-"))
        for key in (name, (name, index)):
            if key in self.broken:
                raise NVMLError(self.broken[key])
        return index

    def nvmlInit(self) -> None:  # noqa: N802
        if self.hangs is not None:
            self.hangs.wait()
        self._check("nvmlInit")
        self.running = True

    def nvmlShutdown(self) -> None:  # noqa: N802
        self._check("nvmlShutdown")
        self.running = False

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        self._check("nvmlSystemGetDriverVersion")
        return "580.65.06"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:  # noqa: N802
        self._check("nvmlSystemGetCudaDriverVersion_v2")
        return 13020

    def nvmlSystemGetProcessName(self, pid: int) -> str:  # noqa: N802
        self._check("nvmlSystemGetProcessName")
        return f"/usr/bin/program-{pid}"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        self._check("nvmlDeviceGetCount")
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        assert 0 <= index < self.count
        self._check("nvmlDeviceGetHandleByIndex", f"handle-{index}")
        return f"handle-{index}"

    def nvmlDeviceGetUUID(self, handle: str) -> str:  # noqa: N802
        return f"GPU-00000000-0000-0000-0000-{self._check('nvmlDeviceGetUUID', handle):012d}"

    def nvmlDeviceGetName(self, handle: str) -> str:  # noqa: N802
        self._check("nvmlDeviceGetName", handle)
        return "NVIDIA H200"

    def nvmlDeviceGetMemoryInfo(self, handle: str, version: int | None = None) -> SimpleNamespace:  # noqa: N802
        self._check("nvmlDeviceGetMemoryInfo", handle)
        if version is None:
            return SimpleNamespace(total=143771 * MIB, free=143156 * MIB, used=615 * MIB)
        assert version == self.nvmlMemory_v2
        self._check("nvmlDeviceGetMemoryInfo_v2", handle)
        return SimpleNamespace(total=143771 * MIB, free=143156 * MIB, used=0, reserved=615 * MIB)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[SimpleNamespace]:  # noqa: N802
        index = self._check("nvmlDeviceGetComputeRunningProcesses", handle)
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.processes.get(index, [])]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: str) -> list[SimpleNamespace]:  # noqa: N802
        self._check("nvmlDeviceGetGraphicsRunningProcesses", handle)
        return []

    def nvmlDeviceGetCudaComputeCapability(self, handle: str) -> tuple[int, int]:  # noqa: N802
        self._check("nvmlDeviceGetCudaComputeCapability", handle)
        return (9, 0)

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:  # noqa: N802
        on = int(self._check("nvmlDeviceGetMigMode", handle) in self.mig)
        return [on, on]

    def nvmlDeviceGetMemoryAffinity(self, handle: str, words: int, scope: int) -> list[int]:  # noqa: N802
        assert scope == self.NVML_AFFINITY_SCOPE_NODE
        index = self._check("nvmlDeviceGetMemoryAffinity", handle)
        return [1 << self._socket(index)] + [0] * (words - 1)

    def nvmlDeviceGetTotalEccErrors(self, handle: str, kind: int, counter: int) -> int:  # noqa: N802
        assert (kind, counter) == (self.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, self.NVML_VOLATILE_ECC)
        self._check("nvmlDeviceGetTotalEccErrors", handle)
        return 0

    def nvmlDeviceGetPersistenceMode(self, handle: str) -> int:  # noqa: N802
        self._check("nvmlDeviceGetPersistenceMode", handle)
        return 1

    def nvmlDeviceGetP2PStatus(self, handle: str, other: str, capability: int) -> int:  # noqa: N802
        assert capability == self.NVML_P2P_CAPS_INDEX_NVLINK
        assert handle != other
        self._check("nvmlDeviceGetP2PStatus", handle)
        return self.NVML_P2P_STATUS_OK if self.nvlink else self.NVML_P2P_STATUS_NOT_SUPPORTED

    def nvmlDeviceGetTopologyCommonAncestor(self, handle: str, other: str) -> int:  # noqa: N802
        index = self._check("nvmlDeviceGetTopologyCommonAncestor", handle)
        peer = int(other.removeprefix("handle-"))
        return self.NVML_TOPOLOGY_NODE if self._socket(index) == self._socket(peer) else self.NVML_TOPOLOGY_SYSTEM

    @staticmethod
    def _socket(index: int) -> int:
        return index // 4
