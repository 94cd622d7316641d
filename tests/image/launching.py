"""The stack's configuration of accelerate, as accelerate reads it."""

from __future__ import annotations

import argparse
from pathlib import Path

import yaml
from accelerate.commands import launch as commands

from grpo_stack import launch, rules
from grpo_stack.spec import StackSpec


def described(parallelism: str, processes: int) -> StackSpec:
    return rules.read({"split": f"1:{processes}", "trainer": {"parallelism": parallelism}})


def write(stack: StackSpec, folder: Path) -> str:
    """Write accelerate's configuration to a file in `folder`, and return its name."""
    file = folder / "accelerate.yaml"
    file.write_text(yaml.safe_dump(launch.config(stack)))
    return str(file)


def checked(stack: StackSpec, file: str) -> argparse.Namespace:
    """What `accelerate launch` makes of the stack's words and of the file."""
    options = [file if word == launch.FILE else word for word in launch.options(stack)]
    parsed = commands.launch_command_parser().parse_args([*options, "-m", "grpo_stack.train"])
    found: argparse.Namespace = commands._validate_launch_command(parsed)[0]
    return found
