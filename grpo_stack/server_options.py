"""Words for `vllm serve` that a user may not add, because the stack says them itself or cannot work with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

OWNED = {
    "--weight-transfer-config": None,
    "--logprobs-mode": None,
    "--max-logprobs": None,
    "--api-server-count": None,
    "-asc": None,
    "--host": None,
    "--port": "server.port",
    "--tensor-parallel-size": "split",
    "-tp": "split",
    "--pipeline-parallel-size": "split",
    "-pp": "split",
    "--served-model-name": None,
    "--model": "model",
    "--revision": "revision",
    "--dtype": "server.dtype",
    "--max-model-len": "server.max_model_len",
    "--gpu-memory-utilization": "server.gpu_memory_utilization",
}
"""Options that the stack sets itself, and the key that governs each (None: nothing does)."""

_COPIES = (
    "the stack starts one copy of the model: those of a dense one do not know of each other, so that one which failed to "
    "take new weights would go on with old ones, unseen; use the key `split`, and for a mixture of experts "
    "--enable-expert-parallel where its experts' size does not divide"
)
_ADDRESS = "trainer and health check ask the server by plain HTTP on its port, without a key or prefix; leave it out"
_HOSTS = "the stack's server is all of one host; leave it out, and use the key `split`"
_ENDS = "vLLM would print and end; run it by hand: vllm serve --help"

UNFIT = {
    **dict.fromkeys(("--data-parallel-size", "-dp"), _COPIES),
    **dict.fromkeys(
        ("--prefill-context-parallel-size", "-pcp"), "it takes more GPUs than the split gives the server; leave it out"
    ),
    **dict.fromkeys(
        ("--uds", "--root-path", "--api-key", "--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs", "--ssl-cert-reqs"),
        _ADDRESS,
    ),
    **dict.fromkeys(("--headless", "--nnodes", "-n", "--node-rank", "-r", "--master-addr", "--master-port"), _HOSTS),
    **dict.fromkeys(
        (
            *(
                "--data-parallel-size-local",
                "-dpl",
                "--data-parallel-rank",
                "-dpn",
                "--data-parallel-start-rank",
                "-dpr",
            ),
            *("--data-parallel-address", "-dpa", "--data-parallel-rpc-port", "-dpp"),
            *("--data-parallel-hybrid-lb", "-dph", "--data-parallel-external-lb", "-dpe"),
        ),
        _HOSTS,
    ),
    "--config": "a file would set, unseen, what the description sets; write its options here",
    **dict.fromkeys(("--help", "-h", "--version", "-v"), _ENDS),
}
"""Options that break what the stack rests on, and why (the names are those of vLLM 0.28)."""


def problems(words: Iterable[str]) -> Iterator[str]:
    """What is wrong with each of `words`, as it goes on after the key that holds them."""
    for word in words:
        name = word.partition("=")[0]
        option = name.replace("_", "-")
        if option.startswith("--"):
            option = option.partition(".")[0]  # --weight-transfer-config.backend is a part of --weight-transfer-config
        if not word.strip():
            yield f": {word!r} is no word for `vllm serve`; leave it out"
        elif option.startswith("-") and len(name.split()) > 1:
            yield f": {word!r} is one word to vLLM; write an option and its value as two: {name.split(None, 1)}"
        elif option in UNFIT:
            yield f": {option}: {UNFIT[option]}"
        elif option in OWNED:
            yield f": {option} is set by the stack; {governed(OWNED[option])}"


def governed(key: str | None) -> str:
    """What to do about something that the stack sets itself, by `key` or by nothing."""
    return f"use the key `{key}`" if key else "server mode does not work with another value"
