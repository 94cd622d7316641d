"""Which TRL goes with which vLLM, torch, NCCL and driver; the named, locked sets that the images are built from.

Sources: the ranges are those of TRL's own package metadata (extra `vllm`); torch is what each vLLM release requires; NCCL is what
that torch requires on Linux; the driver is what NVIDIA's release notes ask for that CUDA.
"""

from __future__ import annotations

from dataclasses import dataclass

from grpo_stack.errors import DescriptionError

Version = tuple[int, ...]

LOCKED_AT = 1796083200
"""Seconds since 1970 of 2026-12-01, when the first of the locks were compiled: no clock that is right says less, and `make lock`
need not change it."""


@dataclass(frozen=True)
class Pins:
    """One locked set; `docker/locks/NAME.ACCELERATOR.txt` holds all of its packages with their hashes."""

    name: str
    trl: str
    vllm: str
    torch: str
    nccl: str
    """Both ends of a weight push must carry the identical NCCL."""
    cuda: str
    """CUDA release that the torch and vLLM wheels were built for."""
    driver: str
    """Lowest NVIDIA driver that runs that CUDA."""
    purpose: str
    """What one would choose it for."""


DEFAULT = "trl-1.16"

SETS = {
    "trl-1.16": Pins(
        name="trl-1.16",
        trl="1.16.0",
        vllm="0.28.0",
        torch="2.13.0",
        nccl="2.29.7",
        cuda="13.0",
        driver="580",
        purpose="GRPO, RLOO and Online DPO",
    ),
    "trl-1.13": Pins(
        name="trl-1.13",
        trl="1.13.0",
        vllm="0.28.0",
        torch="2.13.0",
        nccl="2.29.7",
        cuda="13.0",
        driver="580",
        purpose="the last with Nash-MD and XPO, which TRL 1.14 removed",
    ),
}

VLLM_OF_TRL: dict[Version, tuple[Version, Version]] = {
    (1, 11): ((0, 19, 0), (0, 27, 1)),
    (1, 12): ((0, 19, 0), (0, 27, 1)),
    (1, 13): ((0, 19, 1), (0, 28, 0)),
    (1, 14): ((0, 20, 0), (0, 30, 0)),
    (1, 15): ((0, 21, 0), (0, 31, 0)),
    (1, 16): ((0, 22, 0), (0, 31, 0)),
}
"""TRL release → oldest and newest vLLM that it accepts."""

TORCH_OF_VLLM: dict[Version, str] = {
    (0, 19): "2.10.0",
    **{(0, minor): "2.11.0" for minor in range(20, 27)},
    **{(0, minor): "2.13.0" for minor in range(27, 33)},
    (0, 33): "2.14.0",
}
"""What `SETS` are chosen by, like the two tables below; nothing asks for them at run time."""

NCCL_OF_TORCH = {"2.11.0": "2.28.9", "2.13.0": "2.29.7", "2.14.0": "2.30.7"}

DRIVER_OF_CUDA = {"13.0": "580"}


def find(name: str) -> Pins:
    """The set called `name`; DescriptionError, naming the known ones, if there is none."""
    if name not in SETS:
        known = ", ".join(SETS)
        raise DescriptionError(f"pins: there is no locked set {name!r}; known: {known}")
    return SETS[name]


def require_fit(trl: str, vllm: str) -> None:
    """Return if that TRL accepts that vLLM; else DescriptionError with the range and the nearest vLLM and TRL that fit."""
    release, wanted = _version(trl, "TRL")[:2], _version(vllm, "vLLM")
    if release not in VLLM_OF_TRL:
        known = ", ".join(_show(version) for version in VLLM_OF_TRL)
        raise DescriptionError(f"pins: TRL {trl} is not known here; known: {known}")
    oldest, newest = VLLM_OF_TRL[release]
    if oldest <= wanted <= newest:
        return
    nearest = oldest if wanted < oldest else newest
    fitting = [_show(other) for other, (low, high) in VLLM_OF_TRL.items() if low <= wanted <= high]
    others = f"; TRL {fitting[-1]} accepts vLLM {vllm}" if fitting else ""
    raise DescriptionError(
        f"pins: TRL {trl} accepts vLLM {_show(oldest)} to {_show(newest)}, not {vllm}; nearest: {_show(nearest)}{others}"
    )


def _version(text: str, what: str) -> Version:
    parts = text.split("+")[0].split(".")
    if len(parts) < 2 or not all(part.isdecimal() for part in parts):
        raise DescriptionError(f"pins: {text!r} is no version of {what}; write it as in 1.16.0")
    return tuple(int(part) for part in parts[:3])


def _show(version: Version) -> str:
    return ".".join(map(str, version))
