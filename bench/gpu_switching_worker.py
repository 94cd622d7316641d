"""`vllm serve --worker-extension-cls gpu_switching_worker.Switching`: the server's half of bench/gpu_switching.py."""

from __future__ import annotations

import gpu_switching

gpu_switching.switch("server", 1)


class Switching:
    """Nothing to add to vLLM's worker: that this module is loaded is enough."""
