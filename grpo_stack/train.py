"""The training program: `python -m grpo_stack.train`, GRPO with TRL against a vLLM server.

Every field of TRL's `GRPOConfig` and `ModelConfig` works, from the command line or from `--config FILE.yaml`. Beside
what TRL does, it says what is wrong with the input in one line, goes on from the newest checkpoint in the output
folder, and leaves `metrics.jsonl`, `model/` and `summary.txt` there.
"""

from __future__ import annotations

import difflib
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_stack import dataset as prompts
from grpo_stack import hub, metrics, rewards
from grpo_stack.errors import DescriptionError, GrpoStackError, NotReadyError

MEMORY_FRACTION = "GRPO_STACK_GPU_MEMORY_FRACTION"
"""Share of the GPU that this process may allocate; set where a server lives on the same one."""


@dataclass
class RunArguments:
    """What to train on and for."""

    dataset: str = field(
        default=prompts.DEFAULT,
        metadata={
            "aliases": ["--dataset_name"],
            "help": "Hub id, a .jsonl, .json or .parquet file with a column `prompt`, or two-digit-sums.",
        },
    )
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of a Hub dataset."})
    dataset_split: str = field(
        default="train", metadata={"aliases": ["--dataset_train_split"], "help": "Split to train on."}
    )
    dataset_revision: str | None = field(default=None, metadata={"help": "Commit, tag or branch of a Hub dataset."})
    rewards: list[str] = field(
        default_factory=lambda: ["accuracy_reward"],
        metadata={
            "aliases": ["--reward_funcs"],
            "help": "Names from trl.rewards or import paths (package.module:function), weighed by --reward_weights.",
        },
    )


def defaults(cuda: bool) -> dict[str, Any]:
    """Where a user of this stack expects something else than TRL's default. What the user gives always wins.

    Only how a run is carried out is set here, never how it learns.
    """
    chosen: dict[str, Any] = {
        "use_vllm": True,  # the stack exists for its server
        "vllm_mode": "server",
        "logging_steps": 1,  # a line in metrics.jsonl for every step
        "report_to": "none",  # the trainer's network has no way out
        "save_steps": 100,  # what a crash can cost at most; TRL's 500 can be hours
        "save_total_limit": 2,  # a checkpoint of a 7B model with its optimizer is some 90 GB
        "disable_tqdm": not sys.stderr.isatty(),  # a bar is noise in a log file; each step prints a line anyway
    }
    if not cuda:
        chosen |= {
            "use_cpu": True,
            "bf16": False,  # on by default in TRL; here it would only make trainer and sampler differ
            "gradient_checkpointing": False,  # memory is not what is scarce
            "dataloader_pin_memory": False,
        }
    return chosen


def parse(arguments: list[str] | None, cuda: bool) -> tuple[RunArguments, Any, Any]:
    """Command line and `--config` file → what to train on, `GRPOConfig`, `ModelConfig`; raises DescriptionError."""
    import yaml
    from trl import GRPOConfig, ModelConfig, TrlParser

    class OneLineParser(TrlParser):
        def error(self, message: str) -> Any:
            """argparse would print some 400 lines of usage first."""
            raise DescriptionError(f"arguments: {message}; all of them: python -m grpo_stack.train --help")

    parser = OneLineParser((RunArguments, GRPOConfig, ModelConfig), prog="python -m grpo_stack.train")
    parser.set_defaults_with_config(**defaults(cuda))
    known = ["--config", *(option for action in parser._actions for option in action.option_strings)]
    given = sys.argv[1:] if arguments is None else arguments
    if problems := _unknown_options(given, known):
        raise DescriptionError(problems)
    try:
        run, training, model = parser.parse_args_and_config(args=arguments)
    except (ValueError, OSError, yaml.YAMLError) as error:
        raise DescriptionError(f"arguments: {' '.join(str(error).split())}") from error
    if not model.model_name_or_path:
        raise DescriptionError("arguments: --model_name_or_path is missing; give a Hub id or a folder")
    return run, training, model


def _unknown_options(given: list[str], known: list[str]) -> list[str]:
    """A line for each option that does not exist, with the nearest that does."""
    problems = []
    for option in (word.partition("=")[0] for word in given):
        if option.startswith("--") and option not in known:
            near = difflib.get_close_matches(option, known, n=1)
            problems.append(f"arguments: {option}: unknown option" + (f"; did you mean {near[0]}?" if near else ""))
    return problems


