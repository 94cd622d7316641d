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


def make(*words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    # A surrounding `make test` must not lend its own flags and variables.
    env = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MODEL", "SPLIT")
    }
    return subprocess.run(["make", *words], cwd=cwd, env=env, capture_output=True, text=True, timeout=60, check=False)


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


@pytest.fixture(params=["checkout", "with a blank", "it's", 'a"b', "a$HOME", "a`b", "a#b", "a;b", "(a)", "ä"])
def checkout(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy with this Makefile, whose `grpo-stack` shows its words, a line each."""
    folder = tmp_path / request.param
    for name, text in (("requirements/venv.sh", "exit 0"), (".venv/bin/grpo-stack", 'printf "%s\\n" "$@"')):
        file = folder / name
        file.parent.mkdir(parents=True)
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)
    shutil.copy(ROOT / "Makefile", folder)
    return folder


def test_model_and_split_reach_the_command_line_wherever_the_checkout_lies(checkout: Path) -> None:
    done = make("render", "MODEL=Qwen/Qwen2.5-7B", "SPLIT=2:6", "ARGS=--file x.yaml", cwd=checkout)

    assert done.stdout.splitlines() == [
        *("render", "--model", "Qwen/Qwen2.5-7B", "--split", "2:6", "--file", "x.yaml"),
    ]


@pytest.mark.parametrize("checkout", ["checkout"], indirect=True)
@pytest.mark.parametrize("model", ["./with a blank", "./it's", './a"b', "./a$HOME", "./a`b`", "./a;b", "./a\\b", "./*"])
def test_a_model_is_one_word_whatever_stands_in_it(checkout: Path, model: str) -> None:
    done = make("render", f"MODEL={model.replace('$', '$$')}", cwd=checkout)  # a dollar is doubled for make itself

    assert done.stdout.splitlines() == ["render", "--model", model]


def test_up_checks_and_then_starts_the_same() -> None:
    done = make("--dry-run", "up", "MODEL=Qwen/Qwen2.5-7B", "SPLIT=2:6", "ARGS=--runtime process")

    assert done.returncode == 0
    words = '--model "$MODEL" --split "$SPLIT" --runtime process'
    assert f'"$STACK" up --check description {words}\n' in done.stdout
    assert f'exec "$STACK" up {words}\n' in done.stdout


def test_up_without_settings_names_neither_model_nor_split() -> None:
    done = make("--dry-run", "up")

    assert '"$STACK" up' in done.stdout
    assert "--model" not in done.stdout
    assert "--split" not in done.stdout


def test_cleaning_reaches_for_this_project_only() -> None:
    script = (ROOT / "docker" / "setup" / "clean.sh").read_text()

    assert "prune" not in TEXT + script
    assert script.count('--filter "$label"') == 3
    assert "reference=grpo-stack/*" in script
    assert "outputs" not in "".join(re.findall(r"rm -rf.*", TEXT + script))
