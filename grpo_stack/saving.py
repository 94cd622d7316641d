"""How TRL's trainer saves: aside, complete or not at all, and with the generation that it is in the middle of.

Rests on transformers 5.24 and TRL 1.13 to 1.16: `Trainer._save_checkpoint` writes to `_get_output_dir()`/checkpoint-N,
and afterwards removes old checkpoints of that same folder, of which it sees none here. The best checkpoint of an
evaluation would be looked for there too, but this stack's runs have no evaluation dataset. After its last use,
a `GRPOTrainer` in the middle of a generation has `_buffered_inputs`, and takes part `_step` of it next.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from grpo_stack import checkpoints, space
from grpo_stack.heartbeat import Heart

GENERATION = "generation_{rank}.pt"
"""What a rank still has to train on of the last generation: `inputs`, TRL's buffer, and `step`, the next part of it."""


class Saver:
    """Takes the place of a trainer's `_save_checkpoint`, on every rank."""

    def __init__(self, trainer: Any, heart: Heart) -> None:
        self.trainer = trainer
        self.heart = heart
        self.origin: str | None = trainer.args.resume_from_checkpoint
        self.output = Path(trainer.args.output_dir)
        self._save = trainer._save_checkpoint

    def __call__(self, model: Any, trial: Any) -> None:
        """Write the checkpoint of this step; raises NoSpaceError, on the rank that met it, with nothing left behind."""
        self.heart.beat("save")
        name = f"checkpoint-{self.trainer.state.global_step}"
        aside = self.output / checkpoints.ASIDE
        with space.guarding(name, self.output, undo=lambda: _remove(aside), need=self._need):
            aside.mkdir(parents=True, exist_ok=True)
            self._write(model, trial, aside / name)
            # The others do not wait for a rank that failed: it ends, and its launcher ends them.
            self.trainer.accelerator.wait_for_everyone()
            if self.trainer.args.should_save:
                checkpoints.publish(aside / name, self.output / name, self.origin)
                checkpoints.rotate(self.output, self.trainer.args.save_total_limit, self.trainer.state.global_step)
                _remove(aside)
        self.trainer.accelerator.wait_for_everyone()
        if self.trainer.args.push_to_hub:
            self.trainer._push_from_checkpoint(str(self.output / name))
        self.heart.beat("optimize")

    def model(self) -> Path:
        """Write the model as it is now to `model/`, in the place of an earlier one; returns the folder."""
        self.heart.beat("save")
        aside = self.output / checkpoints.ASIDE
        with space.guarding("the model", self.output, undo=lambda: _remove(aside)):
            aside.mkdir(parents=True, exist_ok=True)
            self.trainer.save_model(str(aside / "model"))
            self.trainer.accelerator.wait_for_everyone()
            if self.trainer.args.should_save:
                checkpoints.swap(aside / "model", self.output / "model")
                _remove(aside)
        return self.output / "model"

    def _write(self, model: Any, trial: Any, folder: Path) -> None:
        trainer = self.trainer
        # On the instance, so that deleting them brings the methods of its class back.
        trainer._get_output_dir = lambda trial: str(folder.parent)
        trainer._push_from_checkpoint = lambda folder: None
        try:
            self._save(model, trial)
        finally:
            del trainer._get_output_dir, trainer._push_from_checkpoint
        step = trainer._step % period(trainer)
        if step:
            import torch

            file = folder / GENERATION.format(rank=trainer.args.process_index)
            torch.save({"step": step, "inputs": trainer._buffered_inputs}, file)

    def _need(self) -> int:
        """Bytes of a checkpoint: those of the last one; before that, weights and optimizer states on this rank."""
        last = checkpoints.newest(self.output, lambda line: None)
        if last is not None:
            return checkpoints.size(last)
        states = [value for state in self.trainer.optimizer.state.values() for value in state.values()]
        return sum(int(getattr(value, "nbytes", 0)) for value in [*self.trainer.model.parameters(), *states])


def period(trainer: Any) -> int:
    """Micro-steps that TRL makes of one generation."""
    return int(trainer.args.steps_per_generation * trainer.num_iterations)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
