"""The demo's questions."""

from __future__ import annotations

import json
import re
from pathlib import Path

from grpo_stack import demo


def test_the_questions_are_the_same_every_time() -> None:
    assert demo.sums(20) == demo.sums(20)


def test_each_answer_is_the_sum_of_its_question() -> None:
    for row in demo.sums(200):
        a, b = map(int, re.findall(r"\d+", row["prompt"][-1]["content"]))
        assert 10 <= a <= 99
        assert 10 <= b <= 99
        assert row["solution"] == str(a + b)


def test_the_file_holds_the_same_rows(tmp_path: Path) -> None:
    path = tmp_path / "sums.jsonl"

    assert demo.main(["sums", str(path)]) == 0

    assert [json.loads(line) for line in path.read_text().splitlines()] == demo.sums()
