"""Are this host's GPUs fit for that split? Decides on what NVML and the engine told; asks nothing itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from grpo_stack import topology
from grpo_stack.facts import Engine, Gpu, GpuReading
from grpo_stack.findings import OK, PROBLEM, WARNING, Finding
from grpo_stack.plan import StackPlan
from grpo_stack.split import SEPARATE, SHARED, Split


def check(plan: StackPlan, reading: GpuReading, engine: Engine | None) -> tuple[Finding, ...]:
    """Every finding about GPUs at once; nothing for the CPU stack."""
    if plan.split is None:
        return ()
    gpus = reading.gpus
    if not gpus:
        reason = reading.problem or "this host has none"
        fix = "run the CPU demo instead: make up, without MODEL"
        return (Finding("gpus", PROBLEM, f"no GPU found ({reason})", fix), *_toolkit(engine))
    named = {name: gpu for gpu in gpus for name in (str(gpu.index), gpu.uuid) if name}
    used = [named[name] for name in plan.split.gpus if name in named]
    return (
        *_present(plan.split, gpus, {name: gpu.index for name, gpu in named.items()}),
        *_development_only(plan.split),
        *_free(used),
        *_driver(plan, gpus[0].driver_version),
        *_toolkit(engine),
        *_mig(used),
        *_ecc(used),
        *_links(plan.split, named),
    )


def suggest(count: int) -> str:
    """A split for `count` GPUs: the server gets the largest power of two that leaves the trainer at least as many."""
    if count < 2:
        return "shared"
    server = 1
    while server * 4 <= count:
        server *= 2
    return f"{server}:{count - server}"


def _present(split: Split, gpus: Sequence[Gpu], known: Mapping[str, int]) -> Iterable[Finding]:
    missing = [gpu for gpu in split.gpus if gpu not in known]
    if missing:
        text = f"the split names GPU {', '.join(missing)}, this host has {len(gpus)} ({gpus[0].index}-{gpus[-1].index})"
        yield Finding("gpus", PROBLEM, text, f"choose another split, {suggest(len(gpus))} for example")
    elif twice := _named_twice(split, known):
        yield Finding("gpus", PROBLEM, f"{twice} are one GPU", "name each GPU once, by index or by UUID")
    else:
        name = gpus[0].name or "GPU"
        yield Finding("gpus", OK, f"{len(gpus)} found ({name}), {len(split.gpus)} used")


def _named_twice(split: Split, known: Mapping[str, int]) -> str:
    """The first two names of the split that are one GPU, an index and a UUID."""
    seen: dict[int, str] = {}
    for name in split.gpus:
        if known[name] in seen:
            return f"{seen[known[name]]} and {name}"
        seen[known[name]] = name
    return ""


def _development_only(split: Split) -> Iterable[Finding]:
    if split.mode == SHARED:
        fix = "give each side its own GPUs for real runs"
        yield Finding("split", WARNING, "server and trainer share one GPU, which is for development only", fix)


def _free(used: Sequence[Gpu]) -> Iterable[Finding]:
    taken = [f"GPU {gpu.index} is in use ({reason})" for gpu in used if (reason := topology.use(gpu))]
    if taken:
        fix = "end what uses it, or name other GPUs; what nobody lists may have outlived its container: docker ps -a"
        yield Finding("gpus-free", PROBLEM, "; ".join(taken), fix)
    else:
        yield Finding("gpus-free", OK, "nothing uses them")


def _driver(plan: StackPlan, driver: str | None) -> Iterable[Finding]:
    needed, pins = plan.pins.driver, f"CUDA {plan.pins.cuda} of pins {plan.pins.name}"
    major = (driver or "").partition(".")[0]
    if not major.isdecimal():
        yield Finding("driver", WARNING, f"its version could not be read; {pins} needs {needed} or newer")
    elif int(major) < int(needed):
        fix = "upgrade the NVIDIA driver (docs.nvidia.com/datacenter/tesla), then reboot"
        yield Finding("driver", PROBLEM, f"{driver} found; {pins} needs {needed} or newer", fix)
    else:
        yield Finding("driver", OK, f"{driver}; {pins} needs {needed} or newer")


def _toolkit(engine: Engine | None) -> Iterable[Finding]:
    if engine is None:
        return
    if engine.gpus_usable is False:
        fix = "install and configure the NVIDIA Container Toolkit (docs.nvidia.com, `nvidia-ctk runtime configure`)"
        yield Finding("toolkit", PROBLEM, "the engine has neither NVIDIA's runtime nor a CDI device", fix)
    elif engine.gpus_usable is None:
        yield Finding("toolkit", WARNING, "the engine is on another host and shows neither NVIDIA's runtime nor CDI")
    else:
        yield Finding("toolkit", OK, "the engine can hand GPUs to containers")


def _mig(used: Sequence[Gpu]) -> Iterable[Finding]:
    sliced = [str(gpu.index) for gpu in used if gpu.mig_enabled]
    if sliced:
        fix = f"name other GPUs, or run: sudo nvidia-smi -i {','.join(sliced)} -mig 0"
        found = f"GPU {', '.join(sliced)} is cut into MIG slices, between which NCCL cannot push weights"
        yield Finding("mig", PROBLEM, found, fix)
    else:
        yield Finding("mig", OK, "off")


def _ecc(used: Sequence[Gpu]) -> Iterable[Finding]:
    broken = [
        f"GPU {gpu.index}: {gpu.ecc_errors} uncorrected since the driver was loaded" for gpu in used if gpu.ecc_errors
    ]
    if broken:
        fix = "name other GPUs, or reset them while nothing runs: sudo nvidia-smi --gpu-reset -i ID"
        yield Finding("ecc", WARNING, "; ".join(broken), fix)
    else:
        yield Finding("ecc", OK, "no uncorrected memory errors known")


def _links(split: Split, named: Mapping[str, Gpu]) -> Iterable[Finding]:
    """Whether another choice of as many GPUs would link the worse of the two sides better."""
    if split.mode != SEPARATE or not all(gpu in named for gpu in split.gpus):
        return
    gpus = sorted({gpu.index: gpu for gpu in named.values()}.values(), key=lambda gpu: gpu.index)
    counted = Split(split.server, split.trainer, counted=True)
    better = topology.choose(counted, gpus).split
    now, then = (
        [topology.worst(named[gpu] for gpu in side) for side in (chosen.server, chosen.trainer)]
        for chosen in (split, better)
    )
    sides = zip(("server", "trainer"), now, strict=True)
    found = "; ".join(f"{name}: {path}" for name, path in sides if path) or "no side has links that are known"
    if _place(now) > _place(then):
        yield Finding("topology", WARNING, found, f"--split {topology.text(better)} is linked better")
    else:
        yield Finding("topology", OK, found)


def _place(paths: Iterable[str | None]) -> int:
    return max((topology.PATHS.index(path) for path in paths if path), default=0)
