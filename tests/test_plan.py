import pytest

from grpo_stack import plan, rules, spec, words
from grpo_stack.errors import DescriptionError

GPU_A, GPU_B = (f"GPU-{digit * 8}-1111-2222-3333-444444444444" for digit in "ab")


def derive(data=None):
    return plan.derive(rules.read(data))


def argv(role):
    return [words.literal(word) for word in role.argv]


def value(role, option):
    found = argv(role)
    return found[found.index(option) + 1]


def test_the_server_of_the_default_split_runs_exactly_what_trl_asks_for():
    assert argv(derive().server) == [
        *("vllm", "serve", "Qwen/Qwen2.5-7B", "--host", "0.0.0.0", "--port", "8000"),
        *("--tensor-parallel-size", "4", "--weight-transfer-config", '{"backend": "nccl"}'),
        *("--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1"),
        *("--middleware", "grpo_stack.activity.Activity", "--middleware", "grpo_stack.identity.Identity"),
        *("--dtype", "bfloat16", "--max-model-len", "1536"),
    ]
    assert derive().server.env["VLLM_SERVER_DEV_MODE"] == "1"


def test_each_side_gets_its_own_gpus_and_the_parallelism_that_follows():
    planned = derive({"split": "0,1:2-7"})

    assert (planned.server.gpus, planned.trainer.gpus) == (("0", "1"), ("2", "3", "4", "5", "6", "7"))
    assert value(planned.server, "--tensor-parallel-size") == "2"
    assert planned.trainer.files["/tmp/accelerate.yaml"]["num_processes"] == 6


def test_gate_health_check_and_trainer_speak_of_the_same_server():
    planned = derive({"model": "org/name", "split": "2:2", "server": {"port": 9000}})
    gate = [words.literal(word) for word in planned.trainer.supervisor]
    watched = [words.literal(word) for word in planned.server.supervisor]
    probe = [words.literal(word) for word in planned.server.probe]

    assert value(planned.trainer, "--vllm_server_base_url") == "http://vllm-server:9000"
    assert gate[gate.index("--url") + 1] == "http://vllm-server:9000"
    assert probe[probe.index("--url") + 1] == watched[watched.index("--url") + 1] == "http://127.0.0.1:9000"
    assert probe[probe.index("--memo") + 1] == watched[watched.index("--memo") + 1]
    for line in (gate, probe):
        assert line[line.index("--model") + 1] == "org/name"
        assert line[line.index("--world-size") + 1] == "2"
        assert line[line.index("--backend") + 1] == "nccl"


def test_the_two_sides_are_two_hosts_to_nccl_and_the_trainer_has_an_address():
    planned = derive()

    assert planned.server.env["NCCL_HOSTID"] != planned.trainer.env["NCCL_HOSTID"]
    assert planned.trainer.env["VLLM_HOST_IP"] == "trainer"
    for role in (planned.server, planned.trainer):
        assert {name: role.env[name] for name in plan.SOCKETS} == {
            "NCCL_SOCKET_NTHREADS": "2",
            "NCCL_NSOCKS_PERTHREAD": "4",
            "NCCL_MIN_NCHANNELS": "8",
        }
        assert role.env["NO_PROXY"] == role.env["no_proxy"] == "vllm-server,trainer,localhost,127.0.0.1"


def test_only_prefetch_reaches_out_and_only_it_gets_the_token():
    planned = derive()

    assert [role.name for role in planned.roles if role.internet] == ["prefetch"]
    assert [role.name for role in planned.roles if role.needs_token] == ["prefetch"]
    assert planned.server.env["HF_HUB_OFFLINE"] == planned.trainer.env["HF_HUB_OFFLINE"] == "1"


def test_a_pinned_revision_reaches_all_three():
    planned = derive({"model": "org/name", "revision": "abc"})

    assert value(planned.prefetch, "--revision") == "abc"
    assert value(planned.server, "--revision") == "abc"
    assert value(planned.trainer, "--model_revision") == "abc"


def test_a_local_model_is_mounted_read_only_and_named_by_its_place_in_the_containers():
    planned = derive({"model": "../models/My Model/"})

    mount = plan.Mount("../models/My Model/", "/models/My Model")
    assert argv(planned.server)[2] == "/models/My Model"
    assert value(planned.trainer, "--model_name_or_path") == "/models/My Model"
    assert all(mount in role.mounts for role in planned.roles)


