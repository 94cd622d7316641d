"""The command line: parse, call, exit."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from grpo_stack import arguments, streams
from grpo_stack.arguments import PROGRAM
from grpo_stack.commands import host, inside, runs
from grpo_stack.errors import INTERRUPTED, GrpoStackError, HostError

_COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "render": host.render,
    "up": host.up,
    "doctor": host.examine,
    "plan": host.show_plan,
    "down": runs.down,
    "status": runs.status,
    "logs": runs.logs,
    "wait": inside.wait,
    "supervise": inside.supervise,
    "pins": host.show_pins,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code (errors.py lists them)."""
    words = list(sys.argv[1:] if argv is None else argv)
    with streams.guarded() as out:
        code = _run(words)
        fault = out.settle()
        if code or not fault or isinstance(fault, BrokenPipeError):
            return code
        print(f"{PROGRAM}: stdout: {fault.strerror or fault}; mind what it leads to", file=sys.stderr)
        return HostError.exit_code


def _run(words: list[str]) -> int:
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


if __name__ == "__main__":
    sys.exit(main())
