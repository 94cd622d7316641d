"""Checkpoints on disk: which of them to go on from, and how one becomes complete.

Each is written into `.incomplete/` of the run's folder. Once all of it is on the disk, a manifest of its files is added
and it is renamed to its place, so that a folder called `checkpoint-N` was complete when it got that name; the manifest
tells whether it still is.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from grpo_stack import manifest
from grpo_stack.errors import DescriptionError

ASIDE = ".incomplete"
"""Folder for what is being written or removed. Its name is none that transformers takes for a checkpoint."""


def newest(output: Path, say: Callable[[str], None], origin: str | None = None) -> Path | None:
    """The complete checkpoint of the highest step; each newer one that is not complete is said, with the reason.

    With `origin`, only one that was made by a run which began from that checkpoint.
    """
    for folder in reversed(_found(output)):
        if origin is not None and manifest.read(folder).get("origin") != origin:
            continue
        reason = manifest.problem(folder)
        if reason is None:
            return folder
        say(f"{folder.name}: skipped, {reason}")
    return None


def chosen(output: Path, explicit: str | None, say: Callable[[str], None]) -> Path | None:
    """What to go on from: `explicit` (`--resume_from_checkpoint`), or what a run that began there has made since; else
    the newest one in `output`. Raises DescriptionError for an explicit one that is not complete."""
    if explicit is None:
        return newest(output, say)
    began = Path(explicit)
    reason = manifest.problem(began) if began.is_dir() else "there is no such folder"
    if reason is not None:
        raise DescriptionError(f"arguments: --resume_from_checkpoint {explicit}: {reason}; give a complete one")
    later = newest(output, say, explicit)
    return later if later and step_of(later) > manifest.state_step(began) else began


def publish(folder: Path, place: Path, origin: str | None = None) -> None:
    """Have a checkpoint in `.incomplete/`, all ranks done with it, appear at `place` complete."""
    manifest.write(folder, origin)
    swap(folder, place)


def swap(folder: Path, place: Path) -> None:
    """Rename `folder` to `place`; what was there is removed after that."""
    old = place.parent / ASIDE / f"replaced-{place.name}"
    if place.exists():
        place.rename(old)
    folder.rename(place)
    manifest.sync(place.parent)
    shutil.rmtree(old, ignore_errors=True)


def rotate(output: Path, limit: int | None, newest_step: int) -> None:
    """Of the checkpoints up to `newest_step` keep the newest `limit` complete ones (None or 0: all)."""
    if not limit or limit < 0:
        return
    known = [folder for folder in _found(output) if step_of(folder) <= newest_step]
    complete = [folder for folder in known if manifest.problem(folder) is None]
    (output / ASIDE).mkdir(exist_ok=True)
    for folder in set(known) - set(complete[-limit:]) if complete else ():
        doomed = output / ASIDE / f"removed-{folder.name}"
        folder.rename(doomed)  # a crash while it is being removed must not leave half of it under its name
        shutil.rmtree(doomed, ignore_errors=True)


def tidy(output: Path) -> None:
    """Remove what an earlier process left unfinished; one that it had finished and not yet renamed takes its place."""
    aside = output / ASIDE
    for folder in _found(aside):
        place = output / folder.name
        if (folder / manifest.MANIFEST).exists() and not place.exists() and manifest.problem(folder) is None:
            folder.rename(place)
    shutil.rmtree(aside, ignore_errors=True)


def set_aside(folder: Path) -> Path:
    """Give a checkpoint that does not load a name under which nobody looks for one; returns its new place."""
    place = folder.with_name(f"{folder.name}.unreadable")
    if folder.exists():  # another rank may have been here
        shutil.rmtree(place, ignore_errors=True)
        folder.rename(place)
    return place


def step_of(folder: Path) -> int:
    """The step in a checkpoint's name."""
    return int(folder.name.removeprefix("checkpoint-"))


def size(folder: Path) -> int:
    """Bytes in the files of a folder."""
    return sum(path.stat().st_size for _, path in manifest.files(folder))


def _found(output: Path) -> list[Path]:
    """Folders with the name of a checkpoint, by step."""
    if not output.is_dir():
        return []
    named = [path for path in output.iterdir() if re.fullmatch(r"checkpoint-\d+", path.name) and path.is_dir()]
    return sorted(named, key=step_of)
