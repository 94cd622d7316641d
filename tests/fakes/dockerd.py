"""A Docker Engine's API over a real Unix socket, as far as `grpo_stack.engine` asks it. It refuses the rest."""

from __future__ import annotations

import json
import re
import socketserver
import struct
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

API = "1.45"


class FakeDockerd:
    """Engine 26.1 as Debian ships it, without containers. Use as a context manager."""

    def __init__(self, socket_path: Path) -> None:
        self.address = f"unix://{socket_path}"
        self.version: dict[str, Any] = {
            "Version": "26.1.5+dfsg1",
            "ApiVersion": API,
            "MinAPIVersion": "1.24",
            "Components": [{"Name": "Engine", "Version": "26.1.5+dfsg1"}, {"Name": "containerd", "Version": "1.6.20"}],
        }
        self.info: dict[str, Any] = {
            "CgroupDriver": "systemd",
            "Runtimes": {"runc": {"path": "runc"}, "io.containerd.runc.v2": {"path": "runc"}},
            "DefaultRuntime": "runc",
            "DockerRootDir": str(socket_path.parent),
            "SecurityOptions": ["name=seccomp,profile=builtin"],
            "CDISpecDirs": [],
            "OperatingSystem": "Debian GNU/Linux 12 (bookworm)",
        }
        self.containers: list[dict[str, Any]] = []
        self.logs: dict[str, bytes] = {}
        self.vanished: set[str] = set()
        """Ids that are listed, and gone when asked about."""

        self.status: int | None = None
        """Answer everything but /version with this."""

        self.strange: list[str] = []
        self._server = _UnixHttp(str(socket_path), _Handler)
        self._server.dockerd = self

    def add(
        self,
        name: str,
        state: dict[str, Any],
        *,
        project: str = "p",
        file: str = "/p/compose.yaml",
        one_off: bool = False,
        args: tuple[str, ...] = (),
        mounts: dict[str, str] | None = None,
        log: bytes = b"",
    ) -> None:
        """`args`: its command but for the first word; `mounts`: folders of the host by what they are inside."""
        labels = {
            "com.docker.compose.project": project,
            "com.docker.compose.project.config_files": file,
            "com.docker.compose.service": name,
            "com.docker.compose.oneoff": str(one_off),
        }
        identifier = f"{len(self.containers):064x}"
        self.containers.append(
            {
                "Id": identifier,
                "Name": f"/{project}-{name}-1",
                "State": state,
                "Args": list(args),
                "Mounts": [
                    {"Type": "bind", "Source": source, "Destination": there} for there, source in (mounts or {}).items()
                ],
                "Config": {"Labels": labels, "Tty": False},
            }
        )
        self.logs[identifier] = log

    def __enter__(self) -> FakeDockerd:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        assert not self.strange, self.strange

    def answer(self, target: str) -> tuple[int, bytes]:
        parts = urlsplit(target)
        route = parts.path.removeprefix(f"/v{API}")
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if route == "/version":
            return 200, json.dumps(self.version).encode()
        if self.status is not None:
            return self.status, b'{"message": "something broke"}'
        if route == "/info":
            return 200, json.dumps(self.info).encode()
        if route == "/containers/json" and query.get("all") == "1":
            return 200, json.dumps(self._listed(json.loads(query["filters"]))).encode()
        if match := re.fullmatch(r"/containers/([0-9a-f]{64})/(json|logs)", route):
            return self._one(match[1], match[2], query)
        self.strange.append(target)
        return 404, b'{"message": "page not found"}'

    def _listed(self, filters: dict[str, list[str]]) -> list[dict[str, Any]]:
        assert list(filters) == ["label"]
        return [{"Id": box["Id"]} for box in self.containers if _has(box["Config"]["Labels"], filters["label"])]

    def _one(self, identifier: str, what: str, query: dict[str, str]) -> tuple[int, bytes]:
        box = next(box for box in self.containers if box["Id"] == identifier)
        if identifier in self.vanished:
            return 404, b'{"message": "No such container"}'
        if what == "json":
            return 200, json.dumps(box).encode()
        lines = re.findall(rb"[^\n]*\n|[^\n]+", self.logs[identifier])[-int(query["tail"]) :]
        # Without a terminal the engine marks each piece: stream, three zero bytes, length.
        return 200, b"".join(struct.pack(">BxxxL", 1 + place % 2, len(line)) + line for place, line in enumerate(lines))


def _has(labels: dict[str, str], wanted: list[str]) -> bool:
    """Whether each `name=value`, or a mere `name` with whatever value, is among the labels."""
    return all(label in labels or label in {f"{name}={value}" for name, value in labels.items()} for label in wanted)


class _UnixHttp(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    block_on_close = False
    dockerd: FakeDockerd

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is no concern of the engine's."""


class _Handler(BaseHTTPRequestHandler):
    server: _UnixHttp

    def do_GET(self) -> None:
        status, content = self.server.dockerd.answer(self.path)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *words: object) -> None:
        pass
