"""The commands about a description and this host: render, plan, doctor, up, pins."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_stack import arguments, streams
from grpo_stack.arguments import PROGRAM
from grpo_stack.commands import folder
from grpo_stack.errors import DescriptionError, GrpoStackError

if TYPE_CHECKING:
    from grpo_stack.description import Description
    from grpo_stack.findings import Finding
    from grpo_stack.plan import StackPlan


def render(args: argparse.Namespace) -> int:
    from grpo_stack import bundle, plan
    from grpo_stack.render import compose

    described = _describe(args)
    if not args.output:
        made_by = compose.shell_line((PROGRAM, *args.words))
        streams.use_utf8()
        print(compose.render(plan.derive(described.spec), made_by)[compose.FILE], end="")
        return 0
    target = Path(args.output)
    try:
        files = bundle.files_for(target, described, f"{PROGRAM} render --output .   (in this folder)")
        target.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (target / name).write_text(text, encoding="utf-8")
            print(target / name)
    except OSError as fault:
        reason = (fault.strerror or str(fault)).lower()
        raise DescriptionError(f"render: {fault.filename}: {reason}; name another folder: --output DIR") from None
    return 0


def up(args: argparse.Namespace) -> int:
    from grpo_stack import findings, lifecycle, start
    from grpo_stack.progress import Progress

    described, planned, found = _examined(args, with_engine=args.check != "description" and args.runtime == "docker")
    if args.check == "all":
        print(*findings.table(found), sep="\n")
    else:
        for finding in found:
            if finding.level in (findings.WARNING, findings.SKIPPED) or finding.check == "split":
                print(f"{PROGRAM}: {finding.level}: {finding}", file=sys.stderr)
    start.demand(found)
    if args.check:
        return 0
    if args.runtime == "process":
        return _up_processes(described, planned, args.project)
    lifecycle.refuse_second(args.project)  # before anything of a run that may be that one's is touched
    with start.begun(described, planned, args.project) as stack, Progress(sys.stderr) as progress:
        progress.phase(f"run {stack.run_folder.name}, files in {stack.run_folder}")
        code = lifecycle.up(stack, progress)
    _print_summary(stack.run_folder)
    return code


def _up_processes(described: Description, planned: StackPlan, project: str) -> int:
    from grpo_stack import local_run, local_start
    from grpo_stack.progress import Progress

    run = local_start.write(described, planned, project)
    with Progress(sys.stderr) as progress:
        progress.phase(f"run {run.folder.name}, files in {run.folder}")
        code = local_run.up(run, progress)
    _print_summary(run.folder)
    return code


def _print_summary(run_folder: Path) -> None:
    summary = run_folder / "summary.txt"
    print(summary.read_text(encoding="utf-8") if summary.exists() else f"no summary in {summary}", end="")


def examine(args: argparse.Namespace) -> int:
    import json

    from grpo_stack import findings, start

    _, _, found = _examined(args, with_engine=args.runtime == "docker")
    if args.json:
        print(json.dumps(findings.as_data(found), indent=2))
    else:
        print(*findings.table(found), findings.summary(found), sep="\n")
    fault = start.fault(found)
    return fault.exit_code if fault else 0


def show_plan(args: argparse.Namespace) -> int:
    import json

    from grpo_stack import doctor, fit, overview, plan, start

    described = start.settled(_describe(args), os.environ)
    planned = plan.derive(described.spec)
    unfit: GrpoStackError | None = None
    try:
        sides, unknown = doctor.memory(described, doctor.Caller(os.environ, start.owner()[0]), args.gpu_gib)
    except GrpoStackError as fault:
        sides, unknown, unfit = (), "", fault
    if args.json:
        print(json.dumps({**overview.as_data(planned), "memory": fit.as_data(sides)}, indent=2, ensure_ascii=False))
    else:
        print(*overview.lines(planned), *(["", *fit.lines(sides)] if sides else []), sep="\n")
    if unfit:
        raise unfit
    if unknown:
        print(f"{PROGRAM}: {unknown}", file=sys.stderr)
    return 0


def show_pins(args: argparse.Namespace) -> int:
    import dataclasses
    import json

    from grpo_stack import pins

    if args.fit:
        pins.require_fit(*args.fit)
        print(f"TRL {args.fit[0]} accepts vLLM {args.fit[1]}")
        return 0
    if args.json:
        print(json.dumps({name: dataclasses.asdict(found) for name, found in pins.SETS.items()}, indent=2))
        return 0
    for name, found in pins.SETS.items():
        mark = " (default)" if name == pins.DEFAULT else ""
        print(f"{name}{mark}: trl {found.trl}, vllm {found.vllm}, torch {found.torch}, NCCL {found.nccl}, ", end="")
        print(f"CUDA {found.cuda}, driver {found.driver} or newer: {found.purpose}")
    return 0


def _examined(args: argparse.Namespace, with_engine: bool) -> tuple[Description, StackPlan, tuple[Finding, ...]]:
    """What would be started on this host, and every finding about that; `with_engine` asks Docker too."""
    from grpo_stack import engine

    # First of all, so that the daemon and `docker compose version` answer while the rest is imported.
    docker = engine.begin() if with_engine else None

    from grpo_stack import doctor, findings, plan, start

    findings.require_known(args.skip, doctor.CHECKS)
    described = start.settled(_describe(args), os.environ)
    machine = doctor.look(docker)
    described, choice = start.placed(start.choose(described, machine.gpus), machine.gpus)
    described = start.named(described, time.localtime())
    planned = plan.derive(described.spec)
    uid = start.owner()[0] if args.runtime == "docker" else os.getuid()
    found = doctor.check(described, planned, machine, doctor.Caller(os.environ, uid, args.project, args.runtime))
    if choice:
        found = (findings.Finding("split", findings.OK, choice), *found)
    return described, planned, findings.leave_out(found, args.skip)


def _describe(args: argparse.Namespace) -> Description:
    from grpo_stack import description

    folder.require()
    keys = [*(key for _, key, _ in arguments.FLAGS), "data.rewards"]
    flags = {key: getattr(args, key) for key in keys if getattr(args, key) is not None}
    return description.load(args.file, args.preset, flags, args.settings)
