"""A program in vLLM's place under its supervisor: `python -m tests.fakes.supervised PORT FOLDER BEHAVIOUR…`.

Its first start behaves as the first word says, its second as the second, and each later one as the last. Every start adds
a line to FOLDER/starts: its process id and instance.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import signal
import socket
import sys
from pathlib import Path

from grpo_stack import activity_api

REST = activity_api.Report("", 0, 0.0, 0, 0, None, 0, 0.0, False)

REPORTS = {
    "healthy": dataclasses.replace(REST, generated=1),
    "deaf": dataclasses.replace(REST, generated=1),
    "stuck": dataclasses.replace(REST, generating=1, oldest_s=0.1, generated=3),
    "abandoned": dataclasses.replace(REST, generated=1, update_open_s=0.1, abandoned=True),
    "dies": REST,
    "stops": REST,
    "old": None,
}
"""What each behaviour that answers says about itself."""


def answer(path: str, behaviour: str, asked: int) -> bytes:
    """The whole answer to a GET."""
    report = REPORTS[behaviour]
    if path == "/metrics":
        return _http(200, b'# TYPE\nvllm:generation_tokens_total{engine="0"} 7.0\nother %d\n' % asked)
    if path == activity_api.REPORT and report:
        return _http(200, activity_api.write(dataclasses.replace(report, instance=os.environ[activity_api.INSTANCE])))
    return _http(404, b"")


def _http(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (status, len(body), body)


def serve(port: int, behaviour: str) -> None:
    with socket.create_server(("127.0.0.1", port)) as listener:
        for asked in itertools.count(1):
            connection, _ = listener.accept()
            with connection:
                path = connection.recv(65536).split()[1].decode()
                connection.sendall(answer(path, behaviour, asked))
            if behaviour == "dies" and asked == 2:
                return
            if behaviour == "stops":
                os.kill(os.getpid(), signal.SIGSTOP)


def main() -> None:
    port, folder, *behaviours = sys.argv[1:]
    starts = Path(folder) / "starts"
    with starts.open("a") as file:
        file.write(f"{os.getpid()} {os.environ[activity_api.INSTANCE]} {(Path(folder) / 'memo').exists()}\n")
    count = len(starts.read_text().splitlines())
    behaviour = behaviours[min(count, len(behaviours)) - 1]
    print(f"loading, start {count}", flush=True)
    if behaviour == "refuses":
        sys.exit(2)
    if behaviour == "fails":
        sys.exit(1)
    if behaviour == "mute":
        signal.pause()
    if behaviour == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    serve(int(port), behaviour)


if __name__ == "__main__":
    main()
