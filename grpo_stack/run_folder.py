"""The folder of a run, `outputs/RUN`, as both runtimes begin it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from grpo_stack.errors import HostError


def make(folder: Path) -> None:
    """Make it, with a place for the logs; nothing else that is there is touched. HostError where this host does not let us."""
    with _explained():
        (folder / "logs").mkdir(parents=True, exist_ok=True)


def begin(folder: Path, files: Mapping[str, str], without: Iterable[str] = ()) -> None:
    """Make it, with the record of what is run; HostError where this host does not let us.

    `without`: files that an earlier run in the other runtime has left, and that would be taken for this one's.
    """
    make(folder)
    with _explained():
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        for name in without:
            (folder / name).unlink(missing_ok=True)


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except OSError as fault:
        reason = (fault.strerror or str(fault)).lower()
        raise HostError(f"outputs: {fault.filename}: {reason}; name another folder: --outputs FOLDER") from None
