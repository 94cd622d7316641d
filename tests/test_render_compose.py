"""The Compose file against what is committed, and against what every Compose file of the stack must hold."""

from __future__ import annotations

import json
import os
import re
import string
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_stack import bundle, cli, description, plan, presets, private_network, rules, words
from grpo_stack.errors import DescriptionError
from grpo_stack.render import compose
from tests.descriptions import descriptions

ROOT = Path(__file__).parent.parent


def read_yaml(text):
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def render(data=None):
    text = compose.render(plan.derive(rules.read(data)), "test")["compose.yaml"]
    return read_yaml(text)


def as_compose_reads(text, environment=()):
    """Compose's own rule for the forms that we write: `$$` is a dollar, `${NAME:-default}` a variable."""
    return re.sub(
        r"\$(?:(\$)|\{(\w+):-([^}]*)\})", lambda m: "$" if m[1] else (dict(environment).get(m[2]) or m[3]), text
    )


@pytest.mark.parametrize("name", presets.PRESETS)
def test_committed_files_are_what_the_preset_renders(name, update_golden, monkeypatch):
    monkeypatch.chdir(ROOT)
    committed = Path("compose") / name
    described = description.moved(description.load(None, name, {}, []), committed)
    rendered = bundle.files(described, "grpo-stack render --output .   (in this folder)")
    if update_golden:  # not by the command, which replaces no description that says something else
        committed.mkdir(parents=True, exist_ok=True)
        for file, text in rendered.items():
            (committed / file).write_text(text, encoding="utf-8")

    assert rendered == {file.name: file.read_text() for file in committed.iterdir()}


def test_every_folder_of_compose_is_a_preset():
    assert {folder.name for folder in (ROOT / "compose").iterdir()} == set(presets.PRESETS)


def test_the_root_file_includes_the_default_preset_and_nothing_else():
    assert read_yaml((ROOT / "compose.yaml").read_text()) == {"include": ["compose/4-4/compose.yaml"]}
    assert len((ROOT / "compose.yaml").read_text().splitlines()) == 3


def test_committed_presets_render_from_their_own_description_too(monkeypatch, capsys):
    monkeypatch.chdir(ROOT / "compose" / "4-4")

    assert cli.main(["render"]) == 0

    printed = read_yaml(capsys.readouterr().out)
    assert printed == read_yaml((ROOT / "compose" / "4-4" / "compose.yaml").read_text())


def test_nothing_starts_before_its_downloads_and_the_trainer_waits_at_its_own_gate():
    services = render()["services"]

    assert "depends_on" not in services["prefetch"]
    assert services["vllm-server"]["depends_on"] == {"prefetch": {"condition": "service_completed_successfully"}}
    assert "--url http://vllm-server:8000" in " ".join(services["trainer"]["entrypoint"])
    assert services["trainer"]["depends_on"] == {
        "prefetch": {"condition": "service_completed_successfully"},
        "vllm-server": {"condition": "service_started"},
    }


def test_every_container_is_confined():
    for service in render()["services"].values():
        assert service["init"] is True
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert "cap_add" not in service
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert set(service["ulimits"]) == {"memlock", "stack", "nofile"}
        assert service["logging"]["options"]["max-size"]
        assert "ports" not in service
        assert not any("docker.sock" in str(volume) for volume in service["volumes"])


def test_long_running_roles_have_time_to_stop_memory_to_share_and_caches_that_stay():
    document = render()
    for name in ("vllm-server", "trainer"):
        service = document["services"][name]
        assert int(service["stop_grace_period"].removesuffix("s")) >= 120
        assert service["shm_size"] == "16gb"
        volumes = {volume["source"] for volume in service["volumes"] if volume["type"] == "volume"}
        assert volumes == set(document["volumes"]) == {"hf-cache", "vllm-cache", "triton-cache"}


