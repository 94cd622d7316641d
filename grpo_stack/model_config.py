"""A model's `config.json`, as transformers writes it, read into the facts that sizes and splits depend on.

What a family always has and its config does not say (biases, normalizations, defaults of keys that are left out) stands
in FAMILIES; it was compared with the modules that transformers 5.24 builds for each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grpo_stack.facts import LatentAttention, ModelConfig

_LLAMA: dict[str, Any] = {"attention_output_bias": "attention_bias"}
_GEMMA = {"norms_per_layer": 4, "tie_word_embeddings": True}

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {**_LLAMA, "mlp_bias": "mlp_bias"},
    "mistral": {},
    "ministral": {},
    "mixtral": {"num_experts": 8, "num_experts_per_token": 2, "num_key_value_heads": 8},
    "qwen2": {"attention_bias": True},
    "qwen2_moe": {"attention_bias": "qkv_bias", "qkv_bias": True, "num_experts": 60, "num_experts_per_token": 4,
                  "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "shared_expert_gate": True},
    "qwen3": {**_LLAMA, "query_key_norm": "head", "head_dim": 128},
    "qwen3_moe": {**_LLAMA, "query_key_norm": "head", "num_experts": 128, "num_experts_per_token": 8,
                  "moe_intermediate_size": 768, "num_key_value_heads": 4},
    "gemma": {"tie_word_embeddings": True, "head_dim": 256},
    "gemma2": {**_LLAMA, **_GEMMA, "head_dim": 256, "alternating": 2, "sliding_window": 4096},
    "gemma3_text": {**_LLAMA, **_GEMMA, "query_key_norm": "head", "head_dim": 256, "num_attention_heads": 8,
                    "num_key_value_heads": 4, "vocab_size": 262208, "alternating": 6, "sliding_window": 4096,
                    "max_position_embeddings": 131072},
    "phi3": {"fused_projections": True, "attention_bias": False},
    "olmo2": {**_LLAMA, "query_key_norm": "width"},
    "olmoe": {**_LLAMA, "query_key_norm": "width", "num_experts": 64, "num_experts_per_token": 8},
    "granite": {**_LLAMA, "mlp_bias": "mlp_bias"},
    "smollm3": {**_LLAMA, "mlp_bias": "mlp_bias", "tie_word_embeddings": True},
    "starcoder2": {"attention_bias": "use_bias", "attention_output_bias": "use_bias", "mlp_bias": "use_bias",
                   "use_bias": True, "norm_bias": True, "gated_mlp": False, "tie_word_embeddings": True},
    "deepseek_v2": {},
    "deepseek_v3": {},
}  # fmt: skip
"""By `model_type`. A text value names the key of config.json that decides; anything else is the value itself, or the
default of that key."""

_ALIASES = {
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts"),
    "num_experts_per_token": ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_top_k"),
    "dtype": ("dtype", "torch_dtype"),
}
"""Other names for one thing, in the order of vLLM (transformers_utils/model_arch_config_convertor.py)."""


def parse(data: object) -> ModelConfig:
    """The facts in `data`, the decoded config.json. Raises ValueError, with the key, for what cannot be used."""
    if not isinstance(data, Mapping):
        raise ValueError("it holds no mapping")
    text = data.get("text_config") if isinstance(data.get("text_config"), Mapping) else None
    reader = _Reader(data, text if text is not None else data)
    names = data.get("architectures") or [""]
    experts = reader.optional("num_experts") or None
    layers = reader.number("num_hidden_layers")
    heads = reader.number("num_attention_heads")
    latent = _latent_attention(reader)
    window, windowed = _windows(reader, layers)
    return ModelConfig(
        architecture=str(names[0]) if isinstance(names, list) else "",
        num_hidden_layers=layers,
        hidden_size=reader.number("hidden_size"),
        intermediate_size=reader.number("intermediate_size"),
        num_attention_heads=heads,
        num_key_value_heads=reader.optional("num_key_value_heads") or heads,
        head_dim=reader.optional("head_dim") or reader.number("hidden_size") // heads,
        vocab_size=reader.number("vocab_size"),
        max_position_embeddings=_longest(reader),
        dtype=_text(reader.find("dtype")),
        num_experts=experts,
        num_experts_per_token=reader.optional("num_experts_per_token") if experts else None,
        # Mixtral and OLMoE call the width of an expert intermediate_size.
        moe_intermediate_size=(reader.optional("moe_intermediate_size") or reader.number("intermediate_size"))
        if experts
        else None,
        shared_expert_intermediate_size=_shared_expert(reader) if experts else None,
        dense_layers=_dense_layers(reader, layers) if experts else 0,
        shared_expert_gate=bool(reader.family.get("shared_expert_gate")),
        latent_attention=latent,
        sliding_window=window,
        sliding_layers=windowed,
        model_type=reader.model_type,
        known_family=reader.model_type in FAMILIES,
        other_parts=any(key in data for key in ("vision_config", "audio_config", "speech_config")),
        **_quantization(reader),
        **_flags(reader),
    )


class _Reader:
    """Looks keys up: in the text part, then in the whole config, then in the family's defaults."""

    def __init__(self, whole: Mapping[str, Any], text: Mapping[str, Any]) -> None:
        self.whole, self.text = whole, text
        self.model_type = str(text.get("model_type") or whole.get("model_type") or "")
        self.family = FAMILIES.get(self.model_type, {})

    def find(self, key: str) -> Any:
        """The value of `key`, under any of its names; None where nobody says."""
        for part in (self.text, self.whole):
            for name in _ALIASES.get(key, (key,)):
                if part.get(name) is not None:
                    return part[name]
        return self.family.get(key)

    def optional(self, key: str) -> int | None:
        value = self.find(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise ValueError(f"{key}: {value!r} is no size")
        return value

    def number(self, key: str) -> int:
        value = self.optional(key)
        if not value:
            raise ValueError(f"{key} is missing" if value is None else f"{key} is 0")
        return value

    def flag(self, field: str) -> bool:
        """A field that is yes or no: the family's word for it, which may name the key of config.json that decides."""
        rule = self.family.get(field, field if field == "attention_bias" else False)
        return bool(self.find(rule) if isinstance(rule, str) else rule)


def _flags(reader: _Reader) -> dict[str, Any]:
    """The fields that are yes or no, and the family's normalizations."""
    return {
        "tie_word_embeddings": bool(reader.find("tie_word_embeddings")),
        "attention_bias": reader.flag("attention_bias"),
        "attention_output_bias": reader.flag("attention_output_bias"),
        "mlp_bias": reader.flag("mlp_bias"),
        "norm_bias": reader.flag("norm_bias"),
        "gated_mlp": reader.family.get("gated_mlp", True),
        "fused_projections": reader.family.get("fused_projections", False),
        "query_key_norm": reader.family.get("query_key_norm"),
        "norms_per_layer": reader.family.get("norms_per_layer", 2),
    }


def _latent_attention(reader: _Reader) -> LatentAttention | None:
    if reader.find("kv_lora_rank") is None:
        return None
    return LatentAttention(
        kv_lora_rank=reader.number("kv_lora_rank"),
        qk_rope_head_dim=reader.number("qk_rope_head_dim"),
        qk_nope_head_dim=reader.number("qk_nope_head_dim"),
        v_head_dim=reader.number("v_head_dim"),
        q_lora_rank=reader.optional("q_lora_rank"),
    )


def _shared_expert(reader: _Reader) -> int | None:
    """DeepSeek counts shared experts (n_shared_experts), Qwen gives their width together."""
    count = reader.optional("n_shared_experts")
    if count:
        return count * reader.number("moe_intermediate_size")
    return reader.optional("shared_expert_intermediate_size") or None


def _dense_layers(reader: _Reader, layers: int) -> int:
    """Layers without experts: the first ones (DeepSeek), or those listed or left out by the step (Qwen)."""
    if reader.find("first_k_dense_replace") is not None:
        return min(layers, reader.optional("first_k_dense_replace") or 0)
    step = reader.optional("decoder_sparse_step") or 1
    listed = reader.find("mlp_only_layers") or []
    return sum(layer in listed or (layer + 1) % step != 0 for layer in range(layers))


def _windows(reader: _Reader, layers: int) -> tuple[int | None, int]:
    """The window, and the number of layers that have it (`layer_types`, or one full layer in every `alternating`)."""
    window = reader.optional("sliding_window")
    if not window or reader.find("use_sliding_window") is False:
        return None, 0
    types = reader.find("layer_types")
    if isinstance(types, list):
        return window, sum(kind == "sliding_attention" for kind in types[:layers])
    step = reader.optional("sliding_window_pattern") or reader.family.get("alternating")
    if step:
        return window, layers - layers // step
    if reader.find("use_sliding_window"):  # Qwen: the layers from max_window_layers on
        return window, max(0, layers - (reader.optional("max_window_layers") or 0))
    return window, layers


def _longest(reader: _Reader) -> int | None:
    """max_position_embeddings, stretched by RoPE scaling as in vLLM's `_get_and_verify_max_len` (config/model.py)."""
    longest = reader.optional("max_position_embeddings")
    rope = reader.find("rope_parameters") or reader.find("rope_scaling")
    if longest is None or not isinstance(rope, Mapping) or reader.model_type.startswith("gemma3"):
        return longest
    kind = rope.get("rope_type") or rope.get("type") or "default"
    factor = rope.get("factor")
    if kind in ("default", "su", "longrope", "llama3", "mrope") or not isinstance(factor, (int, float)):
        return longest
    start = rope.get("original_max_position_embeddings") if kind == "yarn" else None
    return int((start if isinstance(start, int) else longest) * factor)


def _quantization(reader: _Reader) -> dict[str, Any]:
    found = reader.find("quantization_config") or reader.find("compression_config")
    if not isinstance(found, Mapping):
        return {}
    block = found.get("weight_block_size")
    side = block[0] if isinstance(block, list) and block and isinstance(block[0], int) else None
    return {"quantization": str(found.get("quant_method") or "unknown").lower(), "quantization_block": side}


def _text(value: object) -> str | None:
    return value.removeprefix("torch.") if isinstance(value, str) else None
