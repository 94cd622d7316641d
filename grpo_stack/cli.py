"""The command line: parse, call, print, exit. The only module that prints.

What a command needs is imported when it runs, so that no command pays for another.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_stack import arguments
from grpo_stack.arguments import PROGRAM
from grpo_stack.errors import INTERRUPTED, DescriptionError, GrpoStackError

if TYPE_CHECKING:
    from grpo_stack.description import Description


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code (errors.py lists them)."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        parser = arguments.parser()
        args = parser.parse_args(words)
        args.words = words
        if not args.command:
            parser.print_help()
            return 0
        return _COMMANDS[args.command](args)
    except GrpoStackError as fault:
        for problem in fault.problems:
            print(f"{PROGRAM}: {problem}", file=sys.stderr)
        return fault.exit_code
    except KeyboardInterrupt:
        print(f"{PROGRAM}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader went away; let nothing be written to it when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _render(args: argparse.Namespace) -> int:
    import shlex

    from grpo_stack import bundle, description, plan
    from grpo_stack.render import compose

    described = _describe(args)
    if not args.output:
        made_by = " ".join([PROGRAM, *map(shlex.quote, args.words)])
        print(compose.render(plan.derive(described.spec), made_by)[compose.FILE], end="")
        return 0
    target = Path(args.output)
    files = bundle.files(description.moved(described, target), f"{PROGRAM} render --output .   (in this folder)")
    if described.file and described.file.resolve() == (target / description.FILE).resolve():
        del files[description.FILE]
    target.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (target / name).write_text(text, encoding="utf-8")
        print(target / name)
    return 0


def _up(args: argparse.Namespace) -> int:
    from grpo_stack import gpus, lifecycle, plan, start
    from grpo_stack.progress import Progress

    found = gpus.read()
    described = start.choose(start.settled(_describe(args), os.environ), found)
    described = start.named(described, time.localtime())
    planned = plan.derive(described.spec)
    findings = start.check(described, planned, found, with_engine=args.check != "description")
    if args.check == "all":
        for finding in findings:
            print(f"{finding.level:8} {finding}")
    start.demand(findings)
    if args.check:
        return 0
    stack = start.write(described, planned, args.project)
    try:
        with Progress(sys.stderr) as progress:
            progress.phase(f"run {stack.run_folder.name}, files in {stack.run_folder}")
            code = lifecycle.up(stack, progress)
    finally:
        start.hand_over(stack)
    summary = stack.run_folder / "summary.txt"
    print(summary.read_text(encoding="utf-8") if summary.exists() else f"no summary in {summary}", end="")
    return code


def _down(args: argparse.Namespace) -> int:
    from grpo_stack import engine, lifecycle

    lifecycle.down(engine.find_client(), args.project, 120)
    return 0


def _status(args: argparse.Namespace) -> int:
    import dataclasses
    import json

    from grpo_stack import engine

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


def _logs(args: argparse.Namespace) -> int:
    from grpo_stack import engine

    client = engine.find_client()
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


def _wait(args: argparse.Namespace) -> int:
    from grpo_stack import readiness

    command = args.next[1:] if args.next[:1] == ["--"] else args.next
    if args.once and command:
        raise DescriptionError("wait: --once is for health checks and runs no command; leave one of the two out")
    expectation = readiness.Expectation(args.url, args.model, args.backend, args.world_size)
    if args.once:
        until = time.monotonic() + args.timeout
        memo = Path(args.memo) if args.memo else None
        seen = memo is not None and memo.exists()
        readiness.check_once(expectation, remaining_s=lambda: until - time.monotonic(), generate=not seen)
        if memo:
            memo.touch()
        return 0
    readiness.wait_until_ready(expectation, budget_s=args.timeout, report=_reporter(args.url))
    if command:
        try:
            os.execvp(command[0], command)
        except OSError as fault:
            raise DescriptionError(f"wait: {command[0]} cannot be run: {fault.strerror}") from None
    return 0


def _reporter(url: str) -> Callable[[str, float], None]:
    """Says what is waited for when that changes, and every ten seconds."""
    last = ("", float("-inf"))

    def report(phase: str, elapsed_s: float) -> None:
        nonlocal last
        if phase != last[0] or elapsed_s - last[1] >= 10:
            last = (phase, elapsed_s)
            print(f"{PROGRAM}: waiting for {url} ({elapsed_s:.0f} s): {phase}", file=sys.stderr, flush=True)

    return report


def _pins(args: argparse.Namespace) -> int:
    import dataclasses
    import json

    from grpo_stack import pins

    if args.fit:
        pins.require_fit(*args.fit)
        print(f"TRL {args.fit[0]} accepts vLLM {args.fit[1]}")
        return 0
    if args.json:
        print(json.dumps({name: dataclasses.asdict(found) for name, found in pins.SETS.items()}, indent=2))
        return 0
    for name, found in pins.SETS.items():
        mark = " (default)" if name == pins.DEFAULT else ""
        print(f"{name}{mark}: trl {found.trl}, vllm {found.vllm}, torch {found.torch}, NCCL {found.nccl}, ", end="")
        print(f"CUDA {found.cuda}, driver {found.driver} or newer: {found.purpose}")
    return 0


def _describe(args: argparse.Namespace) -> Description:
    from grpo_stack import description

    keys = [*(key for _, key, _ in arguments.FLAGS), "data.rewards"]
    flags = {key: getattr(args, key) for key in keys if getattr(args, key) is not None}
    return description.load(args.file, args.preset, flags, args.settings)


_COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "render": _render,
    "up": _up,
    "down": _down,
    "status": _status,
    "logs": _logs,
    "wait": _wait,
    "pins": _pins,
}

if __name__ == "__main__":
    sys.exit(main())
