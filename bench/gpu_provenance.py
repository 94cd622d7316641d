"""What a measurement on a GPU was made with: the packages, and the sockets that weights went over."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gpu_watch  # noqa: F401  (finds grpo_stack)

from grpo_stack import pins
from grpo_stack.plan import SOCKETS

LOCK = Path(__file__).resolve().parent.parent / "docker" / "locks" / f"{pins.DEFAULT}.cuda.txt"
PACKAGES = {"vllm": "vLLM", "trl": "TRL", "torch": "torch", "transformers": "transformers"}

UNTIL_4TH = "4x4, 8 channels"
"""Sockets of the stack until 2026-12-04, as the sweep names them."""

MEASURED_ON_1ST = ("faults-half", "stack-colocate", "stack-half", "stack-seven")
"""Measurements of 2026-12-01, which do not say with which sockets; measured again, they do, and need no place here."""

UNKNOWN = "not recorded: 4x4, 8 channels, or 2x4, 8 channels"
"""Measured about the time of that change."""


def named(sockets: dict[str, str]) -> str:
    """Socket settings as the sweep names them."""
    threads, each, channels = (sockets[f"NCCL_{n}"] for n in ("SOCKET_NTHREADS", "NSOCKS_PERTHREAD", "MIN_NCHANNELS"))
    return f"{threads}x{each}, {channels} channels"


STACK = named(SOCKETS)


def sockets_of(run: dict[str, Any]) -> str:
    """The sockets of the stack when that was measured."""
    if "sockets of the stack" in run:
        return named(run["sockets of the stack"])
    return UNTIL_4TH if run["file"] in MEASURED_ON_1ST else UNKNOWN


def versions(found: list[dict[str, Any]]) -> list[str]:
    """What was measured on and with, and how that differs from what the images hold."""
    locked = dict(re.findall(r"^([\w-]+)==([^\s;]+)", LOCK.read_text(), re.MULTILINE))
    held = {name: locked[name] for name in PACKAGES}
    machines = {(run["machine"], run["driver"], *(run[name] for name in PACKAGES)) for run in found}
    lines = [
        f"- {machine}, driver {driver}; {_listed(dict(zip(PACKAGES, each, strict=True)))}"
        for machine, driver, *each in sorted(machines)
    ]
    others = sorted({run["file"] for run in found if any(run[name] != held[name] for name in PACKAGES)})
    if not others:
        return [*lines, ""]
    every = len(others) == len(found)
    which = "nothing here was" if every else f"{', '.join(others)} {'were' if others[1:] else 'was'} not"
    return [*lines, "", f"The images hold the locked set, {_listed(held)}; {which} measured with it.", ""]


def _listed(versions: dict[str, str]) -> str:
    return ", ".join(f"{PACKAGES[name]} {version}" for name, version in versions.items())
