"""The measurement of the ways between two GPUs, as far as it goes without them: what both sides get, and what NCCL's log is read as."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

LOG = """host:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0
host:1:2 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] [send] via NET/Socket/1
host:1:2 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/CUMEM
host:1:2 [1] NCCL WARN Cuda failure 101 'invalid device ordinal'
"""


@pytest.fixture
def gpu_paths(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("gpu_paths")


def env(gpu_paths, name, side):
    net = gpu_paths.Network("loopback")
    return gpu_paths.Between(gpu_paths.Setting(), 0, ROOT, ROOT, net, way=gpu_paths.PATHS[name])._env(side)


def test_over_nvlink_both_sides_are_one_host_and_see_both_gpus_their_own_first(gpu_paths):
    server, trainer = (env(gpu_paths, "nvlink", side) for side in (0, 1))

    assert server["NCCL_HOSTID"] == trainer["NCCL_HOSTID"]
    assert (server["CUDA_VISIBLE_DEVICES"], trainer["CUDA_VISIBLE_DEVICES"]) == ("0,1", "1,0")


def test_over_sockets_each_side_is_a_host_of_its_own_with_the_settings_of_the_stack(gpu_paths):
    server, trainer = (env(gpu_paths, "sockets, tuned", side) for side in (0, 1))

    assert server["NCCL_HOSTID"] != trainer["NCCL_HOSTID"]
    assert (server["CUDA_VISIBLE_DEVICES"], trainer["CUDA_VISIBLE_DEVICES"]) == ("0", "1")
    assert server["NCCL_SOCKET_NTHREADS"] == trainer["NCCL_SOCKET_NTHREADS"] == "2"


def test_multicast_stays_off_on_every_path(gpu_paths):
    assert {env(gpu_paths, name, 0)["NCCL_NVLS_ENABLE"] for name in gpu_paths.PATHS} == {"0"}


def test_transports_and_warnings_are_read_from_nccls_log(gpu_paths):
    assert gpu_paths.transports(LOG) == ["NET/Socket/0", "NET/Socket/1", "P2P/CUMEM"]
    assert gpu_paths.WARNED.findall(LOG) == ["Cuda failure 101 'invalid device ordinal'"]