def test_the_server_is_probed_quickly_while_it_loads_and_has_its_whole_budget():
    check = render({"server": {"boot_timeout_s": 900}})["services"]["vllm-server"]["healthcheck"]

    assert check["start_period"] == "900s"
    assert check["start_interval"] == "3s"
    assert check["test"][:4] == ["CMD", "grpo-stack", "wait", "--once"]
    assert int(check["timeout"].removesuffix("s")) > int(check["test"][-1])


def test_server_and_trainer_meet_on_a_network_without_a_way_out():
    document = render()

    assert document["networks"]["stack"] == {"internal": True}
    assert document["services"]["vllm-server"]["networks"] == ["stack"]
    assert document["services"]["trainer"]["networks"] == ["stack"]
    assert document["services"]["prefetch"]["networks"] == ["outside"]


def test_a_published_server_has_no_way_out_and_an_open_trainer_has():
    document = render({"server": {"publish": 8001}, "trainer": {"internet": True}})

    assert document["services"]["vllm-server"]["networks"] == ["stack", "published"]
    assert document["services"]["trainer"]["networks"] == ["stack", "outside"]
    no_masquerade = {"com.docker.network.bridge.enable_ip_masquerade": "false"}
    assert document["networks"]["published"] == {"driver_opts": no_masquerade}


@pytest.mark.parametrize(
    ("side", "extra"), [("vllm-server", {"server": {"publish": 8001}}), ("trainer", {"trainer": {"internet": True}})]
)
def test_a_side_on_two_networks_and_no_other_is_told_to_find_the_shared_one(side, extra):
    told = {
        name: service["environment"].get(private_network.ASKED) for name, service in render(extra)["services"].items()
    }

    assert told == {"prefetch": None, "vllm-server": None, "trainer": None, side: "1"}
    assert plan.SECOND_NETWORK == {private_network.ASKED: "1"}


def test_the_env_file_is_mounted_for_training_alone_and_its_values_are_nowhere():
    services = render({"trainer": {"env_file": "./keys.env"}})["services"]

    mounts = {name: [volume.get("source") for volume in service["volumes"]] for name, service in services.items()}
    assert [name for name, sources in mounts.items() if "./keys.env" in sources] == ["trainer"]
    entrypoint = services["trainer"]["entrypoint"]
    assert entrypoint[entrypoint.index("--env-file") + 1] == "/run/secrets/training.env"
    assert "env_file" not in services["trainer"]


def test_colocate_has_nobody_to_meet():
    environment = render({"split": "colocate", "trainer": {"internet": True}})["services"]["trainer"]["environment"]

    assert private_network.ASKED not in environment


def test_whoever_may_go_out_goes_the_way_of_this_host():
    services = render({"trainer": {"internet": True}})["services"]

    for name in ("prefetch", "trainer"):
        environment = services[name]["environment"]
        assert environment["HTTPS_PROXY"] == "${HTTPS_PROXY:-}"
        assert environment["NO_PROXY"] == "vllm-server,trainer,localhost,127.0.0.1,${NO_PROXY:-}"
    assert not any("PROXY" in name and name != "NO_PROXY" for name in services["vllm-server"]["environment"])
    assert "HTTPS_PROXY" not in render()["services"]["trainer"]["environment"]


@settings(max_examples=30, deadline=None)
@given(descriptions())
def test_every_variable_of_the_file_is_named_in_its_header(data):
    text = compose.render(plan.derive(rules.read(data)), "test")["compose.yaml"]
    header, _, body = text.partition("\nname: ")

    named = set(re.findall(r"[A-Z_]{3,}", header.partition("Taken from the environment")[2]))
    assert set(re.findall(r"(?<!\$)\$\{(\w+)", body)) <= named


@settings(max_examples=30, deadline=None)
@given(descriptions())
def test_any_description_that_is_written_out_is_known_as_written_out(data):
    described = description.Description(rules.read(data), data, Path())

    assert description.is_as_dumped(description.dump(described))
    assert not description.is_as_dumped(description.dump(described) + "# mine\n")


