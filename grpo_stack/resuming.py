"""How TRL's trainer goes on: with the prompts that come next, and the generation that it was in the middle of.

transformers (5.24) skips the batches of the current epoch that were trained on. Two things it leaves, TRL 1.13 to 1.16:
`RepeatSampler` draws a new order for each epoch from a generator that starts afresh with the process, so that a run
resumed in its second epoch would see the first one's order again; and `GRPOTrainer` counts its place in a generation
from 0, so that one resumed inside a generation would generate for prompts it has trained on, and out of step with the
dataset from then on. (TR-DPO's moving reference model, `sync_ref_model`, is in no checkpoint, and starts from the base.)
"""

from __future__ import annotations

import json
import math
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo_stack.saving import GENERATION, period

DOES_NOT_FIT = ("Error(s) in loading state_dict", "size mismatch", "doesn't match the size of optimizer's group")
"""What torch says of a checkpoint of another model."""


def prepare(trainer: Any, say: Callable[[str], None]) -> None:
    """Have `trainer` take up the order of the dataset and the generation as it loads a checkpoint."""
    samplers: list[Any] = []
    make, load = trainer._get_train_sampler, trainer._load_optimizer_and_scheduler

    def remembering(*arguments: Any, **named: Any) -> Any:
        samplers[:] = [make(*arguments, **named)]
        return samplers[0]

    def loading(checkpoint: str | None) -> None:
        load(checkpoint)
        if checkpoint is not None:
            place = _place(trainer, samplers[0])
            _pass_epochs(samplers[0], place[0])
            _restore_generation(trainer, Path(checkpoint), place[1], say)

    trainer._get_train_sampler = remembering
    trainer._load_optimizer_and_scheduler = loading


def is_unreadable(error: BaseException) -> bool:
    """Whether loading failed because of what is in the files, and not for want of memory or the like."""
    if isinstance(error, (pickle.UnpicklingError, EOFError, zipfile.BadZipFile, json.JSONDecodeError)):
        return True
    if type(error).__name__ == "SafetensorError" or "PytorchStreamReader" in str(error):
        return True
    return error.__cause__ is not None and is_unreadable(error.__cause__)


def does_not_fit(error: BaseException) -> bool:
    """Whether loading failed because the checkpoint is one of another model or optimizer."""
    return isinstance(error, (RuntimeError, ValueError)) and any(text in str(error) for text in DOES_NOT_FIT)


def _place(trainer: Any, sampler: Any) -> tuple[int, int]:
    """Whole epochs trained, and micro-steps into the generation, at the step that the state was loaded with."""
    accumulation = trainer.args.gradient_accumulation_steps
    rows = len(sampler) // trainer.args.generation_batch_size  # micro-steps of an epoch: whole generations
    updates = max(math.ceil(rows / accumulation), 1)
    epochs, within = divmod(trainer.state.global_step, updates)
    return epochs, within * accumulation % period(trainer)


def _pass_epochs(sampler: Any, epochs: int) -> None:
    """Draw the orders of past epochs, one at the start of each iteration."""
    for _ in range(epochs):
        next(iter(sampler), None)


def _restore_generation(trainer: Any, checkpoint: Path, step: int, say: Callable[[str], None]) -> None:
    trainer._step = step
    if step == 0:
        return
    ranks = range(trainer.args.world_size)
    files = [checkpoint / GENERATION.format(rank=rank) for rank in ranks]
    if all(file.exists() for file in files) and not (checkpoint / GENERATION.format(rank=len(ranks))).exists():
        import torch

        device = trainer.args.device
        place = (
            device if device.type != "cpu" else "cpu"
        )  # torch restores to no "cpu:0", as ranks on the CPU are called
        held = torch.load(files[trainer.args.process_index], map_location=place, weights_only=True)
        trainer._buffered_inputs = held["inputs"]
    else:
        say(
            f"{checkpoint.name}: lies inside a generation and does not hold it (TRL alone made it, or another number of "
            f"processes); the {period(trainer) - step} micro-steps left of it train on new completions"
        )
