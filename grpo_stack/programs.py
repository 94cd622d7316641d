"""The command line of each program in the stack, as words.

Facts that they rest on: TRL's server mode reads `vllm_mode`, `vllm_server_base_url` and `vllm_group_port`
(trl.trainer.grpo_config); its weight push needs vLLM's development routes, a weight-transfer backend, processed log-probs
and no log-prob limit (trl.generation.vllm_client).
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable, Mapping

from grpo_stack import launch, words
from grpo_stack.schema import Scalar
from grpo_stack.spec import COMPLETION_TOKENS, StackSpec, is_file, is_path, is_reward_file, model_length, training_args
from grpo_stack.split import COLOCATE, SEPARATE
from grpo_stack.words import Word

SERVER = "vllm-server"
TRAINER = "trainer"
PREFETCH = "prefetch"

HAS_GENERATED = "/tmp/has-generated"
"""In the server's container: exists once that vLLM process has generated."""

ENV_FILE = "/run/secrets/training.env"
"""Where the trainer finds `trainer.env_file`."""

WATCHED, NAMED = "grpo_stack.activity.Activity", "grpo_stack.identity.Identity"
"""What the server's supervisor watches it through, and what tells the gate what it is: vLLM's own option for ASGI
middleware loads them."""

TRAINING_DEFAULTS: dict[str, Mapping[str, Scalar | tuple[Scalar, ...]]] = {
    "cuda": {"max_completion_length": COMPLETION_TOKENS["cuda"], "save_steps": 50},
    "cpu": {"max_completion_length": COMPLETION_TOKENS["cpu"]},
}
"""What the stack decides unless the description does; TRL's own save_steps are 500, a long way to lose."""

SHARED_SERVER_MEMORY, SHARED_TRAINER_MEMORY = 0.3, 0.6
"""Shares of one GPU that both sides use: what runs 0.5B and 7.6B models on one H200, with a rest for CUDA itself."""


def prefetch(spec: StackSpec) -> tuple[Word, ...]:
    """Fetches model and dataset, and checks what only the trainer's environment can. Not the words for training, which
    takes importing TRL (14 s on 2 cores): the trainer reads them before it waits for the server."""
    argv: list[Word] = ["python", "-m", "grpo_stack.prefetch", "--model", model(spec)]
    argv += _option("--revision", spec.revision)
    argv += ["--dataset", dataset(spec)]
    argv += _option("--dataset-config", spec.data.config)
    argv += ["--dataset-split", spec.data.split]
    argv += _option("--dataset-revision", spec.data.revision)
    return (*argv, "--rewards", *_rewards(spec), "--outputs", run_folder(spec))


def server(spec: StackSpec) -> tuple[Word, ...]:
    """vLLM with what TRL asks of it."""
    argv: list[Word] = ["vllm", "serve", model(spec)]
    argv += ["--host", "0.0.0.0", "--port", str(spec.server.port)]
    if spec.accelerator == "cuda":
        argv += ["--tensor-parallel-size", str(len(spec.gpus.server))]
    argv += ["--weight-transfer-config", json.dumps({"backend": _backend(spec)})]
    argv += ["--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1"]
    argv += ["--middleware", WATCHED, "--middleware", NAMED]
    argv += _option("--revision", spec.revision)
    if spec.accelerator == "cpu":
        # Compiling the model takes minutes on a few cores, and a short run never earns them back.
        argv += ["--enforce-eager"]
    argv += _option("--dtype", dtype(spec))
    argv += ["--max-model-len", str(model_length(spec))]
    argv += _option("--gpu-memory-utilization", utilization(spec))
    return (*argv, *spec.server.extra_args)


def probe(spec: StackSpec) -> tuple[Word, ...]:
    """Succeeds once the server, asked from inside its own container, can generate; asks for no completion after that,
    since one that meets a weight push would end the engine."""
    url = f"http://127.0.0.1:{spec.server.port}"
    return ("grpo-stack", "wait", "--once", "--memo", HAS_GENERATED, *_readiness(spec, url))


def server_supervisor(spec: StackSpec) -> tuple[Word, ...]:
    """Runs the words that follow, and starts them again when vLLM is dead or stuck."""
    argv: list[Word] = ["grpo-stack", "supervise", "server", "--url", f"http://127.0.0.1:{spec.server.port}"]
    argv += ["--boot-timeout", str(spec.server.boot_timeout_s)]
    argv += ["--stuck-after", str(spec.recovery.stuck_after_s), "--update-limit", str(spec.recovery.update_limit_s)]
    return (*argv, "--restarts", str(spec.recovery.restarts), "--memo", HAS_GENERATED, "--")