def test_what_the_description_leaves_open_is_named_with_its_default():
    text = compose.render(plan.derive(rules.read({})), "test")["compose.yaml"]

    assert "#     MODEL: Hub id (default: Qwen/Qwen2.5-7B)\n" in text
    assert "#     RUN: folder in the output folder; one that is there is continued (default: run)\n" in text


def test_a_published_port_is_on_loopback_alone():
    service = render({"server": {"publish": 8001, "port": 9000}})["services"]["vllm-server"]

    assert service["ports"] == ["127.0.0.1:8001:9000"]


def test_the_token_is_a_file_for_prefetch_alone():
    document = render()

    assert document["secrets"]["hf_token"] == {"file": "${HF_TOKEN_PATH:-/dev/null}"}
    assert [name for name, service in document["services"].items() if "hf_token" in service.get("secrets", [])] == [
        "prefetch"
    ]


def test_model_and_run_can_be_chosen_by_the_environment_of_the_committed_file():
    service = render()["services"]["trainer"]

    assert (
        as_compose_reads(service["command"][service["command"].index("--output_dir") + 1], {"RUN": "a"}) == "/outputs/a"
    )
    assert "${MODEL:-Qwen/Qwen2.5-7B}" in service["command"]
    assert "${MODEL:-Qwen/Qwen2.5-7B}" in service["entrypoint"]


def test_the_header_shows_lines_that_a_shell_reads_back_as_the_same_words():
    import shlex

    planned = plan.derive(rules.read({"model": "./a b/it's $x", "trainer": {"args": {"run_name": "ü"}}}))
    for role in (planned.server, planned.trainer):
        assert shlex.split(compose.shell_line(role.argv)) == [words.literal(word) for word in role.argv]


def test_the_header_stays_a_comment_whatever_the_description_holds():
    text = compose.render(plan.derive(rules.read({"model": "./a\nb: c\r\u2028d"})), "test")["compose.yaml"]

    assert read_yaml(text)["services"]["vllm-server"]["command"][2] == "/models/a\nb: c\r\u2028d"


@settings(max_examples=30, deadline=None)
@given(descriptions())
def test_any_description_renders_the_words_of_its_plan_and_the_same_bytes_twice(data):
    planned = plan.derive(rules.read(data))

    first, second = compose.render(planned, "t"), compose.render(plan.derive(rules.read(data)), "t")
    services = read_yaml(first["compose.yaml"])["services"]

    assert first == second
    assert set(services) == {role.name for role in planned.roles}
    for role in planned.roles:
        service = services[role.name]
        front = [as_compose_reads(word) for word in service.get("entrypoint", [])]
        assert [as_compose_reads(word) for word in service["command"]] == [words.literal(word) for word in role.argv]
        supervisor = [words.literal(word) for word in role.supervisor]
        assert front[len(front) - len(supervisor) :] == supervisor
        environment = {name: as_compose_reads(value) for name, value in service["environment"].items()}
        assert environment.items() >= {name: words.literal(value) for name, value in role.env.items()}.items()
        binds = [volume for volume in service["volumes"] if volume["type"] == "bind"]
        assert [(as_compose_reads(bind["source"]), as_compose_reads(bind["target"])) for bind in binds] == [
            (mount.source, mount.target) for mount in role.mounts
        ]


@settings(max_examples=30, deadline=None)
@given(descriptions())
def test_any_description_gives_each_side_its_own_gpus_by_id(data):
    described = rules.read(data)
    services = render(data)["services"]

    reserved = {
        name: service["deploy"]["resources"]["reservations"]["devices"]
        for name, service in services.items()
        if "deploy" in service
    }
    if described.accelerator == "cpu":
        assert reserved == {}
        return
    assert all(len(devices) == 1 for devices in reserved.values())
    assert all(set(devices[0]) == {"driver", "device_ids", "capabilities"} for devices in reserved.values())
    ids = {name: tuple(devices[0]["device_ids"]) for name, devices in reserved.items()}
    split = described.gpus
    if split.mode == "colocate":
        assert ids == {"trainer": split.trainer}
    else:
        assert ids == {"vllm-server": split.server, "trainer": split.trainer}
        assert bool(set(split.server) & set(split.trainer)) is (split.mode == "shared")


