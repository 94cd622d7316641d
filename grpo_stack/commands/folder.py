"""The folder that a command is given in."""

from __future__ import annotations

from pathlib import Path

from grpo_stack.errors import HostError


def require() -> None:
    """Return if there is a current folder, which relative paths are relative to."""
    try:
        Path.cwd()
    except OSError:
        raise HostError("the current folder is gone or closed to this user; change to another: cd") from None
