import pytest

from grpo_stack import rules
from grpo_stack.errors import DescriptionError
from grpo_stack.words import Variable


def problems_of(data, overrides=None):
    with pytest.raises(DescriptionError) as caught:
        rules.read(data, overrides)
    return list(caught.value.problems)


def test_nothing_described_is_the_published_recipe_on_eight_gpus():
    described = rules.read(None)

    assert described.model == Variable("MODEL", "Qwen/Qwen2.5-7B")
    assert described.gpus.server == ("0", "1", "2", "3")
    assert described.gpus.trainer == ("4", "5", "6", "7")
    assert described.data.dataset == "trl-lib/DeepMath-103K"
    assert described.data.rewards == ("accuracy_reward",)


def test_overrides_win_and_reach_into_sections():
    described = rules.read(
        {"model": "a/b", "data": {"split": "test"}, "trainer": {"args": {"max_steps": 5}}},
        {"model": "c/d", "data.dataset": "d.jsonl", "trainer.args.max_steps": 7},
    )

    assert described.model == "c/d"
    assert (described.data.dataset, described.data.split) == ("d.jsonl", "test")
    assert described.trainer.args == {"max_steps": 7}


def test_every_problem_is_reported_at_once_with_file_and_key():
    found = problems_of({"modell": "x", "split": "0:0", "server": {"port": 80}, "data": {"rewards": []}})

    assert found == [
        "stack.yaml: modell: unknown key; did you mean `model`?",
        "stack.yaml: split: 0:0 leaves one side without a GPU; each needs at least one",
        "stack.yaml: data.rewards: empty; name at least one reward function",
        "stack.yaml: server.port: 80 is no port that a user may open; take one from 1024 to 65535",
    ]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"accelerator": "tpu"}, "accelerator: 'tpu' is not known; use cuda or cpu"),
        (
            {"accelerator": "cpu", "split": "1:1"},
            "split: the CPU stack uses no GPU; leave it out, or set accelerator: cuda",
        ),
        ({"pins": "trl-0"}, "pins: there is no locked set 'trl-0'; known: trl-1.16, trl-1.13"),
        ({"source": "./a}b"}, "source: './a}b' holds a brace, which Compose takes for one of a variable"),
        (
            {"data": {"rewards": ["a/x.py:f", "./x.py:f", "./x.py:g"]}},
            "data.rewards: a/x.py and x.py would be one module in the containers; rename one of them",
        ),
        ({"run": "../x"}, "run: '../x' is no folder name"),
        ({"model": ""}, "model: '' found where text belongs"),
        (
            {"trainer": {"group_port": 51216}},
            "trainer.group_port: 51216 lies in the range of outgoing connections (32768-60999), any of which may take it; "
            "use 61216",
        ),
        ({"server": {"gpu_memory_utilization": 90}}, "server.gpu_memory_utilization: 90.0 is no share of the memory"),
        ({"server": {"dtype": "foo"}}, "server.dtype: 'foo' is not known; use one of auto, bfloat16, float16, float32"),
        ({"server": {"boot_timeout_s": 0}}, "server.boot_timeout_s: 0 leaves no time to load"),
        ({"server": {"max_model_len": 0}}, "server.max_model_len: 0 tokens hold nothing"),
        ({"server": {"extra_args": ["-tp", "8"]}}, "server.extra_args: -tp is set by the stack; use the key `split`"),
        (
            {"trainer": {"args": {"vllm-mode": "colocate"}}},
            "trainer.args.vllm-mode: is set by the stack; server mode does not work with another value",
        ),
        (
            {"trainer": {"args": {"output_dir": "/x"}}},
            "trainer.args.output_dir: is set by the stack; use the key `run`",
        ),
        ({"trainer": {"args": {"--max_steps": 1}}}, "trainer.args.--max_steps: is no option name"),
        ({"trainer": {"parallelism": "tp"}}, "trainer.parallelism: 'tp' is not known; use one of ddp, fsdp2"),
        ({"data": {"max_prompt_length": 0}}, "data.max_prompt_length: 0 tokens hold no prompt; use 1 or more"),
        (
            {"trainer": {"args": {"max_completion_length": "long"}}},
            "trainer.args.max_completion_length: 'long' is no number of tokens above 0",
        ),
        (
            {"server": {"max_model_len": 1000}},
            "server.max_model_len: 1000 tokens do not hold 512 of the prompt + 1024 of the completion; use 1536, or leave "
            "it out",
        ),
    ],
)
def test_a_rule_that_the_description_breaks_is_named(data, message):
    (found,) = problems_of(data)

    assert found.startswith(f"stack.yaml: {message}")


