"""What the Python that runs grpo-stack holds besides: whether it could run the roles themselves."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

from grpo_stack import releases
from grpo_stack.local_preflight import FOR_ZERO, NEEDED, PLUGIN, Packages

_COMMANDS = ("vllm", "accelerate")


def read(python: str, environment: Mapping[str, str]) -> Packages:
    """Releases and commands beside `python`, which must be this process's own."""
    versions = releases.installed((*NEEDED, FOR_ZERO, PLUGIN))
    search = os.pathsep.join([os.path.dirname(python), environment.get("PATH", os.defpath)])  # noqa: PTH120
    commands = {name: shutil.which(name, path=search) is not None for name in _COMMANDS}
    return Packages(python, versions, commands)
