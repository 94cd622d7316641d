"""Runs the programs of a plan on this host, follows the run to its end, and leaves nothing behind.

Beside `lifecycle`, which does the same with containers. The supervisors in front of server and trainer restart what they
run, and `follow` decides about a supervisor that was itself ended from outside.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from grpo_stack import follow, process_tree, run_state
from grpo_stack.children import tail
from grpo_stack.errors import ChildError, DescriptionError, HostError, RunError
from grpo_stack.facts import Container
from grpo_stack.process_tree import Process
from grpo_stack.processes import Program
from grpo_stack.programs import PREFETCH, SERVER, TRAINER
from grpo_stack.progress import Progress
from grpo_stack.run_state import Member, Record, State
from grpo_stack.stopping import interruptible

STOP_LIMIT_S = 10.0
"""Between SIGTERM and SIGKILL for a server that nobody uses any more, and for whatever a role has left."""

POLL_S = 0.5


@dataclass(frozen=True)
class Run:
    """A run that may start: what to run, and where."""

    project: str
    folder: Path
    programs: tuple[Program, ...]
    fetches: bool = True
    """Whether anything may have to be fetched; else the checks of `prefetch` run while the others start."""


def up(run: Run, progress: Progress) -> int:
    """Fetch, start, follow and stop; 0, or an error that carries the exit code. Whatever happens, nothing keeps running.

    Raises HostError if the run is running already, ChildError with the exit code of a role that failed, RunError if the
    server was given up, KeyboardInterrupt on a signal, after the trainer had time for a checkpoint; one that comes while
    the run is being stopped changes nothing.
    """
    with interruptible() as signals, run_state.claim(run.folder) as record:
        process_tree.adopt_orphans()
        stack = _Stack(run, record, progress)
        patience_s = STOP_LIMIT_S
        try:
            if run.fetches:
                stack.fetch()
            stack.start(*stack.roles)
            if not run.fetches:
                stack.fetch()
            return stack.follow()
        except KeyboardInterrupt:
            patience_s = float(stack.programs[TRAINER].grace_s)
            raise
        finally:
            signals.obeyed = False
            progress.detail("stopping")
            stack.stop(patience_s)
            progress.phase("stopped; caches and outputs are kept")


class _Stack:
    """The running programs of one run."""

    def __init__(self, run: Run, record: Record, progress: Progress) -> None:
        self.run, self.record, self.progress = run, record, progress
        self.programs = {program.name: program for program in run.programs}
        self.roles = tuple(name for name in (SERVER, TRAINER) if name in self.programs)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._members: dict[str, Member] = {}
        self._before = process_tree.below(os.getpid())
        self._own = _identify("up", os.getpid())
        self._write()

    def fetch(self) -> None:
        """Have model and dataset in place before a GPU is held."""
        self.progress.phase("fetching model and dataset" if self.run.fetches else "checking model and dataset")
        self.start(PREFETCH)
        while (code := self.poll(PREFETCH)) is None:
            self._show_last_line(PREFETCH)
            time.sleep(POLL_S)
        del self.processes[PREFETCH]
        if code in (DescriptionError.exit_code, HostError.exit_code):
            raise ChildError(tail(self.log(PREFETCH), 15), code)
        if code:
            raise RunError(self._obituary(PREFETCH, code))

    def start(self, *names: str) -> None:
        """Start these roles, each in a session of its own, with its output in the run's logs."""
        for name in names:
            program = self.programs[name]
            _prepare(program)
            with self.log(name).open("ab") as output:
                try:
                    process = subprocess.Popen(
                        program.argv,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        env=dict(program.env),
                        # An empty folder: Python puts the current one on the module path of `-m`.
                        cwd=self._home(),
                        start_new_session=True,
                    )
                except OSError as fault:
                    raise HostError(f"{program.argv[0]} cannot be run: {fault.strerror}") from None
            # In this order: a signal in between leaves an orphan, which `stop` ends, and no process without its identity.
            self._members[name] = _identify(name, process.pid)
            self.processes[name] = process
        self._write()

    def follow(self) -> int:
        """Show what happens until the run ends, and start again what was ended from outside."""
        self.progress.phase("server and trainer starting" if SERVER in self.programs else "trainer starting")
        last = follow.follow(self.roles, self.run.folder, self.progress, self.look, self.restart)
        code = self.poll(last.service) or 0
        if last.service == TRAINER and not code:
            return 0
        text = self._obituary(last.service, code)
        raise ChildError(text, last.exit_code or 0) if last.service == TRAINER else RunError(text)

    def look(self) -> tuple[Container, ...]:
        """The roles in the form in which containers are followed."""
        return tuple(self._as_container(name) for name in self.processes)

    def restart(self, name: str) -> None:
        """Start a role again, without what it has left."""
        self._end_orphans()
        self.start(name)

    def stop(self, patience_s: float) -> None:
        """End the trainer, which may write a checkpoint within `patience_s`, then the server, then what either has left."""
        for name, limit_s in ((PREFETCH, STOP_LIMIT_S), (TRAINER, patience_s), (SERVER, STOP_LIMIT_S)):
            if name in self.processes and self.poll(name) is None:
                process_tree.send([self._members[name].process], signal.SIGTERM, signal.SIGCONT)
                ended = process_tree.until(lambda name=name: self.poll(name) is not None, limit_s, *_TIME)  # type: ignore[misc]
                if not ended:
                    self.processes[name].kill()
                    self.processes[name].wait()
        self._end_orphans()
        self._write()

    def poll(self, name: str) -> int | None:
        """The role's exit code once it has ended, negative for a signal."""
        code = self.processes[name].poll()
        if code is not None and self._members[name].exit_code is None:
            self._members[name] = Member(name, self._members[name].process, code)
            self._write()
        return code

    def log(self, name: str) -> Path:
        return self.run.folder / "logs" / f"{name}.log"

    def _home(self) -> Path:
        home = self.run.folder / "process" / "empty"
        home.mkdir(parents=True, exist_ok=True)
        return home

    def _as_container(self, name: str) -> Container:
        code = self.poll(name)
        return Container(
            name=f"{name} (pid {self.processes[name].pid})",
            service=name,
            state="running" if code is None else "exited",
            exit_code=code if code is None or code >= 0 else 128 - code,  # as a container that a signal ended
            health=None,
            oom_killed=False,
            last_lines=tuple(tail(self.log(name), 1)),
        )

    def _end_orphans(self) -> None:
        """End what a role has left whose supervisor is gone; orphans are handed to this process."""

        def orphans() -> set[Process]:
            kept = [process.pid for process in self.processes.values() if process.poll() is None]
            own = {process for process in process_tree.below(os.getpid()) if process.pid in kept}
            _reap(self.processes)
            return process_tree.below(os.getpid()) - self._before - own - process_tree.below(*kept)

        process_tree.send(orphans(), signal.SIGTERM, signal.SIGCONT)
        if not process_tree.until(lambda: not orphans(), STOP_LIMIT_S, *_TIME):
            process_tree.send(orphans(), signal.SIGKILL)
            process_tree.until(lambda: not orphans(), STOP_LIMIT_S, *_TIME)

    def _obituary(self, name: str, code: int) -> str:
        names = (name, *(other for other in self.roles if other in self.processes and code in follow.GAVE_UP))
        return follow.obituary(
            name, _end(code), {each: tail(self.log(each), 15) for each in names}, self.log(name).parent
        )

    def _show_last_line(self, name: str) -> None:
        lines = tail(self.log(name), 1)
        if lines and not lines[-1].startswith("step "):
            self.progress.detail(lines[-1])

    def _write(self) -> None:
        # A full disk must not keep a run from being ended; `down` then goes by what was written before.
        with suppress(OSError):
            self.record.write(State(self.run.project, process_tree.boot(), self._own, tuple(self._members.values())))


_TIME = (time.monotonic, time.sleep)


def _end(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _identify(name: str, pid: int) -> Member:
    # A child that has ended already is still a zombie of ours, so that its id means nobody else.
    return Member(name, process_tree.find(pid) or Process(pid, -1))


def _prepare(program: Program) -> None:
    """Write the program's files, and link what it imports."""
    for path, text in program.files.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text, encoding="utf-8")
    for path, source in program.links.items():
        link = Path(path)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(source)


def _reap(known: dict[str, subprocess.Popen[bytes]]) -> None:
    """Clear away orphans that were handed to this process and have ended; each role's own Popen waits for that one."""
    pids = {process.pid for process in known.values()}
    for process in process_tree.ended_children(os.getpid()):
        if process.pid not in pids:
            os.waitpid(process.pid, os.WNOHANG)