def test_only_a_whole_value_with_a_default_is_a_variable():
    assert rules.read({"model": "${WHICH:-a/b}"}).model == Variable("WHICH", "a/b")
    assert rules.read({"model": "./x${WHICH:-a/b}"}).model == "./x${WHICH:-a/b}"
    assert rules.read({"model": "./$WHICH"}).model == "./$WHICH"


@pytest.mark.parametrize("accelerator", ["cuda", "cpu"])
@pytest.mark.parametrize(
    "model",
    ["https://huggingface.co/a/b", "a/b/c", "~/x", "a b", "a\nb", "-x", ".hidden", "a/..", "x" * 97, "${M:-./m}", "$M"],
)
def test_a_model_is_a_folder_or_has_the_form_of_a_hub_id_whatever_it_runs_on(model, accelerator):
    (found,) = problems_of({"model": model, "accelerator": accelerator})

    assert found.startswith("stack.yaml: model: ")
    assert found.endswith("is neither a folder, as in ./my-model, nor a Hub id, as in organisation/name")
    assert found.isprintable()


@pytest.mark.parametrize("model", [".", "..", "./", "../x", "./.hidden", "/a b", "gpt2", "org/na_me-1.5"])
def test_folders_and_hub_ids_are_models(model):
    assert rules.read({"model": model}).model == model


@pytest.mark.parametrize("empty", ["", " "])
@pytest.mark.parametrize(
    "key",
    [
        *("model", "run", "revision", "outputs", "source"),
        *("data.dataset", "data.config", "data.split", "data.revision"),
    ],
)
def test_a_text_that_says_nothing_is_refused(key, empty):
    (found,) = problems_of(None, {key: empty})

    assert found == f"stack.yaml: {key}: {empty!r} found where text belongs; give it some, or leave the key out"


@pytest.mark.parametrize("text", ["./a\0b", "./a\ud800"])
@pytest.mark.parametrize(
    "key",
    [
        *("model", "run", "revision", "outputs", "source", "pins", "accelerator"),
        *("data.dataset", "data.config", "data.split", "data.revision", "server.dtype", "recovery.mismatch"),
        *("trainer.args.run_name", "trainer.parallelism", "weight_path"),
    ],
)
def test_a_text_that_no_command_line_can_carry_is_refused_at_any_key(key, text):
    assert problems_of(None, {key: text}) == [
        f"stack.yaml: {key}: holds a NUL or half a surrogate pair, which no command line can carry"
    ]


@pytest.mark.parametrize("key", ["model", "run", "outputs", "source", "data.dataset", "data.split"])
def test_a_text_that_yaml_takes_for_a_number_belongs_in_quotes(key):
    expected = f"stack.yaml: {key}: 5 found where text belongs; put it in quotes, as it is written there"
    assert problems_of(None, {key: 5}) == [expected]


@pytest.mark.parametrize("key", ["outputs", "source", "data.dataset"])
def test_a_home_that_nobody_has_is_no_path(key):
    (found,) = problems_of(None, {key: "~nobody-of-that-name/x"})

    assert "starts with the home of nobody here" in found


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("$HOME/runs", "$HOME"),
        ("/scratch/$USER/runs", "$USER"),
        ("/scratch/${USER:-me}/runs", "${USER:-me}"),
        ("${HOME}/runs", "${HOME}"),
    ],
)
@pytest.mark.parametrize("key", ["model", "outputs", "source", "data.dataset"])
def test_a_variable_in_a_path_is_said_to_be_none(key, path, named):
    assert problems_of(None, {key: path}) == [
        f"stack.yaml: {key}: '{path}': {named} is not filled in; write the path out, with ~ for the home folder, or with ./ in "
        "front if a folder is called so"
    ]


@pytest.mark.parametrize("path", ["./$HOME/runs", "runs/$USER", "/a$", "/$5/$a"])
def test_another_dollar_in_a_path_is_one(path):
    assert rules.read(None, {"outputs": path}).outputs == path


