"""What is at a path, and who may read it. Nothing here raises, as `Path.is_file` does for a closed folder or a name too long."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

READ, ENTER = os.R_OK, os.R_OK | os.X_OK
"""Rights on a file, and on a folder."""


def expanded(path: str) -> Path:
    """`path` with the home folder for a `~`; a user that does not exist is left as it is."""
    return Path(os.path.expanduser(path))  # noqa: PTH111


def exists(path: str | Path) -> bool:
    return _mode(path) != 0


def is_file(path: str | Path) -> bool:
    return stat.S_ISREG(_mode(path))


def is_folder(path: str | Path) -> bool:
    return stat.S_ISDIR(_mode(path))


def is_hidden(path: str | Path) -> bool:
    """Whether a folder above is closed to this user, so that nothing is known about what is at `path`."""
    try:
        Path(path).stat()
    except PermissionError:
        return True
    except (OSError, ValueError):
        return False
    return False


def allows(path: str | Path, uid: int, rights: int) -> bool:
    """Whether the user `uid` has `rights` on what is at `path`, which may be mounted without the folders above it.

    Of the groups of a user other than this one nothing is known.
    """
    if uid == os.getuid():
        return os.access(path, rights)
    with suppress(OSError, ValueError):
        found = Path(path).stat()
        return found.st_mode >> (6 if found.st_uid == uid else 0) & rights == rights
    return False


def _mode(path: str | Path) -> int:
    """0 if nothing is there that this user can see."""
    with suppress(OSError, ValueError):
        return Path(path).stat().st_mode
    return 0
