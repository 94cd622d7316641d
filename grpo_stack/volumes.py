"""What the engine's client tells about this project's images and its cache volume."""

from __future__ import annotations

import os
import subprocess

from grpo_stack import engine, programs
from grpo_stack.facts import CacheVolume, Engine

HUB = "hub"
"""Where the volume holds models: it is mounted as HF_HOME, and huggingface_hub caches in HF_HOME/hub."""

_CACHE = "hf-cache"


def images_built(docker: Engine, tag: str) -> bool:
    """Whether an earlier build left both images."""
    names = [f"grpo-stack/{name}:{tag}" for name in (programs.SERVER, programs.TRAINER)]
    return bool(_inspect(docker, "image", "{{.Id}}", *names))


def cache_volume(docker: Engine | None, project: str) -> CacheVolume:
    """The volume of the Compose project, if there is one, and whether this user may look into it."""
    if docker is None:
        return CacheVolume(exists=None)
    found = _inspect(docker, "volume", "{{.Mountpoint}}", f"{project}_{_CACHE}")
    if not found:
        return CacheVolume(exists=False if found is None else None)
    return CacheVolume(exists=True, folder=found, readable=os.access(found, os.R_OK | os.X_OK))


def _inspect(docker: Engine, kind: str, form: str, *names: str) -> str | None:
    """What `docker … inspect` prints; None where one of `names` does not exist, empty without an answer in time."""
    argv = [docker.client, kind, "inspect", "--format", form, *names]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=engine.CALL_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout.strip() if done.returncode == 0 else None