def trainer_supervisor(spec: StackSpec) -> tuple[Word, ...]:
    """Runs the words that follow, lets them go on once the server is ready, and starts them again when either side is lost."""
    argv: list[Word] = ["grpo-stack", "supervise", "trainer"]
    if mode(spec) != COLOCATE:
        argv += [*_readiness(spec, server_url(spec)), "--timeout", str(spec.server.boot_timeout_s)]
    argv += ["--run", run_folder(spec), "--phase-floor", str(spec.recovery.phase_floor_s)]
    argv += _option("--env-file", ENV_FILE if spec.trainer.env_file else None)
    return (*argv, "--restarts", str(spec.recovery.restarts), "--")


def trainer(spec: StackSpec) -> tuple[Word, ...]:
    """The training program, started by accelerate."""
    return (*launch.command(spec), "-m", "grpo_stack.train", *_training(spec))


def mode(spec: StackSpec) -> str:
    """How the sides share the GPUs; the CPU stack is two sides as well."""
    return spec.gpus.mode if spec.accelerator == "cuda" else SEPARATE


def server_url(spec: StackSpec) -> str:
    return f"http://{SERVER}:{spec.server.port}"


def run_folder(spec: StackSpec) -> Word:
    """The run's folder inside the containers."""
    return words.join("/outputs/", spec.run)


def model(spec: StackSpec) -> Word:
    """The model's name inside the containers: its Hub id, or where its folder is mounted."""
    if is_path(spec.model):
        name = posixpath.basename(posixpath.normpath(words.literal(spec.model)))
        return f"/models/{name if name.strip('.') else 'model'}"  # `..` has no name of its own
    return spec.model


def dataset(spec: StackSpec) -> str:
    """The dataset's name inside the containers: its Hub id, or where its file is mounted."""
    dataset = spec.data.dataset
    return "/data/" + posixpath.basename(dataset) if is_file(dataset) else dataset


def _rewards(spec: StackSpec) -> list[Word]:
    """Reward names inside the containers: a file of this host becomes a module of /rewards, which is on the module path."""
    return [
        posixpath.basename(reward).replace(".py:", ":") if is_reward_file(reward) else reward
        for reward in spec.data.rewards
    ]


def _readiness(spec: StackSpec, url: str) -> tuple[Word, ...]:
    """What `grpo-stack wait` must find at `url` before training makes sense."""
    world_size = len(spec.gpus.server) if spec.accelerator == "cuda" else 1
    return ("--url", url, "--model", model(spec), "--backend", _backend(spec), "--world-size", str(world_size))


def utilization(spec: StackSpec) -> float | None:
    """vLLM's share of a GPU; where it does not have the GPU for itself, one that leaves the trainer room."""
    return spec.server.gpu_memory_utilization or (None if mode(spec) == SEPARATE else SHARED_SERVER_MEMORY)


def _training(spec: StackSpec) -> list[Word]:
    argv: list[Word] = ["--model_name_or_path", model(spec)]
    argv += _option("--model_revision", spec.revision)
    argv += ["--dataset", dataset(spec)]
    argv += _option("--dataset_config", spec.data.config)
    argv += ["--dataset_split", spec.data.split]
    argv += _option("--dataset_revision", spec.data.revision)
    argv += ["--rewards", *_rewards(spec), "--output_dir", run_folder(spec)]
    argv += ["--mismatch", spec.recovery.mismatch, *_option("--mismatch_limit", spec.recovery.mismatch_limit)]
    argv += ["--use_vllm", "true", *_generation(spec)]
    defaults = {"dtype": dtype(spec), **TRAINING_DEFAULTS[spec.accelerator]}
    for key, value in {**defaults, **training_args(spec)}.items():
        # YAML reads the word `no` as false, which no `…_strategy` takes.
        argv += _option(f"--{key}", "no" if value is False and key.endswith("_strategy") else value)
    return argv


def _generation(spec: StackSpec) -> list[Word]:
    """Who generates: the server, or vLLM inside the training processes."""
    if mode(spec) == COLOCATE:
        argv: list[Word] = ["--vllm_mode", "colocate", "--vllm_gpu_memory_utilization", str(utilization(spec))]
        return [*argv, "--vllm_max_model_length", str(model_length(spec))]
    argv = ["--vllm_mode", "server", "--vllm_server_base_url", server_url(spec)]
    return [*argv, "--vllm_group_port", str(spec.trainer.group_port), "--vllm_server_timeout", "60"]


def _option(name: str, value: Scalar | Iterable[Scalar] | None) -> list[Word]:
    """The words that set option `name`: none for no value, `--name=value` where the value would look like an option."""
    if value is None:
        return []
    if not isinstance(value, (str, int, float)):
        return [name, *(_text(item) for item in value)]
    text = _text(value)
    return [f"{name}={text}"] if text.startswith("-") else [name, text]


def _text(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def dtype(spec: StackSpec) -> str:
    """What both sides load the weights as, whatever the checkpoint holds; `trainer.args` may say otherwise of the trainer."""
    return spec.server.dtype or ("bfloat16" if spec.accelerator == "cuda" else "float32")


def _backend(spec: StackSpec) -> str:
    return "nccl" if spec.accelerator == "cuda" else "gloo"