def test_what_only_a_server_takes_is_refused_where_there_is_none():
    server = {"publish": 8001, "extra_args": ["--kv-cache-dtype", "fp8"], "dtype": "float16"}
    why = (
        "split: colocate, which a host with one GPU gets by default, has no server; leave it out, or set split: shared"
    )

    assert problems_of({"split": "colocate:0-1", "server": server}) == [
        f"stack.yaml: server.extra_args: {why}",
        f"stack.yaml: server.publish: {why}",
        f"stack.yaml: server.dtype: {why}",
    ]
    assert rules.read({"split": "colocate", "server": {"publish": None, "extra_args": [], "port": 9000}})
    assert rules.read({"split": "shared", "server": server})


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ("rew.py", "'rew.py' names a file without a function; write rew.py:FUNCTION"),
        ("./rew.py:", "'./rew.py:' names a file without a function; write ./rew.py:FUNCTION"),
        ("", "'' found where text belongs"),
        ("a b", "'a b' is no reward; write a name of trl.rewards"),
        ("-x", "'-x' is no reward"),
        ("a:b:c", "'a:b:c' is no reward"),
        ("a..b", "'a..b' is no reward"),
        ("a:", "'a:' is no reward"),
        ("./x.txt:f", "'./x.txt:f' is no reward"),
        ("a\nb.py:f", "'a\\nb.py:f' is no reward"),
        ("./-x.py:f", "'./-x.py' cannot be imported"),
        ("./.py:f", "'./.py' cannot be imported"),
        ("./a.b.py:f", "'./a.b.py' cannot be imported"),
        ("./math.py:f", "'./math.py' would hide Python's own `math`; rename the file"),
        ("lib/json.py:f", "'lib/json.py' would hide Python's own `json`; rename the file"),
        ("trl.py:f", "'trl.py' would hide the package `trl`, which training imports; rename the file"),
        ("../grpo_stack.py:f", "'../grpo_stack.py' would hide the package `grpo_stack`, which training imports"),
        (5, "5 found where text belongs"),
    ],
)
def test_a_reward_that_can_name_no_function_is_refused_from_its_text(reward, message):
    found = problems_of({"data": {"rewards": ["accuracy_reward", reward, reward]}})

    assert [line[: line.index("]") + 1] for line in found] == [f"stack.yaml: data.rewards[{at}]" for at in (1, 2)]
    assert all(f"]: {message}" in line for line in found)


@pytest.mark.parametrize(
    "reward",
    ["accuracy_reward", "a.b:c", "a.b.c", "a:B.c", "math:f", "x.py:f", "rewards.py:f", "../a b/x_1.py:f", "é:f"],
)
def test_names_import_paths_and_files_with_a_function_are_rewards(reward):
    assert rules.read({"data": {"rewards": [reward]}}).data.rewards == (reward,)


def test_off_without_quotes_is_the_word_where_it_is_one_of_the_choices():
    assert rules.read({"recovery": {"mismatch": False}}).recovery.mismatch == "off"
    assert problems_of({"recovery": {"mismatch": True}}) == [
        "stack.yaml: recovery.mismatch: True found where text belongs; put the word in quotes"
    ]


@pytest.mark.parametrize("data", [[], False, 0, ""])
def test_only_an_empty_file_describes_nothing(data):
    assert problems_of(data) == [
        f"stack.yaml: the description: {data!r} found where keys and values belong",
    ]
    assert problems_of(data, {"model": "a/b"}) == problems_of(data)
    assert problems_of({"server": data}, {"server.port": 8000}) == [
        f"stack.yaml: server: {data!r} found where keys and values belong"
    ]
    assert rules.read({"server": None}, {"server.port": 8001}).server.port == 8001


def test_every_wrong_training_argument_is_named_with_its_key():
    found = problems_of({"trainer": {"args": {"max_steps": None, "beta": {}, "a\nb": 1, "lr": 1}}})

    assert [line.rpartition(" found ")[0] for line in found] == [
        "stack.yaml: trainer.args.max_steps: nothing",
        "stack.yaml: trainer.args.beta: {}",
    ]
    assert problems_of({"trainer": {"args": {"a\nb": 1}}}) == [
        "stack.yaml: trainer.args.'a\\nb': is no option name; write it as GRPOConfig does, without dashes in front"
    ]
