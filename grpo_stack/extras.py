"""Which packages the training arguments call for beyond the locked set. transformers and TRL ask for them late, some only when
the optimizer is made, and each in its own words.

Names of optimizers: transformers 5.24, training_args.py, `OptimizerNames`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

OPTIMIZERS = (
    ("galore", "galore_torch"),
    ("apollo", "apollo_torch"),
    ("adalomo|lomo", "lomo_optim"),
    ("grokadamw", "grokadamw"),
    ("schedule_free", "schedulefree"),
    ("adamw_anyprecision", "torchdistx"),
    ("stable_adamw", "optimi"),
    ("adamw_torch_[48]bit", "torchao"),
    ("adamw_8bit|adamw_bnb|paged_|lion_|ademamix|rmsprop_bnb", "bitsandbytes"),
)
"""What the name of an optimizer begins with, and the module that has it; the first that fits counts."""

TRACKERS = (
    "clearml",
    "codecarbon",
    "comet_ml",
    "dvclive",
    "mlflow",
    "neptune",
    "swanlab",
    "tensorboard",
    "trackio",
    "wandb",
)
"""Names of `report_to` whose module is called the same."""


def missing(
    *,
    optimizer: str,
    report_to: Sequence[str] = (),
    liger: bool = False,
    adapters: bool = False,
    quantized: bool = False,
    has: Callable[[str], bool],
) -> list[str]:
    """A line for each option that needs a module which is not there; `has` says whether a module is."""
    wanted = [(f"--optim {optimizer}", module) for pattern, module in OPTIMIZERS if re.match(pattern, optimizer)][:1]
    wanted += [(f"--report_to {tracker}", tracker) for tracker in report_to if tracker in TRACKERS]
    for asked, option, module in (
        (liger, "--use_liger_kernel", "liger_kernel"),
        (adapters, "--use_peft", "peft"),
        (quantized, "--load_in_4bit or --load_in_8bit", "bitsandbytes"),
    ):
        if asked:
            wanted.append((option, module))
    return [
        f"arguments: {option} needs the Python module {module}, which is not installed here; leave the option out, or build "
        "the images with it (docs/images.md)"
        for option, module in wanted
        if not has(module)
    ]
