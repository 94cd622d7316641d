"""The configs of public models in tests/data/configs, and how many parameters transformers 5.24 counts for each.

counts.json holds `sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())` on the meta device.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from grpo_stack import model_config
from grpo_stack.facts import ModelConfig

FOLDER = Path(__file__).parent / "data" / "configs"
COUNTS: dict[str, int] = json.loads((FOLDER / "counts.json").read_text(encoding="utf-8"))
NAMES = sorted(file.stem for file in FOLDER.glob("*.json") if file.name != "counts.json")


def raw(name: str) -> dict[str, Any]:
    """The decoded config.json of a model."""
    data: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return data


@cache
def config(name: str) -> ModelConfig:
    return model_config.parse(raw(name))
