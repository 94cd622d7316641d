"""Which dataset files can be trained on, as far as they are looked at."""

import json
import os

import pytest

from grpo_stack import dataset_file, inputs

PARQUET = b"PAR1" + bytes(8) + b"PAR1"


def read(folder, name, content):
    file = folder / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return dataset_file.read(str(file), os.getuid())


@pytest.mark.parametrize(
    ("name", "content", "columns"),
    [
        ("d.jsonl", '\n{"prompt": "a", "answer": 1}\n\n{"prompt": "b"}', ("prompt", "answer")),
        ("d.json", json.dumps([{"prompt": "a"}, {"prompt": "b"}], indent=1), ("prompt",)),
        ("d.json", json.dumps([{"prompt": "a"}]), ("prompt",)),
        ("d.json", json.dumps({"prompt": ["a"]}, indent=1), ("prompt",)),
        ("d.parquet", PARQUET, None),
    ],
)
def test_a_good_file_is_known_by_its_first_record(name, content, columns, tmp_path):
    found = read(tmp_path, name, content)

    assert (found.columns, found.problem, found.readable) == (columns, None, True)


@pytest.mark.parametrize(
    ("name", "content", "problem", "fix"),
    [
        ("d.jsonl", "", "it is empty", "write one JSON object a line"),
        ("d.jsonl", " \n\n", "it is empty", "write one JSON object a line"),
        ("d.json", "[\n]", "it is an empty list", "write one JSON object a line"),
        ("d.jsonl", "prompt\n", "line 1 is no JSON", "write one JSON object a line"),
        ("d.jsonl", "[1]\n", "record 1 is int, not an object", "write one JSON object a line"),
        ("d.json", '[\n{"prompt": 1},\n2]', "record 2 is int, not an object", "write one JSON object a line"),
        ("d.jsonl", '{"prompt": 1}\nrest\n', "line 2 is no JSON", "write one JSON object a line"),
        (
            "d.jsonl",
            '{"prompt": 1}\n{"prompt": 2}\n[]\n',
            "line 3 is list, not an object",
            "write one JSON object a line",
        ),
        ("d.jsonl", "[" * 100_000, "line 1 is no JSON", "write one JSON object a line"),
        ("d.jsonl", b"\xef\xbb\xbf{}", "it starts with a byte order mark", "save it as UTF-8 without one"),
        ("d.jsonl", '{"prompt": "ä"}'.encode("latin-1"), "it is no UTF-8", "save it as UTF-8"),
        ("d.jsonl", b"\x1f\x8b\x08", "it is no UTF-8", "save it as UTF-8"),
        ("d.parquet", b"", "it is empty", "write it again"),
        ("d.parquet", b"PAR1", "it is no Parquet file", "write it again"),
        ("d.parquet", PARQUET[:-1], "it is no Parquet file", "write it again"),
        ("d.parquet", '{"prompt": 1}\n', "it is no Parquet file", "write it again"),
        ("d.csv", "prompt\na\n", "it does not end in .jsonl, .json or .parquet", "convert or rename it"),
        ("D.JSONL", '{"prompt": 1}\n', "it does not end in .jsonl, .json or .parquet", "convert or rename it"),
        ("d.jsonl.gz", b"\x1f\x8b", "it does not end in .jsonl, .json or .parquet", "convert or rename it"),
    ],
)
def test_a_file_that_is_no_dataset_says_why_and_what_to_do(name, content, problem, fix, tmp_path):
    found = read(tmp_path, name, content)

    assert found.problem.startswith(problem)
    assert found.fix.startswith(fix)
    assert "\n" not in found.problem


def test_a_folder_and_a_missing_file_are_no_datasets(tmp_path):
    assert dataset_file.read(str(tmp_path), os.getuid()).problem == "it is no file"
    for name in ("none.jsonl", "x" * 300 + ".jsonl"):
        assert not dataset_file.read(str(tmp_path / name), os.getuid()).exists


def test_a_file_that_the_containers_user_cannot_read_is_refused_beside_what_else_is_wrong(tmp_path):
    file = tmp_path / "d.jsonl"
    file.write_text('{"text": 1}\n')
    file.chmod(0o600)

    found = dataset_file.read(str(file), os.getuid() + 1)

    assert [str(finding) for finding in inputs.check((), None, found)] == [
        f"data.dataset: {file} cannot be read by the containers' user; run: chmod a+r {file}",
        f"data.dataset: {file} has no column `prompt` (found: text); GRPO needs one: text, or a list of messages",
    ]
    assert dataset_file.read(str(file), os.getuid()).readable
