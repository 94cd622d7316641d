"""A folder that can be brought up by itself: the rendered files with the description that they were rendered from."""

from __future__ import annotations

import os
from pathlib import Path

from grpo_stack import description, paths, plan
from grpo_stack.description import Description
from grpo_stack.errors import DescriptionError
from grpo_stack.render import compose

_ELSEWHERE = "name another folder: --output DIR"


def files(described: Description, command: str) -> dict[str, str]:
    """`{relative path: text}`; `command` is what the header names as their maker."""
    rendered = compose.render(plan.derive(described.spec), command)
    return {**rendered, description.FILE: description.dump(described)}


def files_for(target: Path, described: Description, command: str) -> dict[str, str]:
    """Those to write into `target`: without its stack.yaml where that is what was read, as it stands.

    DescriptionError rather than the loss of a file that somebody wrote, or a Compose file that stack.yaml does not describe.
    """
    found = files(description.moved(described, target), command)
    own = described.file is not None and os.path.realpath(described.file) == os.path.realpath(target / description.FILE)
    if own and not described.overrides:
        del found[description.FILE]
    kept = [name for name in found if paths.is_file(target / name) and not _is_ours(target / name)]
    if problems := [_why_kept(target / name, described if own else None) for name in kept]:
        raise DescriptionError(f"render: {problem}" for problem in problems)
    return found


def _is_ours(file: Path) -> bool:
    """Whether render wrote a file, and nobody a comment into it since: of a description, the values are what is kept."""
    text = file.read_bytes()
    if file.name == compose.FILE:
        return text.startswith(f"# {compose.MADE_BY}grpo-stack".encode())
    header = f"# {description.HEADER}\n".encode()
    return text.startswith(header) and b"#" not in text.removeprefix(header)


def _why_kept(file: Path, described: Description | None) -> str:
    """`described` is what was read from `file`, if that is where the description comes from."""
    if described and file.name == description.FILE:
        keys = ", ".join(described.overrides)
        return f"{file}: was written by hand, and {keys} would differ from it; put that into the file, or {_ELSEWHERE}"
    return f"{file}: is there, and render did not write it; {_ELSEWHERE}"
