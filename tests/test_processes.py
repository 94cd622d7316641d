import re
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_stack import plan, processes, rules
from grpo_stack.processes import Place

CALLER = {
    "PATH": "/usr/bin",
    "HOME": "/home/me",
    "PYTHONPATH": "/opt/mine:relative",
    "VLLM_PORT": "5000",
    "VLLM_CACHE_ROOT": "/scratch/vllm",
    "RANK": "3",
    "MASTER_PORT": "29500",
    "SLURM_JOB_ID": "17",
    "CUDA_VISIBLE_DEVICES": "5",
    "NCCL_NVLS_ENABLE": "0",
    "HF_TOKEN": "hf_secret",
    "HTTPS_PROXY": "http://proxy:3128",
}
PLACE = Place(
    directory="/here",
    run="/here/outputs/run",
    python="/venv/bin/python",
    modules="/src",
    environment=CALLER,
)
TWO_EACH = {
    "model": "./models/small",
    "split": "2,3:6,7",
    "data": {"dataset": "./mine.jsonl", "rewards": ["./lib/length.py:score", "accuracy_reward"]},
}


def programs(data=None, place=PLACE):
    return {program.name: program for program in processes.programs(plan.derive(rules.read(data)), place)}


def test_what_containers_mount_is_named_where_it_is_on_this_host():
    found = programs(TWO_EACH)

    server, trainer = found["vllm-server"].argv, found["trainer"].argv
    assert server[server.index("serve") + 1] == "/here/models/small"
    assert trainer[trainer.index("--dataset") + 1] == "/here/mine.jsonl"
    assert trainer[trainer.index("--output_dir") + 1] == "/here/outputs/run"
    assert trainer[trainer.index("--config_file") + 1] == "/here/outputs/run/process/accelerate.yaml"
    assert found["trainer"].files.keys() == {"/here/outputs/run/process/accelerate.yaml"}
    assert "num_processes: 2" in found["trainer"].files["/here/outputs/run/process/accelerate.yaml"]
    assert found["trainer"].links == {"/here/outputs/run/process/rewards/length.py": "/here/lib/length.py"}


def test_the_env_file_is_read_where_it_is():
    argv = programs({"trainer": {"env_file": "./keys.env"}})["trainer"].argv

    assert argv[argv.index("--env-file") + 1] == "/here/keys.env"


@pytest.mark.parametrize("data", [TWO_EACH, {"split": "shared"}, {"split": "colocate"}, {"accelerator": "cpu"}])
def test_no_word_is_left_that_only_a_container_understands(data):
    for program in programs(data).values():
        everything = [*program.argv, *program.env.values()]
        foreign = re.compile(
            r"(--[\w-]+=)?(https?://(vllm-server|trainer)\b|/(models|outputs|data|rewards|cache|run)(/|$)).*"
        )
        assert [word for word in everything if foreign.fullmatch(word)] == []
        assert "0.0.0.0" not in everything


def test_both_roles_meet_on_the_loopback_device_alone():
    for name in ("vllm-server", "trainer"):
        program = programs()[name]
        assert program.env["VLLM_HOST_IP"] == "127.0.0.1"
        assert program.env["NCCL_SOCKET_IFNAME"] == program.env["GLOO_SOCKET_IFNAME"] == "lo"
    argv = programs()["vllm-server"].argv
    assert argv[argv.index("--host") + 1] == "127.0.0.1"
    argv = programs()["trainer"].argv
    assert argv[argv.index("--vllm_server_base_url") + 1] == "http://127.0.0.1:8000"


def test_each_role_sees_its_own_gpus_by_the_numbers_of_nvml_and_has_a_host_id_of_its_own():
    found = programs(TWO_EACH)

    assert {name: program.env["CUDA_VISIBLE_DEVICES"] for name, program in found.items()} == {
        "prefetch": "",
        "vllm-server": "2,3",
        "trainer": "6,7",
    }
    assert found["trainer"].env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert found["vllm-server"].env["NCCL_HOSTID"] != found["trainer"].env["NCCL_HOSTID"]


def test_what_the_caller_has_set_does_not_reach_a_run_unless_it_is_harmless():
    env = programs()["trainer"].env

    assert {"VLLM_PORT", "RANK", "MASTER_PORT", "SLURM_JOB_ID"} & set(env) == set()
    assert (env["HOME"], env["VLLM_CACHE_ROOT"], env["NCCL_NVLS_ENABLE"]) == ("/home/me", "/scratch/vllm", "0")
    assert env["HF_HUB_OFFLINE"] == "1"
    assert env["PATH"] == "/venv/bin:/usr/bin"
    assert env["PYTHONPATH"] == "/opt/mine:/src"


def test_reward_files_come_first_on_the_module_path():
    env = programs(TWO_EACH)["trainer"].env

    assert env["PYTHONPATH"].split(":") == ["/here/outputs/run/process/rewards", "/opt/mine", "/src"]


def test_folders_of_the_image_keep_their_place_on_the_module_path():
    data = {**TWO_EACH, "trainer": {"parallelism": "zero2"}}

    env = programs(data)["trainer"].env

    assert env["PYTHONPATH"].split(":")[:2] == ["/here/outputs/run/process/rewards", "/opt/deepspeed"]


def test_the_token_and_the_proxy_reach_the_download():
    found = programs()

    assert found["prefetch"].env["HF_TOKEN"] == "hf_secret"
    assert found["prefetch"].env["HTTPS_PROXY"] == "http://proxy:3128"
    assert [name for name, program in found.items() if "hf_secret" in program.env.values()] == ["prefetch"]


def test_paths_of_the_callers_environment_mean_the_same_files_to_a_role():
    given = {
        "HF_TOKEN_PATH": "./token",
        "HF_HOME": "../hf",
        "SSL_CERT_FILE": "/etc/ca",
        "VLLM_CACHE_ROOT": "~/v",
        "TMPDIR": "",
    }
    place = replace(PLACE, environment={**CALLER, **given}, caller="/there/now")

    found = programs(place=place)

    env = found["prefetch"].env
    assert [env.get(name) for name in given] == ["/there/now/token", "/there/hf", "/etc/ca", "~/v", None]
    assert found["vllm-server"].env["HF_HOME"] == "/there/hf"
    assert "HF_TOKEN_PATH" not in found["vllm-server"].env


def test_this_packages_own_commands_are_run_by_the_python_that_was_asked():
    found = programs()

    assert found["prefetch"].argv[:3] == ("/venv/bin/python", "-m", "grpo_stack.prefetch")
    assert found["trainer"].argv[:3] == ("/venv/bin/python", "-m", "grpo_stack.cli")


def test_the_ports_are_those_of_the_command_lines():
    def ports(data):
        return processes.ports(plan.derive(rules.read(data)))

    assert ports({"server": {"port": 8100}}) == {"server.port": 8100, "trainer.group_port": 61216}
    assert ports({"split": "colocate"}) == {}


def test_programs_of_this_host_have_the_environment_that_the_image_sets():
    dockerfile = (Path(__file__).parent.parent / "docker" / "Dockerfile").read_text()

    for name, value in processes.IMAGE_ENV.items():
        assert f"{name}={value}" in dockerfile
