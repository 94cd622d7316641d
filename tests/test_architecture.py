"""The module table of the design, held true: who imports whom, who touches the outside, and what a command loads."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import grpo_stack
from tests.fakes import peers

ROOT = Path(grpo_stack.__file__).parent


@dataclass(frozen=True)
class Row:
    """What one module may import."""

    imports: str = ""
    """Names from grpo_stack, first component only: `render` stands for all of render."""

    pure: bool = False
    """Sees no file, clock, environment, network, random number or terminal."""

    later: bool = False
    """Designed, and not written yet: may be absent."""


TABLE = {
    # the middle: data in, data out
    "errors": Row(pure=True),
    "facts": Row(pure=True),
    "words": Row(pure=True),
    "pins": Row("errors", pure=True),
    "presets": Row("errors", pure=True),
    "schema": Row(pure=True),
    "document": Row("schema", pure=True),
    "split": Row("schema", pure=True),
    "server_options": Row(pure=True),
    "module_names": Row(pure=True),
    "spec": Row("module_names parallelism pins schema split words", pure=True),
    "rules": Row("errors parallelism pins schema server_options spec split", pure=True),
    "launch": Row("spec", pure=True),
    "training_options": Row(pure=True),
    "programs": Row("launch schema spec split words", pure=True),
    "plan": Row("launch pins programs spec split words", pure=True),
    "render": Row(pure=True),
    "render.compose": Row("plan render split words", pure=True),
    "render.yamltext": Row("words", pure=True),
    "render.slurm": Row("plan render words", pure=True, later=True),
    "render.kubernetes": Row("plan render words", pure=True, later=True),
    "model_config": Row("facts", pure=True),
    "parallelism": Row("facts", pure=True),
    "memory": Row(pure=True),
    "memory.shares": Row(pure=True),
    "memory.tensors": Row("facts", pure=True),
    "memory.push": Row(pure=True),
    "memory.profile": Row("facts memory", pure=True),
    "memory.serving": Row(pure=True),
    "memory.server": Row("facts memory", pure=True),
    "memory.trainer": Row("facts memory", pure=True),
    "memory.checkpoint": Row("facts memory", pure=True),
    "topology": Row("facts split", pure=True),
    "findings": Row("errors", pure=True),
    "devices": Row("facts findings plan split topology", pure=True),
    "inputs": Row("facts findings", pure=True),
    "preflight": Row("devices facts findings inputs pins plan programs words", pure=True),
    "footprint": Row("facts launch memory parallelism pins programs spec split training_options", pure=True),
    "processes": Row("plan programs render words", pure=True),
    "local_preflight": Row("devices errors facts findings inputs pins plan preflight processes", pure=True),
    "fit": Row("facts footprint launch memory parallelism preflight programs spec split training_options", pure=True),
    # the edges: one module for each outside thing
    "time_limit": Row(),
    "http_call": Row("time_limit"),
    "vllm_api": Row("errors http_call"),
    "versions": Row(pure=True),
    "readiness": Row("activity_api errors versions vllm_api"),
    "gpus": Row("errors facts time_limit"),
    "engine": Row("errors facts time_limit"),
    "paths": Row(),
    "snapshots": Row("paths"),
    "hub_token": Row("paths snapshots"),
    "dataset_file": Row("facts paths"),
    "host": Row("facts paths snapshots"),
    "models": Row("facts host hub_token model_config snapshots time_limit"),
    "volumes": Row("engine facts programs"),
    "progress": Row(),
    "children": Row(),
    "stopping": Row(),
    "follow": Row("errors facts programs progress supervise"),
    "lifecycle": Row("children engine errors facts follow occupancy programs progress stopping"),
    "releases": Row(),
    "packages": Row("local_preflight releases"),
    "process_tree": Row(),
    "private_network": Row("errors"),
    "env_file": Row("errors"),
    "run_state": Row("errors process_tree"),
    "run_folder": Row("errors"),
    "occupancy": Row("engine errors render run_state"),
    "local_start": Row("demo description local_run occupancy plan processes run_folder spec words"),
    "local_run": Row("children errors facts follow process_tree processes programs progress run_state stopping"),
    "local_stop": Row("errors process_tree programs run_state"),
    "supervise": Row(),
    "supervise.backoff": Row(pure=True),
    "supervise.child": Row("errors process_tree"),
    "supervise.deadlines": Row(pure=True),
    "supervise.events": Row(),
    "supervise.evidence": Row("activity_api", pure=True),
    "supervise.server": Row("activity_api errors http_call private_network stopping supervise"),
    "supervise.watch": Row("heartbeat supervise"),  # of heartbeat only the record Beat, here and in the next one
    "supervise.verdict": Row("errors heartbeat supervise"),
    "supervise.peer": Row("activity_api http_call supervise"),
    "supervise.gate": Row("errors readiness supervise"),
    "supervise.attempt": Row("heartbeat readiness supervise"),
    "supervise.trainer": Row("env_file errors http_call private_network readiness stopping supervise"),
    "description": Row("document errors presets render rules schema spec"),
    "bundle": Row("description errors paths plan render"),
    "start": Row(
        "bundle description devices engine errors facts findings lifecycle occupancy plan presets processes render run_folder "
        "run_state topology words"
    ),
    "doctor": Row(
        "dataset_file description engine env_file errors facts findings fit footprint gpus host hub_token inputs local_preflight memory models "
        "packages paths plan preflight processes programs snapshots spec volumes words"
    ),
    "overview": Row("plan render words", pure=True),
    # inside the API server of vLLM
    "activity_api": Row(pure=True),
    "asgi": Row(),
    "activity": Row("activity_api asgi"),
    "identity": Row("activity_api asgi releases versions"),
    # the command line
    "arguments": Row("errors"),
    "streams": Row(),
    "cli": Row("arguments commands errors streams"),
    "commands": Row(),
    "commands.folder": Row("errors"),
    "commands.host": Row(
        "arguments bundle commands description doctor engine errors findings fit lifecycle local_run local_start "
        "overview pins plan progress render start streams"
    ),
    "commands.target": Row("arguments commands description engine errors render run_state"),
    "commands.runs": Row("arguments commands engine errors lifecycle local_stop programs run_state"),
    "commands.inside": Row("arguments errors readiness releases supervise versions"),
    # the training side, which runs in the containers
    "rewards": Row("errors"),
    "demo": Row("errors"),
    "bundled": Row("errors"),
    "dataset": Row("demo errors"),
    "space": Row("errors"),
    "manifest": Row(),
    "checkpoints": Row("errors manifest"),
    "extras": Row(pure=True),
    "mismatch": Row(pure=True),
    "metrics": Row("errors space transfer"),
    "callback": Row("heartbeat metrics mismatch"),
    "run_arguments": Row("dataset errors extras mismatch"),
    "saving": Row("checkpoints heartbeat space"),
    "resuming": Row("saving"),
    "assembly": Row("dataset errors hub metrics rewards run_arguments training_options transfer"),
    "heartbeat": Row("errors"),
    "hub": Row("errors"),
    "prefetch": Row("bundled dataset demo errors hub rewards"),
    "train": Row(
        "assembly callback checkpoints errors heartbeat metrics mismatch resuming run_arguments saving space transfer"
    ),
    "transfer": Row(),
    "transfer.client": Row("errors transfer"),
    "transfer.engine": Row("transfer"),
    "transfer.group": Row("transfer"),
    "transfer.nccl": Row(),
    "transfer.plugin": Row("transfer"),
    "transfer.wire": Row("transfer"),
}

PURE_LIBRARY = {
    *("__future__", "collections", "dataclasses", "difflib", "enum", "functools", "itertools", "json", "math"),
    *("operator", "posixpath", "re", "shlex", "string", "textwrap", "types", "typing", "yaml"),
}
"""What a pure module may import from elsewhere. `yaml` writes and reads text; `posixpath` works on text alone."""

PURE_CONSTANTS = {"sys.stdlib_module_names"}
"""What it may import besides, of modules that hold more than that."""

EFFECTS = {"open", "print", "input", "exec", "eval", "breakpoint", "__import__"}

OWNERS = {
    "docker": {"engine"},
    "pynvml": {"gpus"},
    "tenacity": {"readiness"},
    "requests": {"models", "assembly", "transfer"},
    "rich": {"progress"},
    "http": {"http_call"},
    "argparse": {"arguments", "cli", "commands", "demo", "prefetch"},
    "torch": {"train", "callback", "saving", "resuming", "demo", "bundled", "prefetch", "metrics", "transfer"},
    "transformers": {"train", "callback", "assembly", "demo", "bundled", "prefetch"},
    "trl": {"train", "run_arguments", "assembly", "rewards", "prefetch", "transfer"},
    "vllm": {"transfer"},
    "datasets": {"dataset", "prefetch"},
    "huggingface_hub": {"hub", "prefetch"},
}
"""Outside libraries that only these modules may import, by first component."""

PRINTERS = {
    "cli",
    "commands.host",
    "commands.inside",
    "commands.runs",
    "commands.target",
    "train",
    "callback",
    "prefetch",
    "demo",
}
"""The command line, and the programs that are started in the containers."""

HEAVY = (
    *("torch", "vllm", "trl", "transformers", "datasets", "huggingface_hub"),
    *("docker", "pynvml", "tenacity", "rich", "requests", "asyncio"),
)


@cache
def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    del found[""]  # the package itself holds its version and nothing else
    return found


def written() -> list[str]:
    return [name for name in TABLE if name in modules()]


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(modules()[name].read_text(encoding="utf-8"))


@cache
def imports(name: str) -> tuple[str, ...]:
    return tuple(_imports(name))


def _imports(name: str) -> Iterator[str]:
    """Dotted names of all that a module imports, at its top or inside functions; a package's members one by one."""
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: relative import in line {node.lineno}"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def first(dotted: str) -> str:
    return dotted.partition(".")[0]


