"""Which weights of a model lie in a folder."""

import json

import pytest

from grpo_stack import snapshots

SHARDS = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]


def indexed(folder, present, name="model.safetensors"):
    """An index of three shards, and those that are there."""
    weights = {f"layers.{place}": shard for place, shard in enumerate(SHARDS)}
    (folder / f"{name}.index.json").write_text(json.dumps({"weight_map": weights}))
    for shard in present:
        (folder / shard).write_bytes(b"x")


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_one_file_is_the_whole_of_an_uncut_model(tmp_path, name):
    assert snapshots.missing(tmp_path) == ("model.safetensors",)

    (tmp_path / name).write_bytes(b"x")

    assert snapshots.missing(tmp_path) == ()


def test_every_shard_of_the_index_must_be_there(tmp_path):
    indexed(tmp_path, SHARDS[:1])
    assert snapshots.missing(tmp_path) == tuple(SHARDS[1:])

    indexed(tmp_path, SHARDS)
    assert snapshots.missing(tmp_path) == ()


def test_an_older_index_counts_too(tmp_path):
    indexed(tmp_path, SHARDS[:2], "pytorch_model.bin")

    assert snapshots.missing(tmp_path) == (SHARDS[2],)


def test_a_link_whose_blob_is_gone_is_missing(tmp_path):
    indexed(tmp_path, SHARDS[:2])
    (tmp_path / SHARDS[2]).symlink_to(tmp_path / "blobs" / "gone")

    assert snapshots.missing(tmp_path) == (SHARDS[2],)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": []}'])
def test_an_index_that_cannot_be_read_is_missing_itself(tmp_path, content):
    (tmp_path / "model.safetensors.index.json").write_text(content)

    assert snapshots.missing(tmp_path) == ("model.safetensors.index.json",)


def test_a_revision_is_found_by_name_and_by_commit(tmp_path):
    model = tmp_path / "models--org--name"
    (model / "snapshots" / "c0ffee").mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("c0ffee")

    assert snapshots.find(tmp_path, "org/name", None) == model / "snapshots" / "c0ffee"
    assert snapshots.find(tmp_path, "org/name", "c0ffee") == model / "snapshots" / "c0ffee"
    assert snapshots.find(tmp_path, "org/name", "v2") is None
    assert snapshots.find(tmp_path, "org/other", None) is None


@pytest.mark.parametrize("name", ["HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME"])
def test_the_home_of_a_user_that_does_not_exist_is_a_cache_that_is_not_there(name):
    cache = snapshots.cache_folder({name: "~nobody-of-that-name"})

    assert str(cache).startswith("~nobody-of-that-name")
    assert snapshots.find(cache, "org/name", "x" * 300) is None
