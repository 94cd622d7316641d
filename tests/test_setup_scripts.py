"""The set-up scripts against hand-written docker clients, in a copy of their folder and with nothing else on PATH."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from grpo_stack import pins, plan, rules

ROOT = Path(__file__).parents[1]
TOOLS = [
    "awk",
    "basename",
    "cat",
    "chmod",
    "cksum",
    "date",
    "dirname",
    "env",
    "grep",
    "head",
    "id",
    "install",
    "ln",
    "ls",
    "mkdir",
    "mktemp",
    "printf",
    "rm",
    "sed",
    "sh",
    "sleep",
    "sort",
    "tail",
    "timeout",
    "touch",
    "tr",
]
COMPOSE = "2.26.1"


def client(
    compose: str = COMPOSE, engine: str = "26.1.5", buildx: bool = True, error: str = "", images: str = ""
) -> str:
    """A docker client that knows these five commands and refuses all others."""
    return f"""#!/bin/sh
case "$*" in
    "compose version --short") [ -n "{compose}" ] && echo "{compose}" ;;
    "compose version") [ -n "{compose}" ] ;;
    "buildx version") {str(buildx).lower()} ;;
    "version --format {{{{.Server.Version}}}}") echo "{error}" >&2; echo "{engine}"; [ -n "{engine}" ] ;;
    "image inspect "*) echo " {images} " | grep -q " $3 " ;;
    *) echo "unexpected: docker $*" >&2; exit 99 ;;
