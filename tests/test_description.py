from pathlib import Path

import pytest

from grpo_stack import description, words
from grpo_stack.errors import DescriptionError


def load(file=None, preset=None, flags=None, settings=()):
    return description.load(file, preset, flags or {}, list(settings))


def test_stack_yaml_of_the_current_folder_is_read_without_being_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("stack.yaml").write_text("model: a/b\n")

    assert load().spec.model == "a/b"
    assert load(preset="cpu").spec.accelerator == "cpu"


def test_without_a_file_the_default_preset_is_described(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    described = load()

    assert words.literal(described.spec.model) == "Qwen/Qwen2.5-7B"
    assert not described.overrides


def test_asking_for_the_cpu_alone_describes_the_demo(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    described = load(flags={"accelerator": "cpu", "model": "a/b"}).spec

    assert (described.model, described.split, described.data.dataset) == ("a/b", None, "two-digit-sums")


def test_flags_and_settings_win_over_the_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("stack.yaml").write_text("model: a/b\nsplit: '4:4'\n")

    described = load(flags={"split": "2:6"}, settings=["trainer.args.max_steps=10", "trainer.args.beta=0.5"])

    assert str(described.spec.split) == "0-1:2-7"
    assert described.spec.trainer.args == {"max_steps": 10, "beta": 0.5}
    assert described.data["trainer"] == {"args": {"max_steps": 10, "beta": 0.5}}


def test_paths_in_flags_are_relative_to_the_current_folder_and_those_in_the_file_to_the_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("team").mkdir()
    Path("team/stack.yaml").write_text("model: ./model\n")

    described = load("team/stack.yaml", flags={"data.dataset": "sums.jsonl", "data.rewards": ["mine.py:f"]})

    assert described.spec.model == "./model"
    assert described.spec.data.dataset == "../sums.jsonl"
    assert described.spec.data.rewards == ("../mine.py:f",)


def test_a_folder_that_exists_is_taken_for_a_model_even_without_dot_and_slash(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("org/name").mkdir(parents=True)

    assert load(flags={"model": "org/name"}).spec.model == "./org/name"
    assert load(flags={"model": "org/other"}).spec.model == "org/other"


def test_moving_a_description_keeps_what_its_paths_point_at(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("stack.yaml").write_text(
        "model: ./m\ndata: {dataset: d.jsonl, rewards: ['r.py:f', accuracy_reward]}\noutputs: /somewhere\n"
    )

    moved = description.moved(load(), Path("deep/er"))

    assert moved.spec.model == "../../m"
    assert moved.spec.data.dataset == "../../d.jsonl"
    assert moved.spec.data.rewards == ("../../r.py:f", "accuracy_reward")
    assert (moved.spec.outputs, moved.spec.source) == ("/somewhere", "../..")


def test_a_dumped_description_reads_back_as_the_same_spec(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    described = load(
        flags={"model": "a/b"}, settings=["trainer.args.learning_rate=1e-06", "server.extra_args=[--x, 'y z']"]
    )

    Path("stack.yaml").write_text(description.dump(described))

    assert load().spec == described.spec


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: [\n", "stack.yaml: line 2, column 1: is no YAML"),
        ("- a\n", "stack.yaml: the description: ['a'] found where keys and values belong"),
        ("split: 4:4\n", "stack.yaml: split: 244 is no split"),
        ("modle: x\n", "stack.yaml: modle: unknown key; did you mean `model`?"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_the_place(text, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("stack.yaml").write_text(text)

    with pytest.raises(DescriptionError) as caught:
        load()

    assert str(caught.value).startswith(message)


def test_bytes_that_are_no_text_are_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("stack.yaml").write_bytes(b"model: \xff\xfe\n")

    with pytest.raises(DescriptionError, match=r"stack\.yaml: cannot be read"):
        load()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"file": "none.yaml"}, "none.yaml: there is no such file"),
        ({"file": "a", "preset": "b"}, "--file and --preset exclude each other"),
        ({"preset": "9-9"}, "--preset: there is none called '9-9'; known: 4-4, 2-6, 1-7"),
        ({"settings": ["max_steps"]}, "--set max_steps: write KEY=VALUE"),
        ({"settings": ["server.prot=1"]}, "description: server.prot: unknown key; did you mean `port`?"),
    ],
)
def test_flags_that_cannot_be_used_say_what_to_write(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    with pytest.raises(DescriptionError) as caught:
        load(**arguments)

    assert str(caught.value).startswith(message)
