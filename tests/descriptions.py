"""Any description that is accepted: what property tests draw from."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from grpo_stack import rules

TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1, max_size=20)
"""Anything that a command line can carry."""

WORD = TEXT.filter(str.strip)

PATHS = st.text("ab é$'\"{}#:-", min_size=1, max_size=8).map(lambda text: f"./x{text}x")

UUIDS = [f"GPU-0000000{digit}-1111-2222-3333-444444444444" for digit in range(8)]

HUB_IDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,20}(/[A-Za-z0-9][A-Za-z0-9_-]{0,20})?", fullmatch=True)

GPUS = st.permutations([*map(str, range(8)), *UUIDS])

PORTS = st.integers(1024, 65535)


@st.composite
def splits(draw: st.DrawFn) -> str:
    """A split in any of its forms."""
    server, trainer = draw(st.tuples(st.integers(1, 6), st.integers(1, 6)))
    ids = draw(GPUS)
    forms = [
        f"{server}:{trainer}",
        ",".join([*ids[: server + 1]]) + ":" + ",".join(ids[server + 1 : server + 1 + trainer]),
        f"0-{server}:{server + 1}-{server + trainer}",
        "shared",
        f"shared:{ids[0]}",
        "colocate",
        "colocate:" + ",".join(ids[:trainer]),
    ]
    return draw(st.sampled_from(forms))


@st.composite
def descriptions(draw: st.DrawFn) -> dict[str, Any]:
    """The data of a stack.yaml, every key of it present or not."""
    accelerator = draw(st.sampled_from(["cuda", "cuda", "cuda", "cpu"]))
    prompt, completion = draw(st.tuples(st.integers(1, 4096), st.integers(1, 4096)))
    optional: dict[str, st.SearchStrategy[Any]] = {
        "model": st.one_of(HUB_IDS, PATHS, st.just("${MODEL:-org/name}")),
        "revision": WORD,
        "run": st.sampled_from(["first", "${RUN:-run}"]),
        "pins": st.sampled_from(["trl-1.16", "trl-1.13"]),
        "outputs": PATHS,
        "source": PATHS.filter(lambda path: not set(path) & set("{}")),
        **({"split": splits()} if accelerator == "cuda" else {}),
    }
    stack, server = draw(st.fixed_dictionaries({}, optional=optional)), draw(_SERVER)
    if str(stack.get("split")).startswith("colocate"):
        server = {key: value for key, value in server.items() if key not in ("publish", "extra_args", "dtype")}
    return {
        "accelerator": accelerator,
        **stack,
        "data": {"max_prompt_length": prompt, **draw(_DATA)},
        "server": {"max_model_len": draw(st.sampled_from([None, prompt + completion, 9000])), **server},
        "trainer": {**draw(_TRAINER), "args": {"max_completion_length": completion, **draw(_ARGS)}},
        "recovery": draw(_RECOVERY),
    }


_DATA = st.fixed_dictionaries(
    {},
    optional={
        "dataset": st.one_of(WORD.filter(lambda text: text[0] != "~"), PATHS.map(lambda path: f"{path}.jsonl")),
        "config": WORD,
        "split": WORD,
        "revision": WORD,
        "rewards": st.lists(
            st.sampled_from(["accuracy_reward", "a.b:c", "./mine.py:f", "./mine.py:g", "x/own.py:f", "./é $'\"{}#/last.py:f"]),
            min_size=1,
        ),
    },
)  # fmt: skip

_RECOVERY = st.fixed_dictionaries(
    {},
    optional={
        "restarts": st.integers(0, 99),
        "stuck_after_s": st.integers(1, 9999),
        "update_limit_s": st.integers(1, 9999),
        "phase_floor_s": st.integers(1, 9999),
        "mismatch": st.sampled_from(["warn", "stop", "off"]),
        "mismatch_limit": st.floats(1e-6, 9),
    },
)

_SERVER = st.fixed_dictionaries(
    {},
    optional={
        "port": PORTS,
        "publish": PORTS,
        "gpu_memory_utilization": st.floats(0.1, 1),
        "dtype": st.sampled_from(["bfloat16", "auto"]),
        "boot_timeout_s": st.integers(1, 9999),
        "extra_args": st.lists(TEXT.map(lambda text: f"x{text}"), max_size=3),
    },
)

_TRAINER = st.fixed_dictionaries(
    {},
    optional={
        "group_port": st.one_of(st.integers(1024, 32767), st.integers(61000, 65535)),
        "internet": st.booleans(),
        "env_file": st.sampled_from(["./training.env", "/keys/it's $.env"]),
        "parallelism": st.sampled_from(rules.PARALLELISMS),
    },
)

_ARGS = st.fixed_dictionaries(
    {},
    optional={
        "run_name": TEXT,
        "learning-rate": st.floats(0, 1),
        "bf16": st.booleans(),
        "reward_weights": st.lists(st.floats(0, 1), min_size=1, max_size=3),
    },
)
