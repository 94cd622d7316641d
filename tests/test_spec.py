import pytest

from grpo_stack import spec
from grpo_stack.errors import DescriptionError
from grpo_stack.words import Variable


def problems_of(data, overrides=None):
    with pytest.raises(DescriptionError) as caught:
        spec.read(data, overrides)
    return list(caught.value.problems)


def test_nothing_described_is_the_published_recipe_on_eight_gpus():
    described = spec.read(None)

    assert described.model == Variable("MODEL", "Qwen/Qwen2.5-7B")
    assert described.gpus.server == ("0", "1", "2", "3")
    assert described.gpus.trainer == ("4", "5", "6", "7")
    assert described.data.dataset == "trl-lib/DeepMath-103K"
    assert described.data.rewards == ("accuracy_reward",)


def test_overrides_win_and_reach_into_sections():
    described = spec.read(
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
        ({"server": {"boot_timeout_s": 0}}, "server.boot_timeout_s: 0 leaves no time to load"),
        ({"server": {"max_model_len": 0}}, "server.max_model_len: 0 tokens hold nothing"),
        (
            {"server": {"extra_args": ["--max_logprobs=5"]}},
            "server.extra_args: --max-logprobs is set by the stack; server mode does not work with another value",
        ),
        ({"server": {"extra_args": ["-tp", "8"]}}, "server.extra_args: -tp is set by the stack; use the key `split`"),
        (
            {"server": {"extra_args": ["--data-parallel-size=2"]}},
            "server.extra_args: --data-parallel-size: the stack starts one copy of the model: those of a dense one",
        ),
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
    assert spec.read({"model": "${WHICH:-a/b}"}).model == Variable("WHICH", "a/b")
    assert spec.read({"model": "x${WHICH:-a/b}"}).model == "x${WHICH:-a/b}"
    assert spec.read({"model": "$WHICH"}).model == "$WHICH"
