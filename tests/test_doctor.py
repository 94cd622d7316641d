import json
import threading
import time
from pathlib import Path

import pytest

from grpo_stack import description, doctor, plan
from grpo_stack.doctor import Asked, Caller, Machine
from grpo_stack.errors import DescriptionError, HostError
from grpo_stack.facts import Engine, GpuReading
from grpo_stack.findings import Finding
from tests.fakes import hub
from tests.test_preflight import ENGINE, gpus

SOURCE = Path(__file__).parent.parent
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 512,
}
CLOSED = {"HF_ENDPOINT": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}
"""An environment in which the Hub cannot be reached, at once."""


@pytest.fixture
def check(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def check(machine, environment=CLOSED, preset=None, runtime="docker", **flags):
        described = description.load(None, preset, flags, [f"source={SOURCE}"])
        caller = Caller({"HF_HOME": str(tmp_path / "home"), **environment}, 10001, "stack", runtime)
        return doctor.check(described, plan.derive(described.spec), machine, caller)

    return check


def about(name, findings):
    return [(finding.level, finding.found) for finding in findings if finding.check == name]


def client(folder, body):
    """A `docker` that runs `body`, a shell script."""
    file = folder / "docker"
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)
    return Engine(**{**vars(ENGINE), "client": str(file)})


def cached(home, model, shards=2):
    """A cache in which the config of `model` lies, and `shards` of its two."""
    folder = home / "hub" / f"models--{model.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("c0ffee")
    (folder / "snapshots" / "c0ffee").mkdir(parents=True)
    snapshot = folder / "snapshots" / "c0ffee"
    (snapshot / "config.json").write_text(json.dumps(CONFIG))
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    (snapshot / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict(zip("ab", names, strict=True))})
    )
    for name in names[:shards]:
        (snapshot / name).write_bytes(b"x")


def test_an_unreachable_hub_is_a_warning_that_names_what_stays_unchecked_and_costs_no_time(check):
    before = time.monotonic()

    findings = check(Machine(gpus(8)), model="org/name")

    ((level, found),) = about("model", findings)
    assert level == "warning"
    assert "http://127.0.0.1:9 cannot be asked" in found
    assert any("GPU memory are then not checked" in finding.fix for finding in findings)
    assert time.monotonic() - before < 2 * doctor.HUB_TIMEOUT_S


def test_a_model_that_is_none_is_refused_before_any_check(check):
    with pytest.raises(DescriptionError, match="is neither a folder, as in"):
        check(Machine(gpus(8)), model="a/b/c")


def test_the_hosts_cache_is_read_without_asking_the_hub(check, tmp_path):
    cached(tmp_path / "home", "org/name")

    findings = check(Machine(gpus(8)), model="org/name")

    assert about("model", findings) == [("ok", "Qwen2ForCausalLM, read from the cache")]
    assert about("model-space", findings) == [("ok", "0.0 GB of weights; a checkpoint and the trained model fit")]


@pytest.mark.parametrize(
    ("status", "code", "token", "said"),
    [
        (401, "GatedRepo", False, "is gated and no token was given"),
        (403, "GatedRepo", True, "is gated, and this token's user is not on its list"),
        (401, "RepoNotFound", False, "the Hub does not know it (HTTP 401)"),
        (403, "", True, "the Hub refuses this token (HTTP 403)"),
    ],
)
def test_a_refusal_of_the_hub_is_the_descriptions_fault_and_says_which(check, tmp_path, status, code, token, said):
    (tmp_path / "token").write_text("hf_x")
    answers = {"/org/name/resolve/main/config.json": (status, {"X-Error-Code": code}, b"")}
    with hub.serving(answers) as running:
        environment = {**CLOSED, "HF_ENDPOINT": running.url}
        if token:
            environment["HF_TOKEN_PATH"] = str(tmp_path / "token")

        (finding,) = (
            entry for entry in check(Machine(gpus(8)), environment, model="org/name") if entry.check == "model"
        )

    assert (finding.level, finding.described) == ("problem", True)
    assert said in finding.found
    assert running.asked[0][1] == ("Bearer hf_x" if token else None)


