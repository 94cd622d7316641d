"""What was found on this host, on its GPUs, in its engine and in the model's config: frozen data, no behaviour.

`None` always means "could not be found out", never "no" and never 0.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory of a GPU."""

    pid: int
    """As NVML sees it: the host's number, which means nothing inside another PID namespace."""

    name: str | None
    """Its executable; None when it belongs to another user or another PID namespace."""

    memory_mib: int | None
    """MiB of GPU memory; None where the driver does not tell (in containers, for example)."""


@dataclass(frozen=True)
class GpuLink:
    """How one GPU reaches another one of the same host."""

    peer: int
    """NVML index of the other GPU."""

    path: str | None
    """The shortest way, best first: `nvlink`, `same-board`, `pcie-switch`, `pcie-switches`, `host-bridge`,
    `numa-node`, `system`.

    From nvmlDeviceGetP2PStatus (NVLink) and nvmlDeviceGetTopologyCommonAncestor (the rest)."""


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU, as NVML describes it."""

    index: int
    """NVML index: the order of `nvidia-smi`, by PCI bus id; not CUDA's own order."""

    uuid: str | None
    """`GPU-…`; what `device_ids` of Compose also takes."""

    name: str | None
    """`NVIDIA H200`, for example."""

    memory_total_mib: int | None
    """MiB that programs can have; None on boards that share memory with the CPU and do not report it."""

    memory_used_mib: int | None
    """MiB in use by anyone. Drivers before 510 count their own reserve in: a few hundred MiB on an idle GPU."""

    processes: tuple[GpuProcess, ...] | None
    """Compute and graphics processes. Empty does not prove that the GPU is free: inside a container, or after a worker
    outlived its container, memory is used and no process is listed."""

    driver_version: str | None
    """`580.65.06`, for example; equal for all GPUs of a host."""

    cuda_version: str | None
    """The newest CUDA that the driver supports, `13.0` for example; not the toolkit that is installed."""

    compute_capability: tuple[int, int] | None
    """(9, 0) for Hopper."""

    mig_enabled: bool | None
    """True when the GPU is cut into MIG slices; None also where the GPU knows no MIG."""

    numa_node: int | None
    """NUMA node of the host memory nearest to the GPU."""

    ecc_errors: int | None
    """Uncorrected errors since the driver was loaded; None also where ECC is off or unknown."""

    persistence: bool | None
    """Persistence mode: without it the driver is loaded anew for each first user, which costs seconds."""

    links: tuple[GpuLink, ...] = ()
    """The way to each other GPU of this host, by ascending peer."""


@dataclass(frozen=True)
class GpuReading:
    """All GPUs of this host, or why there are none."""

    gpus: tuple[Gpu, ...]
    """By NVML index. A GPU of which nothing could be read but its index is still in here."""

    problem: str | None = None
    """One line with the next step when `gpus` is empty or not complete; else None."""


@dataclass(frozen=True)
class Engine:
    """The Docker Engine that the client reaches, and the Compose beside it."""

    version: str
    """`26.1.5+dfsg1`, for example; the engine's own word."""

    api_version: str
    """Newest API that it speaks, `1.45` for example."""

    client: str
    """Path of the `docker` command that has Compose; see `engine.find_client`."""

    compose_version: str
    """`2.26.1-4`, for example; what `docker compose version --short` says, without a leading `v`."""

    podman: bool
    """Podman answers in Docker's name: it ignores GPU reservations and `ipc` without a word."""

    rootless: bool
    """The engine runs as a user: other socket, other data-root, cgroup limits only with delegation."""

    cgroup_driver: str | None
    """`systemd` or `cgroupfs`. With `systemd`, GPUs can vanish from running containers after `daemon-reload`."""

    runtimes: tuple[str, ...]
    """Names of the OCI runtimes, sorted; `nvidia` among them means that the container toolkit was configured."""

    default_runtime: str | None
    """`runc`, for example."""

    cdi_devices: tuple[str, ...]
    """Devices offered by CDI, `nvidia.com/gpu=0` for example, sorted; listed by Engine 28.2 and newer."""

    cdi_spec_dirs: tuple[str, ...]
    """Folders in which the engine looks for CDI specs; empty: CDI is off."""

    data_root: str | None
    """Where images, containers and volumes lie on the engine's host; under /var/snap it is Docker from a snap."""

    data_root_free_bytes: int | None
    """Bytes free for this user at `data_root`; None when the engine is on another host or the folder cannot be seen."""

    gpus_usable: bool | None
    """True: the `nvidia` runtime, its hook or a CDI device of NVIDIA's is there. False: nothing of the kind. None: the
    engine is on another host and shows neither, where a hook could still be."""


