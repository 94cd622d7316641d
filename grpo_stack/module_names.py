"""Names that a module of the user's must not have: the folder of reward files comes first where Python looks for modules."""

from __future__ import annotations

from sys import stdlib_module_names

_PACKAGES = """
PIL accelerate aiohttp anthropic anyio attr attrs bitsandbytes cachetools certifi cffi click cloudpickle cryptography cv2
datasets dateutil deepspeed dill docker einops fastapi filelock flashinfer fsspec google grpc grpo_stack h11 httpcore httpx
huggingface_hub idna jinja2 jsonschema lark latex2sympy2 latex2sympy2_extended loguru math_verify mpmath msgpack msgspec
multidict multiprocess networkx ninja numba numpy openai outlines outlines_core packaging pandas partial_json_parser peft pip
pkg_resources psutil pyarrow pydantic pygments pynvml ray regex requests rich safetensors sentencepiece setuptools sitecustomize
six starlette supervisor sympy tabulate tenacity tiktoken tokenizers torch torchaudio torchvision tqdm transformers triton trl
typer typing_extensions urllib3 usercustomize uvicorn vllm websockets xgrammar xxhash yaml yarl zmq
"""

PACKAGES = frozenset(_PACKAGES.split())
"""What server and trainer import, of names that a file of rewards may well have."""


def hidden_by(module: str) -> str:
    """What a module of that name would hide (Python's own `math`); empty for nothing."""
    if module in stdlib_module_names:
        return f"Python's own `{module}`"
    return f"the package `{module}`, which training imports" if module in PACKAGES else ""
