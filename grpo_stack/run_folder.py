"""The folder of a run, `outputs/RUN`, as both runtimes begin it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from grpo_stack.errors import HostError


def begin(folder: Path, files: Mapping[str, str], without: Iterable[str] = ()) -> None:
    """Make it, with a place for the logs and the record of what is run; HostError where this host does not let us.

    `without`: files that an earlier run in the other runtime has left, and that would be taken for this one's.
    """
    try:
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        for name in without:
            (folder / name).unlink(missing_ok=True)
    except OSError as fault:
        reason = (fault.strerror or str(fault)).lower()
        raise HostError(f"outputs: {fault.filename}: {reason}; name another folder: --outputs FOLDER") from None