def newest_checkpoint(output_dir: str) -> str | None:
    """The checkpoint to go on from: the one of the highest step in the output folder, if there is one."""
    from transformers.trainer_utils import get_last_checkpoint

    found: str | None = get_last_checkpoint(output_dir) if Path(output_dir).is_dir() else None
    return found


def build_trainer(run: RunArguments, training: Any, model: Any, clock: metrics.StepClock) -> Any:
    """TRL's trainer, its weight pushes, generation and rewards timed by `clock`."""
    import requests
    import transformers
    from trl import GRPOTrainer, get_peft_config, get_quantization_config

    from grpo_stack.callback import MetricsCallback

    functions = rewards.resolve(run.rewards)
    if training.reward_weights and len(training.reward_weights) != len(functions):
        raise DescriptionError(
            f"arguments: {len(training.reward_weights)} --reward_weights for {len(functions)} rewards; "
            "give one for each"
        )
    _require_model(training, model)
    rows = prompts.load(prompts.Source(run.dataset, run.dataset_config, run.dataset_split, run.dataset_revision))
    if problems := rewards.missing_columns(functions, rows.column_names):
        raise DescriptionError(problems)
    training.model_init_kwargs = {
        "revision": model.model_revision,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        **(training.model_init_kwargs or {}),
    }
    try:
        trainer = GRPOTrainer(
            model=model.model_name_or_path,
            reward_funcs=functions,
            args=training,
            train_dataset=rows,
            quantization_config=get_quantization_config(model),
            peft_config=get_peft_config(model),
        )
    except requests.ConnectionError as error:
        raise NotReadyError(f"vLLM: {' '.join(str(error).split())}") from error
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.add_callback(MetricsCallback(clock, metrics.MetricsFile(Path(training.output_dir))))
    trainer._calculate_rewards = clock.timed("reward", trainer._calculate_rewards)
    if training.use_vllm:
        generation = trainer.vllm_generation
        push = generation.sync_weights
        if training.vllm_mode == "server" and not training.use_cpu:
            from grpo_stack.transfer import nccl

            push = nccl.releasing(push)
        generation.sync_weights = clock.timed("push", push)
        generation.generate = clock.timed("generate", generation.generate)
        clock.push_bytes = lambda: metrics.bytes_of(generation._weight_metadata)
    return trainer


def _require_model(training: Any, model: Any) -> None:
    """Raise the one line that says what is wrong with the model, before anything large is loaded."""
    from transformers import AutoConfig

    name = model.model_name_or_path
    if name.startswith(("/", "./", "../", "~")) and not Path(name).is_dir():
        raise DescriptionError(f"model: {name}: no such folder; give an existing one or the id of a Hub model")
    remote = {"revision": model.model_revision, "trust_remote_code": training.trust_remote_code}
    hub.asking("model", name, model.model_revision, lambda: AutoConfig.from_pretrained(name, **remote))


def train(arguments: list[str] | None = None) -> None:
    """Train, save, and say what came of it."""
    import torch

    cuda = torch.cuda.is_available()
    if cuda and (share := os.environ.get(MEMORY_FRACTION)):
        torch.cuda.set_per_process_memory_fraction(float(share))
    what, training, model = parse(arguments, cuda)
    if not cuda:
        # Without CUDA there is no NCCL to push with; TRL's client needs its other half of the server's gloo backend.
        from grpo_stack.transfer import client

        client.install()
    started = time.monotonic()
    trainer = build_trainer(what, training, model, metrics.StepClock())
    checkpoint = training.resume_from_checkpoint or newest_checkpoint(training.output_dir)
    if checkpoint:
        print(f"resuming from {checkpoint}", flush=True)
    trainer.train(resume_from_checkpoint=checkpoint)
    output = Path(training.output_dir)
    trainer.save_model(str(output / "model"))
    if trainer.accelerator.is_main_process:
        places = {"metrics": output / metrics.FILE, "model": output / "model"}
        page = metrics.summary(metrics.read(output / metrics.FILE), time.monotonic() - started, places)
        (output / "summary.txt").write_text(page, encoding="utf-8")
        print(f"\n{page}", end="", flush=True)
    trainer.accelerator.end_training()


def main(arguments: list[str] | None = None) -> int:
    """Run and return the exit code; a fault that the user can mend is said in a line each, without a traceback."""
    try:
        train(arguments)
    except GrpoStackError as error:
        if int(os.environ.get("RANK", "0")) == 0:  # every rank finds the same fault
            print("\n".join(error.problems), file=sys.stderr, flush=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
