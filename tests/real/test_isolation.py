"""What the plan promises about devices, limits and networks, read from inside containers of a real engine; no GPU is needed."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_stack import plan, presets, private_network, rules
from grpo_stack.programs import SERVER, TRAINER
from grpo_stack.render import compose
from tests.real.private_engine import PrivateEngine

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(
        os.getuid() != 0 or not shutil.which("dockerd"), reason="a second engine needs root and a dockerd of this host"
    ),
]

BASE_IMAGE = os.environ.get("BASE_IMAGE", "debian:bookworm-20250520-slim")

UUIDS = [f"GPU-{number}1111111-2222-3333-4444-555555555555" for number in range(3)]

SPLITS = {
    "4-4": presets.PRESETS["4-4"],
    "2-6": presets.PRESETS["2-6"],
    "1-1": presets.PRESETS["1-1"],
    "ids in any order": {**presets.GPU, "model": "org/model", "split": "5,0:1,3-4"},
    "uuids": {**presets.GPU, "model": "org/model", "split": f"{UUIDS[0]}:{UUIDS[2]},{UUIDS[1]}"},
    "colocate": presets.PRESETS["colocate"],
}

LISTEN = "use IO::Socket::INET; $s = IO::Socket::INET->new(LocalPort => %d, Listen => 5) or die; $s->accept while 1"
"""In place of vLLM and training: something that listens where they do."""


@dataclass
class Started:
    """A stack of stand-ins: the plan, and its containers by service."""

    engine: PrivateEngine
    plan: plan.StackPlan
    boxes: dict[str, str]

    def inside(self, service: str, script: str) -> str:
        return self.engine.inside(self.boxes[service], script)

    def status(self, service: str, name: str) -> str:
        """A line of /proc/PID/status of the service's own program, behind the init process."""
        own = 'for each in /proc/[0-9]*; do [ "$(cat $each/comm)" != perl ] || cat $each/status; done'
        return self.inside(service, f"{own} | sed -n 's/^{name}:[[:space:]]*//p'")

    def limit(self, service: str, name: str) -> int:
        soft = self.inside(service, f"sed -n 's/^{name} *//p' /proc/1/limits").split()[0]
        return -1 if soft == "unlimited" else int(soft)


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory, docker: str) -> Iterator[PrivateEngine]:
    made = PrivateEngine(docker, tmp_path_factory.mktemp("engine"))
    made.start()
    try:
        made.take(BASE_IMAGE, docker)
        yield made
    finally:
        made.stop()


@pytest.fixture
def start(private: PrivateEngine, tmp_path: Path) -> Iterator[Any]:
    """`start(description)`: its services as rendered, but for their programs."""
    project = f"grpo-stack-test-{uuid.uuid4().hex[:8]}"
    file = tmp_path / "compose.yaml"
    base = private.docker("compose", "--project-name", project, "--file", str(file))

    def begin(description: dict[str, Any]) -> Started:
        planned = plan.derive(rules.read(description))
        content = yaml.safe_load(compose.render(planned, "test")["compose.yaml"])
        ports = {SERVER: 8000, TRAINER: 61216}
        for name, service in content["services"].items():
            for key in ("build", "healthcheck"):
                service.pop(key, None)
            program = ["perl", "-e", (LISTEN % ports[name]).replace("$", "$$")] if name in ports else ["true"]
            service |= {"image": BASE_IMAGE, "entrypoint": program, "command": []}
            service["ulimits"] = {limit: possible(limit, value) for limit, value in service["ulimits"].items()}
        file.write_text(yaml.safe_dump(content))
        (tmp_path / "outputs").mkdir(exist_ok=True)
        env = {**os.environ, "GRPO_STACK_UID": "4321", "GRPO_STACK_GID": "4322"}
        argv = [*base, "up", "--detach", "--pull", "never"]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=180)
        assert done.returncode == 0, done.stderr
        return Started(private, planned, private.labelled(project))

    yield begin
    subprocess.run([*base, "down", "--volumes", "--timeout", "1"], capture_output=True, check=True, timeout=120)


