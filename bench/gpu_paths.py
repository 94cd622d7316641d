"""Which way weights go between two GPUs of one host, and how fast: sockets between two network namespaces against NVLink.

    python bench/gpu_paths.py MODEL WORK RESULTS [PATH …]

Needs two GPUs: 0 serves, 1 trains. MODEL is a folder of bench/gpu_models.py. Each of PATHS is pushed over by TRL's client in processes
of their own (bench/push_sweep.py), with what the stack renders for it, and NCCL says what it chose (NCCL_DEBUG=INFO).
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpu_watch import Gpu, save
from push_sweep import Network, Pair, Setting, network

from grpo_stack.plan import JOINED, SOCKETS

OWN_GPU, ALL_GPUS = ("0", "1"), ("0,1", "1,0")
"""CUDA_VISIBLE_DEVICES of server and trainer; a side's own GPU comes first."""


@dataclass(frozen=True)
class Way:
    env: dict[str, str]
    """Of both sides alike."""
    visible: tuple[str, str]
    bridged: bool
    """Whether the sides are in network namespaces of their own, where the system can make them."""


PATHS = {
    "sockets, NCCL's own choice": Way({}, OWN_GPU, bridged=True),
    "sockets, tuned": Way(SOCKETS, OWN_GPU, bridged=True),
    "nvlink": Way(JOINED, ALL_GPUS, bridged=True),
    "nvlink, one network namespace": Way(JOINED, ALL_GPUS, bridged=False),
    "nvlink, abstract socket": Way(JOINED | {"NCCL_IPC_USE_ABSTRACT_SOCKET": "1"}, ALL_GPUS, bridged=True),
    "nvlink without cuMem": Way(JOINED | {"NCCL_CUMEM_ENABLE": "0"}, ALL_GPUS, bridged=True),
    # What the description cannot express: NCCL takes the sides for one host, and neither can open the other's GPU.
    "half-way: one host id, GPUs hidden": Way(JOINED, OWN_GPU, bridged=True),
}

CHOSEN = re.compile(r"NCCL INFO Channel \d+(?:/\d+)? : \d+\[\d+\] -> \d+\[\d+\].* via (\S+)")
"""A channel's transport, as NCCL 2.28 and 2.29 log it (src/transport/*.cc)."""

WARNED = re.compile(r"NCCL WARN (.*)")


@dataclass
class Between(Pair):
    """A server on one GPU and a client on another."""

    way: Way = PATHS["sockets, tuned"]

    def _env(self, side: int) -> dict[str, str]:
        env = super()._env(side)
        env |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": self.way.visible[side]}
        # No NVLink multicast: it needs more than two processes share, and can put a host's GPUs out of service.
        env |= {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
        return env | self.way.env | {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,P2P,NET,SHM"}


def transports(log: str) -> list[str]:
    """What NCCL chose, each way once, in its order."""
    return list(dict.fromkeys(CHOSEN.findall(log)))


def main() -> None:
    model, work, results = (Path(word).resolve() for word in sys.argv[1:4])
    work.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    with network() as bridge:
        for number, name in enumerate(sys.argv[4:] or PATHS):
            net = bridge if PATHS[name].bridged else Network("loopback")
            rows.append(go(name, Between(Setting(), number, model, work, net, way=PATHS[name])))
            # After each, so that a run that is cut short leaves what it has.
            found = {**Gpu().machine(), "gpus": os.environ.get("CUDA_VISIBLE_DEVICES", "all"), "model": model.name}
            save(results, "paths", {**found, "rows": rows})


def go(name: str, pair: Between) -> dict[str, Any]:
    """Push one way: how fast it was, and what NCCL said of it."""
    try:
        pair.start()
        if pair.ready(240):
            pair.push()
        else:
            pair.found = {"failed": "the server did not answer"}
    finally:
        pair.end()
    log = (pair.work / f"push-{pair.number}.log").read_text(errors="replace")
    said = {"transports": transports(log), "warnings": list(dict.fromkeys(WARNED.findall(log)))[:4]}
    return {"path": name, "network": pair.net.name, **pair.found, **said}


if __name__ == "__main__":
    main()
