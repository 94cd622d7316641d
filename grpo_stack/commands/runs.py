"""The commands about what is running, in containers or as processes of this host: status, logs, down."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from grpo_stack.arguments import PROGRAM
from grpo_stack.commands import target
from grpo_stack.commands.target import Target
from grpo_stack.errors import DescriptionError, HostError

STOP_LIMIT_S = 120
"""Between SIGTERM and SIGKILL for containers: time for the trainer's checkpoint."""


def down(args: argparse.Namespace) -> int:
    from grpo_stack import engine, lifecycle, local_stop, run_state

    meant = target.find(args)
    if meant.processes is not None:
        ended = [local_stop.down(folder, local_stop.ASKED_LIMIT_S) for folder in meant.processes]
        if not any(ended):
            if meant.named:
                run_state.require_idle(meant.named)  # on another host it may run, or its `up` have written nothing yet
            whose = f"nothing of run {meant.named.name}" if meant.named else f"no process of {args.project}"
            print(f"{whose} is running", file=sys.stderr)
    elif meant.project:
        lifecycle.down(engine.find_client(), meant.project, STOP_LIMIT_S)
    elif meant.named:
        run_state.require_idle(meant.named)  # an `up` that still builds images has no container yet
        print(f"nothing of run {meant.named.name} is running", file=sys.stderr)
    return 0


def status(args: argparse.Namespace) -> int:
    import json

    meant = target.find(args)
    found = _of_containers(meant.project) if meant.processes is None else _of_processes(meant.processes)
    if args.json:
        print(json.dumps([row for row, _ in found], indent=2))
    elif found:
        print(*(line for _, line in found), sep="\n")
    else:
        whose = f"run {meant.named.name}" if meant.named else args.project
        none = f"no container of {whose}" if meant.processes is None else f"no process of {whose} is running"
        print(none, file=sys.stderr)
    return 0


def _of_processes(runs: Iterable[Path]) -> list[tuple[dict[str, object], str]]:
    """What is known of each role, for programs and as a line."""
    from grpo_stack import local_stop

    found = []
    for row in (row for folder in runs for row in local_stop.status(folder)):
        pid = f" (pid {row['pid']})" if row["pid"] else ""
        code = f" with exit code {row['exit_code']}" if row["exit_code"] is not None else ""
        found.append((row, f"{row['service']:12} {row['state']}{pid}{code}  {row['run']}"))
    return found


def _of_containers(project: str) -> list[tuple[dict[str, object], str]]:
    import dataclasses

    from grpo_stack import engine

    found = []
    for box in engine.containers(project) if project else ():
        health = f" ({box.health})" if box.health else ""
        code = f" with exit code {box.exit_code}" if box.state == "exited" else ""
        found.append((dataclasses.asdict(box), f"{box.service:12} {box.state}{health}{code}"))
    return found


def logs(args: argparse.Namespace) -> int:
    from grpo_stack.programs import PREFETCH, SERVER, TRAINER

    services = (PREFETCH, SERVER, TRAINER)
    if unknown := [name for name in args.services if name not in services]:
        raise DescriptionError(f"logs: there is no service {unknown[0]!r}; the services are {', '.join(services)}")
    meant = target.find(args, needs_docker=False)
    if meant.processes is not None:
        _show_saved(meant.processes, args)
    if meant.project or meant.named is None:
        _show_containers(meant, args)
    assert meant.named  # else Compose has taken over
    if meant.unasked:
        _tell_unasked(meant.named, meant.unasked)
    _show_saved((meant.named,), args)  # its `up` has saved what the containers said


def _show_containers(meant: Target, args: argparse.Namespace) -> None:
    """Become `docker compose logs`. Return where Docker lets nobody, but there are logs that were saved."""
    from grpo_stack import engine

    try:
        client = engine.find_client()
        engine.containers(meant.project)  # Compose's own words for a daemon that does not answer help nobody
    except HostError as fault:
        if not meant.named:
            raise
        _tell_unasked(meant.named, fault)
        return
    words = [client, "compose", "--project-name", meant.project, "logs"]
    os.execv(client, [*words, *(["--follow"] if args.follow else []), *args.services])


def _tell_unasked(run: Path, fault: HostError) -> None:
    """Warn that Docker does not say what `run` has done since its logs were saved; raise `fault` if none were."""
    if not any((run / "logs").glob("*.log")):
        raise fault
    print(
        f"{PROGRAM}: warning: Docker could not be asked about run {run.name}, what its `up` has saved is shown: {fault}",
        file=sys.stderr,
    )


def _show_saved(runs: tuple[Path, ...], args: argparse.Namespace) -> NoReturn:
    """Become `tail` of the log files of `runs`, those of the services that were asked for."""
    if not runs:
        raise HostError(f"no process of {args.project} is running; name a run that is over: --run NAME")
    saved = [file for folder in runs for file in sorted((folder / "logs").glob("*.log"))]
    files = [str(file) for file in saved if not args.services or file.stem in args.services]
    if not files:
        there = ", ".join(file.stem for file in saved) or "none"
        wanted = f" of {' or '.join(args.services)}" if args.services else ""
        folders = ", ".join(str(folder / "logs") for folder in runs)
        raise HostError(f"there is no log{wanted} in {folders}; logs that are there: {there}")
    os.execvp("tail", ["tail", "--lines", "+1", *(["--follow=name"] if args.follow else []), *files])