@pytest.mark.parametrize("given", ["HF_TOKEN", "login"])
def test_processes_ask_the_hub_with_the_token_that_their_download_would_use(check, tmp_path, given):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "token").write_text("hf_x")
    answers = {"/org/name/resolve/main/config.json": (200, {}, json.dumps(CONFIG).encode())}
    with hub.serving(answers) as running:
        environment = {**CLOSED, "HF_ENDPOINT": running.url, **({given: "hf_y"} if given == "HF_TOKEN" else {})}
        found = check(Machine(gpus(8)), environment, runtime="process", model="org/name")

    assert running.asked[0][1] == ("Bearer hf_y" if given == "HF_TOKEN" else "Bearer hf_x")
    expected = (
        "in the environment, and given to the download alone" if given == "HF_TOKEN" else f"in {tmp_path}/home/token"
    )
    assert about("token", found) == [("ok", expected)]


def test_offline_the_config_comes_from_the_cache_volume_if_it_can_be_seen(check, tmp_path):
    volume = tmp_path / "volume"
    cached(volume, "org/name")
    docker = client(tmp_path, f'[ "$5" = stack_hf-cache ] && echo {volume}')

    findings = check(Machine(gpus(8), lambda: Asked(docker)), {**CLOSED, "HF_HUB_OFFLINE": "1"}, model="org/name")

    assert about("model", findings) == [("ok", "Qwen2ForCausalLM, read from the cache")]
    assert about("offline", findings)[0][0] == "ok"


def test_offline_a_snapshot_without_one_of_its_shards_is_a_problem(check, tmp_path):
    cached(tmp_path / "volume", "org/name", shards=1)
    docker = client(tmp_path, f'[ "$5" = stack_hf-cache ] && echo {tmp_path}/volume')

    findings = check(Machine(gpus(8), lambda: Asked(docker)), {**CLOSED, "HF_HUB_OFFLINE": "1"}, model="org/name")

    assert about("offline", findings) == [
        ("problem", "HF_HUB_OFFLINE is set, and the cache volume lacks model-00002-of-00002.safetensors")
    ]


def test_offline_a_volume_without_the_model_is_a_problem_and_what_is_then_not_checked_is_said(check, tmp_path):
    cached(tmp_path / "volume", "org/other")
    docker = client(tmp_path, f'[ "$5" = stack_hf-cache ] && echo {tmp_path}/volume')

    findings = check(Machine(gpus(8), lambda: Asked(docker)), {**CLOSED, "HF_HUB_OFFLINE": "1"}, model="org/name")

    assert about("offline", findings) == [("problem", "HF_HUB_OFFLINE is set, and the cache volume lacks the model")]
    ((level, found),) = about("model", findings)
    assert (level, found) == ("warning", "org/name: its config is not in the cache and the Hub is not asked (offline)")
    (model,) = (finding for finding in findings if finding.check == "model")
    assert model.fix == "tensor parallelism, longest context and GPU memory are then not checked"


def test_offline_a_volume_that_cannot_be_looked_into_is_fine_and_said_to_be_unchecked(check, tmp_path):
    docker = client(tmp_path, f'[ "$5" = stack_hf-cache ] && echo {tmp_path}/elsewhere')

    findings = check(Machine(gpus(8), lambda: Asked(docker)), {**CLOSED, "HF_HUB_OFFLINE": "1"}, model="org/name")

    ((level, found),) = about("offline", findings)
    assert level == "ok"
    assert "whether model and dataset are complete there is not checked" in found


def test_a_folder_without_one_of_its_shards_is_a_problem(check, tmp_path):
    cached(tmp_path, "org/name", shards=1)
    folder = "./hub/models--org--name/snapshots/c0ffee"

    findings = check(Machine(gpus(8)), model=folder)

    assert ("problem", f"{tmp_path / folder} lacks model-00002-of-00002.safetensors") in about("model", findings)


