"""A model's facts: its `config.json` from a local folder, the Hugging Face cache of this host, or the Hub."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from grpo_stack import host, model_config, snapshots, time_limit
from grpo_stack.facts import ModelConfig
from grpo_stack.hub_token import HubToken

if TYPE_CHECKING:
    import requests

LIMIT_BYTES = 2**20
"""The largest config.json known has 40 KiB (one entry for each layer of a mixed-precision checkpoint)."""

UNCHECKED = "tensor parallelism, longest context and GPU memory are then not checked"

_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")


@dataclass(frozen=True)
class Hub:
    """How to ask the Hub."""

    endpoint: str = "https://huggingface.co"
    """HF_ENDPOINT."""

    token: HubToken = HubToken()
    """An empty or absent file is no token."""

    timeout_s: float = 10.0
    """For the whole of it: name look-up, redirects and the last byte."""


@dataclass(frozen=True)
class ModelReading:
    """What a model's config says, or why it could not be read."""

    config: ModelConfig | None

    source: str
    """`folder`, `cache` or `hub`: where it was found, or last looked for."""

    problem: str | None = None
    """One line with the next step; None when there is a config."""

    refused: bool = False
    """The model cannot be used as described: unknown, gated, or its config is broken. False with a problem: it could
    merely not be asked about, and what `problem` names stays unchecked."""


class _RefusalError(Exception):
    """The Hub's answer, as a line for the user; `final` when another try will not change it."""

    def __init__(self, line: str, final: bool) -> None:
        super().__init__(line)
        self.final = final


def read(
    model: str, revision: str | None, *, offline: bool, cache: Path | None, hub: Hub | None = None
) -> ModelReading:
    """The facts of `model`, a folder or an id of the Hub; never raises for what a user can get wrong.

    A copy in the cache is taken without asking the Hub: a config hardly ever changes within a branch, and a pinned
    revision cannot. `cache` is the folder of `snapshots.cache_folder`; None: look in none.
    """
    if model.startswith(("/", "./", "../", "~")):
        return _from_folder(model)
    if not _REPOSITORY.fullmatch(model) or ".." in model:
        line = f"model: {model}: is neither a folder nor an id of the form organisation/name"
        return ModelReading(None, "hub", line, refused=True)
    found = snapshots.find(cache, model, revision) if cache else None
    with suppress(OSError):
        if found:
            return _parsed(model, _content(found / "config.json"), "cache")
    if offline:
        line = f"model: {model}: its config is not in the cache and the Hub is not asked (offline); {UNCHECKED}"
        return ModelReading(None, "cache", line)
    hub = hub or Hub()
    try:
        content = time_limit.call(lambda: _download(model, revision or "main", hub), hub.timeout_s)
    except TimeoutError:
        return _unreachable(model, hub, f"no whole answer within {hub.timeout_s:g} s")
    except _RefusalError as error:
        return ModelReading(None, "hub", f"model: {model}: {error}", refused=error.final)
    except Exception as error:  # requests' own tree, and whatever a broken proxy or certificate store raises
        return _unreachable(model, hub, _first_cause(error, hub))
    return _parsed(model, content, "hub")


def _unreachable(model: str, hub: Hub, reason: str) -> ModelReading:
    endpoint = host.without_password(hub.endpoint)
    line = f"model: {model}: {endpoint} cannot be asked ({reason}); check the network and HTTPS_PROXY; {UNCHECKED}"
    return ModelReading(None, "hub", line)


def _first_cause(error: BaseException, hub: Hub) -> str:
    """What went wrong below everything that reports it: requests wraps an error of the system four times over."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__ or error
    text = " ".join(str(error).split()).replace(
        hub.endpoint.rstrip("/"), host.without_password(hub.endpoint).rstrip("/")
    )
    return re.sub(r"(?<=://)[^/\s]*@", "", text)[:160] or type(error).__name__  # of a proxy, for example


def _from_folder(model: str) -> ModelReading:
    file = Path(model).expanduser() / "config.json"
    try:
        content = _content(file)
    except FileNotFoundError:
        line = f"model: {file}: no such file; name the folder that a model was saved to"
        return ModelReading(None, "folder", line, refused=True)
    except OSError as error:
        line = f"model: {file}: {(error.strerror or str(error)).lower()}; make it readable"
        return ModelReading(None, "folder", line, refused=True)
    return _parsed(model, content, "folder")


def _content(file: Path) -> bytes:
    with file.open("rb") as stream:
        return stream.read(LIMIT_BYTES + 1)


def _parsed(model: str, content: bytes, source: str) -> ModelReading:
    try:
        if len(content) > LIMIT_BYTES:
            raise ValueError(f"more than {LIMIT_BYTES} bytes")
        data: Any = json.loads(content)
        return ModelReading(model_config.parse(data), source)
    except (ValueError, RecursionError) as error:
        line = f"model: {model}: its config.json cannot be used: {error}"
        return ModelReading(None, source, line, refused=True)


def _download(model: str, revision: str, hub: Hub) -> bytes:
    # The Docker SDK loads it too, so that a start pays for one HTTP client and not for two.
    import requests

    token = _token(hub.token)
    url = f"{hub.endpoint.rstrip('/')}/{model}/resolve/{quote(revision, safe='')}/config.json"

    def sign(request: requests.PreparedRequest) -> requests.PreparedRequest:
        # Not as a header of the call: for those a ~/.netrc would step in.
        if token:
            request.headers["Authorization"] = f"Bearer {token}"
        return request

    # Proxies and CA bundle come from the environment; requests drops the token when a redirect leads to another host.
    headers = {"User-Agent": "grpo-stack"}
    with requests.get(url, headers=headers, auth=sign, timeout=hub.timeout_s, stream=True) as response:
        if response.status_code != 200:
            raise _explained(response, revision, token is not None)
        content = b""
        for part in response.iter_content(2**16):
            content += part
            if len(content) > LIMIT_BYTES:
                break
        return content


def _token(named: HubToken) -> str | None:
    try:
        return named.text or (named.file.read_text(encoding="ascii").strip() if named.file else "") or None
    except (OSError, ValueError):
        return None


def _explained(response: requests.Response, revision: str, token: bool) -> _RefusalError:
    """What the Hub means, by status and its X-Error-Code header (huggingface_hub, utils/_http.py hf_raise_for_status)."""
    status, code = response.status_code, response.headers.get("x-error-code", "")
    if code == "GatedRepo" and token:
        return _RefusalError(
            "is gated, and this token's user is not on its list; ask for access on its page", final=True
        )
    if code == "GatedRepo":
        return _RefusalError("is gated and no token was given; ask for access, then name the token's file", final=True)
    if status == 403:
        return _RefusalError("the Hub refuses this token (HTTP 403); make a new one with read access to it", final=True)
    if status == 401 and token and code != "RepoNotFound":
        return _RefusalError("the Hub does not accept the token (HTTP 401); make a new one", final=True)
    if code == "RevisionNotFound":
        return _RefusalError(f"has no revision {revision}; give a commit, tag or branch of it", final=True)
    if code == "EntryNotFound":
        return _RefusalError("has no config.json; name a model in the format of transformers", final=True)
    if status in (401, 404):
        hint = "or the token may not see it" if token else "or it is private and needs a token"
        return _RefusalError(f"the Hub does not know it (HTTP {status}), {hint}; check the spelling", final=True)
    return _RefusalError(f"the Hub answers HTTP {status}; try again later; {UNCHECKED}", final=False)