def own_imports(name: str) -> set[str]:
    found = {dotted.split(".")[1] for dotted in imports(name) if dotted.startswith("grpo_stack.")}
    return found - {"__version__", first(name) if "." not in name else ""}


def test_the_package_has_no_module_that_the_table_does_not_know() -> None:
    assert set(modules()) - set(TABLE) == set(), "extend the table, and say in the design what the module is for"


def test_every_module_of_the_table_exists() -> None:
    expected = {name for name, row in TABLE.items() if not row.later}

    assert expected - set(modules()) == set()


@pytest.mark.parametrize("name", written())
def test_a_module_imports_only_what_the_table_allows(name: str) -> None:
    assert own_imports(name) - set(TABLE[name].imports.split()) == set()


def test_no_module_imports_itself_in_a_circle() -> None:
    reaches = {name: own_imports(name) for name in written()}
    order: list[str] = []

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " → ".join([*above, name])
        if name not in order:
            for other in sorted(reaches.get(name, ())):
                visit(other, (*above, name))
            order.append(name)

    for name in reaches:
        if "." not in name:
            visit(name, ())


@pytest.mark.parametrize("name", [name for name in written() if TABLE[name].pure])
def test_a_pure_module_reaches_for_nothing_outside(name: str) -> None:
    outside = {first(dotted) for dotted in {*imports(name)} - PURE_CONSTANTS} - {"grpo_stack"} - PURE_LIBRARY
    called = {
        node.func.id for node in ast.walk(tree(name)) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }

    assert outside == set()
    assert called & EFFECTS == set()


