"""The engine module, and the fake that its other tests use, against the real daemon."""

from __future__ import annotations

import json
import subprocess
import tarfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_stack import engine
from tests.fakes.dockerd import FakeDockerd

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An image of one static program, busybox, or of the shell and its libraries where there is none."""
    name = f"grpo-stack-test-{uuid.uuid4().hex[:8]}"
    archive = tmp_path_factory.mktemp("image") / "root.tar"
    needed = subprocess.run(["ldd", "/bin/sh"], check=True, capture_output=True, text=True, timeout=10).stdout
    libraries = [word for word in needed.split() if word.startswith("/")]
    with tarfile.open(archive, "w", dereference=True) as tar:
        for path in ["/bin/sh", *libraries]:
            tar.add(path)
    docker = engine.find_client()
    subprocess.run([docker, "import", "--change", 'CMD ["/bin/sh"]', str(archive), name], check=True, timeout=60)
    yield name
    subprocess.run([docker, "rmi", "-f", name], check=True, timeout=60)


@pytest.fixture
def project(image: str, tmp_path: Path) -> Iterator[str]:
    """Two services: one that ends with exit code 3, and one that stays, healthy."""
    name = f"grpo-stack-test-{uuid.uuid4().hex[:8]}"
    services = {
        "ends": {
            "image": image,
            "network_mode": "none",
            "command": ["/bin/sh", "-c", "echo one; echo two >&2; exit 3"],
        },
        "stays": {
            "image": image,
            "network_mode": "none",
            "init": True,
            "command": ["/bin/sh", "-c", "echo here; read line", "sh", "--output_dir", "/outputs/mine"],
            "volumes": [f"{tmp_path}:/outputs"],
            "stdin_open": True,
            "healthcheck": {"test": ["CMD", "/bin/sh", "-c", "exit 0"], "interval": "1s"},
        },
    }
    file = tmp_path / "compose.yaml"
    file.write_text(json.dumps({"name": name, "services": services}))
    compose = [engine.find_client(), "compose", "-f", str(file)]
    subprocess.run([*compose, "up", "-d", "--quiet-pull"], check=True, timeout=120)
    subprocess.run([compose[0], "wait", f"{name}-ends-1"], check=True, timeout=60, stdout=subprocess.DEVNULL)
    yield name
    subprocess.run([*compose, "down", "-t", "1", "-v"], check=True, timeout=120)


def test_the_real_engine_is_read() -> None:
    found = engine.read()

    said = subprocess.run(
        [found.client, "version", "--format", "{{.Server.Version}}"],
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
    ).stdout.strip()
    assert found.version == said
    assert found.compose_version[0].isdigit()
    assert found.default_runtime in found.runtimes
    assert found.data_root
    assert not found.podman


def test_the_real_engine_tells_state_exit_code_health_and_log(project: str) -> None:
    ends, stays = engine.containers(project, log_lines=5)

    assert (ends.service, ends.state, ends.exit_code, ends.health) == ("ends", "exited", 3, None)
    assert sorted(ends.last_lines) == ["one", "two"]
    assert (stays.service, stays.state, stays.exit_code) == ("stays", "running", None)
    assert stays.health in ("starting", "healthy")
    assert stays.last_lines == ("here",)
    assert stays.name == f"{project}-stays-1"


def test_the_real_engine_tells_what_was_made_from_a_file(project: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)

    found = engine.made_from(tmp_path / "link" / "compose.yaml")

    assert {name: [box.service for box in boxes] for name, boxes in found.items()} == {project: ["ends", "stays"]}
    assert engine.made_from(tmp_path / "other.yaml") == {}


def test_the_real_engine_tells_who_is_told_to_write_to_a_folder(project: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)

    found = engine.told_to_write(tmp_path / "link" / "mine", ["--output_dir"])

    assert {name: [box.service for box in boxes] for name, boxes in found.items()} == {project: ["stays"]}
    assert engine.told_to_write(tmp_path / "other", ["--output_dir"]) == {}


def test_the_fake_answers_with_the_fields_of_the_real_engine(tmp_path: Path) -> None:
    import docker

    real = docker.from_env(timeout=10)
    fake = FakeDockerd(tmp_path / "s")

    assert fake.version.keys() <= real.version().keys()
    # OperatingSystem and the rest are always there; DiscoveredDevices only since Engine 28.2, and the fake leaves it out.
    assert fake.info.keys() <= real.info().keys()