@dataclass(frozen=True)
class Container:
    """One container of a Compose project."""

    name: str
    """Its name, `grpo-stack-trainer-1` for example."""

    service: str
    """The Compose service it belongs to."""

    state: str
    """`created`, `running`, `paused`, `restarting`, `removing`, `exited` or `dead`."""

    exit_code: int | None
    """Exit code of its last end; None while it has not ended."""

    health: str | None
    """`starting`, `healthy` or `unhealthy`; None without a health check."""

    oom_killed: bool
    """The kernel ended it at its memory limit."""

    last_lines: tuple[str, ...] = ()
    """The newest lines of its log, oldest first, stdout and stderr together."""


@dataclass(frozen=True)
class LatentAttention:
    """DeepSeek's attention: keys and values of a token are kept as one small vector, and unfolded when they are used."""

    kv_lora_rank: int
    """Width of that vector."""

    qk_rope_head_dim: int
    """Width of the part of a key that carries the position; kept beside the vector, shared by all heads."""

    qk_nope_head_dim: int
    """Width of the rest of a head's key."""

    v_head_dim: int
    """Width of a head's value."""

    q_lora_rank: int | None = None
    """Width through which queries are squeezed; None: they are projected in one step."""


@dataclass(frozen=True)
class ModelConfig:
    """What a model's `config.json` says, in the names of transformers; the text part of a multimodal model."""

    architecture: str
    """First of `architectures`, `Qwen2ForCausalLM` for example."""

    num_hidden_layers: int
    """Transformer blocks."""

    hidden_size: int
    """Width of the residual stream."""

    intermediate_size: int
    """Width of the dense feed-forward layers."""

    num_attention_heads: int
    """Query heads."""

    num_key_value_heads: int
    """KV heads; equal to the query heads where the config does not say."""

    head_dim: int
    """Width of a head; hidden_size / num_attention_heads where the config does not say."""

    vocab_size: int
    """Rows of the embedding, padding included."""

    max_position_embeddings: int | None
    """Longest context in tokens that the model was made for."""

    tie_word_embeddings: bool = False
    """The output layer shares the embedding's weights, which then count once."""

    dtype: str | None = None
    """`bfloat16`, `float16` or `float32`: how the weights are stored (`torch_dtype` or `dtype`)."""

    quantization: str | None = None
    """`quant_method` of `quantization_config`, `fp8` for example; None for plain weights."""

    num_experts: int | None = None
    """Routed experts of a layer; None for a dense model."""

    num_experts_per_token: int | None = None
    """Routed experts that each token visits."""

    moe_intermediate_size: int | None = None
    """Width of one expert; None for a dense model."""

    shared_expert_intermediate_size: int | None = None
    """Width of the expert, or of all the experts together, that every token visits; None without one."""

    attention_bias: bool = False
    """Query, key and value projections carry a bias."""

    attention_output_bias: bool = False
    """The projection behind the attention carries a bias."""

    mlp_bias: bool = False
    """The projections of the dense feed-forward layers carry a bias."""

    gated_mlp: bool = True
    """Three projections (gate, up, down) make a feed-forward layer; False: two."""

    fused_projections: bool = False
    """The checkpoint holds query, key and value in one tensor, and gate and up in another."""

    query_key_norm: str | None = None
    """Queries and keys are normalized: `head` (one weight for each place in a head) or `width` (for all heads)."""

    norms_per_layer: int = 2
    """Normalizations over the hidden width in a layer; the last one of the model comes on top."""

    norm_bias: bool = False
    """Each of them, the last one too, carries a bias."""

    dense_layers: int = 0
    """Layers of a mixture-of-experts model that have a dense feed-forward layer instead."""

    shared_expert_gate: bool = False
    """A weight of hidden width scales the shared expert's output."""

    latent_attention: LatentAttention | None = None
    """Set for DeepSeek's models; `head_dim` then is not used."""

    sliding_window: int | None = None
    """Tokens that a windowed layer looks back; None: every layer sees all."""

    sliding_layers: int = 0
    """Layers that look back `sliding_window` tokens only."""

    quantization_block: int | None = None
    """Side of the square blocks that share a scale (`weight_block_size`), 128 for example."""

    model_type: str = ""
    """Family, `qwen2` for example; empty where the config does not say."""

    known_family: bool = True
    """False: the family is not one whose tensors were compared with transformers, so its size is an estimate."""

    other_parts: bool = False
    """The config also describes a vision or audio part, whose weights these numbers leave out."""


