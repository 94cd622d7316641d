"""The plan as programs of this host: the same command lines, with what containers see exchanged for what is here.

Containers mount folders, reach each other by name, and see only their own GPUs. Processes of one host name the folders
themselves, meet on 127.0.0.1, and are shown GPUs by CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from grpo_stack import words
from grpo_stack.plan import Role, StackPlan
from grpo_stack.programs import HAS_GENERATED, PREFETCH, SERVER, TRAINER
from grpo_stack.render import yamltext
from grpo_stack.words import Variable, Word

RECORD = "commands.json"
"""The file in the run's folder with the command lines."""

LOCAL = "127.0.0.1"

IMAGE_ENV = {"VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_NO_USAGE_STATS": "1", "PYTHONUNBUFFERED": "1"}
"""What docker/Dockerfile sets for every program, and a test keeps alike. Its cache folders are not among it: processes use
the user's own caches, which outlive a run as well."""

NETWORK = {"VLLM_HOST_IP": LOCAL, "NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
"""Keeps every listener of a run on the loopback device: vLLM's and NCCL's have no password."""

KEPT = {"VLLM_CACHE_ROOT", "VLLM_LOGGING_LEVEL"}
"""Variables that match `DROPPED`, and yet say only where to cache and how much to log."""

DROPPED = re.compile(
    r"(VLLM|ACCELERATE|FSDP|DEEPSPEED|TORCHELASTIC|GRPO_STACK|PMI|PMIX|OMPI|SLURM)_\w+"
    r"|CUDA_VISIBLE_DEVICES|NVIDIA_VISIBLE_DEVICES|MASTER_(ADDR|PORT)|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)"
    r"|NCCL_(COMM_ID|HOSTID)|HOST_IP|PYTHONSTARTUP|PYTHONHOME"
)
"""What must not reach a run from the shell or the batch job that started it: VLLM_PORT moves vLLM's inner ports, RANK makes
accelerate join a group, and so on. No container would see them. How NCCL works on this host (NCCL_…) stays the caller's."""

PATHS = {
    *(
        "HF_HOME",
        "HF_HUB_CACHE",
        "HF_ASSETS_CACHE",
        "HF_DATASETS_CACHE",
        "HF_MODULES_CACHE",
        "HF_XET_CACHE",
        "HF_TOKEN_PATH",
    ),
    *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "HOME", "TMPDIR", "NETRC"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "CA_BUNDLE_PATH"),
    *(
        "VLLM_CACHE_ROOT",
        "TRITON_CACHE_DIR",
        "TRITON_HOME",
        "TORCHINDUCTOR_CACHE_DIR",
        "TORCH_HOME",
        "TORCH_EXTENSIONS_DIR",
    ),
    *("CUDA_HOME", "CUDA_PATH", "CUDA_CACHE_PATH", "FLASHINFER_WORKSPACE_BASE", "NUMBA_CACHE_DIR", "MPLCONFIGDIR"),
    *("NCCL_CONF_FILE", "NCCL_DEBUG_FILE", "NCCL_TOPO_FILE", "WANDB_DIR", "WANDB_CACHE_DIR", "TRACKIO_DIR"),
}
"""Variables that name one file or folder. A role runs in a folder of its own, where a relative one would lead nowhere."""

