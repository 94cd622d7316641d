"""Which Hugging Face token a download will use, by the environment of whoever starts it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from grpo_stack import paths, snapshots


@dataclass(frozen=True)
class HubToken:
    """A token, or the file that holds one; neither: there is none."""

    text: str | None = field(default=None, repr=False)
    file: Path | None = None
    """May be absent where HF_TOKEN_PATH names it."""


def of_containers(environment: Mapping[str, str]) -> HubToken:
    """They are given the file that HF_TOKEN_PATH names and nothing else; the empty device stands for no token."""
    named = environment.get("HF_TOKEN_PATH")
    return HubToken(file=paths.expanded(named) if named and named != os.devnull else None)


def of_processes(environment: Mapping[str, str]) -> HubToken:
    """As huggingface_hub finds it (utils/_auth.py: get_token): from the environment, else from the file that HF_TOKEN_PATH
    names, else from the one that `hf auth login` has written."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if text := environment.get(name, "").strip():
            return HubToken(text=text)
    if environment.get("HF_TOKEN_PATH"):
        return of_containers(environment)
    file = snapshots.home(environment) / "token"
    return HubToken(file=file if paths.is_file(file) and file.stat().st_size else None)
