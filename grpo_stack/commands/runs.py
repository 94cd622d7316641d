"""The commands about what is running, in containers or as processes of this host: status, logs, down."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from grpo_stack.arguments import PROGRAM
from grpo_stack.commands import folder
from grpo_stack.errors import DescriptionError, HostError


def down(args: argparse.Namespace) -> int:
    from grpo_stack import engine, lifecycle, local_stop

    runs = _process_runs(args)
    if runs is not None:
        for folder in runs:
            local_stop.down(folder, local_stop.ASKED_LIMIT_S)
        return 0
    lifecycle.down(engine.find_client(), args.project, 120)
    return 0


def status(args: argparse.Namespace) -> int:
    import dataclasses
    import json

    from grpo_stack import engine, local_stop

    runs = _process_runs(args)
    if runs is not None:
        members = [member for folder in runs for member in local_stop.status(folder)]
        if args.json:
            print(json.dumps(members, indent=2))
            return 0
        if not members:
            print(f"no process of {args.project} is running", file=sys.stderr)
        for member in members:
            pid = f" (pid {member['pid']})" if member["pid"] else ""
            code = f" with exit code {member['exit_code']}" if member["exit_code"] is not None else ""
            print(f"{member['service']:12} {member['state']}{pid}{code}  {member['run']}")
        return 0
    boxes = engine.containers(args.project)
    if args.json:
        print(json.dumps([dataclasses.asdict(box) for box in boxes], indent=2))
        return 0
    if not boxes:
        print(f"no container of {args.project}", file=sys.stderr)
    for box in boxes:
        health = f" ({box.health})" if box.health else ""
        code = f" with exit code {box.exit_code}" if box.state == "exited" else ""
        print(f"{box.service:12} {box.state}{health}{code}")
    return 0


def logs(args: argparse.Namespace) -> int:
    from grpo_stack import engine

    runs = _process_runs(args)
    if runs is not None:
        files = [str(file) for folder in runs for file in sorted((folder / "logs").glob("*.log"))]
        files = [file for file in files if not args.services or Path(file).stem in args.services]
        if not files:
            raise HostError("no run of processes is there to show; name one: --run NAME")
        os.execvp("tail", ["tail", "--lines", "+1", *(["--follow=name"] if args.follow else []), *files])
    client = engine.find_client()
    engine.containers(args.project)  # Compose's own words for a daemon that does not answer help nobody
    words = [
        client,
        "compose",
        "--project-name",
        args.project,
        "logs",
        *(["--follow"] if args.follow else []),
        *args.services,
    ]
    os.execv(client, words)


def _process_runs(args: argparse.Namespace) -> list[Path] | None:
    """Folders of the runs of processes that a command is about; None: it is about containers."""
    from grpo_stack import run_state

    if args.runtime == "docker":
        return None
    outputs = _outputs(args.outputs)
    if args.runtime == "process" and args.run:
        return [outputs / args.run]
    return run_state.live_runs(outputs, args.project, args.run) or ([] if args.runtime == "process" else None)


def _outputs(named: str | None) -> Path:
    """The folder of all runs. A description that cannot be read keeps nobody from the run that it was written for."""
    from grpo_stack import description

    folder.require()
    if named:
        return Path(os.path.expanduser(named)).absolute()  # noqa: PTH111  # fails for no name
    try:
        described = description.load(None, None, {}, [])
    except DescriptionError as fault:
        for problem in fault.problems:
            print(f"{PROGRAM}: warning: {problem}", file=sys.stderr)
        print(f"{PROGRAM}: warning: looking for runs in ./outputs; name another folder: --outputs DIR", file=sys.stderr)
        return Path("outputs").absolute()
    return Path(description.absolute(described.spec.outputs, described.directory))
