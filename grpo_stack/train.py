"""The training program: `python -m grpo_stack.train`, GRPO with TRL against a vLLM server.

Every field of TRL's `GRPOConfig` and `ModelConfig` works, from the command line or from `--config FILE.yaml`. Beside
what TRL does, it says what is wrong with the input in one line, goes on from the newest complete checkpoint in the output
folder, tells a supervisor where it is, and leaves `metrics.jsonl`, `model/` and `summary.txt` there.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo_stack import assembly, checkpoints, metrics, mismatch, resuming, run_arguments, space
from grpo_stack.errors import DescriptionError, GrpoStackError, NotReadyError, RunError
from grpo_stack.heartbeat import Heart
from grpo_stack.saving import Saver

MEMORY_FRACTION = "GRPO_STACK_GPU_MEMORY_FRACTION"
"""Share of the GPU that this process may allocate; set where a server lives on the same one."""


class UnreadableError(RunError):
    """The checkpoint cannot be loaded, and has been set aside: the next start takes the one before."""


def train(arguments: list[str] | None = None, heart: Heart | None = None) -> None:
    """Train, save, and say what came of it.

    All that can be done or found wrong without the server and the GPU comes before the supervisor's `go`: imports take
    most of a start, and vLLM, on a shared GPU, measures the memory that is free as it starts. The weights are not read
    ahead: where they go is decided by the device and by DeepSpeed or FSDP, and the server, which has just loaded the
    same files, has left them in the page cache.
    """
    heart = heart or Heart(None)
    heart.beat("start")
    import torch

    cuda = torch.cuda.is_available()  # asks the driver, and sets up nothing on a GPU
    inputs = assembly.prepare(*run_arguments.read(arguments, cuda))
    import trl.trainer.grpo_trainer  # noqa: F401 - brings vLLM's client with it; after what a mistake costs less

    heart.beat("waiting")
    if not heart.wait_for_go():
        heart.beat("stopped")
        return
    heart.beat("load")
    if cuda and (share := os.environ.get(MEMORY_FRACTION)):
        torch.cuda.set_per_process_memory_fraction(float(share))
    what, training, model = run_arguments.parse(arguments, cuda)
    if not cuda:
        # Without CUDA there is no NCCL to push with; TRL's client needs its other half of the server's gloo backend.
        from grpo_stack.transfer import client

        client.install()
    started = time.monotonic()
    trainer = assembly.build(inputs, training, model)
    trainer._save_checkpoint = saver = Saver(trainer, heart)
    reason = _run(trainer, what, model, heart)
    if reason is None:
        _finish(trainer, saver, time.monotonic() - started)
        heart.beat("done")
    elif trainer.accelerator.is_main_process:
        print(f"stopped after step {trainer.state.global_step}, with a checkpoint", flush=True)
    trainer.accelerator.end_training()
    if reason is not None and reason.startswith("mismatch:"):
        raise RunError(f"{reason}; stopped after step {trainer.state.global_step}, with a checkpoint")
    if reason is not None:
        heart.beat("stopped")


def _run(trainer: Any, what: run_arguments.RunArguments, model: Any, heart: Heart) -> str | None:
    """The steps, from the checkpoint to go on from if there is one; returns why they ended early, if they did."""
    from grpo_stack.callback import MetricsCallback, NothingLeftError, StopCallback

    output = Path(trainer.args.output_dir)
    main = trainer.accelerator.is_main_process
    clock = metrics.StepClock(on_phase=heart.beat)
    assembly.time_phases(trainer, clock)
    stops = what.mismatch == "stop"
    stopping = StopCallback(
        heart, _guard(what, trainer.args, model), stops, _agreeing(trainer, heart.supervised or stops)
    )
    trainer.add_callback(MetricsCallback(clock, metrics.MetricsFile(output)))
    trainer.add_callback(stopping)
    resuming.prepare(trainer, _say if main else _say_nothing)
    found = None
    if main:
        checkpoints.tidy(output)
        found = checkpoints.chosen(output, trainer.args.resume_from_checkpoint, _say)
        if found:
            _say(f"resuming from {found}")
    # The first rank's choice is everyone's: it may just have put one in its place.
    checkpoint = _agreeing(trainer, True)(str(found) if found else None)
    try:
        trainer.train(resume_from_checkpoint=checkpoint)
    except NothingLeftError:
        pass
    except Exception as error:
        if checkpoint is not None and not stopping.began:
            _explain(error, Path(checkpoint))
        raise
    return stopping.reason


def _explain(error: Exception, checkpoint: Path) -> None:
    """Raise what is to be said of a checkpoint that does not load, if anything is."""
    if resuming.is_unreadable(error):
        place = checkpoints.set_aside(checkpoint)
        raise UnreadableError(
            f"{checkpoint}: cannot be loaded ({_line(error)}); it is now {place.name}, and the next start takes the one before"
        ) from error
    if resuming.does_not_fit(error):
        raise DescriptionError(
            f"{checkpoint}: is not of this model ({_line(error)}); give another output folder, or the model it was made with"
        ) from error


def _guard(what: run_arguments.RunArguments, training: Any, model: Any) -> mismatch.Guard | None:
    if what.mismatch == "off":
        return None
    return mismatch.Guard(what.mismatch_limit or mismatch.limit_for(model.dtype, training.bf16 or training.fp16))


def _agreeing(trainer: Any, needed: bool) -> Callable[[str | None], str | None]:
    """What gives every rank the first one's value: one broadcast a call, none where it is not needed."""
    if not needed or trainer.accelerator.num_processes == 1:
        return lambda mine: mine

    def agree(mine: str | None) -> str | None:
        from accelerate.utils import broadcast_object_list

        shared = [mine]
        broadcast_object_list(shared, from_process=0)
        return shared[0]

    return agree


def _finish(trainer: Any, saver: Saver, seconds: float) -> None:
    """The model, and the page on the run."""
    folder = saver.model()
    if not trainer.accelerator.is_main_process:
        return
    output = folder.parent
    places = {"metrics": output / metrics.FILE, "model": folder}
    page = metrics.summary(metrics.read(output / metrics.FILE), seconds, places)
    with space.guarding("summary.txt", output):
        (output / "summary.txt").write_text(page, encoding="utf-8")
    print(f"\n{page}", end="", flush=True)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _say(line: str) -> None:
    print(line, flush=True)


def _say_nothing(line: str) -> None:
    """On the ranks beside the first."""


def main(arguments: list[str] | None = None) -> int:
    """Run and return the exit code; a fault that the user can mend is said in a line each, without a traceback."""
    heart = Heart.from_environment()
    try:
        train(arguments, heart)
    except GrpoStackError as error:
        # Every rank finds the same fault, except for a disk that is full, which only the one that writes does.
        if int(os.environ.get("RANK", "0")) == 0 or isinstance(error, space.NoSpaceError):
            print("\n".join(error.problems), file=sys.stderr, flush=True)
        # A server that was lost and a checkpoint that was set aside are what starting again mends.
        if not isinstance(error, (NotReadyError, UnreadableError)):
            heart.fail(error.exit_code, "\n".join(error.problems))
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
