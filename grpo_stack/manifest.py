"""Whether a checkpoint is all there: its manifest, and the marks of those that have none.

The manifest finds a missing, shorter or longer file, and a changed byte, except in the middle of a file larger than
twice END_BYTES, whose ends alone are summed: reading all of a 120 GB checkpoint would delay each start by minutes.
A checkpoint without one, as TRL alone writes it, is judged by its parts: the trainer's state can be read, there are
weights, safetensors are as long as their header says, and torch's files end as zip files do.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
STATE = "trainer_state.json"
END_BYTES = 1 << 20
WEIGHTS = re.compile(r"pytorch_model_fsdp|global_step\d+|adapter_model|(pytorch_)?model.*\.(safetensors|bin)")
"""Names that hold weights, by FSDP, DeepSpeed, PEFT and transformers."""


def problem(folder: Path) -> str | None:
    """Why nothing can go on from this checkpoint; None when nothing speaks against it."""
    try:
        if (folder / MANIFEST).exists():
            return _against_manifest(folder)
        return _plain_problem(folder)
    except OSError as error:
        return f"{error.filename or folder} cannot be read ({error.strerror})"
    except (KeyError, TypeError, AttributeError) as error:  # JSON of another shape than was written
        return f"a part of it is torn ({type(error).__name__})"


def write(folder: Path, origin: str | None) -> None:
    """Have all files of a folder on the disk, and then a manifest of them; `origin` is the checkpoint that the run was
    told to begin from."""
    listed = {name: {"size": path.stat().st_size, "crc32": _sum(path)} for name, path in files(folder)}
    for _, path in files(folder):
        sync(path)
    draft = folder / f"{MANIFEST}.tmp"
    draft.write_text(json.dumps({"format": 1, "origin": origin, "files": listed}, indent=1), encoding="utf-8")
    sync(draft)
    draft.replace(folder / MANIFEST)
    for inner in {folder, *(path.parent for _, path in files(folder))}:
        sync(inner)


def read(folder: Path) -> dict[str, Any]:
    """The manifest; empty when there is none, or none that can be read."""
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def files(folder: Path) -> Iterator[tuple[str, Path]]:
    """All files below a folder but the manifest, by their names relative to it."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != MANIFEST:
            yield path.relative_to(folder).as_posix(), path


def state_step(folder: Path) -> int:
    """The step in the trainer's state; -1 when that cannot be read."""
    try:
        return int(json.loads((folder / STATE).read_text(encoding="utf-8"))["global_step"])
    except (OSError, ValueError, KeyError, TypeError):
        return -1


def sync(path: Path) -> None:
    """Wait until a file or a folder's names are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _against_manifest(folder: Path) -> str | None:
    wanted_files = read(folder).get("files")
    if not isinstance(wanted_files, dict) or not wanted_files:
        return f"its {MANIFEST} is torn"
    for name, wanted in wanted_files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != wanted["size"]:
            return f"{name} has {path.stat().st_size} bytes where {wanted['size']} were written"
        if _sum(path) != wanted["crc32"]:
            return f"{name} is not what was written"
    return None


def _plain_problem(folder: Path) -> str | None:
    """For one without a manifest, as TRL alone writes it: whether its parts are there and their headers fit their sizes."""
    if state_step(folder) < 0:
        return f"{STATE} is missing or torn"
    names = [path.name for path in folder.iterdir()]
    if not any(WEIGHTS.match(name) for name in names):
        return "it has no weights"
    for name, path in files(folder):
        if path.suffix == ".safetensors" and not _whole_safetensors(path):
            return f"{name} is torn"
        if path.suffix in (".pt", ".pth", ".bin") and not zipfile.is_zipfile(path):
            return f"{name} is torn"
    return None


def _whole_safetensors(path: Path) -> bool:
    """Whether the file is as long as its header says (8 bytes of length, the header, the tensors)."""
    with path.open("rb") as file:
        start = file.read(8)
        if len(start) < 8:
            return False
        length = int.from_bytes(start, "little")
        if length > path.stat().st_size:
            return False
        try:
            header: dict[str, Any] = json.loads(file.read(length))
        except ValueError:
            return False
    ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
    return path.stat().st_size == 8 + length + max(ends, default=0)


def _sum(path: Path) -> int:
    """CRC-32 of a file, or of the two ends of a large one."""
    with path.open("rb") as file:
        length = path.stat().st_size
        if length <= 2 * END_BYTES:
            return zlib.crc32(file.read())
        start = zlib.crc32(file.read(END_BYTES))
        file.seek(-END_BYTES, os.SEEK_END)
        return zlib.crc32(file.read(), start)
