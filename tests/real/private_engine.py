"""A Docker Engine of the tests' own, which believes that it has NVIDIA's container toolkit.

It runs in a network namespace of its own, so that the host's daemon and its firewall rules are left alone. In place of
NVIDIA's hook it finds one that makes a device node, `/dev/nvidiaID`, for each GPU that a container was given.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

START_LIMIT_S = 60

HOOK = """#!/usr/bin/python3
import json, os, subprocess, sys
state = json.load(sys.stdin)
with open(os.path.join(state["bundle"], "config.json")) as stream:
    config = json.load(stream)
env = dict(pair.partition("=")[::2] for pair in config["process"]["env"])
rootfs = os.path.join(state["bundle"], config["root"]["path"])
for gpu in env["NVIDIA_VISIBLE_DEVICES"].split(","):
    node = f"{rootfs}/dev/nvidia{gpu}"
    subprocess.run(["nsenter", "--target", str(state["pid"]), "--mount", "mknod", "-m", "666", node, "c", "195", "0"], check=True)
"""
"""What the Engine runs, as NVIDIA's hook, before a container starts (its state on stdin, as the OCI runtime tells it)."""


class PrivateEngine:
    """Started by `start`, and `stop` leaves nothing of it."""

    def __init__(self, client: str, folder: Path) -> None:
        self.client, self.folder = client, folder
        self.socket = f"unix://{folder}/docker.sock"
        self._log = folder / "dockerd.log"

    def start(self) -> None:
        """Raises AssertionError with the daemon's last words if it does not answer in time."""
        (self.folder / "bin").mkdir()
        hook = self.folder / "bin" / "nvidia-container-runtime-hook"
        hook.write_text(HOOK)
        hook.chmod(0o755)
        daemon = ["dockerd", "--host", self.socket, "--data-root", f"{self.folder}/data"]
        daemon += ["--exec-root", f"{self.folder}/exec", "--pidfile", f"{self.folder}/pid"]
        # Where the host's own daemon runs beside a containerd, this one may use that too, under other names.
        daemon += ["--containerd-namespace", "private", "--containerd-plugins-namespace", "private-plugins"]
        script = 'ip link set lo up && exec "$@"'
        argv = ["unshare", "--net", "sh", "-c", script, "sh", *daemon]
        env = {**os.environ, "PATH": f"{hook.parent}:{os.environ['PATH']}"}
        with self._log.open("wb") as log:
            self._daemon = subprocess.Popen(argv, env=env, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + START_LIMIT_S
        while subprocess.run([*self.docker(), "version"], capture_output=True, check=False).returncode:
            ended = self._daemon.poll() is not None
            if ended or time.monotonic() > deadline:
                self.stop()
                raise AssertionError("no private engine: " + self._log.read_text(errors="replace")[-1500:])
            time.sleep(0.5)

    def stop(self) -> None:
        self._daemon.terminate()
        try:
            self._daemon.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._daemon.kill()
            self._daemon.wait()

    def docker(self, *words: str) -> list[str]:
        return [self.client, "--host", self.socket, *words]

    def run(self, *words: str, limit_s: float = 120) -> str:
        """What a docker command prints; AssertionError, with its complaint, if it fails."""
        done = subprocess.run(self.docker(*words), capture_output=True, text=True, check=False, timeout=limit_s)
        assert done.returncode == 0, f"docker {' '.join(words)}: {done.stderr}"
        return done.stdout

    def inside(self, container: str, script: str, limit_s: float = 30) -> str:
        """What a shell script prints in a running container."""
        return self.run("exec", container, "bash", "-c", script, limit_s=limit_s).strip()

    def on_host(self, script: str, limit_s: float = 30) -> str:
        """What a shell script prints in the network namespace that is the host's to this engine."""
        argv = ["nsenter", "--target", str(self._daemon.pid), "--net", "bash", "-c", script]
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=limit_s).stdout.strip()

    def take(self, image: str, client: str) -> None:
        """Copy an image from the host's engine."""
        with subprocess.Popen([client, "save", image], stdout=subprocess.PIPE) as saving:
            subprocess.run(self.docker("load"), stdin=saving.stdout, capture_output=True, check=True, timeout=300)
        assert saving.returncode == 0

    def labelled(self, project: str) -> dict[str, str]:
        """The running containers of a Compose project: service to name."""
        label = f"label=com.docker.compose.project={project}"
        lines = self.run("ps", "--filter", label, "--format", "{{json .}}").splitlines()
        boxes = [json.loads(line) for line in lines]
        service = "com.docker.compose.service="
        return {
            pair.removeprefix(service): box["Names"]
            for box in boxes
            for pair in box["Labels"].split(",")
            if pair.startswith(service)
        }
