"""A file of variables for training, as people write them."""

from __future__ import annotations

import pytest

from grpo_stack import env_file
from grpo_stack.errors import DescriptionError


def test_lines_are_variables_comments_or_nothing(tmp_path):
    file = tmp_path / "keys.env"
    file.write_text(
        "# keys\n\nWANDB_API_KEY=abc=def\nexport MODE=offline\n"
        'NAME="my run"\nOTHER=\'a b\'\nEMPTY=\nSPACES=  x  \nHALF="\n'
    )

    assert env_file.read(file) == {
        "WANDB_API_KEY": "abc=def",
        "MODE": "offline",
        "NAME": "my run",
        "OTHER": "a b",
        "EMPTY": "",
        "SPACES": "x",
        "HALF": '"',
    }


def test_each_line_that_is_something_else_is_named_without_what_it_holds(tmp_path):
    file = tmp_path / "keys.env"
    file.write_text("A=1\nhunter2\n2B=hunter2\nC =hunter2\nD=nul\0hunter2\n")

    with pytest.raises(DescriptionError) as refusal:
        env_file.read(file)

    why = "is not of the form NAME=VALUE; mend it, or put a # in front"
    assert list(refusal.value.problems) == [f"trainer.env_file: {file}: line {number} {why}" for number in (2, 3, 4, 5)]


def test_a_byte_order_mark_in_front_is_no_part_of_a_name(tmp_path):
    file = tmp_path / "keys.env"
    file.write_text("A=1\r\nB=2\r\n", encoding="utf-8-sig", newline="")

    assert env_file.read(file) == {"A": "1", "B": "2"}


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "cannot be read: No such file or directory"), (b"\xef\xbb\xbfA=\xff", "byte 5 is no UTF-8")],
)
def test_a_file_that_cannot_be_read_is_said_so(tmp_path, content, said):
    file = tmp_path / "keys.env"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(DescriptionError, match=said):
        env_file.read(file)
