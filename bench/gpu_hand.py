"""The training of the GPU measurements without the stack: plain `vllm serve`, a plain TRL script, and a clock on both.

It is the shortest chain there is: the script imports while the server loads, and touches GPU and server once that answers, as the
stack's trainer does. So what the stack takes longer to its first step is its own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

from gpu_watch import ROOT, SHAPES

URL = "http://127.0.0.1:8000"
LENGTH = {"half": 192, "seven": 384}
"""vLLM's longest sequence, on both sides of the comparison."""

ENV = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_PLUGINS": "",  # this project's, where it is installed, is part of the stack
    "NCCL_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "NO_PROXY": "127.0.0.1",
}


def run(model: Path, work: Path, steps: int, *options: str) -> dict[str, Any]:
    """One run: seconds to its parts, and those of each step. `options` of `vllm serve` on top of those that TRL needs."""
    env = {**os.environ, **ENV}
    argv = ["vllm", "serve", str(model), "--host", "127.0.0.1", "--port", "8000"]
    argv += ["--weight-transfer-config", '{"backend": "nccl"}', "--logprobs-mode", "processed_logprobs"]
    argv += ["--max-logprobs", "-1", "--gpu-memory-utilization", "0.3", "--max-model-len", str(LENGTH[model.name])]
    train = ["accelerate", "launch", "--num_processes", "1", "--num_machines", "1", "--mixed_precision", "bf16"]
    train += ["--dynamo_backend", "no", str(ROOT / "bench" / "by_hand.py"), str(model), str(work / "hand")]
    train += [URL, "61216", str(steps), *SHAPES[model.name]]
    _require_nobody_there()
    began = time.monotonic()
    with (work / "hand-server.log").open("ab") as log, (work / "hand-trainer.log").open("ab") as errors:
        server = subprocess.Popen(
            [*argv, *options], env={**env, "NCCL_HOSTID": "server"}, stdout=log, stderr=log, start_new_session=True
        )
        trainer = subprocess.Popen(
            train,
            env={**env, "NCCL_HOSTID": "trainer"},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        said: list[tuple[float, str]] = []
        reader = threading.Thread(target=_read, args=(trainer, began, said), daemon=True)
        reader.start()
        try:
            found = _answers(server, model, began)
            reader.join()
            if trainer.wait():
                raise SystemExit(f"by hand: the trainer ended with {trainer.returncode}; see {work}/hand-trainer.log")
            return {**found, **_times(said)}
        finally:
            for process in (trainer, server):
                _end(process)


def _require_nobody_there() -> None:
    """Another server on the port would be measured in place of the one that is started."""
    try:
        _ask("/health", timeout_s=2)
    except OSError:
        return
    raise SystemExit(f"by hand: another server answers at {URL}; end it first")


def _answers(server: subprocess.Popen[bytes], model: Path, began: float) -> dict[str, Any]:
    """When the server answers, and what its first generation and the description of its machine take then."""
    while server.poll() is None:
        try:
            _ask("/health", timeout_s=2)
            break
        except OSError:
            time.sleep(0.05)
    else:
        raise SystemExit("by hand: the server ended before it answered")
    ready = time.monotonic()
    _ask("/v1/completions", {"model": str(model), "prompt": [1], "max_tokens": 1, "temperature": 1.0, "logprobs": 0})
    generated = time.monotonic()
    return {"server answers": ready - began, "first token after s": generated - ready}


def _ask(path: str, body: dict[str, Any] | None = None, timeout_s: float = 60) -> bytes:
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(URL + path, data, {"Content-Type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=timeout_s) as answer:
        return bytes(answer.read())


def _read(trainer: subprocess.Popen[str], began: float, said: list[tuple[float, str]]) -> None:
    assert trainer.stdout is not None
    for line in trainer.stdout:
        said.append((time.monotonic() - began, line.strip()))


def _times(said: list[tuple[float, str]]) -> dict[str, Any]:
    at = {line[3:]: when for when, line in said if line.startswith("at ")}
    lines = [(when, line) for when, line in said if line.startswith("step ")]
    steps = []
    for _, line in lines:
        parts = {name: float(value) for name, value in re.findall(r"(\w+) ([\d.]+)(?:  |$)", line)}
        whole = float(line.split()[-2])
        rest = whole - parts["generate"] - parts["push"]
        steps.append({"generate": parts["generate"], "push": parts["push"], "optimize": rest, "step": whole})
    return {**at, "first step": lines[0][0], "lines": [when for when, _ in lines], "steps": steps}


def _end(process: subprocess.Popen[Any]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, 15)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
