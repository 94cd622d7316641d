import json
import os
import sys
from pathlib import Path

import pytest

from grpo_stack.supervise import events
from grpo_stack.supervise.events import Events


def test_an_event_is_a_line_with_its_moment_in_two_forms(tmp_path: Path) -> None:
    file = tmp_path / "run" / events.FILE
    log = Events(file, clock=lambda: 1795000000.1234)

    log.record("noticed", "it is gone", what="server-gone", step=4)
    log.record("ended")

    first, second = file.read_text(encoding="utf-8").splitlines()
    moment = {"time": "2026-11-18T11:06:40.123Z", "unix": 1795000000.123}
    assert json.loads(first) == {**moment, "event": "noticed", "what": "server-gone", "step": 4, "line": "it is gone"}
    assert json.loads(second) == {**moment, "event": "ended"}


def test_people_read_a_line_of_their_own_or_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = Events(tmp_path / events.FILE)

    log.record("noticed", "the server is gone")
    log.record("ended")

    assert capsys.readouterr().err == "grpo-stack: the server is gone\n"


def test_what_was_there_stays(tmp_path: Path) -> None:
    Events(tmp_path / events.FILE).record("started")
    Events(tmp_path / events.FILE).record("finished")

    assert [entry["event"] for entry in events.read(tmp_path / events.FILE)] == ["started", "finished"]


def test_a_full_disk_costs_the_line_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / events.FILE
    file.symlink_to("/dev/full")

    Events(file).record("noticed", "the server is gone")

    assert "the server is gone" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_costs_nothing_either(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")

    Events(tmp_path / "run" / events.FILE).record("started")

    assert (tmp_path / "run").read_text() == "a file"


def test_a_reader_that_has_gone_away_is_no_reason_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w", buffering=1)
    monkeypatch.setattr(sys, "stderr", stream)

    Events(tmp_path / events.FILE).record("started", "a line")

    monkeypatch.undo()
    with pytest.raises(BrokenPipeError):
        stream.close()

    assert [entry["event"] for entry in events.read(tmp_path / events.FILE)] == ["started"]


def test_a_line_that_was_cut_short_is_left_out_and_the_next_one_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / events.FILE
    log = Events(file)
    write = events.os.write
    monkeypatch.setattr(events.os, "write", lambda target, line: write(target, line[:20]))
    log.record("started")
    monkeypatch.setattr(events.os, "write", write)

    log.record("finished")

    assert [entry["event"] for entry in events.read(file)] == ["finished"]