@pytest.mark.parametrize("parallelism", ["zero2", "zero3"])
def test_only_a_trainer_that_shares_its_model_by_zero_sees_deepspeed(parallelism):
    data = {"split": "4:4", "data": {"rewards": ["./my.py:first"]}, "trainer": {"parallelism": parallelism}}

    planned = derive(data)

    assert planned.trainer.env["PYTHONPATH"] == "/rewards:/opt/deepspeed"
    assert "PYTHONPATH" not in planned.server.env
    assert derive({**data, "split": "1:1"}).trainer.env["PYTHONPATH"] == "/rewards"
    assert "PYTHONPATH" not in derive({"split": "4:4"}).trainer.env


def test_local_datasets_and_reward_files_are_mounted_for_those_who_read_them():
    data = {"dataset": "./d.jsonl", "rewards": ["./my.py:first", "my.py:second", "accuracy_reward"]}
    planned = derive({"data": data})

    assert value(planned.trainer, "--dataset") == value(planned.prefetch, "--dataset") == "/data/d.jsonl"
    at = argv(planned.trainer).index("--rewards")
    assert argv(planned.trainer)[at + 1 : at + 4] == ["my:first", "my:second", "accuracy_reward"]
    assert planned.trainer.env["PYTHONPATH"] == "/rewards"
    assert [mount for mount in planned.trainer.mounts if mount.target.startswith("/rewards")] == [
        plan.Mount("./my.py", "/rewards/my.py")
    ]
    assert planned.server.mounts == ()


def test_training_arguments_of_the_user_win_over_defaults_and_keep_their_form():
    planned = derive(
        {
            "trainer": {
                "args": {"save_steps": 7, "beta": 0.0, "bf16": True, "reward-weights": [1, 0.5], "run_name": "-x"}
            }
        }
    )

    assert value(planned.trainer, "--save_steps") == "7"
    assert value(planned.trainer, "--beta") == "0.0"
    assert value(planned.trainer, "--bf16") == "true"
    at = argv(planned.trainer).index("--reward_weights")
    assert argv(planned.trainer)[at + 1 : at + 3] == ["1", "0.5"]
    assert "--run_name=-x" in argv(planned.trainer)


def test_a_strategy_of_no_stays_the_word_that_yaml_takes_for_false():
    trainer = derive({"trainer": {"args": {"save_strategy": False, "bf16": False}}}).trainer

    assert (value(trainer, "--save_strategy"), value(trainer, "--bf16")) == ("no", "false")


@pytest.mark.parametrize(
    ("parallelism", "kind"), [("ddp", "MULTI_GPU"), ("fsdp2", "FSDP"), ("zero2", "DEEPSPEED"), ("zero3", "DEEPSPEED")]
)
def test_the_launcher_is_told_how_processes_share_the_model(parallelism, kind):
    planned = derive({"split": "2:3", "trainer": {"parallelism": parallelism}})

    config = planned.trainer.files[value(planned.trainer, "--config_file")]
    assert (config["distributed_type"], config["num_processes"], config["mixed_precision"]) == (kind, 3, "bf16")
    assert argv(planned.trainer)[:5] == ["accelerate", "launch", "--config_file", "/tmp/accelerate.yaml", "-m"]


@pytest.mark.parametrize("parallelism", ["ddp", "fsdp2", "zero2", "zero3"])
def test_one_process_shares_nothing(parallelism):
    planned = derive({"split": "1:1", "trainer": {"parallelism": parallelism}})

    assert planned.trainer.files == {}
    assert value(planned.trainer, "--num_processes") == "1"


@pytest.mark.parametrize(
    ("data", "length"),
    [
        ({}, "1536"),
        ({"accelerator": "cpu"}, "1024"),
        ({"data": {"max_prompt_length": 100}, "trainer": {"args": {"max-completion-length": 50}}}, "150"),
        ({"server": {"max_model_len": 4096}}, "4096"),
    ],
)
def test_the_server_takes_prompt_and_completion_together_and_more_on_wish(data, length):
    assert value(derive(data).server, "--max-model-len") == length


def test_the_completion_limit_that_the_server_counts_on_is_the_trainers():
    for accelerator in ("cuda", "cpu"):
        described = rules.read({"accelerator": accelerator})
        assert value(plan.derive(described).trainer, "--max_completion_length") == str(
            spec.completion_tokens(described)
        )


def test_the_cpu_stack_has_no_gpu_no_nccl_and_full_precision_on_both_sides():
    planned = derive({"accelerator": "cpu", "model": "org/name"})

    assert planned.server.gpus == planned.trainer.gpus == ()
    assert value(planned.server, "--weight-transfer-config") == '{"backend": "gloo"}'
    assert value(planned.server, "--dtype") == value(planned.trainer, "--dtype") == "float32"
    assert "--cpu" in argv(planned.trainer)
    assert not [name for role in planned.roles for name in role.env if name.startswith("NCCL_")]