@dataclass(frozen=True)
class PortInUse:
    """A TCP port of this host on which something listens."""

    port: int
    """1 to 65535."""

    address: str
    """Where it listens, `127.0.0.1`, `0.0.0.0` or `::` for example."""


@dataclass(frozen=True)
class FolderSpace:
    """Free space where a folder is, or would be made."""

    path: str
    """The folder that was asked about."""

    free_bytes: int | None
    """Bytes free for this user, on the filesystem of its nearest existing parent."""

    writable: bool | None
    """This user can write there, or can make it."""


@dataclass(frozen=True)
class Host:
    """This host's memory, disk and ports."""

    cpus: int
    """Logical CPUs that this process may use."""

    memory_total_bytes: int
    """`MemTotal` of /proc/meminfo, or the cgroup's limit when that is lower."""

    memory_available_bytes: int
    """`MemAvailable` of /proc/meminfo: what can be had without swapping."""

    shm_free_bytes: int | None
    """Free bytes of this host's /dev/shm; matters only where containers share it (`ipc: host`)."""

    folders: tuple[FolderSpace, ...] = ()
    """One entry for each folder that was asked about, in that order."""

    ports_in_use: tuple[PortInUse, ...] = ()
    """TCP ports with a listener, by ascending port."""

    proxies: tuple[tuple[str, str], ...] = ()
    """Names and values of proxy variables of the environment, credentials removed; `no_proxy` among them."""

    now: float | None = None
    """What this host's clock says, in seconds since 1970; None when it was not read."""


@dataclass(frozen=True)
class ModelFolder:
    """A local folder that the description names as the model."""

    path: str
    """As the description names it, made absolute."""

    exists: bool
    """It is there, and a folder."""

    has_config: bool = False
    """It holds a `config.json`."""

    unreadable: tuple[str, ...] = ()
    """Files in it that others may not read, so that the containers' user cannot either."""

    missing: tuple[str, ...] = ()
    """Weights that it should hold and does not."""

    closed: bool = False
    """The containers' user, or this one, may not look into it."""

    leading_out: tuple[str, ...] = ()
    """Links in it that lead nowhere in a container, which sees this folder alone and under another path."""


@dataclass(frozen=True)
class DatasetFile:
    """A local file that the description names as the dataset."""

    path: str
    """As the description names it, made absolute."""

    exists: bool
    """It is there, and a file."""

    columns: tuple[str, ...] | None = None
    """Keys of its first record; None where the helper does not read the format (Parquet)."""

    problem: str | None = None
    """What makes it no dataset."""

    fix: str = ""
    """What to do about the problem."""

    readable: bool = True
    """The containers' user can read it."""


@dataclass(frozen=True)
class NamedFile:
    """A local file that the description names beside model and dataset."""

    key: str
    """The key that names it."""

    path: str
    """As the description names it, made absolute."""

    exists: bool
    """It is there, and a file."""

    readable: bool = True
    """The containers' user can read it."""

    secret: bool = False
    """It holds what others must not read."""

    problems: tuple[str, ...] = ()
    """What is wrong in it, a line each, with what to do."""


@dataclass(frozen=True)
class TokenFile:
    """The file with a Hugging Face token that `HF_TOKEN_PATH` names."""

    path: str
    """As the environment names it, made absolute."""

    exists: bool
    """It is there, and a file."""

    readable: bool = True
    """The containers' user can read it."""

    empty: bool = False
    """Nothing is in it."""


@dataclass(frozen=True)
class CacheVolume:
    """The volume that holds downloaded models and datasets, `hf-cache` of the Compose project."""

    exists: bool | None
    """None: the engine did not say."""

    folder: str | None = None
    """Where it lies on this host."""

    readable: bool = False
    """This user can look into it (root can, where the engine is on this host)."""

    missing: tuple[str, ...] | None = None
    """Files of the model that it lacks, `the model` when it has none of it; None: nobody looked."""
