"""Are the files and folders that the description names fit for use? Decides on what `host` read of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from grpo_stack.facts import DatasetFile, FolderSpace, ModelFolder, NamedFile
from grpo_stack.findings import OK, PROBLEM, WARNING, Finding

CHECKPOINT_BYTES = 2 * 10**9
"""Free space that the outputs folder must have at least: a checkpoint of a small model."""


def check(
    folders: Iterable[FolderSpace],
    model: ModelFolder | None,
    dataset: DatasetFile | None,
    files: Iterable[NamedFile] = (),
) -> tuple[Finding, ...]:
    """A finding for each; `model` and `dataset` are None where they come from the Hub.

    Of the further `files` only what is wrong with them.
    """
    findings = [*_folders(folders), *_model(model), *_dataset(dataset)]
    for file in files:
        findings += _named(file)
    return tuple(findings)


def room(
    weights_bytes: int,
    written_bytes: int,
    cache_free_bytes: int | None,
    images_bytes: int,
    outputs: Iterable[FolderSpace],
) -> Iterable[Finding]:
    """Whether the model fits twice: as a download, and as what training writes, a checkpoint and the trained model.

    Kept checkpoints come on top. `cache_free_bytes`: where the engine keeps volumes and images; `images_bytes`: what those will still take of it.
    """
    size = _gigabytes(weights_bytes)
    if cache_free_bytes is not None and cache_free_bytes < weights_bytes + images_bytes:
        found = f"the weights take {size} beside the images, {_gigabytes(cache_free_bytes)} are free for Docker"
        yield Finding("model-space", WARNING, found, "free some, unless the cache volume holds the model already")
    small = [space for space in outputs if space.free_bytes is not None and space.free_bytes < written_bytes]
    for space in small:
        found = f"{_gigabytes(space.free_bytes or 0)} free in {space.path}"
        fix = (
            f"a checkpoint with optimizer state and the trained model take about {_gigabytes(written_bytes)}; free some"
        )
        yield Finding("model-space", WARNING, found, fix)
    if not small:
        yield Finding("model-space", OK, f"{size} of weights; a checkpoint and the trained model fit")


def _folders(folders: Iterable[FolderSpace]) -> Iterable[Finding]:
    for folder in folders:
        if folder.writable is False:
            fix = "change its owner, or name another folder"
            yield Finding("outputs", PROBLEM, f"{folder.path} is not writable", fix)
        elif folder.free_bytes is not None and folder.free_bytes < CHECKPOINT_BYTES:
            text = f"{_gigabytes(folder.free_bytes)} free in {folder.path}"
            yield Finding(
                "outputs", PROBLEM, text, f"a checkpoint needs {_gigabytes(CHECKPOINT_BYTES)} or more; free some"
            )
        else:
            yield Finding("outputs", OK, f"{folder.path} is writable")


def _model(model: ModelFolder | None) -> Iterable[Finding]:
    if model is None:
        return
    if not model.exists:
        yield Finding("model", PROBLEM, f"there is no folder {model.path}", "mind the path, or give a Hub id", True)
    elif model.closed:
        text = f"{model.path} cannot be entered by the containers' user"
        yield Finding("model", PROBLEM, text, f"run: chmod a+rx {model.path}, and mind the folders above it")
    elif not model.has_config:
        yield Finding(
            "model", PROBLEM, f"{model.path} holds no config.json", "name the folder that a model was saved to", True
        )
    elif model.missing:
        text = f"{model.path} lacks {_some(model.missing)}"
        yield Finding("model", PROBLEM, text, "copy all files of the model, or save it again", True)
    elif model.leading_out:
        text = f"{_some(model.leading_out)} in {model.path} link to files outside of it, and it alone is mounted"
        fix = f"copy it with what it links to: cp -rL {model.path} FOLDER, or give the Hub id"
        yield Finding("model", PROBLEM, text, fix, described=True)
    elif model.unreadable:
        text = f"{_some(model.unreadable)} in {model.path} cannot be read by the containers' user"
        yield Finding("model", PROBLEM, text, f"run: chmod a+r {model.path}/*")
    else:
        yield Finding("model", OK, f"{model.path} holds a model")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + " and more" * (len(names) > 3)


def _dataset(dataset: DatasetFile | None) -> Iterable[Finding]:
    if dataset is None:
        return
    if not dataset.exists:
        yield Finding(
            "data.dataset", PROBLEM, f"there is no file {dataset.path}", "mind the path, or give a Hub id", True
        )
        return
    if not dataset.readable:
        yield _closed("data.dataset", dataset.path)
    if dataset.problem:
        yield Finding("data.dataset", PROBLEM, f"{dataset.path}: {dataset.problem}", dataset.fix, True)
    elif dataset.columns is not None and "prompt" not in dataset.columns:
        columns = ", ".join(dataset.columns) or "none"
        text = f"{dataset.path} has no column `prompt` (found: {columns})"
        yield Finding("data.dataset", PROBLEM, text, "GRPO needs one: text, or a list of messages", True)
    elif dataset.readable:
        yield Finding("data.dataset", OK, f"{dataset.path} has prompts")


def _named(file: NamedFile) -> Iterable[Finding]:
    if not file.exists:
        yield Finding(file.key, PROBLEM, f"there is no file {file.path}", "mind the path", described=True)
    elif not file.readable:
        yield _closed(file.key, file.path, file.secret)
    for problem in file.problems:
        found, _, fix = problem.rpartition("; ")
        yield Finding(file.key, PROBLEM, found, fix, described=True)


def _closed(key: str, file: str, secret: bool = False) -> Finding:
    fix = "give them a copy that they can read, outside of the checkout" if secret else f"run: chmod a+r {file}"
    return Finding(key, PROBLEM, f"{file} cannot be read by the containers' user", fix)


def _gigabytes(count: int) -> str:
    return f"{count / 10**9:.1f} GB"
