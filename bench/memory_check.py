"""Compare the formulas of grpo_stack.memory and grpo_stack.parallelism with what vLLM and torch really do.

    python bench/memory_check.py rules  CONFIG…   vLLM's own model classes on 1 to 8 pretended ranks: does it accept them,
                                                  and how many parameters has a rank? Needs no GPU.
    python bench/memory_check.py layer  CONFIG…   what autograd keeps for a token in one layer. Needs no GPU.
    python bench/memory_check.py server CONFIG    start `vllm serve` with random weights, and read its log. Needs a GPU.
    python bench/memory_check.py trainer CONFIG   forward, backward and AdamW, and torch's peak. Needs a GPU.

CONFIG is a config.json, as in tests/data/configs. Run it inside the trainer image, from the checkout. `rules` and `layer`
have been run on the CPU set (vLLM 0.28, transformers 5.24); `server` and `trainer` have not been run on a GPU yet.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from grpo_stack import model_config, parallelism
from grpo_stack.memory import server, tensors, trainer

GIB = 2**30
SIZES = (1, 2, 3, 4, 6, 7, 8)
START_S = 900


class Group:
    """Stands for a process group of `size` ranks, of which this process is the first."""

    def __init__(self, size: int) -> None:
        self.world_size, self.rank_in_group, self.rank, self.local_rank = size, 0, 0, 0
        self.ranks, self.unique_name = list(range(size)), "pretended"
        self.is_first_rank = self.is_last_rank = True
        self.device_group, self.cpu_group, self.device_communicator = PretendedRanks(size), None, None


class PretendedRanks:
    """The part of torch's ProcessGroup that vLLM's constructors look at."""

    def __init__(self, count: int) -> None:
        self.count = count

    def size(self) -> int:
        return self.count

    def rank(self) -> int:
        return 0


def shortened(file: Path, folder: Path) -> dict[str, Any]:
    """The config with as few layers as still hold each kind, written to `folder`."""
    raw: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if "text_config" in raw:
        raw = {**raw["text_config"], "architectures": ["Gemma3ForCausalLM"]}
    for key in ("layer_types", "quantization_config"):
        raw.pop(key, None)
    raw |= {"num_hidden_layers": (raw.get("first_k_dense_replace") or 0) + 1, "torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    return raw


def vllm_parameters(folder: Path, size: int) -> int:
    """Parameters of vLLM's model on one of `size` ranks, on the meta device; raises what vLLM raises."""
    import torch
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, ParallelConfig, VllmConfig, set_current_vllm_config
    from vllm.distributed import parallel_state
    from vllm.model_executor.model_loader.utils import get_model_architecture

    for name in ("_TP", "_DCP", "_EP"):
        setattr(parallel_state, name, Group(size))
    for name in ("_PP", "_DP", "_PCP", "_WORLD", "_EPLB"):
        setattr(parallel_state, name, Group(1))
    model = ModelConfig(
        model=str(folder), tokenizer=str(folder), skip_tokenizer_init=True, dtype="bfloat16", enforce_eager=True
    )
    pretended = ParallelConfig()
    pretended.tensor_parallel_size = size
    model.verify_with_parallel_config(pretended)
    whole = VllmConfig(
        model_config=model,
        parallel_config=ParallelConfig(),
        cache_config=CacheConfig(),
        device_config=DeviceConfig("cpu"),
    )
    whole.parallel_config.tensor_parallel_size = size
    kind, _ = get_model_architecture(model)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with set_current_vllm_config(whole), torch.device("meta"):
            built = kind(vllm_config=whole)
    finally:
        torch.set_default_dtype(torch.float32)
    return sum(parameter.numel() for parameter in built.parameters())


