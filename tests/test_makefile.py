"""The Makefile, without running its slow targets."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "Makefile").read_text()
TARGETS = re.findall(r"^([a-z][a-z-]*):(?!=)", TEXT, re.MULTILINE)

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def make(*words: str) -> subprocess.CompletedProcess[str]:
    # A surrounding `make test` must not lend its own flags and variables.
    env = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MODEL", "SPLIT")
    }
    return subprocess.run(["make", *words], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_make_alone_lists_every_target_with_what_it_does() -> None:
    done = make()

    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == TARGETS
    assert all(len(line.split()) > 2 for line in done.stdout.splitlines())


def test_every_target_is_declared_phony() -> None:
    phony = {name for line in re.findall(r"^\.PHONY: (.*)$", TEXT, re.MULTILINE) for name in line.split()}

    assert phony == set(TARGETS)


def test_targets_that_messages_and_documents_name_exist() -> None:
    texts = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("grpo_stack/**/*.py"), *ROOT.glob("bench/*.py")]
    named = {target for text in texts for target in re.findall(r"(?:`|run: |\$ )make ([a-z][a-z-]*)", text.read_text())}

    assert {"build", "up"} <= named
    assert named - set(TARGETS) == set()


def test_up_hands_model_and_split_to_the_command_line() -> None:
    done = make("--dry-run", "up", "MODEL=Qwen/Qwen2.5-7B", "SPLIT=2:6", "ARGS=--check")

    assert done.returncode == 0
    assert 'bin/grpo-stack" up --model "Qwen/Qwen2.5-7B" --split "2:6" --check' in done.stdout


def test_up_without_settings_names_neither_model_nor_split() -> None:
    done = make("--dry-run", "up")

    assert 'bin/grpo-stack" up' in done.stdout
    assert "--model" not in done.stdout
    assert "--split" not in done.stdout


def test_cleaning_reaches_for_this_project_only() -> None:
    script = (ROOT / "docker" / "setup" / "clean.sh").read_text()

    assert "prune" not in TEXT + script
    assert script.count('--filter "$label"') == 3
    assert "reference=grpo-stack/*" in script
    assert "outputs" not in "".join(re.findall(r"rm -rf.*", TEXT + script))
