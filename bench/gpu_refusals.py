"""What `doctor` refuses on a real GPU, before anything starts: `python bench/gpu_refusals.py MODELS RESULTS`."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpu_watch import ROOT, Gpu, save, words

HOLD = "import sys, torch; held = torch.empty(8 << 30, dtype=torch.uint8, device='cuda'); print('held', flush=True); sys.stdin.read()"


def doctor(flags: list[str], env: dict[str, str]) -> dict[str, Any]:
    argv = [sys.executable, "-m", "grpo_stack.cli", "doctor", "--runtime", "process", "--json", *flags]
    began = time.monotonic()
    done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, check=False, timeout=120, env=env)
    seconds = round(time.monotonic() - began, 2)
    try:
        checks = json.loads(done.stdout)["checks"]
    except ValueError:
        return {"exit code": done.returncode, "seconds": seconds, "said": (done.stdout + done.stderr)[-2000:]}
    problems = [check for check in checks if check["level"] == "problem"]
    return {"exit code": done.returncode, "seconds": seconds, "problems": problems}


@contextmanager
def busy() -> Iterator[None]:
    """Another program holds 8 GiB of the GPU."""
    with subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        yield
        other.communicate()


@contextmanager
def other_vllm(version: str) -> Iterator[dict[str, str]]:
    """Where a Python looks first, a vLLM of another release is said to be installed."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / f"vllm-{version}.dist-info"
        place.mkdir()
        (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
        yield {"PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"}


@contextmanager
def old_driver(version: str) -> Iterator[dict[str, str]]:
    """NVML of this machine, but for the driver's version: that is said to be an older one."""
    with tempfile.TemporaryDirectory() as folder:
        patch = f"import pynvml\npynvml.nvmlSystemGetDriverVersion = lambda: {version!r}\n"
        (Path(folder) / "sitecustomize.py").write_text(patch)
        yield {"PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"}


@contextmanager
def taken(port: int) -> Iterator[None]:
    """Another program listens on the port."""
    with socket.create_server(("127.0.0.1", port)):
        yield


def main() -> None:
    models, results = (Path(word).resolve() for word in sys.argv[1:3])
    half, seven = models / "half", models / "seven"
    found: dict[str, Any] = {"nothing wrong": doctor(words(half, "shared", 20), dict(os.environ))}
    more = ("server.gpu_memory_utilization=0.9",)
    found["0.9 of a shared GPU for vLLM, a trainer of 7.6B"] = doctor(
        words(seven, "shared", 20, *more), dict(os.environ)
    )
    more = ("server.gpu_memory_utilization=0.1",)
    found["0.1 of the GPU for a server of 7.6B"] = doctor(words(seven, "shared", 20, *more), dict(os.environ))
    more = ("server.dtype=float32",)
    found["7.6B in float32 on both sides"] = doctor(words(seven, "shared", 20, *more), dict(os.environ))
    with busy():
        found["another program on the GPU"] = doctor(words(half, "shared", 20), dict(os.environ))
    with other_vllm("0.18.0") as env:
        found["vLLM 0.18.0 for TRL 1.16.0"] = doctor(words(half, "shared", 20), {**os.environ, **env})
    with old_driver("535.104.05") as env:
        found["driver 535.104.05 for CUDA 13.0"] = doctor(words(half, "shared", 20), {**os.environ, **env})
    with taken(8000):
        found["another server on the port"] = doctor(words(half, "shared", 20), dict(os.environ))
    save(results, "refusals", {**Gpu().machine(), "refusals": found})


if __name__ == "__main__":
    main()