def possible(limit: str, wanted: int) -> int:
    """As much of an rlimit as an engine here may set: one that is itself confined cannot raise its own hard limits."""
    _, hard = resource.getrlimit(getattr(resource, f"RLIMIT_{limit.upper()}"))
    status = Path("/proc/self/status").read_text()
    effective = int(status.partition("CapEff:")[2].split()[0], 16)
    if effective >> 24 & 1 or hard == resource.RLIM_INFINITY:  # CAP_SYS_RESOURCE
        return wanted
    return hard if wanted == -1 else min(wanted, hard)


@pytest.mark.parametrize("name", SPLITS)
def test_each_container_has_its_own_gpus_and_no_other(start, name):
    started = start(SPLITS[name])

    seen = {
        service: set(started.inside(service, "cd /dev && ls -d nvidia* | sed s/nvidia//").split())
        for service in started.boxes
    }

    roles = [role for role in started.plan.roles if role.gpus]
    assert seen == {role.name: set(role.gpus) for role in roles}
    assert sum(len(role.gpus) for role in roles) == len(set().union(*seen.values()))


def test_limits_user_and_rights_are_those_of_the_plan(start):
    started = start(SPLITS["4-4"])

    for role in started.plan.roles:
        if role.name not in started.boxes:
            continue
        name = role.name
        assert started.inside(name, "id -u; id -g").split() == ["4321", "4322"]
        assert {int(started.status(name, field), 16) for field in ("CapPrm", "CapEff", "CapBnd")} == {0}
        assert started.status(name, "NoNewPrivs") == "1"
        assert started.limit(name, "Max open files") == possible("nofile", role.ulimits["nofile"])
        assert started.limit(name, "Max locked memory") == possible("memlock", role.ulimits["memlock"])
        assert started.limit(name, "Max stack size") == possible("stack", role.ulimits["stack"])
        assert int(started.inside(name, "df --output=size -B1 /dev/shm | tail -1")) == 16 * 2**30
        assert started.inside(name, "cat /proc/1/comm") == "docker-init"
        assert started.inside(name, "touch /nobody 2>/dev/null || echo read-only") == "read-only"
        assert started.inside(name, "touch /tmp/x && echo written") == "written"


def test_the_two_sides_reach_each_other_and_nobody_else_reaches_them(start):
    started = start(SPLITS["4-4"])
    connect = "timeout 3 bash -c '</dev/tcp/{}/{}' 2>/dev/null && echo open || echo closed"

    assert started.inside(TRAINER, connect.format(SERVER, 8000)) == "open"
    assert started.inside(SERVER, connect.format(TRAINER, 61216)) == "open"
    address = started.inside(SERVER, "hostname -I").split()
    assert len(address) == 1
    for port in ("8000", "61216"):
        assert started.engine.run("ps", "--filter", f"publish={port}", "--quiet") == ""
    stranger = ("run", "--rm", BASE_IMAGE, "bash", "-c", connect.format(address[0], 8000))
    assert started.engine.run(*stranger).strip() == "closed"
    for service in (SERVER, TRAINER):
        # 00000000 is the destination of a default route.
        assert "00000000" not in started.inside(service, "awk 'NR > 1 {print $2}' /proc/net/route").split()


@pytest.mark.parametrize("side", [SERVER, TRAINER])
def test_a_side_with_a_second_network_knows_which_one_the_other_side_is_on(start, side):
    second = {SERVER: {"server": {"publish": 18765}}, TRAINER: {"trainer": {"internet": True}}}[side]
    started = start({**SPLITS["4-4"], **second})
    (other,) = {SERVER, TRAINER} - {side}

    own = started.inside(side, "getent ahostsv4 $(hostname) | awk '{print $1}' | sort -u").split()
    chosen = private_network.choose(started.inside(side, "cat /proc/net/route"), own)

    assert len(own) == 2
    assert chosen["VLLM_HOST_IP"] == started.inside(other, f"getent hosts {side}").split()[0]
    port = {SERVER: 8000, TRAINER: 61216}[side]
    connect = f"timeout 3 bash -c '</dev/tcp/{chosen['VLLM_HOST_IP']}/{port}' && echo open"
    assert started.inside(other, connect) == "open"


def test_a_published_server_is_reached_on_this_hosts_loopback(start):
    started = start({**SPLITS["4-4"], "server": {"publish": 18765}})

    assert started.engine.on_host("timeout 3 bash -c '</dev/tcp/127.0.0.1/18765' && echo open") == "open"
