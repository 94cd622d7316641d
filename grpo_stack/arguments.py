"""The command line as data: commands, flags, help. No more than argparse, so that `--help` answers at once."""

from __future__ import annotations

import argparse
import re
from contextlib import suppress
from typing import NoReturn

from grpo_stack import __version__
from grpo_stack.errors import DescriptionError

PROGRAM = "grpo-stack"

FLAGS = (
    ("--model", "model", "Hub id or local folder"),
    ("--revision", "revision", "commit, tag or branch of the model"),
    ("--accelerator", "accelerator", "cuda or cpu"),
    ("--split", "split", "SERVER:TRAINER, counts or GPU ids: 4:4, 0-3:4-7"),
    ("--dataset", "data.dataset", "Hub id, a .jsonl or .parquet file, or two-digit-sums"),
    ("--run", "run", "name of the folder in the outputs"),
    ("--outputs", "outputs", "folder for all runs (default: ./outputs)"),
    ("--pins", "pins", "locked set of package versions"),
)
"""Flags of their own for the keys that people change most."""


MOST_GPU_GIB = 10_000
"""Thirty times the largest GPU."""


class _Parser(argparse.ArgumentParser):
    """Usage errors in the form of every other error, with exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise DescriptionError(f"{message}; see: {self.prog} --help")


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    root = _Parser(prog=PROGRAM, description="GRPO with TRL's server mode: a vLLM server and a trainer in containers.")
    root.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    found = root.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    _add_render(found)
    _add_up(found)
    _add_doctor(found)
    _add_plan(found)
    _add_run(_add_project(found, "down", "stop this project's containers and remove them; volumes and outputs stay"))
    status = _add_run(_add_project(found, "status", "show this project's containers"))
    status.add_argument("--json", action="store_true", help="for programs")
    logs = _add_run(_add_project(found, "logs", "show what the services say"))
    logs.add_argument("--follow", action="store_true", help="go on until Ctrl-C")
    logs.add_argument("services", nargs="*", metavar="SERVICE", help="vllm-server, trainer or prefetch (default: all)")
    _add_wait(found)
    _add_supervise(found)
    pins = found.add_parser("pins", help="show the locked sets of package versions")
    pins.add_argument("--json", action="store_true", help="for programs")
    pins.add_argument("--fit", nargs=2, metavar=("TRL", "VLLM"), help="whether these two versions go together")
    return root


def _add_render(found: argparse._SubParsersAction[_Parser]) -> None:
    render = found.add_parser("render", help="write the files of a description, or print them")
    _add_description(render)
    render.add_argument("--target", choices=("compose",), default="compose", help="what to write (default: compose)")
    render.add_argument("--output", metavar="DIR", help="write into this folder, with the description beside it")


def _add_up(found: argparse._SubParsersAction[_Parser]) -> None:
    up = found.add_parser("up", help="build, start, follow the run to its end, stop; returns the trainer's exit code")
    _add_description(up)
    _add_name(up)
    _add_runtime(up)
    up.add_argument(
        "--check",
        nargs="?",
        const="all",
        choices=("all", "description"),
        help="only check: all, or what the description alone asks of this host, before anything is installed for it",
    )
    _add_skip(up)


def _add_doctor(found: argparse._SubParsersAction[_Parser]) -> None:
    doctor = found.add_parser("doctor", help="check this host, all at once; exit code 3 if something stands in the way")
    _add_description(doctor)
    _add_name(doctor)
    _add_runtime(doctor)
    _add_skip(doctor)
    doctor.add_argument("--json", action="store_true", help="for programs")


def _add_plan(found: argparse._SubParsersAction[_Parser]) -> None:
    plan = found.add_parser("plan", help="show what each role runs, on which GPUs, and what those will hold")
    _add_description(plan)
    plan.add_argument(
        "--gpu-gib", type=_gpu_gib, metavar="GIB", help="memory of each GPU (default: those of this host)"
    )
    plan.add_argument("--json", action="store_true", help="for programs")


def _add_skip(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--skip", action="append", default=[], metavar="NAME", help="leave out a check that `doctor` lists; repeatable"
    )


def _add_description(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group(
        "description", "stack.yaml in this folder is read if it is there; flags win over it"
    )
    group.add_argument("--file", metavar="FILE", help="another description than ./stack.yaml")
    group.add_argument(
        "--preset", metavar="NAME", help="a description that comes with grpo-stack: cpu, 4-4, colocate …"
    )
    for flag, key, meaning in FLAGS:
        group.add_argument(flag, dest=key, metavar=flag.lstrip("-").upper(), help=meaning)
    group.add_argument(
        "--reward", dest="data.rewards", action="append", metavar="NAME", help="reward function; repeat for more"
    )
    group.add_argument(
        "--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help="any key, value in YAML"
    )


def _add_project(found: argparse._SubParsersAction[_Parser], name: str, meaning: str) -> argparse.ArgumentParser:
    command = found.add_parser(name, help=meaning)
    _add_name(command)
    return command


def _add_name(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--project", type=_project, default="grpo-stack", metavar="NAME", help="Compose project (default: grpo-stack)"
    )


def _gpu_gib(text: str) -> float:
    with suppress(ValueError):
        if 0 < (value := float(text)) <= MOST_GPU_GIB:
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is no memory of a GPU; give GiB above 0, at most {MOST_GPU_GIB}")


def _project(name: str) -> str:
    """As Compose has it (compose-go, loader/loader.go: NormalizeProjectName)."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name):
        rule = "a project is named in a-z, 0-9, - and _, with a letter or digit first"
        raise argparse.ArgumentTypeError(f"{name!r}: {rule}")
    return name


