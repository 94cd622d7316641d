"""The faults a user can meet, and the exit code that each one ends with.

    GrpoStackError             1   a fault of ours
    ├── DescriptionError       2   stack.yaml or the flags are wrong
    ├── HostError              3   this host cannot run it
    ├── NotReadyError          4   the server did not become ready
    └── RunError               5   the run failed and was not restarted
        └── ChildError         *   a child ended on its own; its exit code is passed on

Each message says where, what was found, and what to do next. Errors of this tree are shown without a traceback.
"""

from __future__ import annotations

from collections.abc import Iterable

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells use it (128 + SIGINT)."""


class GrpoStackError(Exception):
    """A fault with a message for the user; `problems` holds all that were found, one line each."""

    exit_code = 1

    def __init__(self, problems: str | Iterable[str]) -> None:
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))


class DescriptionError(GrpoStackError):
    """The description or the usage is wrong."""

    exit_code = 2


class HostError(GrpoStackError):
    """This host cannot run the stack as described."""

    exit_code = 3


class NotReadyError(GrpoStackError):
    """The vLLM server did not become usable within its budget, or never can."""

    exit_code = 4


class RunError(GrpoStackError):
    """The run failed and was not restarted."""

    exit_code = 5


class ChildError(RunError):
    """A process that was run for the user ended by itself with `exit_code`."""

    def __init__(self, problems: str | Iterable[str], exit_code: int) -> None:
        super().__init__(problems)
        self.exit_code = exit_code
