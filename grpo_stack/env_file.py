"""A file of NAME=VALUE lines for the environment of training: keys of experiment trackers, above all.

They reach training as a file, since what a Compose file gives a container as environment is there to read for everybody who may
use Docker, in `docker inspect`.
"""

from __future__ import annotations

import re
from pathlib import Path

from grpo_stack.errors import DescriptionError

KEY = "trainer.env_file"
"""Where the description names such a file."""

_LINE = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(.*)")


def read(file: Path) -> dict[str, str]:
    """The variables in `file`. Blank lines and those that start with `#` count for nothing, as does a byte order mark in
    front; a value may stand in quotes.

    Raises DescriptionError for a file that cannot be read, and for each line that is something else; values are not shown.
    """
    try:
        lines = file.read_text(encoding="utf-8").removeprefix("\ufeff").splitlines()
    except OSError as fault:
        raise DescriptionError(f"{KEY}: {file} cannot be read: {fault.strerror}; name one that can be") from None
    except UnicodeDecodeError as fault:
        raise DescriptionError(f"{KEY}: {file}: byte {fault.start} is no UTF-8; save it as UTF-8") from None
    found, problems = {}, []
    for number, line in enumerate(map(str.strip, lines), start=1):
        if not line or line.startswith("#"):
            continue
        if (match := _LINE.fullmatch(line)) and "\0" not in line:
            found[match[1]] = _unquoted(match[2].strip())
        else:
            problems.append(f"{KEY}: {file}: line {number} is not of the form NAME=VALUE; mend it, or put a # in front")
    if problems:
        raise DescriptionError(problems)
    return found


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else value
