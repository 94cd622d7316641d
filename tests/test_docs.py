"""The documents say what the code does."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import yaml

from grpo_stack import arguments, devices, preflight, rules, split

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()

SECTIONS = {"StackSpec": "", "Data": "data.", "Server": "server.", "Trainer": "trainer.", "Recovery": "recovery."}


def described_keys() -> list[tuple[str, str, str]]:
    """`(key, default, meaning)` of every field of the description, from the source of `spec`."""
    tree = ast.parse((ROOT / "grpo_stack" / "spec.py").read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef) and node.name in SECTIONS}
    rows = []
    for name, prefix in SECTIONS.items():
        body = classes[name].body
        for field, after in zip(body, [*body[1:], None], strict=True):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                has_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                if field.target.id in ("data", "server", "trainer", "recovery"):
                    continue
                meaning = " ".join(str(after.value.value).split()) if has_text else ""
                rows.append((prefix + field.target.id, _default(field.value), meaning))
    return rows


def _default(value: ast.expr | None) -> str:
    if isinstance(value, ast.Call):
        if getattr(value.func, "id", "") == "field":
            return "{}"
        value = value.args[-1]
        if isinstance(value, ast.Call):
            name, default = (argument.value for argument in value.args)
            return f"${{{name}:-{default}}}"
    text = ast.unparse(value) if value else ""
    return {"None": "", "pins.DEFAULT": "trl-1.16", "()": "[]"}.get(
        text, text.strip("'").replace("('", "['").replace("',)", "']")
    )


def page() -> str:
    lines = [
        "# The description",
        "",
        "Every key of `stack.yaml`; all of them are optional, and unknown ones are refused. Paths are relative to the file. On the",
        "command line, `--set KEY=VALUE` sets any of them. A `~` in front of a path is the home folder of whoever runs it.",
        "",
        "| Key | Default | |",
        "| --- | --- | --- |",
    ]
    lines += [
        f"| `{key}` | {f'`{default}`' if default else ''} | {meaning} |" for key, default, meaning in described_keys()
    ]
    return "\n".join(lines) + "\n"


def test_the_page_of_keys_is_what_the_spec_holds(update_golden):
    file = ROOT / "docs" / "description.md"
    if update_golden:
        file.write_text(page())

    assert file.read_text() == page()


def test_every_key_says_what_it_is_for():
    assert [key for key, _, meaning in described_keys() if not meaning] == []


def test_the_readme_is_short_enough_to_be_read():
    assert len(README.splitlines()) <= 150


def test_the_readme_says_how_gpus_are_split_that_nobody_splits():
    counts = {"two": 2, "four": 4, "six": 6, "eight": 8}
    said = ", ".join(f"{devices.suggest(count)} of {word}" for word, count in counts.items())

    assert f"the GPUs that are found decide: {said}." in " ".join(README.split())
    assert rules.read({}).gpus == split.parse(devices.suggest(8))


def test_the_readme_asks_a_host_for_what_the_checks_ask_it_for():
    disk, memory = (
        {kind: size // 10**9 for kind, size in of.items()} for of in (preflight.IMAGE_BYTES, preflight.MEMORY_BYTES)
    )
    needs = " ".join(README.partition("## What it needs")[2].partition("## Start")[0].split())

    assert f"{memory['cuda']} GB of memory, {disk['cuda']} GB of disk for the images" in needs
    # What is available is checked; the system takes some of a host's memory.
    assert f"{memory['cpu'] + 1} GB of memory, {disk['cpu']} GB of disk." in needs


def test_the_description_in_the_readme_is_accepted():
    (text,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)

    described = rules.read(yaml.safe_load(text))

    assert str(described.split) == "0-1:2-7"
    assert described.trainer.args["reward_weights"] == (1.0, 0.2)


def test_files_that_the_documents_point_to_exist():
    for document in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        text = document.read_text()
        for name in re.findall(r"\]\(([^)#:]+)\)|`((?:docs|bench|docker|compose|tests|grpo_stack)/[\w./-]+)`", text):
            path = name[0] or name[1]
            if re.search(r"\b[A-Z]{3,}\b", path.removesuffix(".md")):
                continue  # a placeholder, as in docker/locks/PINS.cpu.txt
            assert (document.parent / path).exists() or (ROOT / path).exists(), f"{document.name}: {path}"


def test_every_module_has_a_place_in_the_page_for_contributors():
    modules = {
        path.stem for path in (ROOT / "grpo_stack").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    text = (ROOT / "CONTRIBUTING.md").read_text()

    assert modules - set(re.findall(r"`(\w+)`", text)) == {"__init__"}


def test_the_page_on_reliability_knows_every_event_and_every_reason():
    text = (ROOT / "docs" / "reliability.md").read_text()
    sources = [file.read_text() for file in (ROOT / "grpo_stack" / "supervise").glob("*.py")]
    events = {name for source in sources for name in re.findall(r'\.record\(\s*"([\w-]+)"', source)}
    reasons = {name for source in sources for name in re.findall(r'(?:Verdict\(\s*|what=)"([\w-]+)"', source)}

    assert {"noticed", "resuming"} <= events
    assert {"server-gone", "update-abandoned"} <= reasons
    assert (events | reasons - {"done"}) - set(re.findall(r"`([\w-]+)`", text)) == set()


def test_commands_and_flags_in_the_readme_exist():
    parser = arguments.parser()
    help_text = parser.format_help() + "".join(
        command.format_help() for action in parser._subparsers._group_actions for command in action.choices.values()
    )
    for line in re.findall(r"`grpo-stack ([^`]+)`", README):
        words = line.replace(",", " ").split()
        assert words[0] in help_text
        for flag in re.findall(r"--[a-z-]+", line):
            assert flag in help_text