SECRETS = {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH"}
"""Kept from every role but the one that downloads."""


@dataclass(frozen=True)
class Place:
    """Where things are on this host; every path absolute."""

    directory: str
    """What relative paths of the description are relative to."""
    run: str
    """The run's folder."""
    python: str
    """The Python that holds vLLM, TRL and this package."""
    modules: str = ""
    """Folder that this package is imported from, if that is none which every Python looks into."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment of the caller."""
    caller: str = "/"
    """Folder that the caller is in, which relative paths of the environment are relative to."""

    @property
    def private(self) -> str:
        """What only this run's programs write and read: generated files, and links to the reward modules."""
        return posixpath.join(self.run, "process")


@dataclass(frozen=True)
class Program:
    """One role on this host."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    """The whole environment, nothing is added to it."""
    files: Mapping[str, str]
    """Text by path, to be written before the start."""
    links: Mapping[str, str]
    """What a symbolic link leads to, by its path; to be made before the start."""
    grace_s: int
    """Time between SIGTERM and SIGKILL."""


def programs(plan: StackPlan, place: Place) -> tuple[Program, ...]:
    """One program for each role of `plan`, in the order in which they start."""
    return tuple(_program(role, place) for role in plan.roles)


def ports(plan: StackPlan) -> dict[str, int]:
    """The ports of 127.0.0.1 that the processes of `plan` listen on, by the key that sets each."""
    found = {"server.port": _after("--port", plan.server.argv)} if plan.server else {}
    if "--vllm_group_port" in plan.trainer.argv:
        found["trainer.group_port"] = _after("--vllm_group_port", plan.trainer.argv)
    return {key: int(words.literal(port)) for key, port in found.items()}


def _after(option: str, argv: tuple[Word, ...]) -> Word:
    return argv[argv.index(option) + 1]


def _program(role: Role, place: Place) -> Program:
    links = {
        posixpath.join(place.private, "rewards", posixpath.basename(mount.target)): _absolute(mount.source, place)
        for mount in role.mounts
        if mount.target.startswith("/rewards/")
    }
    paths = _paths(role, place)
    texts = [_resolved(word, place.environment) for word in (*role.supervisor, *role.argv)]
    argv = [_local(text, paths) for text in texts]
    return Program(
        name=role.name,
        argv=(*_interpreter(argv[0], place), *argv[1:]),
        env=_environment(role, paths, place),
        files={paths[path]: yamltext.dump(content) for path, content in role.files.items()},
        links=links,
        grace_s=role.stop_grace_s,
    )


def _paths(role: Role, place: Place) -> dict[str, str]:
    """Where each path of the container is here."""
    paths = {mount.target: _absolute(mount.source, place) for mount in role.mounts}
    paths |= {"/rewards": f"{place.private}/rewards", HAS_GENERATED: f"{place.private}/has-generated"}
    return {**paths, **{path: posixpath.join(place.private, posixpath.basename(path)) for path in role.files}}


def _absolute(path: str, place: Place) -> str:
    return posixpath.normpath(posixpath.join(place.directory, path))


def _local(text: str, paths: Mapping[str, str]) -> str:
    """A word of a container's command line as this host means it."""
    if text == "0.0.0.0":
        return LOCAL  # no network of its own keeps strangers from the server
    if match := re.fullmatch(rf"(https?://)({SERVER}|{TRAINER})((?::\d+)?(?:/.*)?)", text):
        return f"{match[1]}{LOCAL}{match[3]}"
    for inside, here in paths.items():
        if text == inside or text.startswith(inside + "/"):
            return here + text[len(inside) :]
    return text


def _interpreter(command: str, place: Place) -> tuple[str, ...]:
    """This package's own command and `python` are run by that very Python; others are found on PATH."""
    if command == "grpo-stack":
        return (place.python, "-m", "grpo_stack.cli")
    return (place.python,) if command == "python" else (command,)


def _resolved(word: Word, environment: Mapping[str, str]) -> str:
    """A word with its variables as Compose would fill them in: an empty one counts as unset."""
    return "".join(
        environment.get(part.name) or part.default if isinstance(part, Variable) else part for part in words.parts(word)
    )


def _environment(role: Role, paths: Mapping[str, str], place: Place) -> dict[str, str]:
    inherited = {name: value for name, value in place.environment.items() if _inherits(name, role)}
    inherited |= {name: _from_everywhere(inherited[name], place) for name in PATHS & set(inherited)}
    inherited = {name: value for name, value in inherited.items() if value or name not in PATHS}
    given = {name: _local(_resolved(word, place.environment), paths) for name, word in role.env.items()}
    given.pop("PYTHONPATH", None)
    own = _resolved(role.env.get("PYTHONPATH", ""), place.environment).split(":")
    module_path = [
        *(_local(folder, paths) for folder in own),
        *inherited.pop("PYTHONPATH", "").split(":"),
        place.modules,
    ]
    # A relative entry would mean another folder to a program that is started in its own.
    module_path = [entry for entry in dict.fromkeys(module_path) if entry.startswith("/")]
    search = [posixpath.dirname(place.python), inherited.pop("PATH", posixpath.defpath)]
    return {
        **inherited,
        "PATH": ":".join(search),
        **({"PYTHONPATH": ":".join(module_path)} if module_path else {}),
        **IMAGE_ENV,
        **{name: value for name, value in given.items() if value or name not in inherited},
        **NETWORK,
        **_gpus((*role.gpus, *role.other_gpus)),
    }


def _from_everywhere(path: str, place: Place) -> str:
    """`path` as it must read from any folder; a `~` is the home folder for whoever understands it."""
    return posixpath.normpath(posixpath.join(place.caller, path)) if path and not path.startswith("~") else path


def _inherits(name: str, role: Role) -> bool:
    if name in SECRETS:
        return role.name == PREFETCH
    return name in KEPT or not DROPPED.fullmatch(name)


def _gpus(gpus: Iterable[str]) -> dict[str, str]:
    """Shows these GPUs alone, by NVML's numbers; CUDA's own order puts the fastest first."""
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(gpus)}


def record(found: Iterable[Program]) -> str:
    """The command lines for whoever looks into the run's folder later, as JSON."""
    return json.dumps({program.name: list(program.argv) for program in found}, indent=2)