esac
"""


@dataclass
class Host:
    """A copy of the scripts, and a PATH of our own."""

    root: Path
    folders: list[Path] = field(default_factory=list)

    def add_client(self, text: str) -> Path:
        folder = self.root / f"client{len(self.folders)}"
        folder.mkdir()
        (folder / "docker").write_text(text)
        (folder / "docker").chmod(0o755)
        self.folders.append(folder)
        return folder / "docker"

    def run(self, script: str, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        path = ":".join(str(folder) for folder in [*self.folders, self.root / "tools"])
        return subprocess.run(
            [str(self.root / "docker" / "setup" / script), *words],
            env={"PATH": path, "HOME": str(self.root), "PYTHON": sys.executable, "INSTALL_DOCKER": "0", **env},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def host(tmp_path: Path) -> Host:
    shutil.copytree(ROOT / "docker", tmp_path / "docker", ignore=shutil.ignore_patterns("*.whl"))
    (tmp_path / "tools").mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found, f"{tool} is not installed"
        (tmp_path / "tools" / tool).symlink_to(found)
    return Host(tmp_path)


def test_a_usable_client_is_named_on_stdout_and_nothing_else(host: Host) -> None:
    expected = host.add_client(client())

    done = host.run("engine.sh")

    assert (done.returncode, done.stdout, done.stderr) == (0, f"{expected}\n", "")


@pytest.mark.parametrize("useless", [client(compose=""), client(compose="2.23.3"), client(buildx=False)])
def test_a_client_without_what_is_needed_is_passed_over(host: Host, useless: str) -> None:
    host.add_client(useless)
    expected = host.add_client(client())

    assert host.run("engine.sh").stdout == f"{expected}\n"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (client(compose=""), "docker has no Compose plugin"),
        (client(compose="2.23.3"), "Docker Compose is 2.23.3, 2.24 or newer is needed"),
        (client(buildx=False), "docker has no buildx plugin"),
        (None, "no docker client on PATH"),
    ],
)
def test_what_is_missing_is_said_with_the_page_to_follow(host: Host, found: str | None, said: str) -> None:
    if found:
        host.add_client(found)

    done = host.run("engine.sh")

    assert done.returncode == 3
    assert said in done.stderr
    assert "INSTALL_DOCKER=0" in done.stderr
    assert "https://docs.docker.com/engine/install" in done.stderr
    assert done.stdout == ""


def test_an_old_engine_is_refused(host: Host) -> None:
    host.add_client(client(engine="24.0.9"))

    done = host.run("engine.sh")

    assert done.returncode == 3
    assert "the Engine is 24.0.9, 25 or newer is needed" in done.stderr


def test_a_missing_permission_is_not_taken_for_a_daemon_that_is_down(host: Host) -> None:
    host.add_client(client(engine="", error="permission denied while trying to connect to the Docker daemon socket"))

    done = host.run("engine.sh")

    assert done.returncode == 3
    assert "usermod -aG docker" in done.stderr
    assert "start" not in done.stderr


def test_a_daemon_that_is_down_elsewhere_is_not_started_here(host: Host) -> None:
    host.add_client(client(engine="", error="Cannot connect to the Docker daemon"))
    (host.root / "tools" / "dockerd").symlink_to("/bin/false")

    done = host.run("engine.sh", DOCKER_HOST="tcp://192.0.2.1:2375")

    assert done.returncode == 3
    assert "no daemon answers at DOCKER_HOST=tcp://192.0.2.1:2375" in done.stderr


def test_a_daemon_is_started_without_holding_on_to_the_callers_pipe_and_stopped_by_its_process_id(host: Host) -> None:
    up = host.root / "daemon-is-up"
    docker = host.add_client(client().replace("case", f'[ -e "{up}" ] || [ "$1" != version ] || exit 1\ncase', 1))
    (docker.parent / "dockerd").write_text(f'#!/bin/sh\necho $$ > "$2"\ntouch "{up}"\nexec sleep 50\n')
    (docker.parent / "dockerd").chmod(0o755)
    (host.root / "tools" / "id").unlink()
    (host.root / "tools" / "id").write_text("#!/bin/sh\necho 0\n")
    (host.root / "tools" / "id").chmod(0o755)
    (host.root / "tools" / "setsid").symlink_to(shutil.which("setsid"))
    elsewhere = {"SYSTEMD_FOLDER": str(host.root / "none"), "DOCKER_PIDFILE": str(host.root / "none")}

    # `run` reads the output to its end, as a shell does with $(engine.sh): it returns while the daemon lives.
    started = host.run("engine.sh", **elsewhere)
    pid = int((host.root / ".cache" / "engine" / "dockerd.pid").read_text())
    alive = Path(f"/proc/{pid}").exists()
    stopped = host.run("engine.sh", "stop", **elsewhere)

    assert (started.returncode, started.stdout) == (0, f"{docker}\n")
    assert alive
    assert stopped.returncode == 0
    assert f"stopping the daemon that was started here (process {pid})" in stopped.stderr
    assert not Path(f"/proc/{pid}").exists()


def test_stopping_leaves_a_daemon_alone_that_was_not_started_here(host: Host) -> None:
    done = host.run("engine.sh", "stop")

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def settings(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """What a shell gets from the printed lines."""
    assert done.returncode == 0, done.stderr
    words = [shlex.split(line) for line in done.stdout.splitlines()]
    assert {line[0] for line in words} == {"export"}
    return dict(line[1].split("=", 1) for line in words)


def test_a_shell_that_has_the_settings_can_ask_for_them_again(host: Host) -> None:
    real = host.add_client(client(images="debian:bookworm-20250520-slim"))
    first = settings(host.run("settings.sh", ACCELERATOR="cuda"))

    again = settings(host.run("settings.sh", ACCELERATOR="cuda", PATH=first["PATH"]))

    assert again["DOCKER"] == first["DOCKER"] == str(real)
    assert (host.root / ".cache" / "bin" / "docker").resolve() == real.resolve()
    assert again["PATH"] == first["PATH"]


def test_settings_without_any_hint_are_the_defaults(host: Host) -> None:
    docker = host.add_client(client(images="debian:bookworm-20250520-slim"))

    found = settings(host.run("settings.sh", ACCELERATOR="cuda", PIP_CONFIG_FILE="/dev/null"))

    assert found.pop("PATH").split(":")[0] == str(host.root / ".cache" / "bin")
    assert found == {
        "ACCELERATOR": "cuda",
        "DOCKER": str(docker),
        "BASE_IMAGE": "debian:bookworm-20250520-slim",
        "WHEELS_DIR": str(host.root / "docker" / "wheels"),
        "CA_BUNDLE": "/dev/null",
        "INDEX_URL": "",
        "EXTRA_INDEX_URL": "",
        "APP_UID": "10001",
    }


def test_settings_of_the_user_win_and_survive_the_shell(host: Host) -> None:
    host.add_client(client())
    odd = "it's a $(folder) \\ `here`"

    found = settings(
        host.run("settings.sh", WHEELS_DIR=f"/{odd}", BASE_IMAGE="my/base:1", APP_UID="1234", CA_BUNDLE="ca.pem")
    )

    assert found["WHEELS_DIR"] == f"/{odd}"
    assert (found["BASE_IMAGE"], found["APP_UID"]) == ("my/base:1", "1234")
    assert found["CA_BUNDLE"].startswith("/")
    assert found["CA_BUNDLE"].endswith("/ca.pem")


def test_the_certificates_that_other_tools_use_are_taken_over(host: Host) -> None:
    host.add_client(client())
    (host.root / "ca.pem").write_text("certificates")

    env = {"SSL_CERT_FILE": "/does/not/exist", "PIP_CERT": str(host.root / "ca.pem"), "BASE_IMAGE": "x"}

    assert settings(host.run("settings.sh", **env))["CA_BUNDLE"] == str(host.root / "ca.pem")


@pytest.mark.parametrize("name", ["INDEX_URL", "EXTRA_INDEX_URL"])
def test_an_index_address_with_a_password_is_refused_without_repeating_it(host: Host, name: str) -> None:
    host.add_client(client())

    done = host.run("settings.sh", BASE_IMAGE="x", **{name: "https://user:hunter2@index.example/simple"})

    assert done.returncode == 2
    assert done.stderr.startswith(f"{name}: ")
    assert "hunter2" not in done.stderr + done.stdout


def test_the_wheel_folder_is_the_one_of_pip_that_holds_the_locked_torch(host: Host) -> None:
    right, wrong = host.root / "right", host.root / "wrong"
    for folder, version in ((wrong, "2.12.0"), (right, "2.13.0")):
        folder.mkdir()
        (folder / f"torch-{version}+cpu-cp311-cp311-manylinux_2_28_x86_64.whl").touch()

    done = host.run("wheels.sh", PIP_CONFIG_FILE="/dev/null", PIP_FIND_LINKS=f"{wrong} {right}")

    assert done.stdout == f"{right}\n"


def test_without_a_torch_wheel_the_wheel_folder_is_the_projects_own(host: Host) -> None:
    done = host.run("wheels.sh", PIP_CONFIG_FILE="/dev/null", PIP_FIND_LINKS=str(host.root))

    assert done.stdout == f"{host.root}/docker/wheels\n"


def test_an_image_that_was_built_here_before_is_used_again(host: Host) -> None:
    host.add_client(client(images="grpo-stack/base:bookworm"))

    assert host.run("base-image.sh").stdout == "grpo-stack/base:bookworm\n"


def test_an_environment_says_what_is_missing(tmp_path: Path) -> None:
    script = str(ROOT / "requirements" / "venv.sh")
    words = [script, str(tmp_path / "venv"), "requirements/helper.txt", "python3.99"]

    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 3
    assert "apt-get install python3 python3-venv" in done.stderr
    assert not (tmp_path / "venv").exists()


UV = """#!/bin/sh
[ "$1" = venv ] || exit 0
exec "$4" -m venv --without-pip "$5"
"""
"""Makes environments that hold nothing."""


@pytest.mark.parametrize("name", ["checkout", "with a blank", "it's", 'a"b', "a$HOME", "a`b", "long" * 40, "ä b"])
def test_the_command_of_an_environment_runs_wherever_the_checkout_lies(tmp_path: Path, name: str) -> None:
    checkout = tmp_path / name
    (checkout / "requirements").mkdir(parents=True)
    for file in ("venv.sh", "helper.txt"):
        shutil.copy(ROOT / "requirements" / file, checkout / "requirements")
    (checkout / "grpo_stack").symlink_to(ROOT / "grpo_stack")
    uv, link = tmp_path / "uv", tmp_path / "link"
    uv.write_text(UV)
    uv.chmod(0o755)
    link.symlink_to(checkout / ".venv" / "bin" / "grpo-stack")
    make = ["requirements/venv.sh", ".venv", "requirements/helper.txt", sys.executable]

    subprocess.run(make, cwd=checkout, env={**os.environ, "UV": str(uv)}, check=True, capture_output=True, timeout=60)

    for command in (".venv/bin/grpo-stack", str(link)):
        words = [command, "pins", "--fit", "1.16.0", "0.28.0"]
        done = subprocess.run(words, cwd=checkout, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "TRL 1.16.0 accepts vLLM 0.28.0\n", "")


@pytest.mark.parametrize("name", pins.SETS)
@pytest.mark.parametrize("accelerator", ["cpu", "cuda"])
def test_images_get_the_names_that_the_compose_files_ask_for(tmp_path: Path, accelerator: str, name: str) -> None:
    docker = tmp_path / "docker"
    docker.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/asked\n')
    docker.chmod(0o755)
    given = {"DOCKER": str(docker), "ACCELERATOR": accelerator, "PINS": name, "BASE_IMAGE": "b", "WHEELS_DIR": "w"}
    for words in (["build.sh", "trainer"], ["test-image.sh", "tests/image"]):
        script = [ROOT / "docker" / "setup" / words[0], *words[1:]]
        subprocess.run(
            script, env={**os.environ, **given, "CA_BUNDLE": "c"}, check=True, capture_output=True, timeout=30
        )

    planned = plan.derive(rules.read({"accelerator": accelerator, "pins": name}))
    asked = (tmp_path / "asked").read_text()
    assert f"--tag grpo-stack/trainer:{planned.tag} " in asked
    assert f"--build-arg PINS={name} " in asked
    assert f" grpo-stack/test:{planned.tag} python -m pytest " in asked
