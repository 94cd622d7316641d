"""What status, logs and down are about: runs of processes, or the containers of a project."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from grpo_stack.arguments import PROGRAM
from grpo_stack.commands import folder
from grpo_stack.errors import DescriptionError, HostError


@dataclass(frozen=True)
class Target:
    """What a command is about."""

    named: Path | None
    """Folder of the run, if one was named."""
    processes: tuple[Path, ...] | None
    """Folders of the runs of processes that are meant, the named one or all that are running; None: containers are."""
    project: str
    """Of the containers; empty where a run was named that has none any more."""
    unasked: HostError | None = None
    """Why Docker could not say whether the named run has containers."""


def find(args: argparse.Namespace, *, needs_docker: bool = True) -> Target:
    """What is meant by --runtime, --outputs, --run and --project; HostError where that is nothing that there is.

    A Docker that does not answer about a named run is such an error too, unless not `needs_docker`.
    """
    from grpo_stack import run_state

    if args.run is not None:
        return _named(args.run, _outputs(args.outputs), args.runtime, needs_docker)
    if args.runtime == "docker":
        return Target(None, None, args.project)
    live = tuple(run_state.live_runs(_outputs(args.outputs), args.project))
    return Target(None, live if live or args.runtime == "process" else None, args.project)


def _named(name: str, outputs: Path, runtime: str | None, needs_docker: bool) -> Target:
    """The run of that name, running or not, by what its folder says of it. Never another one's containers."""
    from grpo_stack import engine, run_state
    from grpo_stack.render import compose

    run = outputs / name
    if not name or not os.path.isdir(run):  # noqa: PTH112  # fails for no name
        raise HostError(f"run {name!r}: there is no such folder in {outputs}; see: ls {outputs}")
    if runtime != "docker" and run_state.read(run):
        return Target(run, (run,), "")
    if runtime != "process" and os.path.isfile(file := run / compose.FILE):  # noqa: PTH113  # the same
        try:
            return Target(run, None, next(iter(engine.made_from(file)), ""))
        except HostError as fault:
            if needs_docker:
                raise
            return Target(run, None, "", fault)
    kind, instead = {
        "process": ("processes", "if it ran in containers, leave out --runtime process"),
        "docker": ("containers", "name their project instead: --project NAME"),
        None: ("processes or containers", "name the project of its containers instead: --project NAME"),
    }[runtime]
    raise HostError(f"run {name!r}: {run} tells of no {kind}; {instead}")


def _outputs(named: str | None) -> Path:
    """The folder of all runs. A description that cannot be read keeps nobody from the run that it was written for."""
    from grpo_stack import description

    folder.require()
    if named is not None:
        outputs = Path(os.path.expanduser(named)).absolute()  # noqa: PTH111  # fails for no name
        if not named or not os.path.isdir(outputs):  # noqa: PTH112  # fails for no name
            raise HostError(f"outputs: {named!r} is no folder; name that of the runs: --outputs DIR")
        return outputs
    try:
        described = description.load(None, None, {}, [])
    except DescriptionError as fault:
        for problem in fault.problems:
            print(f"{PROGRAM}: warning: {problem}", file=sys.stderr)
        print(f"{PROGRAM}: warning: looking for runs in ./outputs; name another folder: --outputs DIR", file=sys.stderr)
        return Path("outputs").absolute()
    return Path(description.absolute(described.spec.outputs, described.directory))
