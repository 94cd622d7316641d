"""What the training program takes: every field of TRL's `GRPOConfig` and `ModelConfig`, and what to train on.

From the command line or from `--config FILE.yaml`.
"""

from __future__ import annotations

import difflib
import importlib.util
import sys
from dataclasses import dataclass, field
from typing import Any

from grpo_stack import dataset as prompts
from grpo_stack import extras, mismatch
from grpo_stack.errors import DescriptionError


@dataclass
class RunArguments:
    """What to train on and for, and what to watch."""

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
    mismatch: str = field(
        default="warn",
        metadata={
            "help": "When the server samples from other weights than are trained: warn, stop (with a checkpoint) or off."
        },
    )
    mismatch_limit: float | None = field(
        default=None,
        metadata={
            "help": "Highest healthy sampling/sampling_logp_difference/mean; by default 0.001 in float32, else 0.1."
        },
    )

    def __post_init__(self) -> None:
        if self.mismatch in (False, "false", "False"):
            self.mismatch = "off"  # as YAML reads a bare `off`
        if self.mismatch not in mismatch.MODES:
            raise ValueError(f"--mismatch {self.mismatch}: give {', '.join(mismatch.MODES)}")
        if self.mismatch_limit is not None and not self.mismatch_limit > 0:
            raise ValueError(f"--mismatch_limit {self.mismatch_limit}: give a number above 0")


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
        "save_total_limit": 2,  # a checkpoint of a 7B model with its optimizer takes up to 120 GB
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
    """Command line and `--config` file → what to train on, `GRPOConfig`, `ModelConfig`; raises DescriptionError.

    A GRPOConfig sets up the process's device and its group as it is made: see `read` for before that.
    """
    from trl import GRPOConfig

    return _parse(arguments, cuda, GRPOConfig)


def read(arguments: list[str] | None, cuda: bool) -> tuple[RunArguments, Any, Any]:
    """As `parse`, with values in place of a GRPOConfig: names, types and choices are checked, no GPU is touched or
    asked for, and what one value means for another is left to `parse`."""
    from trl import GRPOConfig

    class Values(GRPOConfig):
        """transformers' `TrainingArguments.__post_init__` (5.24) takes the device, and refuses bf16 without a GPU."""

        def __post_init__(self) -> None: ...

    return _parse(arguments, cuda, Values)


def _parse(arguments: list[str] | None, cuda: bool, config: type) -> tuple[RunArguments, Any, Any]:
    import yaml
    from trl import ModelConfig, TrlParser

    class OneLineParser(TrlParser):
        def error(self, message: str) -> Any:
            """argparse would print some 400 lines of usage first."""
            raise DescriptionError(f"arguments: {message}; all of them: python -m grpo_stack.train --help")

    parser = OneLineParser((RunArguments, config, ModelConfig), prog="python -m grpo_stack.train")
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
    if problems := _missing_packages(training, model):
        raise DescriptionError(problems)
    return run, training, model


def _missing_packages(training: Any, model: Any) -> list[str]:
    trackers = training.report_to
    return extras.missing(
        optimizer=str(getattr(training.optim, "value", training.optim)),
        report_to=[trackers] if isinstance(trackers, str) else trackers or (),
        liger=training.use_liger_kernel,
        adapters=model.use_peft,
        quantized=model.load_in_4bit or model.load_in_8bit,
        has=lambda module: importlib.util.find_spec(module) is not None,
    )


def _unknown_options(given: list[str], known: list[str]) -> list[str]:
    """A line for each option that does not exist, with the nearest that does."""
    problems = []
    for option in (word.partition("=")[0] for word in given):
        if option.startswith("--") and option not in known:
            near = difflib.get_close_matches(option, known, n=1)
            problems.append(f"arguments: {option}: unknown option" + (f"; did you mean {near[0]}?" if near else ""))
    return problems
