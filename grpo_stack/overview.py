"""A plan to look at: what each role runs, with what, on which GPUs. For people and for programs."""

from __future__ import annotations

from typing import Any

from grpo_stack import words
from grpo_stack.plan import Role, StackPlan
from grpo_stack.render.compose import shell_line


def lines(plan: StackPlan) -> list[str]:
    """The plan as text, defaults standing for host variables that are not settled."""
    split = f"split {plan.split}" if plan.split else "no GPU"
    shown = [f"{plan.accelerator}, pins {plan.pins.name}, {split}"]
    for role in plan.roles:
        shown += ["", f"{role.name} ({_where(role)})", f"  {shell_line(role.argv)}"]
        shown += [f"  under: {shell_line(role.supervisor[:-1])}"] if role.supervisor else []
        shown += [f"  {name}={words.literal(value)}" for name, value in role.env.items()]
        shown += [f"  {mount.source} → {mount.target}{' (read-only)' * mount.read_only}" for mount in role.mounts]
    return shown


def as_data(plan: StackPlan) -> dict[str, Any]:
    """The plan as plain data; `supervisor` are the words in front of `command` in the container."""
    return {
        "accelerator": plan.accelerator,
        "pins": plan.pins.name,
        "split": str(plan.split) if plan.split else None,
        "roles": {
            role.name: {
                "image": f"grpo-stack/{role.image}:{plan.tag}",
                "command": [words.literal(word) for word in role.argv],
                "supervisor": [words.literal(word) for word in role.supervisor],
                "env": {name: words.literal(value) for name, value in role.env.items()},
                "gpus": list(role.gpus),
                "mounts": {mount.target: mount.source for mount in role.mounts},
                "shm": role.shm,
                "internet": role.internet,
            }
            for role in plan.roles
        },
    }


def _where(role: Role) -> str:
    gpus = f"GPU {','.join(role.gpus)}" if role.gpus else "no GPU"
    return f"{gpus}, /dev/shm {role.shm}, {'with' if role.internet else 'without'} internet"
