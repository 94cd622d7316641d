"""What NCCL's socket settings make of a whole weight push, TRL's client to vLLM's server, on one GPU.

    python bench/push_sweep.py MODEL WORK RESULTS [SETTING …]

SETTING: one as the page names it, `2x4, 8 channels` (default: all, anew; named ones are added to what RESULTS holds). MODEL is a
folder of bench/gpu_models.py. As root, and where the system has `ip`, the two sides are in network namespaces of their own on a
bridge, as containers are; else they meet on the loopback device, and the result's name says so.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpu_watch import ROOT, Gpu, save

PUSHES = 5
AT_ONCE = 5
"""Servers on the GPU at a time: 7.6B takes some 19 GiB each."""


@dataclass(frozen=True)
class Setting:
    threads: int = 0
    sockets: int = 0
    channels: int = 0
    buffer_mib: int = 0
    cores: int = 0
    """Cores for both sides together; 0: all."""

    def env(self) -> dict[str, str]:
        every = {
            "NCCL_SOCKET_NTHREADS": self.threads,
            "NCCL_NSOCKS_PERTHREAD": self.sockets,
            "NCCL_MIN_NCHANNELS": self.channels,
            "NCCL_BUFFSIZE": self.buffer_mib * 2**20,
        }
        return {name: str(value) for name, value in every.items() if value}

    def __str__(self) -> str:
        said = f"{self.threads}x{self.sockets}" if self.threads else "defaults"
        said += f", {self.channels} channels" if self.channels else ""
        said += f", {self.buffer_mib} MiB" if self.buffer_mib else ""
        return said + (f", {self.cores} cores" if self.cores else "")


SETTINGS = (
    Setting(),
    Setting(4, 4, 8),
    Setting(cores=8),
    Setting(4, 4, 8, cores=8),
    Setting(2, 2, 8, cores=8),
    Setting(2, 4, 8, cores=8),
    Setting(2, 2, 4, cores=8),
    Setting(1, 8, 8, cores=8),
    Setting(2, 8, 8, cores=8),
    Setting(2, 4, 8),
    Setting(4, 4, 4),
    Setting(2, 2, 8),
    Setting(2, 4, 16),
    Setting(4, 4, 8, buffer_mib=8),
    Setting(8, 2, 8),
    Setting(2, 8, 8),
)


@dataclass(frozen=True)
class Network:
    """Where the two sides are: words in front of their commands, and the address and device of each."""

    name: str
    server: tuple[str, ...] = ()
    trainer: tuple[str, ...] = ()
    address: tuple[str, str] = ("127.0.0.1", "127.0.0.1")
    device: str = "lo"


BRIDGE, SIDES = "grpobr", ("gs", "gt")

CONTAINERS_ALIKE = Network(
    "bridge",
    ("ip", "netns", "exec", SIDES[0]),
    ("ip", "netns", "exec", SIDES[1]),
    ("10.77.0.2", "10.77.0.3"),
    "eth0",
)


@contextmanager
def network() -> Iterator[Network]:
    """Two namespaces on a bridge where they can be made, and gone at the end; else the loopback device."""
    if os.getuid() or not shutil.which("ip"):
        yield Network("loopback")
        return
    _remove()  # what a run that was killed has left
    try:
        yield CONTAINERS_ALIKE if _build() else Network("loopback")
    finally:
        _remove()


def _build() -> bool:
    steps = [f"ip link add {BRIDGE} type bridge", f"ip link set {BRIDGE} up"]
    for side, address in zip(SIDES, CONTAINERS_ALIKE.address, strict=True):
        steps += [f"ip netns add {side}", f"ip link add {side}h type veth peer name eth0 netns {side}"]
        steps += [f"ip link set {side}h master {BRIDGE} up", f"ip -n {side} addr add {address}/24 dev eth0"]
        steps += [f"ip -n {side} link set eth0 up", f"ip -n {side} link set lo up"]
    for step in steps:
        done = subprocess.run(step.split(), capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"no bridge: {step}: {done.stderr.strip()}", flush=True)
            return False
    return True


def _remove() -> None:
    # The devices by name, since a namespace keeps its own as long as a process is in it.
    for step in (*(f"ip link del {side}h" for side in SIDES), *(f"ip netns del {side}" for side in SIDES)):
        subprocess.run(step.split(), capture_output=True, check=False)
    subprocess.run(["ip", "link", "del", BRIDGE], capture_output=True, check=False)


@dataclass
class Pair:
    setting: Setting
    number: int
    model: Path
    work: Path
    net: Network
    server: subprocess.Popen[bytes] | None = None
    client: subprocess.Popen[str] | None = None
    found: dict[str, Any] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://{self.net.address[0]}:{8100 + self.number}"

    def _env(self, side: int) -> dict[str, str]:
        mine = {"NCCL_HOSTID": ("server", "trainer")[side], "VLLM_HOST_IP": self.net.address[side]}
        mine |= {
            "NCCL_SOCKET_IFNAME": self.net.device,
            "GLOO_SOCKET_IFNAME": self.net.device,
            "NO_PROXY": "*",
            "VLLM_SERVER_DEV_MODE": "1",
        }
        mine |= {"VLLM_USE_FLASHINFER_SAMPLER": "0", "HF_HUB_OFFLINE": "1"}
        # So that vLLM finds this project's weight-transfer engine, where the project is installed.
        mine |= {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
        return {**os.environ, **mine, **self.setting.env()}

    def _on(self) -> tuple[str, ...]:
        return ("taskset", "--cpu-list", f"0-{self.setting.cores - 1}") if self.setting.cores else ()

    def start(self) -> None:
        log = (self.work / f"push-{self.number}.log").open("wb")
        argv = ["vllm", "serve", str(self.model), "--host", self.net.address[0], "--port", str(8100 + self.number)]
        argv += ["--weight-transfer-config", '{"backend": "nccl"}', "--load-format", "dummy", "--enforce-eager"]
        argv += ["--max-model-len", "512", "--max-num-seqs", "4", "--max-num-batched-tokens", "512"]
        argv += ["--kv-cache-memory-bytes", str(2**29), "--gpu-memory-utilization", "0.14"]
        words = (*self.net.server, *self._on(), *argv)
        self.server = subprocess.Popen(words, env=self._env(0), stdout=log, stderr=log, start_new_session=True)
        code = (sys.executable, str(ROOT / "bench" / "push_client.py"))
        words = (
            *self.net.trainer,
            *self._on(),
            *code,
            self.url,
            str(61300 + self.number),
            str(self.model),
            str(PUSHES),
        )
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.client = subprocess.Popen(words, env=self._env(1), stderr=log, start_new_session=True, **pipes)

    def ready(self, limit_s: float) -> bool:
        """Whether the server answers; asked from the trainer's side of the network."""
        probe = f"import urllib.request as u; u.build_opener(u.ProxyHandler({{}})).open('{self.url}/health', timeout=5)"
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            words = (*self.net.trainer, sys.executable, "-S", "-c", probe)
            if subprocess.run(words, capture_output=True, check=False).returncode == 0:
                return True
            if self.server is None or self.server.poll() is not None:
                return False
            time.sleep(0.5)
        return False

    def push(self) -> None:
        assert self.client is not None
        try:
            out, _ = self.client.communicate("go\n", timeout=90)
            self.found = json.loads(out.splitlines()[-1])
        except (subprocess.TimeoutExpired, ValueError, IndexError) as fault:
            log = (self.work / f"push-{self.number}.log").read_text(errors="replace").splitlines()
            self.found = {"failed": str(fault), "log": log[-8:]}

    def end(self) -> None:
        for process in (self.client, self.server):
            if process and process.poll() is None:
                os.killpg(process.pid, 15)
                try:
                    process.wait(timeout=15)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, 9)
                    process.wait()


