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


@pytest.mark.parametrize(
    ("flags", "settings"),
    [
        ({"accelerator": "cpu", "model": "a/b"}, []),
        ({"model": "a/b"}, ["accelerator=cpu"]),
        ({"accelerator": "cuda"}, ["accelerator=cpu", "model=a/b"]),
    ],
)
def test_asking_for_the_cpu_alone_describes_the_demo(flags, settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    described = load(flags=flags, settings=settings).spec

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
        "trainer: {env_file: keys.env}\n"
    )

    moved = description.moved(load(), Path("deep/er"))

    assert moved.spec.model == "../../m"
    assert moved.spec.data.dataset == "../../d.jsonl"
    assert moved.spec.data.rewards == ("../../r.py:f", "accuracy_reward")
    assert moved.spec.trainer.env_file == "../../keys.env"
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


def refused(**arguments):
    with pytest.raises(DescriptionError) as caught:
        load(**arguments)
    assert all(problem.isprintable() for problem in caught.value.problems)
    return list(caught.value.problems)


def test_a_link_that_leads_nowhere_does_not_pass_for_no_description(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("stack.yaml").symlink_to("gone.yaml")
    assert refused() == ["stack.yaml: is a link to nothing; mend it or remove it"]

    Path("gone.yaml").symlink_to("stack.yaml")
    assert refused()[0].startswith("stack.yaml: cannot be read: Too many levels of symbolic links")


@pytest.mark.parametrize("arguments", [{"file": ""}, {"preset": ""}, {"file": "", "preset": ""}, {"file": "x" * 300}])
def test_a_file_or_preset_that_cannot_be_is_not_passed_over(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert len(refused(**arguments)) == 1


@pytest.mark.parametrize("text", ["[]", "false", "0", "''"])
def test_a_file_that_holds_no_mapping_is_refused_with_and_without_flags(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("stack.yaml").write_text(text)

    assert "found where keys and values belong" in refused()[0]
    assert "found where keys and values belong" in refused(flags={"model": "a/b"})[0]


def test_keys_given_twice_are_refused_with_file_and_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("stack.yaml").write_text("model: a/b\nserver:\n  port: 1\n  port: 2\nmodel: c/d\n")

    found = refused()

    assert [line.partition(";")[0] for line in found] == [
        "stack.yaml: line 5: 'model' stands in line 1 already",
        "stack.yaml: line 4: 'port' stands in line 3 already",
    ]
    assert "--set server: line 1: 'port'" in refused(preset="4-4", settings=["server={port: 1, port: 2}"])[0]


def test_a_home_means_the_same_in_flags_settings_and_the_file_and_is_written_as_it_was_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    given = {
        "model": "~/m",
        "outputs": "~/o",
        "data.dataset": "~/d.jsonl",
        "data.rewards": ["~/r.py:f", "accuracy_reward"],
        "trainer.env_file": "~/keys",
    }
    text = "model: ~/m\noutputs: ~/o\ndata: {dataset: ~/d.jsonl, rewards: ['~/r.py:f', accuracy_reward]}\n"
    text += "trainer: {env_file: ~/keys}\n"
    settings = [
        "trainer.env_file=~/keys",
        "model=~/m",
        "outputs=~/o",
        "data.dataset=~/d.jsonl",
        "data.rewards=['~/r.py:f', accuracy_reward]",
    ]
    Path("stack.yaml").write_text(text)

    for described in (load(), load(preset="4-4", flags=given), load(preset="4-4", settings=settings)):
        moved = description.moved(described, Path("deep"))
        for each in (described, moved):
            assert (each.spec.model, each.spec.outputs) == ("/home/me/m", "/home/me/o")
            assert each.spec.data.dataset == "/home/me/d.jsonl"
            assert each.spec.trainer.env_file == "/home/me/keys"
            assert each.spec.data.rewards == ("/home/me/r.py:f", "accuracy_reward")
            assert "/home/me" not in description.dump(each)
        assert moved.spec.source == ".."


def test_folders_named_by_dots_or_hidden_ones_are_models(tmp_path, monkeypatch):
    (tmp_path / "in" / ".hm").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "in")

    models = {name: load(flags={"model": name}).spec.model for name in (".", "..", "./", "./.hm", ".hm", "../in/.hm")}

    assert models == {".": ".", "..": "..", "./": ".", "./.hm": "./.hm", ".hm": "./.hm", "../in/.hm": "./.hm"}


@pytest.mark.parametrize("key", ["model", "outputs", "data.dataset", "data.split"])
def test_an_empty_flag_is_refused(key, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert "'' found where text belongs" in refused(flags={key: ""})[0]


def test_a_name_too_long_for_any_folder_is_refused_and_not_looked_up(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert "is neither a folder" in refused(flags={"model": "x" * 300})[0]


def test_a_circle_of_links_in_a_path_is_left_to_the_checks(tmp_path):
    (tmp_path / "a").symlink_to("a")

    assert description.absolute("a/b", tmp_path) == str(tmp_path / "a" / "b")


def test_all_settings_that_cannot_be_used_are_named_each_in_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    found = refused(settings=["=x", "a\nb", "server..port=1", "model"])

    assert [line.rpartition(": write KEY=VALUE")[0] for line in found] == [
        "--set =x",
        "--set 'a\\nb'",
        "--set server..port=1",
        "--set model",
    ]
    assert "'a\\nb': unknown key" in refused(settings=["a\nb=1"])[0]


def test_a_setting_that_yaml_cannot_read_is_the_text_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    args = load(settings=["trainer.args.run_name=2024-13-45", "trainer.args.x=a: b: c"]).spec.trainer.args

    assert args == {"run_name": "2024-13-45", "x": "a: b: c"}
