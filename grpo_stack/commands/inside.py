"""The commands that the containers run in front of vLLM and of training: wait, supervise."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from grpo_stack.arguments import PROGRAM
from grpo_stack.errors import DescriptionError


def wait(args: argparse.Namespace) -> int:
    from grpo_stack import readiness, releases, versions

    command = _next(args)
    if args.once and command:
        raise DescriptionError("wait: --once is for health checks and runs no command; leave one of the two out")
    # The health check runs beside the server, in the server's own image: there is nothing to compare.
    installed = {} if args.once else releases.installed(versions.PACKAGES)
    expectation = readiness.Expectation(args.url, args.model, args.backend, args.world_size, installed)
    if args.once:
        until = time.monotonic() + args.timeout
        memo = Path(args.memo) if args.memo else None
        seen = memo is not None and _is_made(memo)
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


def supervise(args: argparse.Namespace) -> int:
    command = _next(args)
    if not command:
        raise DescriptionError(f"supervise {args.role}: there is no command; give it after --")
    if args.role == "server":
        from grpo_stack.supervise import evidence, server

        memo = Path(args.memo) if args.memo else None
        limits = evidence.Limits(args.boot_timeout, args.stuck_after, args.update_limit)
        return server.run(server.Settings(args.url, limits, args.restarts, memo, args.grace), command)
    if args.url and not args.model:
        raise DescriptionError("supervise trainer: --url needs --model, the model that the server must serve")
    from grpo_stack import readiness, releases, versions
    from grpo_stack.supervise import trainer, verdict

    expectation = None
    if args.url:
        installed = releases.installed(versions.PACKAGES)
        expectation = readiness.Expectation(args.url, args.model, args.backend, args.world_size, installed)
    settings = trainer.Settings(
        run_folder=Path(args.run),
        server=expectation,
        gate_budget_s=args.timeout,
        phase_floor_s=args.phase_floor,
        restarts=args.restarts,
        limits=verdict.Limits(grace_s=args.grace),
        env_file=Path(args.env_file) if args.env_file else None,
    )
    return trainer.run(settings, command)


def _is_made(memo: Path) -> bool:
    """Whether the memo is there. One that could not be made is told before anything is generated, and not each time after."""
    try:
        if memo.exists():
            return True
        allowed = os.access(memo.parent, os.W_OK | os.X_OK)
    except OSError:
        allowed = False
    if not allowed:
        raise DescriptionError(f"wait: --memo: {memo} cannot be made; name a file in a folder that this user may write")
    return False


def _next(args: argparse.Namespace) -> list[str]:
    """The command line behind the options."""
    words: list[str] = args.next
    return words[1:] if words[:1] == ["--"] else words


def _reporter(url: str) -> Callable[[str, float], None]:
    """Says what is waited for when that changes, and every ten seconds."""
    last = ("", float("-inf"))

    def report(phase: str, elapsed_s: float) -> None:
        nonlocal last
        if phase != last[0] or elapsed_s - last[1] >= 10:
            last = (phase, elapsed_s)
            print(f"{PROGRAM}: waiting for {url} ({elapsed_s:.0f} s): {phase}", file=sys.stderr, flush=True)

    return report
