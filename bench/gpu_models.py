"""Models with random bfloat16 weights in the shapes of Qwen2.5-0.5B and Qwen2.5-7B, for measurements on a GPU.

    python bench/gpu_models.py FOLDER                   writes FOLDER/half and FOLDER/seven, 1 and 15 GB
    python bench/gpu_models.py FOLDER --noise           and says what bfloat16 alone does to each one's log-probs
    python bench/gpu_models.py FOLDER RESULTS --noise   and keeps that in RESULTS/models.json

Needs torch and transformers, and a GPU; for RESULTS also vLLM and TRL, whose versions it names. The same weights each time on the
same kind of GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpu_watch import Gpu, save

from grpo_stack import demo

SHAPES: dict[str, dict[str, Any]] = {
    "half": {
        "vocab_size": 151936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "seven": {
        "vocab_size": 152064,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "tie_word_embeddings": False,
    },
}


def write(name: str, folder: Path) -> Qwen2ForCausalLM:
    """Make the model on the GPU, and write it with its tokenizer."""
    single = len(demo.SPECIAL) + len(demo.ALPHABET)
    made = demo.tokenizer(f"w{number}" for number in range(single, SHAPES[name]["vocab_size"]))
    ends = {"pad_token_id": made.pad_token_id, "bos_token_id": None, "eos_token_id": made.eos_token_id}
    config = Qwen2Config(**SHAPES[name], **ends, max_position_embeddings=32768, dtype="bfloat16")
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Qwen2ForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder)
    made.save_pretrained(folder)
    return model


@torch.no_grad()
def noise(model: Qwen2ForCausalLM) -> float:
    """Mean difference between log-probs in bfloat16 and in float32, of the same weights and of tokens that it samples."""

    def logps(tokens: torch.Tensor) -> torch.Tensor:
        every = torch.log_softmax(model(tokens).logits.float()[:, :-1], dim=-1)
        return every.gather(-1, tokens[:, 1:, None])[..., 0]

    tokens = model.generate(torch.randint(4, 40, (4, 32), device="cuda"), max_new_tokens=64, do_sample=True)
    low = logps(tokens)[:, 32:]
    model.float()
    return (logps(tokens)[:, 32:] - low).abs().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("results", type=Path, nargs="?")
    parser.add_argument("--only", choices=SHAPES)
    parser.add_argument("--noise", action="store_true")
    given = parser.parse_args()
    made: list[dict[str, Any]] = []
    for name in [given.only] if given.only else SHAPES:
        began = time.monotonic()
        model = write(name, given.folder / name)
        said = {"model": name, "parameters": model.num_parameters(), "seconds": round(time.monotonic() - began, 1)}
        if given.noise:
            said["log-prob difference of bfloat16 and float32"] = noise(model)
        print(json.dumps(said), flush=True)
        made.append(said)
        del model
        torch.cuda.empty_cache()
    if given.results:
        save(given.results, "models", {**Gpu().machine(), "models": made})


if __name__ == "__main__":
    main()