@pytest.mark.parametrize("given", [None, "float16", "auto"])
def test_both_sides_have_one_dtype_on_gpus_as_well(given):
    planned = derive({"model": "org/name", "server": {"dtype": given}})

    assert value(planned.server, "--dtype") == value(planned.trainer, "--dtype") == (given or "bfloat16")


def test_two_roles_on_one_gpu_are_two_hosts_with_limited_memory_each():
    planned = derive({"split": "shared:3"})

    assert planned.server.gpus == planned.trainer.gpus == ("3",)
    assert planned.server.env["NCCL_HOSTID"] != planned.trainer.env["NCCL_HOSTID"]
    share = float(value(planned.server, "--gpu-memory-utilization"))
    assert share + float(planned.trainer.env["GRPO_STACK_GPU_MEMORY_FRACTION"]) < 1
    assert (
        value(derive({"split": "shared", "server": {"gpu_memory_utilization": 0.2}}).server, "--gpu-memory-utilization")
        == "0.2"
    )


def test_colocate_has_no_server_and_nothing_to_wait_for():
    planned = derive({"split": "colocate:1", "server": {"max_model_len": 2048}})

    assert planned.server is None
    assert [role.name for role in planned.roles] == ["prefetch", "trainer"]
    assert planned.trainer.gpus == ("1",)
    assert planned.trainer.supervisor[:3] == ("grpo-stack", "supervise", "trainer")
    assert not {"--url", "--model", "--timeout"} & set(planned.trainer.supervisor)
    assert value(planned.trainer, "--vllm_mode") == "colocate"
    assert value(planned.trainer, "--vllm_max_model_length") == "2048"
    assert value(derive({"split": "colocate"}).trainer, "--vllm_max_model_length") == "1536"
    assert not {"--vllm_server_base_url", "--vllm_group_port"} & set(argv(planned.trainer))


def test_another_locked_set_has_images_of_its_own():
    assert derive().tag == "cuda"
    assert derive({"pins": "trl-1.13"}).tag == "cuda-trl-1.13"


def test_several_processes_on_the_cpu_are_started_by_torchrun_and_on_gpus_follow_from_the_split():
    planned = derive({"accelerator": "cpu", "trainer": {"processes": 2}})

    assert argv(planned.trainer)[:4] == ["torchrun", "--standalone", "--nproc-per-node", "2"]
    assert planned.trainer.files == {}
    with pytest.raises(DescriptionError, match=r"trainer\.processes: on GPUs there is one for each"):
        derive({"trainer": {"processes": 2}})


@pytest.mark.parametrize(
    ("split", "server", "trainer"),
    [
        ("2:2", ("0", "1", "0,1,2,3"), ("2", "3", "2,3,0,1")),
        ("6,7:3", ("6", "7", "1,2,0"), ("3", "0,1,2")),
        (f"{GPU_A}:{GPU_B}", (GPU_A, f"{GPU_A},{GPU_B}"), (GPU_B, f"{GPU_B},{GPU_A}")),
    ],
)
def test_over_nvlink_each_side_sees_all_gpus_with_its_own_in_front_and_both_are_one_host(split, server, trainer):
    planned = derive({"split": split, "weight_path": "nvlink"})

    for role, (*own, visible) in ((planned.server, server), (planned.trainer, trainer)):
        assert role.gpus == tuple(own)
        assert role.env["CUDA_VISIBLE_DEVICES"] == visible
        assert role.env.items() >= plan.JOINED.items()
        assert not plan.SOCKETS.keys() & role.env.keys()
    assert planned.server.other_gpus == planned.trainer.gpus
    assert planned.trainer.other_gpus == planned.server.gpus


@pytest.mark.parametrize(
    "data",
    [
        {"split": "shared"},
        {"split": "colocate"},
        {"accelerator": "cpu"},
        {"split": f"0,{GPU_A}:1"},
    ],
)
def test_nvlink_is_refused_where_there_are_not_two_sides_with_gpus_named_alike(data):
    with pytest.raises(DescriptionError, match="weight_path: nvlink"):
        derive({**data, "weight_path": "nvlink"})


@pytest.mark.parametrize("model", [".", "..", "../..", "/"])
def test_a_model_folder_without_a_name_of_its_own_gets_one_in_the_containers(model):
    planned = derive({"model": model})

    assert plan.Mount(model, "/models/model") in planned.server.mounts
    assert argv(planned.server)[2] == "/models/model"