@settings(max_examples=30, deadline=None)
@given(descriptions())
def test_any_description_starts_one_server_with_what_trl_needs_on_both_sides(data):
    services = render(data)["services"]
    trainer = [as_compose_reads(word) for word in services["trainer"]["command"]]
    serving = [name for name, service in services.items() if service["command"][:2] == ["vllm", "serve"]]

    def follows(command, option):
        assert command.count(option) >= 1
        return command[command.index(option) + 1]

    assert follows(trainer, "--use_vllm") == "true"
    if follows(trainer, "--vllm_mode") == "colocate":
        assert serving == []
        return
    assert serving == ["vllm-server"]
    server = services["vllm-server"]
    backend = json.loads(follows(server["command"], "--weight-transfer-config"))["backend"]
    assert backend == ("gloo" if data["accelerator"] == "cpu" else "nccl")
    assert follows(server["command"], "--logprobs-mode") == "processed_logprobs"
    assert follows(server["command"], "--max-logprobs") == "-1"
    assert server["environment"]["VLLM_SERVER_DEV_MODE"] == "1"
    room = int(follows(server["command"], "--max-model-len"))
    assert room >= data["data"]["max_prompt_length"] + int(follows(trainer, "--max_completion_length"))
    port = follows(server["command"], "--port")
    assert follows(trainer, "--vllm_server_base_url") == f"http://vllm-server:{port}"
    assert follows(trainer, "--vllm_group_port") == str(data["trainer"].get("group_port", 61216))


@settings(max_examples=30, deadline=None)
@given(descriptions())
def test_any_description_confines_every_container(data):
    document = render(data)

    assert document["networks"]["stack"] == {"internal": True}
    for name, service in document["services"].items():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert not {"privileged", "cap_add", "devices", "ipc", "network_mode", "pid"} & set(service)
        assert (name == "prefetch") is ("hf_token" in service.get("secrets", []))
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        assert ("outside" in service["networks"]) is (
            name == "prefetch" or (name, True) == ("trainer", data["trainer"].get("internet"))
        )


@settings(deadline=None)
@given(st.text(string.printable, min_size=1, max_size=12))
def test_yaml_text_of_any_string_reads_back_as_that_string(text):
    from grpo_stack.render import yamltext

    assert read_yaml(yamltext.dump({"key": [text], "other": text})) == {"key": [text], "other": text}


@settings(deadline=None)
@given(st.lists(st.text(" aA:#|>-\\\"'\t\u00e9", max_size=6), max_size=5))
def test_text_of_several_lines_reads_back_as_that_text(lines):
    from grpo_stack.render import yamltext

    text = "\n".join(lines)
    assert read_yaml(yamltext.dump({"key": {"inner": text}, "list": [text, text + "\n"]})) == {
        "key": {"inner": text},
        "list": [text, text + "\n"],
    }


@pytest.mark.parametrize("parallelism", rules.PARALLELISMS)
@pytest.mark.parametrize("split", ["2:2", "colocate:0-3", "1:7"])
def test_what_the_entrypoint_writes_is_the_configuration_of_the_plan_and_the_command_stays_whole(
    parallelism, split, tmp_path
):
    described = {"split": split, "trainer": {"parallelism": parallelism, "args": {"run_name": "a b'$x\n\"é"}}}
    service = render(described)["services"]["trainer"]
    entrypoint = [as_compose_reads(word) for word in service["entrypoint"]]
    command = [as_compose_reads(word) for word in service["command"]]
    assert entrypoint[:2] == ["sh", "-c"]
    script = entrypoint[2].replace("/tmp/", f"{tmp_path}/")
    environment = {**os.environ, "ACCELERATE_YAML": as_compose_reads(service["environment"]["ACCELERATE_YAML"])}
    show = [sys.executable, "-c", "import json, sys; print(json.dumps(sys.argv[1:]))"]

    done = subprocess.run(
        ["sh", "-c", script, "sh", *show, *command], env=environment, capture_output=True, timeout=30, check=True
    )

    assert json.loads(done.stdout) == command
    trainer = plan.derive(rules.read(described)).trainer
    assert read_yaml((tmp_path / "accelerate.yaml").read_text()) == trainer.files["/tmp/accelerate.yaml"]


