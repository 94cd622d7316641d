"""The command line: parse, call, print, exit. The only module that prints.

What a command needs is imported when it runs, so that no command pays for another.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_stack import arguments, streams
from grpo_stack.arguments import PROGRAM
from grpo_stack.errors import INTERRUPTED, DescriptionError, GrpoStackError, HostError

if TYPE_CHECKING:
    from grpo_stack.description import Description
    from grpo_stack.findings import Finding
    from grpo_stack.plan import StackPlan


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code (errors.py lists them)."""
    words = list(sys.argv[1:] if argv is None else argv)
    with streams.guarded() as out:
        code = _run(words)
        fault = out.settle()
        if code or not fault or isinstance(fault, BrokenPipeError):
            return code
        print(f"{PROGRAM}: stdout: {fault.strerror or fault}; mind what it leads to", file=sys.stderr)
        return HostError.exit_code


def _run(words: list[str]) -> int:
    try:
        parser = arguments.parser()
        args = parser.parse_args(words)
        args.words = words
        if not args.command:
            parser.print_help()
            return 0
        return _COMMANDS[args.command](args)
    except GrpoStackError as fault:
        for problem in fault.problems:
            print(f"{PROGRAM}: {problem}", file=sys.stderr)
        return fault.exit_code
    except KeyboardInterrupt:
        print(f"{PROGRAM}: interrupted", file=sys.stderr)
        return INTERRUPTED


def _render(args: argparse.Namespace) -> int:
    from grpo_stack import bundle, description, plan
    from grpo_stack.render import compose

    described = _describe(args)
    if not args.output:
        made_by = compose.shell_line((PROGRAM, *args.words))
        streams.use_utf8()
        print(compose.render(plan.derive(described.spec), made_by)[compose.FILE], end="")
        return 0
    target = Path(args.output)
    files = bundle.files(description.moved(described, target), f"{PROGRAM} render --output .   (in this folder)")
    if described.file and os.path.realpath(described.file) == os.path.realpath(target / description.FILE):
        del files[description.FILE]
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (target / name).write_text(text, encoding="utf-8")
            print(target / name)
    except OSError as fault:
        reason = (fault.strerror or str(fault)).lower()
        raise DescriptionError(f"render: {fault.filename}: {reason}; name another folder: --output DIR") from None
    return 0


def _up(args: argparse.Namespace) -> int:
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
    stack = start.write(described, planned, args.project)
    try:
        with Progress(sys.stderr) as progress:
            progress.phase(f"run {stack.run_folder.name}, files in {stack.run_folder}")
            code = lifecycle.up(stack, progress)
    finally:
        start.hand_over(stack)
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


def _print_summary(folder: Path) -> None:
    summary = folder / "summary.txt"
    print(summary.read_text(encoding="utf-8") if summary.exists() else f"no summary in {summary}", end="")


def _doctor(args: argparse.Namespace) -> int:
    import json

    from grpo_stack import findings, start

    _, _, found = _examined(args, with_engine=args.runtime == "docker")
    if args.json:
        print(json.dumps(findings.as_data(found), indent=2))
    else:
        print(*findings.table(found), findings.summary(found), sep="\n")
    fault = start.fault(found)
    return fault.exit_code if fault else 0


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


def _plan(args: argparse.Namespace) -> int:
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


def _down(args: argparse.Namespace) -> int:
    from grpo_stack import engine, lifecycle, local_stop

    runs = _process_runs(args)
    if runs is not None:
        for folder in runs:
            local_stop.down(folder, local_stop.ASKED_LIMIT_S)
        return 0
    lifecycle.down(engine.find_client(), args.project, 120)
    return 0


def _status(args: argparse.Namespace) -> int:
    import dataclasses
    import json

    from grpo_stack import engine, local_stop

    runs = _process_runs(args)
    if runs is not None:
        members = [member for folder in runs for member in local_stop.status(folder)]
        if args.json:
            print(json.dumps(members, indent=2))
            return 0
        if not members:
            print(f"no process of {args.project} is running", file=sys.stderr)
        for member in members:
            pid = f" (pid {member['pid']})" if member["pid"] else ""
            code = f" with exit code {member['exit_code']}" if member["exit_code"] is not None else ""
            print(f"{member['service']:12} {member['state']}{pid}{code}  {member['run']}")
        return 0
    boxes = engine.containers(args.project)
    if args.json:
        print(json.dumps([dataclasses.asdict(box) for box in boxes], indent=2))
        return 0
    if not boxes:
        print(f"no container of {args.project}", file=sys.stderr)
    for box in boxes:
        health = f" ({box.health})" if box.health else ""
        code = f" with exit code {box.exit_code}" if box.state == "exited" else ""
        print(f"{box.service:12} {box.state}{health}{code}")
    return 0


def _process_runs(args: argparse.Namespace) -> list[Path] | None:
    """Folders of the runs of processes that a command is about; None: it is about containers."""
    from grpo_stack import run_state

    if args.runtime == "docker":
        return None
    outputs = _outputs(args.outputs)
    if args.runtime == "process" and args.run:
        return [outputs / args.run]
    return run_state.live_runs(outputs, args.project, args.run) or ([] if args.runtime == "process" else None)


