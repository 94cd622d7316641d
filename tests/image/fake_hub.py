"""A Hugging Face Hub on a local port, for what `huggingface_hub` asks of it. It answers 501 to whatever it does not
know, and keeps those questions in `unknown`, so that a test sees a client that has begun to ask for more."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

COMMIT = "c" * 40


@dataclass(frozen=True)
class Repo:
    """A model; `gated` ones list their files to anybody and give them to nobody."""

    files: dict[str, bytes]
    gated: bool = False


@dataclass
class FakeHub:
    """`models` by id. With `status` set, every answer is that status, as from a Hub that is down."""

    models: dict[str, Repo]
    status: int | None = None
    url: str = ""
    asked: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def answer(self, method: str, path: str, token: str | None) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body for a request."""
        self.asked.append(f"{method} {path}")
        if self.status is not None:
            return self.status, {}, b""
        for name, repo in self.models.items():
            if path in (
                f"/api/models/{name}",
                f"/api/models/{name}/revision/main",
                f"/api/models/{name}/revision/{COMMIT}",
            ):
                return 200, {"Content-Type": "application/json"}, _json(_info(name, repo))
            if path.startswith(f"/api/models/{name}/revision/"):
                return 404, {"X-Error-Code": "RevisionNotFound"}, b""
            if path == f"/api/models/{name}/tree/{COMMIT}":
                return 200, {"Content-Type": "application/json"}, _json(_tree(repo))
            for revision in ("main", COMMIT):
                file = path.removeprefix(f"/{name}/resolve/{revision}/")
                if file in repo.files:
                    return _file(repo, file, token)
        if path == "/api/agent-harnesses":  # the client asks once, to name in its telemetry what it runs in
            return 404, {}, b""
        if path.startswith(("/api/models/", "/api/datasets/", "/datasets/")):
            # The real one answers 401 to the nameless, so as not to give private names away.
            return (404, {"X-Error-Code": "RepoNotFound"}, b"") if token else (401, {}, b"")
        self.unknown.append(f"{method} {path}")
        return 501, {}, b""


def _file(repo: Repo, file: str, token: str | None) -> tuple[int, dict[str, str], bytes]:
    if repo.gated:
        return (403 if token else 401), {"X-Error-Code": "GatedRepo"}, b""
    content = repo.files[file]
    return 200, {"ETag": f'"{_digest(content)}"', "X-Repo-Commit": COMMIT}, content


def _info(name: str, repo: Repo) -> dict[str, Any]:
    siblings = [{"rfilename": file, "size": len(content)} for file, content in repo.files.items()]
    return {
        "id": name,
        "modelId": name,
        "sha": COMMIT,
        "gated": "manual" if repo.gated else False,
        "siblings": siblings,
    }


def _tree(repo: Repo) -> list[dict[str, Any]]:
    return [
        {"type": "file", "path": file, "size": len(content), "oid": _digest(content)}
        for file, content in repo.files.items()
    ]


def _digest(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    """Answer on a free port until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = hub.answer(
                self.command, urlsplit(self.path).path, self.headers.get("Authorization")
            )
            self.send_response(status)
            for key, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815 - the name that http.server looks for

        def log_message(self, *arguments: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
