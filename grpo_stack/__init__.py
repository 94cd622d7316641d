"""grpo-stack: GRPO training against a separate vLLM server, in containers."""

__version__ = "0.1.0"
