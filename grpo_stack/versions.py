"""Do server and trainer run the same releases? Compares what vLLM tells about its environment with what is installed here.

A weight push needs the identical NCCL on both ends, and tokens mean the same only to the same transformers and vLLM.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

PACKAGES = {
    "vllm": "vLLM",
    "torch": "torch",
    "nvidia-nccl-cu12": "NCCL",
    "nvidia-nccl-cu13": "NCCL",
    "transformers": "transformers",
}
"""Distributions that both sides must have in the same release, and what people call them. torch brings one exact NCCL,
under the name of its CUDA."""


def of_server(system_env: Mapping[str, Any]) -> dict[str, str]:
    """Releases by distribution, from `system_env` of /server_info (vLLM: vllm/collect_env.py, SystemEnv).

    vLLM and torch are always in there; the others as `pip list` names them, which the images have.
    """
    listed = system_env.get("pip_packages")
    lines = listed.splitlines() if isinstance(listed, str) else []
    pairs = [line.split("==") for line in lines if line.count("==") == 1]
    found = {name.strip().lower().replace("_", "-"): version.strip() for name, version in pairs}
    for name, field in (("vllm", "vllm_version"), ("torch", "torch_version")):
        value = system_env.get(field)
        if isinstance(value, str) and value[:1].isdigit():
            found[name] = value.split()[0]
    return {name: found[name] for name in PACKAGES if name in found}


def differences(server: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """A line for each package that both sides have and that is not the same release; builds (`+cpu`) do not count.

    Both map distributions to releases.
    """
    there, own = _named(server), _named(here)
    return [
        f"{name} {there[name]} there, {own[name]} here"
        for name in dict.fromkeys(PACKAGES.values())
        if name in there and name in own and _release(there[name]) != _release(own[name])
    ]


def _named(found: Mapping[str, str]) -> dict[str, str]:
    return {called: found[package] for package, called in PACKAGES.items() if package in found}


def _release(version: str) -> str:
    return re.sub(r"(\.0)+$", "", version.partition("+")[0])
