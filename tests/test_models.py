"""A model's config, from a folder, a cache and a Hub of our own on a real socket."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_stack import model_config, models, snapshots
from grpo_stack.hub_token import HubToken
from grpo_stack.models import ModelReading
from tests.configs import FOLDER, NAMES, config, raw
from tests.fakes import hub as fake
from tests.fakes import peers

QWEN = (FOLDER / "qwen2.5-7b.json").read_bytes()
PATH = "/Qwen/Qwen2.5-7B/resolve/main/config.json"
COMMIT = "a" * 40


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def ask(url: str, token_file: Path | None = None, revision: str | None = None, timeout_s: float = 10) -> ModelReading:
    hub = models.Hub(url, HubToken(file=token_file), timeout_s)
    return models.read("Qwen/Qwen2.5-7B", revision, offline=False, cache=None, hub=hub)


@pytest.fixture
def token(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text("hf_secret\n")
    return file


# folders


def test_a_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(QWEN)

    reading = models.read(str(tmp_path), None, offline=True, cache=None)

    assert reading == ModelReading(config("qwen2.5-7b"), "folder")


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    reading = models.read(str(tmp_path), None, offline=True, cache=None)

    assert reading.refused
    assert reading.problem == f"model: {tmp_path}/config.json: no such file; name the folder that a model was saved to"


def test_a_config_that_is_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()

    reading = models.read(str(tmp_path), None, offline=True, cache=None)

    assert reading.refused
    assert "is a directory; make it readable" in str(reading.problem)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "Expecting property name"),
        (b"[]", "it holds no mapping"),
        (b"{}", "num_hidden_layers is missing"),
        (b"\xff\xfe{", "decode"),
        (b"[" * 200_000, "recursion"),
        (b" " * (models.LIMIT_BYTES + 1), f"more than {models.LIMIT_BYTES} bytes"),
        (json.dumps({**json.loads(QWEN), "num_attention_heads": 0}).encode(), "num_attention_heads is 0"),
        (json.dumps({**json.loads(QWEN), "hidden_size": "wide"}).encode(), "hidden_size: 'wide' is no size"),
        (json.dumps({**json.loads(QWEN), "vocab_size": -1}).encode(), "vocab_size: -1 is no size"),
    ],
    ids=["cut", "list", "empty", "utf16", "deep", "long", "zero", "text", "negative"],
)
def test_a_broken_config_is_refused_with_the_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "config.json").write_bytes(content)

    reading = models.read(str(tmp_path), None, offline=True, cache=None)

    assert reading.refused
    assert reading.config is None
    assert "its config.json cannot be used: " in str(reading.problem)
    assert reason in str(reading.problem)


@given(st.dictionaries(st.sampled_from([*raw("qwen2.5-7b"), "quantization_config", "text_config", "rope_scaling", "layer_types",
                                        "kv_lora_rank", "mlp_only_layers", "num_experts"]),
                       st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers()) | st.just({})))  # fmt: skip
def test_no_config_is_more_than_refused(changes: dict[str, object]) -> None:
    with suppress(ValueError):
        model_config.parse({**raw("qwen2.5-7b"), **changes})


# the cache


def cached(cache: Path, revision: str = "main", content: bytes = QWEN) -> None:
    folder = cache / "models--Qwen--Qwen2.5-7B"
    (folder / "refs").mkdir(parents=True, exist_ok=True)
    (folder / "refs" / revision).write_text(COMMIT)
    (folder / "snapshots" / COMMIT).mkdir(parents=True, exist_ok=True)
    (folder / "snapshots" / COMMIT / "config.json").write_bytes(content)


@pytest.mark.parametrize(
    ("stored", "wanted"), [("main", None), ("main", "main"), ("v1", "v1"), ("main", COMMIT)], ids=str
)
def test_a_cached_revision_is_read_without_asking_the_hub(tmp_path: Path, stored: str, wanted: str | None) -> None:
    cached(tmp_path, stored)
    with fake.serving({}) as hub:
        reading = models.read(
            "Qwen/Qwen2.5-7B", wanted, offline=False, cache=tmp_path, hub=models.Hub(endpoint=hub.url)
        )

    assert reading == ModelReading(config("qwen2.5-7b"), "cache")
    assert hub.asked == []


def test_offline_and_not_cached_is_said_with_what_stays_unchecked(tmp_path: Path) -> None:
    cached(tmp_path, "v1")

    reading = models.read("Qwen/Qwen2.5-7B", None, offline=True, cache=tmp_path)

    assert reading == ModelReading(
        None,
        "cache",
        "model: Qwen/Qwen2.5-7B: its config is not in the cache and the Hub is not asked (offline); tensor parallelism, "
        "longest context and GPU memory are then not checked",
    )


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"HF_HUB_CACHE": "/a"}, "/a"),
        ({"HF_HOME": "/b"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
        ({"HF_HOME": ""}, str(Path("~/.cache/huggingface/hub").expanduser())),
    ],
)
def test_the_cache_is_where_huggingface_hub_has_it(environment: dict[str, str], folder: str) -> None:
    assert snapshots.cache_folder(environment) == Path(folder)


# the Hub


def test_the_hub_is_asked_for_the_config_of_the_branch() -> None:
    with fake.serving({PATH: (200, {}, QWEN)}) as hub:
        reading = ask(hub.url + "/")

    assert reading == ModelReading(config("qwen2.5-7b"), "hub")
    assert hub.asked == [(PATH, None)]


def test_a_revision_is_one_part_of_the_path() -> None:
    path = "/Qwen/Qwen2.5-7B/resolve/refs%2Fpr%2F1%3Fx/config.json"
    with fake.serving({path: (200, {}, QWEN)}) as hub:
        reading = ask(hub.url, revision="refs/pr/1?x")

    assert reading.config == config("qwen2.5-7b")


def test_a_token_is_sent_to_the_hub_and_not_to_where_it_sends_us(token: Path) -> None:
    with fake.serving({"/config.json": (200, {}, QWEN)}) as elsewhere:
        moved = {PATH: (307, {"Location": elsewhere.url.replace("127.0.0.1", "localhost") + "/config.json"}, b"")}
        with fake.serving(moved) as hub:
            reading = ask(hub.url, token)

    assert reading.config == config("qwen2.5-7b")
    assert hub.asked == [(PATH, "Bearer hf_secret")]
    assert elsewhere.asked == [("/config.json", None)]


def test_the_token_is_the_file_s_and_never_that_of_a_netrc(
    tmp_path: Path, token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password wrong\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with fake.serving({PATH: (200, {}, QWEN)}) as hub:
        ask(hub.url, token)
        ask(hub.url)

    assert hub.asked == [(PATH, "Bearer hf_secret"), (PATH, None)]


@pytest.mark.parametrize("content", ["", " \n", None])
def test_an_empty_or_absent_token_file_is_no_token(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    with fake.serving({PATH: (200, {}, QWEN)}) as hub:
        ask(hub.url, file)

    assert hub.asked == [(PATH, None)]


@pytest.mark.parametrize(
    ("status", "code", "with_token", "expected"),
    [
        (401, "GatedRepo", False, "is gated and no token was given; ask for access, then name the token's file"),
        (403, "GatedRepo", True, "is gated, and this token's user is not on its list; ask for access on its page"),
        (401, "", True, "the Hub does not accept the token (HTTP 401); make a new one"),
        (403, "", True, "the Hub refuses this token (HTTP 403); make a new one with read access to it"),
        (401, "RepoNotFound", False, "the Hub does not know it (HTTP 401), or it is private and needs a token; check the spelling"),
        (404, "RepoNotFound", True, "the Hub does not know it (HTTP 404), or the token may not see it; check the spelling"),
        (404, "RevisionNotFound", False, "has no revision main; give a commit, tag or branch of it"),
        (404, "EntryNotFound", False, "has no config.json; name a model in the format of transformers"),
    ],
)  # fmt: skip
def test_a_refusal_is_told_apart(token: Path, status: int, code: str, with_token: bool, expected: str) -> None:
    headers = {"X-Error-Code": code} if code else {}
    with fake.serving({PATH: (status, headers, b"")}) as hub:
        reading = ask(hub.url, token if with_token else None)

    assert reading == ModelReading(None, "hub", f"model: Qwen/Qwen2.5-7B: {expected}", refused=True)
    assert "hf_secret" not in str(reading.problem)


def test_a_hub_in_trouble_leaves_the_model_unchecked_and_not_refused() -> None:
    with fake.serving({PATH: (503, {}, b"")}) as hub:
        reading = ask(hub.url)

    assert (reading.config, reading.refused) == (None, False)
    assert "the Hub answers HTTP 503; try again later; tensor parallelism" in str(reading.problem)


def test_an_answer_without_end_is_cut_off() -> None:
    with fake.serving({PATH: (200, {}, b" " * (3 * models.LIMIT_BYTES))}) as hub:
        reading = ask(hub.url)

    assert "more than" in str(reading.problem)


def test_a_hub_that_nobody_runs_is_said() -> None:
    with peers.refusing() as url:
        reading = ask(url)

    assert not reading.refused
    assert f"{url} cannot be asked ([Errno 111] Connection refused)" in str(reading.problem)
    assert "check the network and HTTPS_PROXY" in str(reading.problem)


@pytest.mark.parametrize("behaviour", [peers.says_nothing, peers.trickles_headers], ids=lambda peer: peer.__name__)
def test_a_hub_that_never_ends_its_answer_costs_its_time_limit(behaviour: peers.Behaviour) -> None:
    with peers.peer(behaviour) as url:
        reading = ask(url, timeout_s=0.3)

    assert not reading.refused
    assert "cannot be asked" in str(reading.problem)


@pytest.mark.parametrize("behaviour", [peers.resets, peers.speaks_something_else], ids=lambda peer: peer.__name__)
def test_a_peer_that_is_no_hub_is_said(behaviour: peers.Behaviour) -> None:
    with peers.peer(behaviour) as url:
        reading = ask(url)

    assert "cannot be asked" in str(reading.problem)


def test_a_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake.serving({"http://hub.invalid" + PATH: (200, {}, QWEN)}) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        reading = ask("http://hub.invalid")

    assert reading.config == config("qwen2.5-7b")


@pytest.mark.parametrize(
    "model", ["", "a/b/c", "a b", "../x/..", "a/../b", "-x", "a/b?c", "https://huggingface.co/a/b"]
)
def test_what_is_neither_a_folder_nor_an_id_is_never_asked_for(model: str) -> None:
    with fake.serving({}) as hub:
        reading = models.read(model, None, offline=False, cache=None, hub=models.Hub(hub.url))

    assert reading.refused
    assert hub.asked == []


# what a config says


@pytest.mark.parametrize("name", NAMES)
def test_every_config_is_of_a_known_family(name: str) -> None:
    assert config(name).known_family


def test_the_text_part_of_a_multimodal_model_counts() -> None:
    gemma = config("gemma-3-4b")

    assert (gemma.num_attention_heads, gemma.num_key_value_heads, gemma.vocab_size) == (8, 4, 262208)
    assert (gemma.dtype, gemma.other_parts, gemma.tie_word_embeddings) == ("bfloat16", True, True)
    assert (gemma.sliding_window, gemma.sliding_layers) == (1024, 29)


def test_experts_are_found_under_each_of_their_names() -> None:
    found = {name: config(name) for name in ("mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3", "olmoe-1b-7b")}

    assert {name: (model.num_experts, model.num_experts_per_token, model.moe_intermediate_size) for name, model in found.items()} == {
        "mixtral-8x7b": (8, 2, 14336),
        "qwen3-30b-a3b": (128, 8, 768),
        "deepseek-v3": (256, 8, 2048),
        "olmoe-1b-7b": (64, 8, 1024),
    }  # fmt: skip
    assert (found["deepseek-v3"].dense_layers, found["deepseek-v3"].shared_expert_intermediate_size) == (3, 2048)


def test_quantization_is_read_with_its_blocks() -> None:
    assert (config("qwen3-8b-fp8").quantization, config("qwen3-8b-fp8").quantization_block) == ("fp8", 128)
    assert config("qwen3-8b").quantization is None


@pytest.mark.parametrize(
    ("rope", "longest"),
    [
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131072),
        ({"type": "linear", "factor": 2.0}, 262144),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, 131072),
        ({"rope_type": "default"}, 131072),
        (None, 131072),
    ],
)
def test_the_longest_context_is_stretched_as_vllm_stretches_it(rope: dict[str, object] | None, longest: int) -> None:
    assert model_config.parse({**raw("qwen2.5-7b"), "rope_scaling": rope}).max_position_embeddings == longest


def test_a_window_that_is_switched_off_is_none() -> None:
    assert config("qwen2.5-7b").sliding_window is None
    on = model_config.parse({**raw("qwen2.5-7b"), "use_sliding_window": True, "max_window_layers": 20})
    assert (on.sliding_window, on.sliding_layers) == (131072, 8)


def test_an_unknown_family_is_read_and_marked() -> None:
    strange = model_config.parse({**raw("llama-3.1-8b"), "model_type": "strange", "attention_bias": True})

    assert not strange.known_family
    assert strange.attention_bias


@pytest.mark.parametrize("scheme", ["http", "no-scheme"])
@pytest.mark.parametrize("user", ["u:hunter2", "u:hunter2@x", "hunter2"])
def test_a_password_of_the_hubs_address_is_never_shown(scheme: str, user: str) -> None:
    reading = ask(f"{scheme}://{user}@127.0.0.1:9/")

    assert f"{scheme}://127.0.0.1:9/ cannot be asked" in str(reading.problem)
    assert "hunter2" not in str(reading.problem)
