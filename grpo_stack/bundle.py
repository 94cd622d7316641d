"""A folder that can be brought up by itself: the rendered files with the description that they were rendered from."""

from __future__ import annotations

from grpo_stack import description, plan
from grpo_stack.description import Description
from grpo_stack.render import compose


def files(described: Description, command: str) -> dict[str, str]:
    """`{relative path: text}`; `command` is what the header names as their maker."""
    rendered = compose.render(plan.derive(described.spec), command)
    return {**rendered, description.FILE: description.dump(described)}
