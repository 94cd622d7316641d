"""Which TRL goes with which vLLM, torch, NCCL and driver; the named, locked sets that the images are built from.

Sources: the ranges are those of TRL's own package metadata (extra `vllm`) and of its import check
(`trl.import_utils`); torch is what each vLLM release requires; NCCL is what that torch requires on Linux.
"""

from __future__ import annotations

from dataclasses import dataclass

from grpo_stack.errors import DescriptionError


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


DEFAULT = "trl-1.16"

SETS = {
    "trl-1.16": Pins("trl-1.16", trl="1.16.0", vllm="0.28.0", torch="2.13.0", nccl="2.29.7", cuda="13.0", driver="580"),
}


def find(name: str) -> Pins:
    """The set called `name`; DescriptionError, naming the known ones, if there is none."""
    if name not in SETS:
        known = ", ".join(SETS)
        raise DescriptionError(f"pins: there is no locked set {name!r}; known: {known}")
    return SETS[name]
