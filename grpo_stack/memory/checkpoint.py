"""What training writes: how large a checkpoint and the trained model are together."""

from __future__ import annotations

from grpo_stack.facts import ModelConfig
from grpo_stack.memory.shares import DTYPE_BYTES
from grpo_stack.memory.trainer import SHARDED, Training, moments, sharding, trained

WEIGHTS_WRITTEN = {"none": 2, "ddp": 2, "fsdp2": 3, "zero2": 3, "zero3": 3}
"""How often the trained weights are on disk: in the checkpoint as transformers saves a model, once more in what the framework
goes on from (pytorch_model_fsdp.bin; DeepSpeed's model states), and as the trained model."""


def written_bytes(config: ModelConfig, training: Training) -> int:
    """Bytes of one checkpoint and the trained model; adapters alone are written where they alone are trained.

    Of what is written in 16 bits under ZeRO the optimizer has a float32 master. FSDP2's file names a tied head beside the
    embedding and holds it a second time, even where neither is trained (torch, distributed/checkpoint/state_dict.py: frozen
    parameters are taken out under the first of their names).
    """
    kind, count = sharding(training), trained(config, training)
    own = 4 if training.lora or kind == "fsdp2" else DTYPE_BYTES[training.dtype]
    master = 4 if kind in ("zero2", "zero3") else 0
    keeps = 4 if kind in SHARDED else own
    head = config.vocab_size * config.hidden_size if kind == "fsdp2" and config.tie_word_embeddings else 0
    head_bytes = head * (DTYPE_BYTES[training.dtype] if training.lora else 4)
    return round((WEIGHTS_WRITTEN[kind] * own + master) * count + head_bytes + moments(config, training, count, keeps))
