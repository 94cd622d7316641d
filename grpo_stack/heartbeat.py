"""What the training process and its supervisor tell each other, through files in a folder that the supervisor makes.

    beat.json   where training is: written by rank 0 ("failed": by any), replaced as a whole, so that a reader never sees
                half of one
    go          the supervisor: the server is ready, touch it and the GPU now
    stop        the supervisor: end at the end of this step, with a checkpoint

Both sides are processes of one host: `time.monotonic()` of one can be compared with the other's (CLOCK_MONOTONIC counts
from the start of the machine).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from grpo_stack.errors import NotReadyError

FOLDER = "GRPO_STACK_HEARTBEAT"
"""The environment variable that names the folder; unset where nobody supervises."""

PHASES = (
    "start",  # importing, reading the arguments and the dataset: nothing outside this process is touched
    "waiting",  # for `go`
    "load",  # the model, the optimizer, the group with the server, the checkpoint
    *("generate", "push", "reward", "optimize"),  # the parts of a step
    "save",  # a checkpoint, or the model at the end
    "stopped",  # ended before the last step because it was asked to; a checkpoint was made
    "done",  # ended after the last step, all of its files written
    "failed",  # ended by a fault that another start would meet again; `exit_code` is this program's
)

GO_LIMIT_S = 24 * 3600.0
"""How long to wait for `go`: beyond any budget of a gate. It ends a process whose supervisor has vanished."""


@dataclass(frozen=True)
class Beat:
    """Where training is."""

    phase: str
    """One of PHASES."""

    step: int
    """Optimizer steps completed."""

    max_steps: int
    """Steps that the run is to make; 0 while that is not known."""

    at: float
    """`time.monotonic()` when the phase began."""

    exit_code: int | None = None
    """For "failed": what this process ends with; accelerate above it ends with 1 whatever happens."""

    message: str = ""
    """For "failed": what went wrong, one problem a line."""


class Heart:
    """The training process's side. Without a folder nobody supervises: go at once, never stop, and tell nobody."""

    def __init__(
        self,
        folder: Path | None,
        *,
        writes: bool = True,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.folder = folder
        self.writes = writes
        self._now = now
        self._sleep = sleep
        self._step = 0
        self._max_steps = 0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Heart:
        """The folder named in the environment; of several ranks the first one writes."""
        folder = environment.get(FOLDER)
        return cls(Path(folder) if folder else None, writes=environment.get("RANK", "0") == "0")

    @property
    def supervised(self) -> bool:
        return self.folder is not None

    def beat(self, phase: str, step: int | None = None, max_steps: int | None = None) -> None:
        """`phase` begins. Steps that are not given stay as they were."""
        if phase not in PHASES:
            raise ValueError(f"no such phase: {phase}")
        self._step = self._step if step is None else step
        self._max_steps = self._max_steps if max_steps is None else max_steps
        self._write(Beat(phase, self._step, self._max_steps, self._now()))

    def fail(self, exit_code: int, message: str) -> None:
        """This process is about to end with `exit_code`, and starting it again would not help. Any rank may say so."""
        self._write(Beat("failed", self._step, self._max_steps, self._now(), exit_code, message))

    def wait_for_go(self, poll_s: float = 0.1, limit_s: float = GO_LIMIT_S) -> bool:
        """True once the server may be touched, False when the run is to stop first; raises NotReadyError after
        `limit_s`."""
        if self.folder is None:
            return True
        until = self._now() + limit_s
        while not (self.folder / "go").exists():
            if self.stop_asked():
                return False
            if self._now() >= until:
                raise NotReadyError(
                    f"supervisor: no word for {limit_s:.0f} s that the server is ready, and it should have given up "
                    "by then; start the run again"
                )
            self._sleep(poll_s)
        return True

    def stop_asked(self) -> bool:
        """Whether the supervisor wants the run to end at the end of this step."""
        return self.folder is not None and (self.folder / "stop").exists()

    def _write(self, beat: Beat) -> None:
        if self.folder is None or not (self.writes or beat.phase == "failed"):
            return
        draft = self.folder / f"beat.{os.getpid()}.tmp"
        draft.write_text(json.dumps(asdict(beat)), encoding="utf-8")
        draft.replace(self.folder / "beat.json")


def read(folder: Path) -> Beat | None:
    """The newest beat; None before the first one."""
    try:
        text = (folder / "beat.json").read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    return Beat(**json.loads(text))


def go(folder: Path) -> None:
    """Let training touch the server and the GPU."""
    (folder / "go").touch()


def ask_to_stop(folder: Path) -> None:
    """Have training end at the end of its step, with a checkpoint."""
    (folder / "stop").touch()
