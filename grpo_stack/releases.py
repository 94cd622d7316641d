"""Which releases of distributions the Python that runs this has."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from importlib import metadata


def installed(names: Iterable[str]) -> dict[str, str]:
    """Releases by distribution, of those that are there."""
    found = {}
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
