from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import docker.client
import docker.context
import pytest

from grpo_stack import engine
from grpo_stack.errors import HostError
from grpo_stack.facts import Container, Engine
from tests.fakes.dockerd import FakeDockerd

assert docker.client  # imported before any test gives up the rights to read it


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path: a Unix socket's may have 107 bytes."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


@pytest.fixture(autouse=True)
def client(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only `docker` on PATH; it has Compose."""
    path = command(folder / "bin", "case $* in 'compose version --short') echo v2.26.1-4;; *) exit 9;; esac")
    monkeypatch.setenv("PATH", str(path.parent))
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(folder / "config"))
    return path


@pytest.fixture
def dockerd(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDockerd]:
    with FakeDockerd(folder / "s") as daemon:
        monkeypatch.setenv("DOCKER_HOST", daemon.address)
        yield daemon


def command(folder: Path, script: str, name: str = "docker") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_the_engine_is_read_whole(dockerd: FakeDockerd, client: Path, folder: Path) -> None:
    found = engine.read()

    free = found.data_root_free_bytes
    assert free is not None
    assert 0 < free <= shutil.disk_usage(folder).total
    assert found == Engine(
        version="26.1.5+dfsg1",
        api_version="1.45",
        client=str(client),
        compose_version="2.26.1-4",
        podman=False,
        rootless=False,
        cgroup_driver="systemd",
        runtimes=("io.containerd.runc.v2", "runc"),
        default_runtime="runc",
        cdi_devices=(),
        cdi_spec_dirs=(),
        data_root=str(folder),
        data_root_free_bytes=free,
        gpus_usable=False,
    )


def test_podman_in_disguise_is_recognised(dockerd: FakeDockerd) -> None:
    dockerd.version["Components"] = [{"Name": "Podman Engine", "Version": "4.3.1"}]

    assert engine.read().podman


def test_a_rootless_engine_is_recognised(dockerd: FakeDockerd) -> None:
    dockerd.info["SecurityOptions"].append("name=rootless")

    assert engine.read().rootless


def test_the_nvidia_runtime_makes_gpus_usable(dockerd: FakeDockerd) -> None:
    dockerd.info["Runtimes"]["nvidia"] = {"path": "nvidia-container-runtime"}

    assert engine.read().gpus_usable


def test_the_nvidia_hook_makes_gpus_usable(dockerd: FakeDockerd, client: Path) -> None:
    command(client.parent, "exit 0", "nvidia-container-runtime-hook")

    assert engine.read().gpus_usable


def test_cdi_devices_that_the_engine_lists_make_gpus_usable(dockerd: FakeDockerd) -> None:
    dockerd.info["DiscoveredDevices"] = [
        {"Source": "cdi", "ID": "nvidia.com/gpu=1"},
        {"Source": "cdi", "ID": "nvidia.com/gpu=0"},
        {"Source": "other", "ID": "x"},
    ]

    found = engine.read()

    assert found.cdi_devices == ("nvidia.com/gpu=0", "nvidia.com/gpu=1")
    assert found.gpus_usable


def test_an_older_engine_with_cdi_is_believed_by_its_spec_files(dockerd: FakeDockerd, folder: Path) -> None:
    specs = folder / "cdi"
    specs.mkdir()
    (specs / "nvidia.yaml").write_text("kind: nvidia.com/gpu\ndevices:\n- name: all\n- name: '0'\n")
    (specs / "other.json").write_text(json.dumps({"kind": "vendor.com/net", "devices": [{"name": "eth0"}]}))
    (specs / "broken.json").write_text("{")
    (specs / "broken.yaml").write_text("a: [")
    (specs / "list.yaml").write_text("- a\n")
    dockerd.info["CDISpecDirs"] = [str(specs), str(folder / "missing")]

    found = engine.read()

    assert found.cdi_devices == ("nvidia.com/gpu=0", "nvidia.com/gpu=all", "vendor.com/net=eth0")
    assert found.gpus_usable


def test_an_engine_in_a_virtual_machine_is_not_measured_by_this_hosts_disk(dockerd: FakeDockerd) -> None:
    dockerd.info["OperatingSystem"] = "Docker Desktop"

    found = engine.read()

    assert found.data_root_free_bytes is None
    assert found.gpus_usable is None


def test_a_data_root_that_cannot_be_seen_has_no_known_space(dockerd: FakeDockerd, folder: Path) -> None:
    dockerd.info["DockerRootDir"] = str(folder / "gone")

    assert engine.read().data_root_free_bytes is None


def test_docker_that_is_not_installed_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{folder}/none")

    with pytest.raises(HostError) as caught:
        engine.read()

    assert caught.value.problems == (
        "Docker is not installed; let `make build` install it, or see https://docs.docker.com/engine/install/",
    )


@pytest.mark.parametrize("stale", [False, True], ids=["no socket", "a socket that nobody serves"])
def test_a_daemon_that_does_not_run_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch, stale: bool) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{folder}/s")
    if stale:
        socket.socket(socket.AF_UNIX).bind(f"{folder}/s")

    with pytest.raises(HostError) as caught:
        engine.read()

    assert caught.value.problems == (
        f"Docker's daemon does not run (nothing listens at unix://{folder}/s); run: sudo systemctl start docker",
    )


@contextmanager
def as_an_ordinary_user() -> Iterator[None]:
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_missing_permission_is_said(dockerd: FakeDockerd) -> None:
    Path(dockerd.address.removeprefix("unix://")).chmod(0)

    with as_an_ordinary_user(), pytest.raises(HostError) as caught:
        engine.containers("p")

    assert caught.value.problems == (
        f"no permission for Docker at {dockerd.address}; run: sudo usermod -aG docker $USER, then log out and in again",
    )


@contextmanager
def listening(folder: Path, monkeypatch: pytest.MonkeyPatch, trickle: bytes) -> Iterator[None]:
    """A daemon that accepts, and then sends `trickle` again and again."""
    over = threading.Event()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{folder}/s")
    listener.listen()
    monkeypatch.setenv("DOCKER_HOST", f"unix://{folder}/s")

    def serve() -> None:
        with suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: " if trickle else b"")
                while not over.wait(0.02):
                    connection.sendall(trickle)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield
    finally:
        over.set()
        listener.close()


@pytest.mark.parametrize("trickle", [b"", b"x"], ids=["says nothing", "trickles"])
def test_a_daemon_that_does_not_answer_is_given_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch, trickle: bytes
) -> None:
    monkeypatch.setattr(engine, "CALL_TIMEOUT_S", 0.2)
    monkeypatch.setattr(engine, "TOTAL_TIMEOUT_S", 0.4)

    with (
        listening(folder, monkeypatch, trickle),
        pytest.raises(HostError, match="does not answer in time; see its log"),
    ):
        engine.containers("p")


def test_an_error_of_the_daemon_is_passed_on_in_one_line(dockerd: FakeDockerd) -> None:
    dockerd.status = 500

    with pytest.raises(HostError, match="something broke") as caught:
        engine.containers("p")

    assert "\n" not in str(caught.value)


def test_an_address_that_means_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "gibberish://x")

    with pytest.raises(HostError, match="Docker at gibberish://x: "):
        engine.containers("p")


def test_a_context_that_does_not_exist_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONTEXT", "elsewhere")

    with pytest.raises(HostError, match="Docker context 'elsewhere' does not exist; see: docker context ls"):
        engine.containers("p")


def test_no_daemon_and_no_compose_are_said_together(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = command(folder / "old", "echo 'Usage: docker COMMAND'")
    monkeypatch.setenv("PATH", str(path.parent))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{folder}/none")

    with pytest.raises(HostError) as caught:
        engine.read()

    assert [problem.split(";")[0] for problem in caught.value.problems] == [
        f"no Docker Compose with {path}",
        f"Docker's daemon does not run (nothing listens at unix://{folder}/none)",
    ]


@pytest.mark.parametrize(
    "script", ["exit 1", "echo 'Usage: docker COMMAND'", "echo", "kill -9 $$"], ids=["fails", "help", "empty", "killed"]
)
def test_a_client_without_compose_is_passed_over(
    folder: Path, client: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    first = command(folder / "first", script)
    monkeypatch.setenv("PATH", f"{folder / 'nothing'}:{first.parent}:{client.parent}")

    assert engine.find_client() == str(client)


def test_a_client_that_hangs_is_passed_over(folder: Path, client: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "CALL_TIMEOUT_S", 0.3)
    first = command(folder / "first", "exec /bin/cat /dev/zero >/dev/null")
    monkeypatch.setenv("PATH", f"{first.parent}:{client.parent}")

    assert engine.find_client() == str(client)


def test_containers_of_the_project_come_by_service_with_what_is_known(dockerd: FakeDockerd) -> None:
    dockerd.add(
        "vllm-server",
        {"Status": "running", "ExitCode": 0, "OOMKilled": False, "Health": {"Status": "starting"}},
        log=b"loading\nweights:  10%\rweights:  90%\r\n\x1b[32mready\x1b[0m\n",
    )
    dockerd.add("trainer", {"Status": "exited", "ExitCode": 137, "OOMKilled": True}, log=b"\xff\n\n")
    dockerd.add("prefetch", {"Status": "created", "ExitCode": 0, "Health": {"Status": "none"}})
    dockerd.add("trainer", {"Status": "running", "ExitCode": 0}, one_off=True)
    dockerd.add("stranger", {"Status": "running", "ExitCode": 0}, project="p2")

    assert engine.containers("p", log_lines=3) == (
        Container("p-prefetch-1", "prefetch", "created", None, None, False),
        Container("p-trainer-1", "trainer", "exited", 137, None, True, ("\ufffd",)),
        Container(
            "p-vllm-server-1", "vllm-server", "running", None, "starting", False, ("loading", "weights:  90%", "ready")
        ),
    )


def test_a_container_that_vanishes_meanwhile_is_left_out(dockerd: FakeDockerd) -> None:
    dockerd.add("trainer", {"Status": "running", "ExitCode": 0})
    dockerd.vanished.add(dockerd.containers[0]["Id"])

    assert engine.containers("p") == ()


def test_what_was_made_from_a_compose_file_is_found_by_project_whatever_link_leads_to_it(
    dockerd: FakeDockerd, tmp_path: Path
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    file = str(tmp_path / "there" / "compose.yaml")
    dockerd.add("trainer", {"Status": "running", "ExitCode": 0}, file=file)
    dockerd.add("prefetch", {"Status": "exited", "ExitCode": 0}, file=file)
    dockerd.add("trainer", {"Status": "paused", "ExitCode": 0}, file=file, project="q")
    dockerd.add("trainer", {"Status": "running", "ExitCode": 0}, file=file, one_off=True)
    dockerd.add("trainer", {"Status": "running", "ExitCode": 0}, file=f"{file},{tmp_path}/more.yaml")
    dockerd.add("trainer", {"Status": "running", "ExitCode": 0})

    assert engine.made_from(tmp_path / "link" / "compose.yaml") == {
        "p": (
            Container("p-prefetch-1", "prefetch", "exited", 0, None, False),
            Container("p-trainer-1", "trainer", "running", None, None, False),
        ),
        "q": (Container("q-trainer-1", "trainer", "paused", None, None, False),),
    }
    assert engine.made_from(tmp_path / "compose.yaml") == {}


def test_who_is_told_to_write_to_a_folder_is_found_by_what_it_is_inside(dockerd: FakeDockerd, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    mounts = {"/cache": "/var/lib/docker/volumes/cache/_data", "/outputs": str(tmp_path / "there")}
    up, words = {"Status": "running", "ExitCode": 0}, ("-c", "x", "--output_dir", "/outputs/mine", "--beta", "0")
    dockerd.add("trainer", up, args=words, mounts=mounts)
    dockerd.add("vllm-server", up, args=("--host", "0.0.0.0"))
    dockerd.add("trainer", {"Status": "paused", "ExitCode": 0}, args=words, mounts=mounts, project="q", one_off=True)
    dockerd.add("trainer", up, args=words, mounts={"/outputs": str(tmp_path)}, project="another folder of runs")
    dockerd.add("trainer", up, args=words, project="in its own file system")
    dockerd.add("board", up, args=("--logdir", "/outputs/mine"), mounts=mounts, project="a reader")
    dockerd.add("trainer", up, args=("--output_dir", "/outputs/mine2"), mounts=mounts, project="another run")

    assert engine.told_to_write(tmp_path / "link" / "mine", ["--outputs", "--output_dir"]) == {
        "p": (Container("p-trainer-1", "trainer", "running", None, None, False),),
        "q": (Container("q-trainer-1", "trainer", "paused", None, None, False),),
    }
    assert engine.told_to_write(tmp_path / "mine", ["--outputs"]) == {}