def _outputs(named: str | None) -> Path:
    """The folder of all runs. A description that cannot be read keeps nobody from the run that it was written for."""
    from grpo_stack import description

    _require_folder()
    if named:
        return Path(os.path.expanduser(named)).absolute()  # noqa: PTH111  # fails for no name
    try:
        described = description.load(None, None, {}, [])
    except DescriptionError as fault:
        for problem in fault.problems:
            print(f"{PROGRAM}: warning: {problem}", file=sys.stderr)
        print(f"{PROGRAM}: warning: looking for runs in ./outputs; name another folder: --outputs DIR", file=sys.stderr)
        return Path("outputs").absolute()
    return Path(description.absolute(described.spec.outputs, described.directory))


def _require_folder() -> None:
    """Return if there is a current folder, which relative paths are relative to."""
    try:
        Path.cwd()
    except OSError:
        raise HostError("the current folder is gone or closed to this user; change to another: cd") from None


def _logs(args: argparse.Namespace) -> int:
    from grpo_stack import engine

    runs = _process_runs(args)
    if runs is not None:
        files = [str(file) for folder in runs for file in sorted((folder / "logs").glob("*.log"))]
        files = [file for file in files if not args.services or Path(file).stem in args.services]
        if not files:
            raise HostError("no run of processes is there to show; name one: --run NAME")
        os.execvp("tail", ["tail", "--lines", "+1", *(["--follow=name"] if args.follow else []), *files])
    client = engine.find_client()
    engine.containers(args.project)  # Compose's own words for a daemon that does not answer help nobody
    words = [
        client,
        "compose",
        "--project-name",
        args.project,
        "logs",
        *(["--follow"] if args.follow else []),
        *args.services,
    ]
    os.execv(client, words)


def _wait(args: argparse.Namespace) -> int:
    from grpo_stack import readiness, releases, versions

    command = _next(args)
    if args.once and command:
        raise DescriptionError("wait: --once is for health checks and runs no command; leave one of the two out")
    # The health check runs beside the server, in the server's own image: there is nothing to compare.
    installed = {} if args.once else releases.installed(versions.PACKAGES)
    expectation = readiness.Expectation(args.url, args.model, args.backend, args.world_size, installed)
    if args.once:
        until = time.monotonic() + args.timeout
        memo = Path(args.memo) if args.memo else None
        seen = memo is not None and _is_made(memo)
        readiness.check_once(expectation, remaining_s=lambda: until - time.monotonic(), generate=not seen)
        if memo:
            memo.touch()
        return 0
    readiness.wait_until_ready(expectation, budget_s=args.timeout, report=_reporter(args.url))
    if command:
        try:
            os.execvp(command[0], command)
        except OSError as fault:
            raise DescriptionError(f"wait: {command[0]} cannot be run: {fault.strerror}") from None
    return 0


def _is_made(memo: Path) -> bool:
    """Whether the memo is there. One that could not be made is told before anything is generated, and not each time after."""
    try:
        if memo.exists():
            return True
        allowed = os.access(memo.parent, os.W_OK | os.X_OK)
    except OSError:
        allowed = False
    if not allowed:
        raise DescriptionError(f"wait: --memo: {memo} cannot be made; name a file in a folder that this user may write")
    return False


def _next(args: argparse.Namespace) -> list[str]:
    """The command line behind the options."""
    words: list[str] = args.next
    return words[1:] if words[:1] == ["--"] else words


def _supervise(args: argparse.Namespace) -> int:
    command = _next(args)
    if not command:
        raise DescriptionError(f"supervise {args.role}: there is no command; give it after --")
    if args.role == "server":
        from grpo_stack.supervise import evidence, server

        memo = Path(args.memo) if args.memo else None
        limits = evidence.Limits(args.boot_timeout, args.stuck_after, args.update_limit)
        return server.run(server.Settings(args.url, limits, args.restarts, memo, args.grace), command)
    if args.url and not args.model:
        raise DescriptionError("supervise trainer: --url needs --model, the model that the server must serve")
    from grpo_stack import readiness, releases, versions
    from grpo_stack.supervise import trainer, verdict

    expectation = None
    if args.url:
        installed = releases.installed(versions.PACKAGES)
        expectation = readiness.Expectation(args.url, args.model, args.backend, args.world_size, installed)
    settings = trainer.Settings(
        run_folder=Path(args.run),
        server=expectation,
        gate_budget_s=args.timeout,
        phase_floor_s=args.phase_floor,
        restarts=args.restarts,
        limits=verdict.Limits(grace_s=args.grace),
    )
    return trainer.run(settings, command)


def _reporter(url: str) -> Callable[[str, float], None]:
    """Says what is waited for when that changes, and every ten seconds."""
    last = ("", float("-inf"))

    def report(phase: str, elapsed_s: float) -> None:
        nonlocal last
        if phase != last[0] or elapsed_s - last[1] >= 10:
            last = (phase, elapsed_s)
            print(f"{PROGRAM}: waiting for {url} ({elapsed_s:.0f} s): {phase}", file=sys.stderr, flush=True)

    return report


def _pins(args: argparse.Namespace) -> int:
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


def _describe(args: argparse.Namespace) -> Description:
    from grpo_stack import description

    _require_folder()
    keys = [*(key for _, key, _ in arguments.FLAGS), "data.rewards"]
    flags = {key: getattr(args, key) for key in keys if getattr(args, key) is not None}
    return description.load(args.file, args.preset, flags, args.settings)


_COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "render": _render,
    "up": _up,
    "doctor": _doctor,
    "plan": _plan,
    "down": _down,
    "status": _status,
    "logs": _logs,
    "wait": _wait,
    "supervise": _supervise,
    "pins": _pins,
}

if __name__ == "__main__":
    sys.exit(main())
