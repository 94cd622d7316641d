"""One child with everything it starts: its output is passed on, and nothing of it outlives `end`.

Workers outlive their parent when that is killed, and keep a GPU's memory (vllm-project/vllm#55510). A process group is not
enough to find them: a worker may have a session of its own. So this process makes itself the one that orphans are handed to
(a subreaper, Linux), and whatever is then below it belongs to the child. Use it in a process that has no other children.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from grpo_stack.errors import DescriptionError

KEPT_LINES, KEPT_BYTES = 30, 32768
"""The end of the child's output that is kept for the message when it is given up."""

ORPHAN_GRACE_S = 5.0
"""How long a descendant that outlived the child may take to end when asked."""

KILL_LIMIT_S = 10.0
"""How long killed processes may take to go; one that waits for a device inside the kernel goes later, or never."""

_POLL_S = 0.05
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def adopt_orphans() -> bool:
    """Make this process the parent of every orphan below it; False where the system has no such thing."""
    if not sys.platform.startswith("linux"):
        return False
    return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


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
        _reap(self.pid)
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
            _signal(_below(os.getpid()), signal.SIGTERM, signal.SIGCONT)
            if not _until(self._alone, ORPHAN_GRACE_S):
                _until(self._killed, KILL_LIMIT_S)
        self._tee.join(timeout=1)  # nobody holds the pipe any more, unless something could not be ended
        return _below(os.getpid())

    def _signal_group(self, *signs: signal.Signals) -> None:
        # Only while the child is not reaped is its group's id sure to be its own.
        if self._process.poll() is None:
            for sign in signs:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, sign)

    def _alone(self) -> bool:
        self.poll()
        return not _below(os.getpid())

    def _killed(self) -> bool:
        # Each time anew: what is being killed may have started another.
        _signal(_below(os.getpid()), signal.SIGKILL)
        return self._alone()

    def _pass_on(self, output: IO[bytes]) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as source:
            while piece := os.read(source.fileno(), 65536):
                self._kept = (self._kept + piece)[-KEPT_BYTES:]
                # A reader of ours that went away must not stop the child at its next line.
                with suppress(OSError, ValueError):
                    output.write(piece)
                    output.flush()


def _until(done: Callable[[], bool], limit_s: float) -> bool:
    end = time.monotonic() + limit_s
    while not done():
        if time.monotonic() >= end:
            return False
        time.sleep(_POLL_S)
    return True


def _signal(pids: Iterable[int], *signs: signal.Signals) -> None:
    for pid in pids:
        for sign in signs:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, sign)


def _reap(but: int) -> None:
    """Clear away ended children of this process, except the one that its Popen waits for."""
    for pid, (parent, state) in _processes().items():
        if parent == os.getpid() and state == "Z" and pid != but:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _below(ancestor: int) -> list[int]:
    """Every process that descends from `ancestor` and has not ended."""
    parents = _processes()
    found = {ancestor}
    while more := {pid for pid, (parent, _) in parents.items() if parent in found} - found:
        found |= more
    return sorted(pid for pid in found - {ancestor} if parents[pid][1] not in "ZX")


def _processes() -> dict[int, tuple[int, str]]:
    """Parent and state of every process, as /proc shows them (proc_pid_stat(5)); none where there is no /proc."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            # The name in brackets may hold anything, brackets and spaces included.
            fields = entry.read_text(errors="replace").rpartition(")")[2].split()
            found[int(entry.parent.name)] = (int(fields[1]), fields[0])
    return found