def test_offline_without_a_cache_volume_is_a_problem(check, tmp_path):
    findings = check(
        Machine(gpus(8), lambda: Asked(client(tmp_path, "exit 1"))),
        {**CLOSED, "HF_HUB_OFFLINE": "on"},
        model="org/name",
    )

    assert about("offline", findings)[0][0] == "problem"
    assert about("model", findings)[0][0] == "warning"


def test_offline_a_model_of_this_host_needs_no_cache_volume(check, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    docker = client(tmp_path, "exit 1")

    for flags in ({"model": "./model"}, {"preset": "cpu"}):
        assert (
            about("offline", check(Machine(gpus(8), lambda: Asked(docker)), {**CLOSED, "HF_HUB_OFFLINE": "1"}, **flags))
            == []
        )


def test_the_empty_device_stands_for_no_token(check):
    ((level, found),) = about("token", check(Machine(gpus(8)), {**CLOSED, "HF_TOKEN_PATH": "/dev/null"}, model="./m"))

    assert (level, found[:4]) == ("ok", "none")


def test_the_cpu_stack_does_not_ask_about_its_model(check):
    assert about("model", check(Machine(GpuReading(())), preset="cpu", model="a/b")) == []


@pytest.mark.parametrize(("runtime", "level"), [("docker", "problem"), ("process", "ok")])
def test_a_snapshot_of_the_cache_is_a_model_for_processes_and_none_for_containers(check, tmp_path, runtime, level):
    snapshot = tmp_path / "snapshots" / "c"
    snapshot.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text(json.dumps(CONFIG))
        (snapshot / name).symlink_to(f"../../{name}")

    (found, _) = about("model", check(Machine(gpus(8)), runtime=runtime, model="./snapshots/c"))

    assert found[0] == level
    assert ("link to files outside of it, and it alone is mounted" in found[1]) == (runtime == "docker")


def test_a_folder_without_config_is_said_once(check, tmp_path):
    (tmp_path / "model").mkdir()

    assert len(about("model", check(Machine(gpus(8)), model="./model"))) == 1


def test_a_source_that_is_no_checkout_is_the_descriptions_fault(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    described = description.load(None, None, {}, ["source=/nowhere"])

    findings = doctor.check(described, plan.derive(described.spec), Machine(gpus(8)), Caller(CLOSED, 10001))

    assert about("source", findings) == [("problem", "there is no /nowhere/docker/Dockerfile")]


def test_the_engine_is_asked_only_if_wanted():
    assert doctor.look().asked == Asked()
    assert doctor.look(lambda limit_s: ENGINE).asked == Asked(ENGINE)


def test_a_missing_engine_is_a_finding_and_so_is_one_without_an_answer():
    def missing(limit_s):
        raise HostError("Docker is not installed; let `make build` install it")

    def silent(limit_s):
        raise TimeoutError

    assert doctor.look(missing).asked == Asked(problems=("Docker is not installed; let `make build` install it",))
    assert doctor.look(silent).asked.problems == ("Docker was not read within 60 s; see: docker info",)


def test_the_engine_is_waited_for_once_and_not_before_the_hub_is_asked(check):
    order = []
    answers = {"/org/name/resolve/main/config.json": (200, {}, json.dumps(CONFIG).encode())}
    with hub.serving(answers) as running:

        def answer():
            until = time.monotonic() + 5
            while not running.asked and time.monotonic() < until:
                threading.Event().wait(0.01)
            order.append([path for path, _ in running.asked])
            return Asked()

        check(Machine(gpus(8), answer), {**CLOSED, "HF_ENDPOINT": running.url}, model="org/name")

    assert order == [["/org/name/resolve/main/config.json"]]


def test_what_the_models_shape_and_length_rule_out_is_found_too(check, tmp_path):
    cached(tmp_path / "home", "org/name")

    found = {
        finding.check: finding.level
        for finding in check(Machine(gpus(8)), model="org/name", split="3:3")
        if finding.described
    }

    assert found == {"tensor-parallel": "problem", "length": "problem"}


def test_the_memory_of_each_side_is_worked_out_for_gpus_of_a_given_size(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cached(tmp_path / "home", "org/name")
    described = description.load(None, None, {"model": "org/name", "split": "2:2"}, [])
    caller = Caller({**CLOSED, "HF_HOME": str(tmp_path / "home")}, 10001)

    sides, unknown = doctor.memory(described, caller, 80)
    none, why = doctor.memory(described, Caller({**CLOSED, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}, 10001), 80)

    assert ([(side.role, side.gpus, side.capacity_gib) for side in sides], unknown) == (
        [("vllm-server", 2, 80), ("trainer", 2, 80)],
        "",
    )
    assert none == ()
    assert "its config is not in the cache" in why


@pytest.mark.parametrize("name", ["./x.csv", "./folder", "x.csv", "OK.JSONL", "./none", "none.jsonl", "/nowhere/x"])
def test_a_dataset_that_looks_like_a_path_is_never_taken_for_one_of_the_hub(name, check, tmp_path):
    (tmp_path / "folder").mkdir()
    for file in ("x.csv", "OK.JSONL"):
        (tmp_path / file).write_text('{"prompt": 1}\n')

    ((level, _),) = about("data.dataset", check(Machine(gpus(8)), **{"data.dataset": name}))

    assert level == "problem"


def test_a_dataset_of_the_hub_is_none_of_this_hosts_files(check, tmp_path):
    (tmp_path / "org" / "name").mkdir(parents=True)

    assert about("data.dataset", check(Machine(gpus(8)), **{"data.dataset": "org/name"})) == []


@pytest.mark.parametrize("runtime", ["docker", "process"])
def test_what_training_would_refuse_in_its_file_of_variables_is_found_before(check, tmp_path, runtime):
    file = tmp_path / "keys; 1.env"
    file.write_text("\ufeffA=1\nhunter2\n# B\nC hunter2\n")

    findings = check(Machine(gpus(8)), runtime=runtime, **{"trainer.env_file": "./keys; 1.env"})

    found = [finding for finding in findings if finding.check == "trainer.env_file"]
    assert found == [
        Finding(
            "trainer.env_file",
            "problem",
            f"{file}: line {number} is not of the form NAME=VALUE",
            "mend it, or put a # in front",
            described=True,
        )
        for number in (2, 4)
    ]


@pytest.mark.parametrize(
    ("content", "found"),
    [(b"\xef\xbb\xbfA=1\n", []), (b"A=1\n\xff", [("problem", "{}: byte 4 is no UTF-8")])],
)
def test_a_file_of_variables_is_read_as_training_reads_it(check, tmp_path, content, found):
    file = tmp_path / "keys.env"
    file.write_bytes(content)

    findings = check(Machine(gpus(8)), **{"trainer.env_file": "./keys.env"})

    assert about("trainer.env_file", findings) == [(level, text.format(file)) for level, text in found]


def test_files_that_the_containers_user_cannot_read_are_refused(check, tmp_path):
    for name, text in (("rew.py", ""), ("d.jsonl", '{"prompt": 1}\n'), ("keys.env", "A=1\n")):
        file = tmp_path / name
        file.write_text(text)
        file.chmod(0o600)

    named = {"data.dataset": "./d.jsonl", "data.rewards": ["./rew.py:reward"], "trainer.env_file": "./keys.env"}
    findings = check(Machine(gpus(8)), **named)

    for key, name in (("data.dataset", "d.jsonl"), ("data.rewards", "rew.py"), ("trainer.env_file", "keys.env")):
        assert about(key, findings) == [("problem", f"{tmp_path / name} cannot be read by the containers' user")]
    opened = {finding.check for finding in findings if "chmod" in finding.fix}
    assert opened == {"data.dataset", "data.rewards"}, "nobody is told to show everybody what is secret"
