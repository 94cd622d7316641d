"""What the CPU demo and the tests train on: two-digit sums, and a tiny model with random weights.

python -m grpo_stack.demo sums FILE.jsonl
python -m grpo_stack.demo tiny-model FOLDER
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SUMS = "two-digit-sums"
"""Name under which the dataset needs no file and no network."""

MANNER = "Be brief."
"""In place of the 22 tokens that SmolLM2's chat template puts there: as good an answer for three quarters of the work."""

QUESTION = "What is {a} + {b}? Answer with the number only."

ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz +-=?.,:"
SPECIAL = ("<pad>", "<unk>", "<|im_start|>", "<|im_end|>")

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }} {{ message['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
)


def sums(count: int = 512, seed: int = 7) -> list[dict[str, Any]]:
    """`count` questions for the sum of two two-digit numbers, in TRL's conversational form, with the answer as text."""
    chance = random.Random(seed)
    rows = []
    for _ in range(count):
        a, b = chance.randint(10, 99), chance.randint(10, 99)
        prompt = [
            {"role": "system", "content": MANNER},
            {"role": "user", "content": QUESTION.format(a=a, b=b)},
        ]
        rows.append({"prompt": prompt, "solution": str(a + b)})
    return rows


def write_sums(path: Path) -> None:
    """Write the questions as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in sums()), encoding="utf-8")


def write_tiny_model(folder: Path, tied: bool = True, seed: int = 0) -> None:
    """Write a Llama of 0.36 million random float32 parameters with a tokenizer of one character a token.

    The head size is 64, the smallest that vLLM's CPU attention takes.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    characters = tokenizer()
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(characters),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        pad_token_id=characters.pad_token_id,
        bos_token_id=None,
        eos_token_id=characters.eos_token_id,
    )
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder)
    characters.save_pretrained(folder)
    for file in folder.iterdir():
        file.chmod(0o644)  # safetensors writes 0600, which the container's user could not read


def tokenizer(more: Iterable[str] = ()) -> Any:
    """A tokenizer of one token for each character of ALPHABET, with a chat template; `more` are tokens that no text becomes."""
    from tokenizers import Tokenizer, decoders, models, normalizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: number for number, token in enumerate((*SPECIAL, *ALPHABET, *more))}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    core.normalizer = normalizers.Lowercase()
    core.decoder = decoders.Fuse()
    made = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
    )
    made.chat_template = CHAT_TEMPLATE
    return made


def main(arguments: list[str] | None = None) -> int:
    """Write what the command line names; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m grpo_stack.demo", description=(__doc__ or "").splitlines()[0])
    what = parser.add_subparsers(dest="what", required=True)
    what.add_parser("sums", help="the questions, as JSON lines").add_argument("path", type=Path)
    tiny = what.add_parser("tiny-model", help="a model with random weights")
    tiny.add_argument("path", type=Path)
    tiny.add_argument("--untied", action="store_true", help="give lm_head weights of its own")
    given = parser.parse_args(arguments)
    if given.what == "sums":
        write_sums(given.path)
    else:
        write_tiny_model(given.path, tied=not given.untied)
    return 0


if __name__ == "__main__":
    sys.exit(main())
