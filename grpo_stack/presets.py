"""The descriptions that come with the project; `compose/NAME/` holds each one written out."""

from __future__ import annotations

from typing import Any

from grpo_stack.errors import DescriptionError

DEMO_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"

GPU: dict[str, Any] = {"model": "${MODEL:-Qwen/Qwen2.5-7B}", "run": "${RUN:-run}"}

DEFAULT = "4-4"

PRESETS: dict[str, dict[str, Any]] = {
    **{split.replace(":", "-"): {**GPU, "split": split} for split in ("4:4", "2:6", "1:7", "2:2", "1:3", "1:1")},
    "shared": {"model": "${MODEL:-Qwen/Qwen2.5-0.5B}", "run": "${RUN:-run}", "split": "shared"},
    "colocate": {"model": "${MODEL:-Qwen/Qwen2.5-0.5B}", "run": "${RUN:-run}", "split": "colocate"},
    "cpu": {
        "model": DEMO_MODEL,
        "run": "${RUN:-run}",
        "accelerator": "cpu",
        "data": {"dataset": "two-digit-sums", "rewards": ["two_digit_sum_reward"], "max_prompt_length": 128},
        "server": {"max_model_len": 256, "boot_timeout_s": 600},
        "trainer": {
            "args": {
                "max_steps": 25,
                "learning_rate": 2e-5,
                "lr_scheduler_type": "constant",
                "num_generations": 8,
                "per_device_train_batch_size": 16,
                "max_completion_length": 16,
                "save_steps": 10,
            }
        },
    },
}


def find(name: str) -> dict[str, Any]:
    """The description called `name`; DescriptionError, naming the known ones, if there is none."""
    if name not in PRESETS:
        raise DescriptionError(f"--preset: there is none called {name!r}; known: {', '.join(PRESETS)}")
    return PRESETS[name]
