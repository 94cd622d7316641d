"""Models and datasets from the Hugging Face Hub into its cache, and what can go wrong on the way, said in one line.

`huggingface_hub` reads its environment (HF_HOME, HF_ENDPOINT, HF_HUB_OFFLINE, HF_TOKEN_PATH) when it is imported, so
it is imported in the functions here and not before.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from grpo_stack.errors import DescriptionError, GrpoStackError, HostError

T = TypeVar("T")

ASK_TIMEOUT_S = 20.0
"""For one question to the Hub, not for a download."""

SECOND_COPIES = ["*.bin", "*.pt", "*.pth", "*.h5", "*.msgpack", "*.onnx", "*.gguf", "*.ot", "onnx/*", "original/*"]
"""Files that hold the same weights again where a repository has them as safetensors."""


class UnreachableError(HostError):
    """The Hub did not answer, or this host is told to be offline, and the cache does not have what was asked for."""


def fetch_model(model: str, revision: str | None, say: Callable[[str], None]) -> Path:
    """The model's folder in the cache, downloaded if need be. Raises DescriptionError or HostError, one line each.

    Where the Hub cannot be asked, what the cache holds is taken; UnreachableError when that is nothing.
    """
    import huggingface_hub
    from huggingface_hub import constants

    def cached() -> Path:
        return Path(
            huggingface_hub.snapshot_download(model, revision=revision, local_files_only=True, ignore_patterns="*")
        )

    if constants.HF_HUB_OFFLINE:
        return asking("model", model, revision, cached)
    try:
        info = asking("model", model, revision, lambda: _model_info(model, revision))
    except UnreachableError as error:
        try:
            found = cached()
        except OSError:
            raise error from None
        say(f"{error.problems[0].partition(';')[0]}; using what the cache holds")
        return found
    names = {file.rfilename: file.size or 0 for file in info.siblings or []}
    skip = SECOND_COPIES if any(name.endswith(".safetensors") for name in names) else []
    wanted = [name for name in names if not any(Path(name).match(pattern) for pattern in skip)]
    size = sum(names[name] for name in wanted)
    _require_room(f"model: {model}", size, Path(constants.HF_HUB_CACHE))
    say(f"model {model}: {len(wanted)} files, {size / 1e9:.2f} GB")
    return asking(
        "model",
        model,
        revision,
        lambda: Path(huggingface_hub.snapshot_download(model, revision=revision, ignore_patterns=skip or None)),
    )


def _model_info(model: str, revision: str | None) -> Any:
    """What the Hub says of a model, after making sure that its files may be read: a gated one lists them to anybody."""
    import huggingface_hub

    info = huggingface_hub.HfApi().model_info(model, revision=revision, files_metadata=True, timeout=ASK_TIMEOUT_S)
    if info.gated and info.siblings:
        url = huggingface_hub.hf_hub_url(model, info.siblings[0].rfilename, revision=revision)
        huggingface_hub.get_hf_file_metadata(url, timeout=ASK_TIMEOUT_S)
    return info


def asking(kind: str, name: str, revision: str | None, question: Callable[[], T]) -> T:
    """`question`'s answer; what the Hub's client raises becomes an error of ours. `kind` is "model" or "dataset"."""
    from huggingface_hub import errors

    try:
        return question()
    except GrpoStackError:
        raise
    except (
        errors.HfHubHTTPError,
        errors.HFValidationError,
        errors.OfflineModeIsEnabled,
        errors.HTTPError,
        OSError,
    ) as error:
        raise explain(kind, name, revision, error) from error


def explain(kind: str, name: str, revision: str | None, error: Exception) -> GrpoStackError:
    """The error of ours that says what `error` of the Hub's client means, and what to do."""
    import huggingface_hub
    from huggingface_hub import constants, errors

    for cause in _causes(error):
        if isinstance(cause, errors.HFValidationError):
            return DescriptionError(f"{kind}: {name}: is neither a folder here nor an id of the form organisation/name")
        if isinstance(cause, errors.RevisionNotFoundError):
            return DescriptionError(f"{kind}: {name}: has no revision {revision}; give a commit, tag or branch of it")
        if isinstance(cause, errors.GatedRepoError):
            return DescriptionError(_gated(kind, name, huggingface_hub.get_token() is not None))
        if isinstance(cause, errors.RepositoryNotFoundError):
            return DescriptionError(_unknown(kind, name, huggingface_hub.get_token() is not None))
        if isinstance(cause, errors.HfHubHTTPError) and cause.response is not None:
            return _refused(kind, name, cause.response.status_code, constants.ENDPOINT)
    if constants.HF_HUB_OFFLINE:
        return UnreachableError(
            f"{kind}: {name}: not in the cache, and HF_HUB_OFFLINE is set; "
            "run once without it, on a host that reaches the Hub"
        )
    if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
        return HostError(
            f"{kind}: {name}: {error.filename}: {error.strerror}; the cache must be writable for this user"
        )
    reason = " ".join(str(error).split())[:160] or type(error).__name__
    return UnreachableError(
        f"{kind}: {name}: cannot reach {constants.ENDPOINT} ({reason}); check the network and HTTPS_PROXY, "
        "or copy a filled cache here and set HF_HUB_OFFLINE=1"
    )


def _gated(kind: str, name: str, token: bool) -> str:
    if token:
        return f"{kind}: {name}: is gated, and this token's user is not on its list; ask for access on its page"
    return (
        f"{kind}: {name}: is gated and no token was given; "
        "ask for access on its page, then name the token's file in HF_TOKEN_PATH"
    )


def _unknown(kind: str, name: str, token: bool) -> str:
    if token:
        return f"{kind}: {name}: the Hub does not know it, or the token may not see it; check the spelling"
    return f"{kind}: {name}: the Hub does not know it; check the spelling (a private one needs a token: HF_TOKEN_PATH)"


def _refused(kind: str, name: str, status: int, endpoint: str) -> GrpoStackError:
    import huggingface_hub

    if status == 401 and huggingface_hub.get_token() is None:  # the Hub's answer to the nameless, for unknown names too
        return DescriptionError(_unknown(kind, name, token=False))
    if status in (401, 403):
        return DescriptionError(
            f"{kind}: {name}: the Hub refused the token (HTTP {status}); make a new one with read access"
        )
    if status == 404:
        return DescriptionError(f"{kind}: {name}: {endpoint} does not know it (HTTP 404); check the spelling")
    return UnreachableError(f"{kind}: {name}: {endpoint} answers HTTP {status}; try again later")


def _causes(error: BaseException) -> list[BaseException]:
    """The error and what it was raised from: `datasets` and the download functions wrap the Hub's own errors."""
    chain: list[BaseException] = []
    step: BaseException | None = error
    while step is not None and step not in chain:
        chain.append(step)
        step = step.__cause__ or step.__context__
    return chain


def _require_room(what: str, size: int, cache: Path) -> None:
    """Raise HostError when the disk of `cache` has not `size` bytes left; what is there already is not counted."""
    place = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free = shutil.disk_usage(place).free
    have = sum(
        file.stat().st_size for file in cache.glob(f"models--*{what.rpartition('/')[2]}/blobs/*") if file.is_file()
    )
    if size - have > free:
        raise HostError(
            f"{what}: needs {size / 1e9:.1f} GB, and {place} has {free / 1e9:.1f} GB free; make room or move the cache"
        )
