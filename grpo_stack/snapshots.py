"""Where a model lies on this host, and whether all of its weights do: the Hugging Face cache, and folders."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from grpo_stack import paths

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""What transformers loads, in this order (utils/__init__.py: SAFE_WEIGHTS_NAME, WEIGHTS_NAME); `NAME.index.json` lists the
shards of a model that is cut into several."""


def cache_folder(environment: Mapping[str, str]) -> Path:
    """The Hub cache that `huggingface_hub` uses with this environment (its constants.py: HF_HUB_CACHE, HF_HOME/hub)."""
    if environment.get("HF_HUB_CACHE"):
        return paths.expanded(environment["HF_HUB_CACHE"])
    return home(environment) / "hub"


def home(environment: Mapping[str, str]) -> Path:
    """Where `huggingface_hub` keeps all of its own with this environment (HF_HOME)."""
    default = f"{environment.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    return paths.expanded(environment.get("HF_HOME") or default)


def find(cache: Path, model: str, revision: str | None) -> Path | None:
    """The folder of a revision in the cache: refs/NAME holds the commit, snapshots/COMMIT the files. None: there is none."""
    folder = cache / f"models--{model.replace('/', '--')}"
    try:
        commit = (folder / "refs" / (revision or "main")).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        commit = revision or ""
    found = folder / "snapshots" / commit
    return found if commit and paths.is_folder(found) else None


def missing(folder: Path) -> tuple[str, ...]:
    """Weights that the model in `folder` should have and has not; a link whose file is gone counts as missing.

    An index that cannot be read is missing itself.
    """
    for name in WEIGHTS:
        index = folder / f"{name}.index.json"
        if paths.is_file(index):
            try:
                shards = set(json.loads(index.read_bytes())["weight_map"].values())
            except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
                return (index.name,)
            return tuple(sorted(shard for shard in shards if not paths.is_file(folder / str(shard))))
    return () if any(paths.is_file(folder / name) for name in WEIGHTS) else WEIGHTS[:1]
