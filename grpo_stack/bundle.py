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

    DescriptionError rather than the loss of what somebody wrote, or a Compose file that stack.yaml does not describe.
    """
    found = files(description.moved(described, target), command)
    own = described.file is not None and os.path.realpath(described.file) == os.path.realpath(target / description.FILE)
    if own and not described.overrides:
        del found[description.FILE]
    there = [target / name for name in found if paths.is_file(target / name)]
    if problems := [why for file in there if (why := _why_kept(file, found[file.name], described if own else None))]:
        raise DescriptionError(f"render: {problem}" for problem in problems)
    return found


def _why_kept(file: Path, text: str, described: Description | None) -> str:
    """Why `text` must not replace what `file` holds; empty if it may.

    `described` is what was read from the stack.yaml in the same folder, if that is where the description comes from.
    """
    held = file.read_bytes()
    if file.name == compose.FILE:
        ours = held.startswith(f"# {compose.MADE_BY}grpo-stack".encode())
        return "" if ours else f"{file}: is there, and render did not write it; {_ELSEWHERE}"
    if held == text.encode():
        return ""
    if described is None:
        own_way = "run `grpo-stack render --output .` in its folder to keep it, remove it"
        return f"{file}: is there, and says something else; {own_way}, or {_ELSEWHERE}"
    if description.is_as_dumped(held.decode()):
        return ""
    keys = ", ".join(described.overrides)
    found = f"holds comments or a layout of its own, which {keys} from here would cost it"
    return f"{file}: {found}; put that into the file, or {_ELSEWHERE}"
