"""One child with everything it starts: its output is passed on, and nothing of it outlives `end`.

Workers outlive their parent when that is killed, and keep a GPU's memory (vllm-project/vllm#55510). A process group is not
enough to find them: a worker may have a session of its own. So this process makes itself the one that orphans are handed to
(a subreaper, Linux), and whatever is then below it belongs to the child. Use it in a process that has no other children.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO

from grpo_stack import process_tree
from grpo_stack.errors import DescriptionError
from grpo_stack.process_tree import Process

KEPT_LINES, KEPT_BYTES = 30, 32768
"""The end of the child's output that is kept for the message when it is given up."""

ORPHAN_GRACE_S = 5.0
"""How long a descendant that outlived the child may take to end when asked."""

KILL_LIMIT_S = 10.0
"""How long killed processes may take to go; one that waits for a device inside the kernel goes later, or never."""


class Child:
    """A command that runs from the moment this is made, in a session of its own."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], output: IO[bytes] | None = None) -> None:
        """Start `argv`; what it prints goes to `output` (default: stdout) as it comes, stdout and stderr as one.

        Raises DescriptionError when there is no such program, or it cannot be run.
        """
        try:
            self._process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=dict(env),
                start_new_session=True,
            )
        except OSError as fault:
            raise DescriptionError(f"supervise: {argv[0]} cannot be run: {fault.strerror}") from None
        self._kept = b""
        self._tee = threading.Thread(target=self._pass_on, args=(output or sys.stdout.buffer,), daemon=True)
        self._tee.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """The exit code once the child has ended, negative for a signal; also clears away orphans that have ended."""
        code = self._process.poll()
        with suppress(ChildProcessError):  # there is none at all
            # Looked at first, since the child itself, should it end just now, is left to its Popen.
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid != self.pid:
                os.waitpid(ended.si_pid, 0)
        return code

    def last_lines(self) -> list[str]:
        """The end of what was printed, KEPT_LINES lines at most."""
        return self._kept.decode(errors="replace").splitlines()[-KEPT_LINES:]

    def terminate(self) -> None:
        """Ask the child's whole group to end. A stopped process is woken, or it would never hear of it."""
        self._signal_group(signal.SIGTERM, signal.SIGCONT)

    def end(self, grace_s: float) -> list[int]:
        """End the child and everything below this process; returns the ids of what could not be ended.

        The group is asked to end and has `grace_s` seconds; then it is killed. What outlived the child is asked as well,
        has ORPHAN_GRACE_S, and is killed. So it goes also when the child has ended by itself.
        """
        self.terminate()
        if not _until(lambda: self.poll() is not None, grace_s):
            self._signal_group(signal.SIGKILL)
            _until(lambda: self.poll() is not None, KILL_LIMIT_S)
        if not self._alone():
            process_tree.send(_below(), signal.SIGTERM, signal.SIGCONT)
            if not _until(self._alone, ORPHAN_GRACE_S):
                _until(self._killed, KILL_LIMIT_S)
        self._tee.join(timeout=1)  # nobody holds the pipe any more, unless something could not be ended
        return sorted(process.pid for process in _below())

    def _signal_group(self, *signs: signal.Signals) -> None:
        # Only while the child is not reaped is its group's id sure to be its own.
        if self._process.poll() is None:
            for sign in signs:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, sign)

    def _alone(self) -> bool:
        self.poll()
        return not _below()

    def _killed(self) -> bool:
        # Each time anew: what is being killed may have started another.
        process_tree.send(_below(), signal.SIGKILL)
        return self._alone()

    def _pass_on(self, output: IO[bytes]) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as source:
            while piece := os.read(source.fileno(), 65536):
                self._kept = (self._kept + piece)[-KEPT_BYTES:]
                # A reader of ours that went away must not stop the child at its next line.
                with suppress(OSError, ValueError):
                    while piece:
                        piece = piece[os.write(output.fileno(), piece) :]


def adopt_orphans() -> None:
    """Let every orphan below this process become its child; only Linux knows of such a thing."""
    if sys.platform.startswith("linux"):
        process_tree.adopt_orphans()


def _below() -> set[Process]:
    return process_tree.below(os.getpid())


def _until(done: Callable[[], bool], limit_s: float) -> bool:
    return process_tree.until(done, limit_s, time.monotonic, time.sleep)