def test_a_role_without_a_supervisor_keeps_the_entrypoint_of_its_image():
    assert "entrypoint" not in render({"split": "4:4"})["services"]["prefetch"]


def test_a_shared_gpu_is_reserved_by_both_and_the_header_warns():
    text = compose.render(plan.derive(rules.read({"split": "shared:2"})), "t")["compose.yaml"]
    services = read_yaml(text)["services"]

    for name in ("vllm-server", "trainer"):
        (device,) = services[name]["deploy"]["resources"]["reservations"]["devices"]
        assert device["device_ids"] == ["2"]
    assert "# Both sides share one GPU: for development and tests, not for production." in text


def test_colocate_renders_a_trainer_that_needs_only_its_downloads():
    services = render({"split": "colocate"})["services"]

    assert set(services) == {"prefetch", "trainer"}
    assert set(services["trainer"]["depends_on"]) == {"prefetch"}
    assert "--url" not in services["trainer"]["entrypoint"]


@settings(max_examples=40, deadline=None)
@given(descriptions(), st.sampled_from(["bridge", "nvlink"]))
def test_two_sides_share_everything_that_nvlink_needs_or_nothing(data, weight_path):
    """One host to NCCL and one shared memory, with GPUs that the other side cannot see, is the state that fails hard."""
    try:
        planned = plan.derive(rules.read({**data, "weight_path": weight_path}))
    except DescriptionError:
        return
    services = read_yaml(compose.render(planned, "t")["compose.yaml"])["services"]
    if planned.server is None or planned.accelerator == "cpu":
        return
    sides = [services["vllm-server"], services["trainer"]]
    seen = [set(side["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]) for side in sides]
    volumes = [{volume["target"]: volume["source"] for volume in side["volumes"]} for side in sides]

    shared = [
        len({side["environment"]["NCCL_HOSTID"] for side in sides}) == 1,
        all(side.get("ipc") == "host" for side in sides),
        any(side.get("ipc") == "host" for side in sides),
        all("/tmp" in each for each in volumes),
        all("shm_size" not in side and "/tmp:exec,mode=1777" not in side["tmpfs"] for side in sides),
        all("CUDA_VISIBLE_DEVICES" in side["environment"] for side in sides),
        seen[0] == seen[1] and len(seen[0]) > 1,
    ]

    assert set(shared) == {weight_path == "nvlink"}
    assert all("network_mode" not in side and "pid" not in side for side in sides)


BREAKS = ["\n", "\r", "\r\n", "\x0b", "\x85", "\u2028", "\u2029"]


@pytest.mark.parametrize("end", BREAKS)
def test_no_line_break_ends_the_comments_of_a_header(end):
    from grpo_stack.render import yamltext

    text = yamltext.dump({"key": 1}, (f"Made by: x{end}services: {{}}", ""))

    assert read_yaml(text) == {"key": 1}
    assert "# services: {}\n#\nkey: 1\n" in text


@pytest.mark.parametrize("end", BREAKS)
def test_the_command_in_the_header_is_one_line_whatever_stands_in_its_flags(end, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert cli.main(["render", "--preset", "cpu", "--set", f"trainer.args.run_name='a{end}b: 1'"]) == 0

    printed = capsys.readouterr().out
    assert printed.startswith("# Made by: grpo-stack render --preset cpu --set $'trainer.args.run_name=")
    assert printed.split("\n")[1].startswith("# Change the description")
    assert set(read_yaml(printed)) == {"name", "services", "networks", "volumes", "secrets"}
