"""The same training as plain TRL: what bench/gpu_figures.py compares the stack with. Started by `accelerate launch`.

python bench/by_hand.py MODEL OUTPUT URL PORT STEPS KEY=VALUE…
"""

from __future__ import annotations

import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from datasets import Dataset
from gpu_reward import digits
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from grpo_stack import demo

SPENT: dict[str, float] = {}


def timed(owner: Any, name: str, part: str) -> None:
    inner = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return inner(*args, **kwargs)
        finally:
            SPENT[part] = SPENT.get(part, 0.0) + time.perf_counter() - began

    setattr(owner, name, call)


class Steps(TrainerCallback):
    began = 0.0

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self.began = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        whole = time.perf_counter() - self.began
        parts = "  ".join(f"{name} {seconds:.4f}" for name, seconds in SPENT.items())
        print(f"step {state.global_step}/{state.max_steps}  {parts}  {whole:.4f} s", flush=True)
        SPENT.clear()


def wait_for(url: str) -> None:
    """On one GPU nothing may change its free memory while vLLM measures it, so this waits, as the stack's trainer does."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        try:
            with opener.open(f"{url}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.05)


def main() -> None:
    model, output, url, port, steps = sys.argv[1:6]
    given = dict(word.split("=", 1) for word in sys.argv[6:])
    import trl.trainer.grpo_trainer  # noqa: F401 - with vLLM's client, while the server loads

    print("at imported", flush=True)
    wait_for(url)
    torch.cuda.set_per_process_memory_fraction(0.6)
    config = GRPOConfig(
        output_dir=output,
        use_vllm=True,
        vllm_mode="server",
        vllm_server_base_url=url,
        vllm_group_port=int(port),
        max_steps=int(steps),
        num_generations=8,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=int(given["gradient_accumulation_steps"]),
        max_completion_length=int(given["max_completion_length"]),
        learning_rate=float(given["learning_rate"]),
        lr_scheduler_type="constant",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        model_init_kwargs={"dtype": "bfloat16"},
    )
    trainer = GRPOTrainer(model=model, reward_funcs=digits, args=config, train_dataset=Dataset.from_list(demo.sums()))
    print("at joined", flush=True)
    trainer.add_callback(Steps())
    timed(trainer.vllm_generation, "generate", "generate")
    timed(trainer.vllm_generation, "sync_weights", "push")
    trainer.train()


if __name__ == "__main__":
    main()