def waves(names: Sequence[str]) -> list[tuple[Setting, ...]]:
    """The settings of those names, or all, as many in a wave as the GPU holds."""
    known = {str(setting): setting for setting in SETTINGS}
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"no such setting: {unknown[0]!r}; known: {'; '.join(known)}")
    chosen = [known[name] for name in names or known]
    return [tuple(chosen[first : first + AT_ONCE]) for first in range(0, len(chosen), AT_ONCE)]


def sweep(model: Path, work: Path, net: Network, settings: Sequence[Setting]) -> dict[str, dict[str, Any]]:
    """A row for each setting: all their servers start at once, and push one after the other."""
    pairs = [Pair(setting, number, model, work, net) for number, setting in enumerate(settings)]
    try:
        for pair in pairs:
            pair.start()
        for pair in [pair for pair in pairs if pair.ready(120)]:
            pair.push()
    finally:
        for pair in pairs:
            pair.end()
    return {str(pair.setting): {"setting": str(pair.setting), **pair.found} for pair in pairs}


def main() -> None:
    model, work, results = (Path(word).resolve() for word in sys.argv[1:4])
    work.mkdir(parents=True, exist_ok=True)
    chosen, gpu = waves(sys.argv[4:]), Gpu()
    with network() as net:
        file = results / f"push-{net.name}.json"
        old = json.loads(file.read_text())["rows"] if sys.argv[4:] and file.exists() else []
        rows: dict[str, dict[str, Any]] = {row["setting"]: row for row in old}
        for wave in chosen:
            rows |= sweep(model, work, net, wave)
            found = {**gpu.machine(), "network": net.name, "model": model.name, "rows": list(rows.values())}
            # After each wave, so that a run that is cut short leaves what it has.
            save(results, f"push-{net.name}", found)


if __name__ == "__main__":
    main()