def _add_runtime(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--runtime",
        choices=("docker", "process"),
        default="docker",
        help="containers, or processes of this host with the Python that runs grpo-stack (default: docker)",
    )


def _add_run(command: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Which run is meant; without a name, the processes of the project or, where none are, its containers."""
    command.add_argument(
        "--runtime", choices=("docker", "process"), help="default: process if such a run is running, else docker"
    )
    command.add_argument(
        "--outputs", metavar="DIR", help="folder of the runs (default: that of ./stack.yaml, ./outputs)"
    )
    command.add_argument("--run", metavar="NAME", help="this run alone, running or not, whatever its project")
    return command


def _add_wait(found: argparse._SubParsersAction[_Parser]) -> None:
    wait = found.add_parser("wait", help="wait until a vLLM server can generate, then become COMMAND")
    _add_server(wait, required=True)
    wait.add_argument("--once", action="store_true", help="one look, no waiting: for health checks")
    wait.add_argument(
        "--memo",
        metavar="FILE",
        help="with --once: made when the server has generated; while it exists, no further completion is asked for",
    )
    wait.add_argument("next", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what to run then")


def _add_server(command: argparse.ArgumentParser, required: bool) -> None:
    """The server that must be ready first, and for how long it is waited for."""
    command.add_argument("--url", required=required, help="base URL of the server")
    command.add_argument("--model", required=required, metavar="NAME", help="the model that it must serve")
    command.add_argument(
        "--backend", default="nccl", choices=("nccl", "gloo"), help="weight-transfer backend (default: nccl)"
    )
    command.add_argument("--world-size", type=int, metavar="N", help="number of its workers")
    command.add_argument("--timeout", type=float, default=1800, metavar="S", help="seconds in all (default: 1800)")


def _add_supervise(found: argparse._SubParsersAction[_Parser]) -> None:
    supervise = found.add_parser(
        "supervise", help="in a container: run COMMAND, notice when it fails or hangs, and start it again"
    )
    roles = supervise.add_subparsers(title="roles", metavar="ROLE", dest="role", required=True)
    server = roles.add_parser(
        "server",
        help="COMMAND is `vllm serve … --middleware grpo_stack.activity.Activity`",
        description="Runs vLLM, and starts it again whenever it ends or is stuck. Asked to stop, it ends vLLM and exits "
        "with 0, as that is no fault; with 5 when it gave vLLM up.",
    )
    server.add_argument("--url", default="http://127.0.0.1:8000", help="where it listens (default: %(default)s)")
    server.add_argument("--memo", metavar="FILE", help="the health check's memo (`wait --memo`), removed at each start")
    for flag, default, meaning in (
        ("--boot-timeout", 1800, "to the first answer"),
        ("--stuck-after", 120, "with a generation in flight and nothing generated, or without an answer"),
        ("--update-limit", 300, "for one weight update, or ten times the longest so far if that is more"),
    ):
        _add_seconds(server, flag, default, meaning)
    trainer = roles.add_parser("trainer", help="COMMAND is `accelerate launch …`, resumed from the last checkpoint")
    _add_server(trainer, required=False)
    trainer.add_argument(
        "--run", required=True, metavar="FOLDER", help="the run's folder; events.jsonl is written there"
    )
    _add_seconds(trainer, "--phase-floor", 300, "that each phase of a step has at least")
    trainer.add_argument("--env-file", metavar="FILE", help="NAME=VALUE lines for the environment of COMMAND")
    for role in (server, trainer):
        role.add_argument(
            "--restarts", type=int, default=5, metavar="N", help="in a row without progress (default: %(default)s)"
        )
        _add_seconds(role, "--grace", 100, "to end in when asked to stop")
        role.add_argument("next", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what to run")


def _add_seconds(command: argparse.ArgumentParser, flag: str, default: float, meaning: str) -> None:
    command.add_argument(
        flag, type=float, default=default, metavar="S", help=f"seconds {meaning} (default: %(default)s)"
    )
