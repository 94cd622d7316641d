"""Puts TRL's trainer together: first what needs no server and no GPU, then the trainer itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_stack import dataset as prompts
from grpo_stack import hub, metrics, rewards, training_options
from grpo_stack.errors import DescriptionError, NotReadyError
from grpo_stack.run_arguments import RunArguments


@dataclass(frozen=True)
class Inputs:
    """What a run needs beside the model, ready before anything is asked of a server or a GPU."""

    rewards: list[Any]
    rows: Any


def prepare(run: RunArguments, values: Any, model: Any) -> Inputs:
    """Resolve the rewards, check the model and load the prompts; `values` as `run_arguments.read` gives them."""
    functions = rewards.resolve(run.rewards)
    if values.reward_weights and len(values.reward_weights) != len(functions):
        raise DescriptionError(
            f"arguments: {len(values.reward_weights)} --reward_weights for {len(functions)} rewards; give one for each"
        )
    _require_model(values, model)
    rows = prompts.load(prompts.Source(run.dataset, run.dataset_config, run.dataset_split, run.dataset_revision))
    if problems := rewards.missing_columns(functions, rows.column_names):
        raise DescriptionError(problems)
    return Inputs(functions, rows)


def build(inputs: Inputs, training: Any, model: Any) -> Any:
    """TRL's trainer; its model is loaded, and it has joined the server."""
    import requests
    import transformers
    from trl import GRPOTrainer, get_peft_config, get_quantization_config

    training.model_init_kwargs = {
        "revision": model.model_revision,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        **(training.model_init_kwargs or {}),
    }
    try:
        trainer = GRPOTrainer(
            model=model.model_name_or_path,
            reward_funcs=inputs.rewards,
            args=training,
            train_dataset=inputs.rows,
            quantization_config=get_quantization_config(model),
            peft_config=get_peft_config(model),
        )
    except requests.ConnectionError as error:
        raise NotReadyError(f"vLLM: {' '.join(str(error).split())}") from error
    require_pushable(trainer)
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def require_pushable(trainer: Any) -> None:
    """DescriptionError if the model's weights are packed, by whichever option or configuration, and a server is to have them."""
    packed = [bits for bits in (4, 8) if getattr(trainer.model, f"is_loaded_in_{bits}bit", False)]
    if packed and trainer.args.use_vllm and trainer.args.vllm_mode == "server":
        raise DescriptionError(f"model: loaded in {packed[0]} bits; {training_options.WHY_NOT_PACKED}")


def time_phases(trainer: Any, clock: metrics.StepClock) -> None:
    """Have `clock` measure the trainer's weight pushes, generation and rewards."""
    trainer._calculate_rewards = clock.timed("reward", trainer._calculate_rewards)
    if not trainer.args.use_vllm:
        return
    generation = trainer.vllm_generation
    push = generation.sync_weights
    if trainer.args.vllm_mode == "server" and not trainer.args.use_cpu:
        from grpo_stack.transfer import nccl

        push = nccl.releasing(push)
    generation.sync_weights = clock.timed("push", push)
    generation.generate = clock.timed("generate", generation.generate)
    clock.push_bytes = lambda: metrics.bytes_of(generation._weight_metadata)


def _require_model(values: Any, model: Any) -> None:
    """Raise the one line that says what is wrong with the model, before anything large is loaded."""
    from transformers import AutoConfig

    name = model.model_name_or_path
    if name.startswith(("/", "./", "../", "~")) and not Path(name).is_dir():
        raise DescriptionError(f"model: {name}: no such folder; give an existing one or the id of a Hub model")
    remote = {"revision": model.model_revision, "trust_remote_code": values.trust_remote_code}
    hub.asking("model", name, model.model_revision, lambda: AutoConfig.from_pretrained(name, **remote))