def rules(file: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        config = model_config.parse(shortened(file, Path(name)))
        for size in SIZES:
            layout = parallelism.check(config, size)
            ours = not layout.problems and layout.data_parallel == 1
            try:
                theirs = vllm_parameters(Path(name), size)
            except Exception as error:
                print(f"{file.stem} {size}: vLLM refuses ({str(error)[:80]}), we {'ACCEPT' if ours else 'refuse'}")
                continue
            held = sum(tensors.per_gpu(part, config, size, size) * part.layers for part in tensors.of(config))
            print(
                f"{file.stem} {size}: vLLM accepts, we {'accept' if ours else 'REFUSE'}; parameters {held - theirs:+d}"
            )


def layer(file: Path, tokens: int = 256) -> None:
    """The difference between two layers and one, of a model a quarter as wide, in bytes for each token."""
    raw: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    small = narrowed(raw)
    kept = [_kept(small | {"num_hidden_layers": count}, tokens) for count in (1, 2)]
    formula = trainer._layer_bytes(model_config.parse(small), tokens)
    print(f"{file.stem}: {(kept[1] - kept[0]) / tokens:.0f} bytes kept for each token, {formula} by the formula")


def narrowed(raw: dict[str, Any]) -> dict[str, Any]:
    keys = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "moe_intermediate_size")
    narrow = {key: max(1, raw[key] // 4) for key in keys if raw.get(key)}
    head = raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"]
    return {**raw, **narrow, "head_dim": head, "vocab_size": 64}


def _kept(raw: dict[str, Any], tokens: int) -> int:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "config.json").write_text(json.dumps(raw), encoding="utf-8")
        config = AutoConfig.from_pretrained(name)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).train()
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    found: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            found[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.base_model(input_ids=torch.zeros(1, tokens, dtype=torch.long), use_cache=False)
    return sum(storage.nbytes() for storage in found.values())


LOGGED = {
    "weights": r"Model loading took ([\d.]+) GiB",
    "CUDA graphs": r"Graph capturing finished in .* took ([\d.]+) GiB",
    "activations": r"([\d.]+) GiB for peak activation",
    "KV cache": r"Available KV cache memory: ([\d.]+) GiB",
    "tokens": r"GPU KV cache size: ([\d,]+) tokens",
}
"""Lines of vLLM 0.28's log, and the share each one is compared with."""


def serve(file: Path, length: int, size: int) -> None:
    import torch

    config = model_config.parse(json.loads(file.read_text(encoding="utf-8")))
    capacity = torch.cuda.get_device_properties(0).total_memory / GIB
    side = server.estimate(config, capacity, server.Serving(length, size))
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "config.json").write_bytes(file.read_bytes())
        log = _log(name, length, size, side.utilization or 0.9)
    ours = {share.label: share.gib for share in side.shares} | {"tokens": float(side.kv.tokens if side.kv else 0)}
    for label, pattern in LOGGED.items():
        found = re.search(pattern, log)
        print(f"{label}: vLLM {found.group(1) if found else 'said nothing'}, we {ours[label]:.2f}")


def _log(folder: str, length: int, size: int, utilization: float) -> str:
    """What vLLM writes until it is ready, or until START_S have passed."""
    words = ["vllm", "serve", folder, "--load-format", "dummy", "--skip-tokenizer-init", "--max-model-len", str(length)]
    words += ["--tensor-parallel-size", str(size), "--gpu-memory-utilization", f"{utilization:.2f}", "--port", "18000"]
    words += ["--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1"]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines, end = [], time.monotonic() + START_S
    try:
        for line in child.stdout or ():
            lines.append(line)
            if "Application startup complete" in line or time.monotonic() > end:
                break
    finally:
        child.terminate()
        child.wait(timeout=60)
    return "".join(lines)


def train(file: Path, length: int, batch: int) -> None:
    """One process: weights, gradients, AdamW and a micro-batch with gradient checkpointing; no weight is sent."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from trl.trainer.utils import add_fused_lm_head

    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "config.json").write_bytes(file.read_bytes())
        config = AutoConfig.from_pretrained(name)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    tokens = torch.randint(0, config.get_text_config().vocab_size, (batch, length), device="cuda")
    for _ in range(2):  # the second one starts with the optimizer's state in place
        with torch.autocast("cuda", dtype=torch.bfloat16):
            model(input_ids=tokens, labels=tokens, fused_lm_head=True).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    wanted = trainer.Training(1, length, per_device_batch=batch)
    side = trainer.estimate(model_config.parse(json.loads(file.read_text(encoding="utf-8"))), 1.0, wanted)
    ours = sum(share.gib for share in side.shares if share.label not in ("CUDA and NCCL", "reserve", "weight push"))
    print(f"peak: torch {torch.cuda.max_memory_allocated() / GIB:.2f} GiB, we {ours:.2f} GiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["rules", "layer", "server", "trainer"])
    parser.add_argument("configs", nargs="+", type=Path, metavar="CONFIG")
    parser.add_argument("--length", type=int, default=4096, help="tokens of prompt and completion (4096)")
    parser.add_argument("--batch", type=int, default=1, help="per-device batch of the trainer (1)")
    parser.add_argument("--tensor-parallel", type=int, default=1, help="GPUs of the server (1)")
    options = parser.parse_args()
    for file in options.configs:
        if options.what == "rules":
            rules(file)
        elif options.what == "layer":
            layer(file)
        elif options.what == "server":
            serve(file, options.length, options.tensor_parallel)
        else:
            train(file, options.length, options.batch)


if __name__ == "__main__":
    main()
