"""The trainer's supervisor as a process of its own, forked from one that has imported it: imports would be most of its time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import tenacity  # noqa: F401  # imported by the gate, and slow to import

from grpo_stack.errors import GrpoStackError
from grpo_stack.readiness import Expectation
from grpo_stack.supervise import trainer
from grpo_stack.supervise.verdict import Limits

END_S = 30.0
"""Far more than any test takes."""


@dataclass(frozen=True)
class Options:
    url: str = ""
    budget_s: float = 20.0
    floor_s: float = 20.0
    restarts: int = 3
    grace_s: float = 20.0
    call_s: float = 5.0
    env_file: Path | None = None


def start(folder: Path, words: Sequence[str], options: Options) -> BaseProcess:
    """Supervise `words` in `folder`; all output goes into its file `log`."""
    (folder / "log").touch()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(target=_supervise, args=(folder, tuple(words), options))
    process.start()
    return process


def end(process: BaseProcess) -> None:
    """Of a test that failed: nothing that it supervises may stay behind."""
    for sign in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
        if process.is_alive() and process.pid:
            os.kill(process.pid, sign)
            process.join(timeout=10)


def _supervise(folder: Path, words: tuple[str, ...], options: Options) -> None:
    os.chdir(folder)
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    settings = trainer.Settings(
        folder / "run",
        Expectation(options.url, "org/model") if options.url else None,
        gate_budget_s=options.budget_s,
        phase_floor_s=options.floor_s,
        restarts=options.restarts,
        limits=Limits(options.grace_s, gone_s=0.1),
        pace=trainer.Pace(look_s=0.01, ask_s=0.05, call_s=options.call_s, backoff=0.02),
        env_file=options.env_file,
    )
    try:
        code = trainer.run(settings, words)
    except GrpoStackError as fault:
        print("fault:", fault, file=sys.stderr, flush=True)
        code = fault.exit_code
    sys.exit(code)
