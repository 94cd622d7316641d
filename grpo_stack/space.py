"""A full disk, recognised in what the libraries raise for it, and said in one line.

What they raise (measured on a full tmpfs; safetensors 0.8, tokenizers, torch 2.13): Python's own writes OSError with
ENOSPC; safetensors and tokenizers kinds of their own whose text ends in "(os error 28)"; torch.save a RuntimeError from
its zip writer that says nothing of the cause.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from grpo_stack.errors import HostError

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
RUST_FULL = tuple(f"(os error {number})" for number in sorted(FULL))
TORCH_WRITER = ("inline_container.cc", "PytorchStreamWriter")

PROBE_BYTES = 8 << 20
"""Written to find out whether there is room; a disk that has less is full for all that we write."""


class NoSpaceError(HostError):
    """No room for what has to be written. Only the rank that writes meets it."""


def is_full(error: BaseException, folder: Path, has_room: Callable[[Path], bool] | None = None) -> bool:
    """Whether `error`, or what it arose from, means that the disk of `folder` is full."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, OSError) and link.errno in FULL:
            return True
        if str(link).endswith(RUST_FULL):
            return True
        if isinstance(link, RuntimeError) and any(mark in str(link) for mark in TORCH_WRITER):
            return not (has_room or _has_room)(folder)
        link = link.__cause__ or link.__context__
    return False


@contextmanager
def guarding(
    what: str, folder: Path, *, undo: Callable[[], None] = lambda: None, need: Callable[[], int] = lambda: 0
) -> Iterator[None]:
    """Turn a full disk inside the block into NoSpaceError, after `undo` has removed what was half written.

    `what` could not be written to `folder`, and takes about `need` bytes in all (0: not known).
    """
    try:
        yield
    except NoSpaceError:
        raise
    except Exception as error:
        if not is_full(error, folder):
            raise
        undo()
        wanted = need()
        needs = f"needs about {_amount(wanted)}, " if wanted else ""
        free = _amount(shutil.disk_usage(folder).free)
        raise NoSpaceError(
            f"outputs: no space left for {what} ({needs}{free} free in {folder}); free some and run again"
        ) from error


def _has_room(folder: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno not in FULL
    return True


def _amount(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
