"""The Compose file against what is committed, and against what every Compose file of the stack must hold."""

from __future__ import annotations

import re
import string
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_stack import bundle, cli, description, plan, presets, spec, words
from grpo_stack.render import compose

ROOT = Path(__file__).parent.parent

TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1, max_size=20)
GPUS = st.permutations(range(8)).flatmap(lambda ids: st.tuples(st.just(ids), st.integers(1, 6), st.integers(1, 6)))


def read_yaml(text):
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def render(data=None):
    text = compose.render(plan.derive(spec.read(data)), "test")["compose.yaml"]
    return read_yaml(text)


def as_compose_reads(text, environment=()):
    """Compose's own rule for the forms that we write: `$$` is a dollar, `${NAME:-default}` a variable."""
    return re.sub(
        r"\$(?:(\$)|\{(\w+):-([^}]*)\})", lambda m: "$" if m[1] else (dict(environment).get(m[2]) or m[3]), text
    )


def split_text(draw):
    ids, server, trainer = draw
    first, second = ids[: min(server, 7)], ids[min(server, 7) :][:trainer]
    return ",".join(map(str, first)) + ":" + ",".join(map(str, second)), first, second


@pytest.mark.parametrize("name", presets.PRESETS)
def test_committed_files_are_what_the_preset_renders(name, update_golden, monkeypatch):
    monkeypatch.chdir(ROOT)
    committed = Path("compose") / name
    if update_golden:
        assert cli.main(["render", "--preset", name, "--output", str(committed)]) == 0

    described = description.moved(description.load(None, name, {}, []), committed)
    rendered = bundle.files(described, "grpo-stack render --output .   (in this folder)")

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


def test_services_are_ordered_by_readiness_not_by_luck():
    services = render()["services"]

    assert "depends_on" not in services["prefetch"]
    assert services["vllm-server"]["depends_on"] == {"prefetch": {"condition": "service_completed_successfully"}}
    assert services["trainer"]["depends_on"] == {
        "prefetch": {"condition": "service_completed_successfully"},
        "vllm-server": {"condition": "service_healthy"},
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

    planned = plan.derive(spec.read({"model": "a b/it's $x", "trainer": {"args": {"run_name": "ü"}}}))
    for role in (planned.server, planned.trainer):
        assert shlex.split(compose.shell_line(role.argv)) == [words.literal(word) for word in role.argv]


def test_the_header_stays_a_comment_whatever_the_description_holds():
    text = compose.render(plan.derive(spec.read({"model": "a\nb: c\r\u2028d"})), "test")["compose.yaml"]

    assert read_yaml(text)["services"]["vllm-server"]["command"][2] == "a\nb: c\r\u2028d"


@settings(max_examples=30, deadline=None)
@given(model=TEXT, dataset=TEXT, extra=st.lists(TEXT, max_size=3), value=TEXT, gpus=GPUS)
def test_any_description_renders_disjoint_gpus_one_serve_and_strings_that_survive(model, dataset, extra, value, gpus):
    split, _server, _trainer = split_text(gpus)
    data = {
        "model": model if model.strip() else "m",
        "split": split if "," in split else "1:1",
        "data": {"dataset": dataset},
        "server": {"extra_args": [f"x{word}" for word in extra]},
        "trainer": {"args": {"run_name": value}},
    }
    described = spec.read(data)
    planned = plan.derive(described)

    first, second = compose.render(planned, "t"), compose.render(plan.derive(spec.read(data)), "t")
    services = read_yaml(first["compose.yaml"])["services"]

    assert first == second
    for role in planned.roles:
        assert [as_compose_reads(word) for word in services[role.name]["command"]] == [
            words.literal(w) for w in role.argv
        ]
    ids = [services[name]["deploy"]["resources"]["reservations"]["devices"] for name in ("vllm-server", "trainer")]
    assert all(len(devices) == 1 and set(devices[0]) == {"driver", "device_ids", "capabilities"} for devices in ids)
    assert not set(ids[0][0]["device_ids"]) & set(ids[1][0]["device_ids"])
    command = services["vllm-server"]["command"]
    assert command[:2] == ["vllm", "serve"]
    for option in ("--weight-transfer-config", "--logprobs-mode", "--max-logprobs"):
        assert command.count(option) == 1
    assert services["vllm-server"]["environment"]["VLLM_SERVER_DEV_MODE"] == "1"


@settings(deadline=None)
@given(st.text(string.printable, min_size=1, max_size=12))
def test_yaml_text_of_any_string_reads_back_as_that_string(text):
    from grpo_stack.render import yamltext

    assert read_yaml(yamltext.dump({"key": [text], "other": text})) == {"key": [text], "other": text}


def test_a_shared_gpu_is_reserved_by_both_and_the_header_warns():
    text = compose.render(plan.derive(spec.read({"split": "shared:2"})), "t")["compose.yaml"]
    services = read_yaml(text)["services"]

    for name in ("vllm-server", "trainer"):
        (device,) = services[name]["deploy"]["resources"]["reservations"]["devices"]
        assert device["device_ids"] == ["2"]
    assert "# Both sides share one GPU: for development and tests, not for production." in text


def test_colocate_renders_a_trainer_that_needs_only_its_downloads():
    services = render({"split": "colocate"})["services"]

    assert set(services) == {"prefetch", "trainer"}
    assert set(services["trainer"]["depends_on"]) == {"prefetch"}
    assert "entrypoint" not in services["trainer"]
