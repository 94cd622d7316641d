"""Compose itself reads what we render: nothing is started."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from grpo_stack import engine, plan, presets, rules, words
from grpo_stack.render import compose
from tests.descriptions import descriptions

pytestmark = pytest.mark.docker

ROOT = Path(__file__).parents[2]


def config(file: Path, *options: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """`docker compose config`, with an environment that sets nothing which a file of the stack reads."""
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    where = ["--project-directory", str(folder)] if folder else []
    argv = [engine.find_client(), "compose", "--file", str(file), *where, "config", *options]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("file", ["compose.yaml", *(f"compose/{name}/compose.yaml" for name in presets.PRESETS)])
def test_compose_takes_every_committed_file(file: str) -> None:
    done = config(ROOT / file, "--quiet")

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# No shrinking: each try is a process.
@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=descriptions())
def test_compose_reads_the_words_of_the_plan_from_any_file(tmp_path: Path, data: dict[str, object]) -> None:
    planned = plan.derive(rules.read(data))
    file = tmp_path / "compose.yaml"
    file.write_text(compose.render(planned, "test")["compose.yaml"], encoding="utf-8")
    elsewhere = tmp_path / "project"
    elsewhere.mkdir(exist_ok=True)

    done = config(file, "--format", "json", folder=elsewhere)

    assert (done.returncode, done.stderr) == (0, "")
    services = json.loads(done.stdout)["services"]
    for role in planned.roles:
        service = services[role.name]
        front = [_plain(word) for word in service["entrypoint"] or []]
        assert [_plain(word) for word in service["command"]] == [words.literal(word) for word in role.argv]
        assert front[len(front) - len(role.supervisor) :] == [words.literal(word) for word in role.supervisor]
        sources = [_plain(volume["source"]) for volume in service["volumes"] if volume["type"] == "bind"]
        assert sources == [os.path.normpath(elsewhere / mount.source) for mount in role.mounts]
        assert _plain(service["build"]["context"]) == os.path.normpath(elsewhere / planned.source)
        wheels = service["build"]["additional_contexts"]["wheels"]
        assert os.path.normpath(_plain(wheels)) == os.path.normpath(elsewhere / planned.source / "docker" / "wheels")


def _plain(text: str) -> str:
    """Compose prints a file that it could read again, so that every dollar stands twice."""
    return text.replace("$$", "$")