@pytest.mark.parametrize("name", [name for name in written() if TABLE[name].pure])
def test_a_pure_module_leans_on_pure_modules_only(name: str) -> None:
    assert {other for other in own_imports(name) if not TABLE[other].pure} == set()


@pytest.mark.parametrize("library", OWNERS)
def test_an_outside_library_has_its_owners(library: str) -> None:
    importers = {first(name) for name in written() if library in {first(dotted) for dotted in imports(name)}}

    assert importers - OWNERS[library] == set()


def test_only_programs_print() -> None:
    printers = {
        name
        for name in written()
        for node in ast.walk(tree(name))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    }

    assert printers - PRINTERS == set()


@pytest.mark.parametrize("name", written())
def test_what_is_slow_to_import_is_imported_where_it_is_needed(name: str) -> None:
    at_top = set()
    for node in tree(name).body:
        if isinstance(node, ast.Import):
            at_top |= {first(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            at_top.add(first(node.module or ""))
    # These are themselves imported by one command, by the training program, or by vLLM, alone.
    exempt = {
        "activity": {"asyncio"},
        "asgi": {"asyncio"},
        "identity": {"asyncio"},
        "progress": {"rich"},
        "callback": {"transformers"},
        "transfer.engine": {"torch", "vllm"},
        "transfer.nccl": {"torch", "vllm"},
    }

    assert at_top & set(HEAVY) - exempt.get(name, set()) == set()


PROBE = """
import json, sys
from grpo_stack.cli import main
try:
    code = main(sys.argv[1:])
except SystemExit as end:
    code = end.code
sys.stdout.flush()
print(json.dumps([code or 0, sorted(name for name in sys.modules if "." not in name)]), file=sys.stderr)
"""


def loaded(*words: str) -> tuple[int, set[str]]:
    """Exit code, and the top-level modules that a fresh interpreter holds after the command."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *words], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
    )
    code, names = json.loads(done.stderr.splitlines()[-1])
    return code, set(names)


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["render", "--model", "Qwen/Qwen2.5-7B", "--split", "4:4", "--target", "compose"],
        ["pins"],
        ["wait", "--help"],
    ],
    ids=" ".join,
)
def test_a_light_command_loads_nothing_heavy(words: list[str]) -> None:
    code, names = loaded(*words)

    assert code == 0
    assert names & set(HEAVY) == set()


def test_the_supervisor_of_the_server_loads_nothing_heavy() -> None:
    code, names = loaded("supervise", "server", "--", "no-such-program")

    assert code == 2
    assert names & {*HEAVY, "yaml"} == set()


def test_render_makes_none_of_the_classes_that_hold_what_was_found() -> None:
    program = (
        "import sys; from grpo_stack.cli import main; main(['render']); assert 'grpo_stack.facts' not in sys.modules"
    )

    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=60)


def test_the_health_check_loads_nothing_heavy() -> None:
    with peers.refusing() as url:
        code, names = loaded("wait", "--once", "--url", url, "--model", "m", "--timeout", "5")

    assert code == 4
    assert names & {*HEAVY, "yaml"} == set()
