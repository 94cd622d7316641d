"""What the middleware inside the API server and those who ask it agree on."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

INSTANCE = "GRPO_STACK_INSTANCE"
"""The environment variable with the server's id; its supervisor gives each start its own."""

REPORT = "/grpo_stack/activity"
"""GET: a Report."""

ABANDON = "/grpo_stack/abandon"
"""POST: nobody will finish the weight update that is open; answers {"abandoned": whether one was open}."""

IDENTITY = "/grpo_stack/identity"
"""GET: what the server is, in the shape of /server_info?config_format=json."""


@dataclass(frozen=True)
class Report:
    """What the server is doing."""

    instance: str
    """Its id; another one means another process, which has none of the weights that were pushed."""

    generating: int
    """Generations that vLLM has now."""

    oldest_s: float
    """Age in seconds of the oldest of them, 0.0 if there is none."""

    held: int
    """Generations that wait in the middleware for the end of a weight update; vLLM does not know them yet."""

    generated: int
    """Generations answered with 200, to a client that was still there."""

    update_open_s: float | None
    """Seconds since vLLM agreed to the weight update that is open; None: none is."""

    updates: int
    """Weight updates that were finished."""

    longest_update_s: float
    """The longest of those, in seconds."""

    abandoned: bool
    """Whether somebody said that the open update will not be finished."""


def write(report: Report) -> bytes:
    """The body of an answer."""
    return json.dumps(dataclasses.asdict(report)).encode()


def read(body: bytes) -> Report:
    """The report in the body of an answer; raises ValueError when there is none, and forgives what a newer one says more."""
    try:
        content = json.loads(body)
        return Report(**{field.name: content[field.name] for field in dataclasses.fields(Report)})
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError("no report of grpo_stack.activity") from None
