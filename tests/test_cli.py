import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle
from pathlib import Path

import pytest
import yaml

from grpo_stack import arguments, cli, pins

COMMANDS = ["render", "up", "doctor", "plan", "down", "status", "logs", "wait", "supervise", "pins"]


def run(*words, cwd=None):
    argv = [sys.executable, "-m", "grpo_stack.cli", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd=cwd, check=False)


def test_help_names_every_command_and_every_command_has_help(capsys):
    for command in COMMANDS:
        with pytest.raises(SystemExit) as ended:
            cli.main([command, "--help"])
        assert ended.value.code == 0
    assert set(cli._COMMANDS) == set(COMMANDS)
    capsys.readouterr()

    assert cli.main([]) == 0

    printed = capsys.readouterr().out
    assert all(re.search(rf"\n    {command}\s", printed) for command in COMMANDS)


def test_render_prints_the_file_and_nothing_else(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert cli.main(["render", "--model", "org/name", "--split", "2:6", "--target", "compose"]) == 0

    printed = capsys.readouterr()
    document = yaml.safe_load(printed.out)
    assert printed.err == ""
    assert printed.out.startswith("# Made by: grpo-stack render --model org/name --split 2:6 --target compose\n")
    assert "org/name" in document["services"]["vllm-server"]["command"]
    assert list(tmp_path.iterdir()) == []


def test_render_into_a_folder_writes_file_and_description_that_render_again(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["render", "--model", "org/name", "--output", "team/stack"]) == 0
    folder = tmp_path / "team" / "stack"
    first = {file.name: file.read_text() for file in folder.iterdir()}

    monkeypatch.chdir(folder)
    assert cli.main(["render", "--output", "."]) == 0

    assert set(first) == {"compose.yaml", "stack.yaml"}
    assert {file.name: file.read_text() for file in folder.iterdir()} == first


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rendr"], "grpo-stack: argument COMMAND: invalid choice: 'rendr'"),
        (["render", "--modle", "x"], "grpo-stack: unrecognized arguments: --modle x"),
        (["render", "--split", "9"], "grpo-stack: description: split: '9' does not name two sides"),
        (["wait", "--url", "http://x"], "grpo-stack: the following arguments are required: --model"),
        (
            ["wait", "--url", "http://x", "--model", "m", "--once", "--", "true"],
            "grpo-stack: wait: --once is for health",
        ),
        (["render", "--file", "none.yaml"], "grpo-stack: none.yaml: there is no such file"),
    ],
)
def test_wrong_usage_is_one_line_on_stderr_and_exit_code_2(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert cli.main(words) == 2

    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(message)
    assert printed.err.count("\n") == 1


def test_several_problems_are_several_lines(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("stack.yaml").write_text("modle: x\nsplit: '1:1:1'\n")

    assert cli.main(["render"]) == 2

    assert len(capsys.readouterr().err.splitlines()) == 2


@pytest.mark.parametrize("name", ["Bad_Name!", "", "-x", "_x", "ä", "a.b", "a b", "a\nb"])
@pytest.mark.parametrize("command", ["up", "doctor", "down", "status", "logs"])
def test_a_project_that_compose_would_refuse_is_wrong_usage(command, name, capsys):
    assert cli.main([command, f"--project={name}"]) == 2
    assert capsys.readouterr().err == (
        f"grpo-stack: argument --project: {name!r}: a project is named in a-z, 0-9, - and _, with a letter or digit "
        f"first; see: grpo-stack {command} --help\n"
    )


def test_logs_ask_the_daemon_before_compose_does(capsys, tmp_path, monkeypatch):
    without_docker(monkeypatch, tmp_path)
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\n[ "$2" = version ] && echo 2.26.1 || echo raw text of Compose\n')
    docker.chmod(0o755)

    assert cli.main(["logs"]) == 3
    assert "Docker's daemon does not run" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["render", "plan", "doctor", "up --check", "status", "logs", "down"])
def test_a_current_folder_that_is_gone_is_one_line(command, tmp_path):
    (tmp_path / "gone").mkdir()

    done = shell(f"cd gone && rmdir ../gone && $cli {command}", tmp_path)

    assert done.returncode == 3
    assert done.stderr == "grpo-stack: the current folder is gone or closed to this user; change to another: cd\n"


WRITTEN = "# Mine: why these GPUs\nsplit: '2:2'\n"


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ("--preset 2-6", "is there, and says something else; run `grpo-stack render --output .` in its folder"),
        ("--file other.yaml", "is there, and says something else; run `grpo-stack render --output .` in its folder"),
        (
            "--split 4:4 --model a/b --set server.port=9000",
            "holds comments or a layout of its own, which model, split, server.port from here would cost it; put that",
        ),
    ],
)
def test_render_replaces_no_description_that_somebody_wrote(flags, why, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stack.yaml").write_text(WRITTEN)
    (tmp_path / "other.yaml").write_text("split: '1:1'\n")

    assert cli.main(["render", *flags.split(), "--output", "."]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"grpo-stack: render: stack.yaml: {why}")
    assert line.endswith(" name another folder: --output DIR")
    assert (tmp_path / "stack.yaml").read_text() == WRITTEN
    assert not (tmp_path / "compose.yaml").exists()


def test_render_replaces_no_compose_file_that_somebody_wrote(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "compose.yaml").write_text("services: {}\n")

    assert cli.main(["render", "--preset", "2-6", "--output", "."]) == 2

    assert capsys.readouterr().err == (
        "grpo-stack: render: compose.yaml: is there, and render did not write it; name another folder: --output DIR\n"
    )
    assert [file.name for file in tmp_path.iterdir()] == ["compose.yaml"]


def test_what_render_wrote_it_replaces_and_flags_go_into_the_description(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["render", "--model", "a/b", "--output", "."]) == 0

    assert cli.main(["render", "--split", "1:1", "--output", "."]) == 0
    flagged = (tmp_path / "compose.yaml").read_text()
    assert cli.main(["render", "--output", "."]) == 0

    assert (tmp_path / "compose.yaml").read_text() == flagged
    assert {"model": "a/b", "split": "1:1"}.items() <= yaml.safe_load((tmp_path / "stack.yaml").read_text()).items()


@pytest.mark.parametrize(
    ("before", "after"), [("model: a/b", "model: mine/own"), ('"4:4"', '"2:6"'), ("\n", "\n# mine\n")]
)
def test_the_command_that_rendered_a_description_does_not_undo_an_edit_of_it(
    before, after, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    render = ["render", "--preset", "4-4", "--model", "a/b", "--output", "stack"]
    assert cli.main(render) == 0
    assert cli.main(render) == 0
    file = tmp_path / "stack" / "stack.yaml"
    file.write_text(edited := file.read_text().replace(before, after, 1))
    files = {each: each.read_text() for each in file.parent.iterdir()}
    capsys.readouterr()

    assert cli.main(render) == 2

    assert capsys.readouterr().err == (
        "grpo-stack: render: stack/stack.yaml: is there, and says something else; run `grpo-stack render --output .` in its "
        "folder to keep it, remove it, or name another folder: --output DIR\n"
    )
    assert {each: each.read_text() for each in file.parent.iterdir()} == files
    monkeypatch.chdir(file.parent)
    assert cli.main(["render", "--output", "."]) == 0
    assert file.read_text() == edited


def test_flags_go_into_a_description_in_the_form_of_render_whatever_its_values(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["render", "--model", "a/b", "--set", "server.extra_args=['--seed', 'a#b']", "--output", "."]) == 0
    file = tmp_path / "stack.yaml"
    file.write_text(file.read_text().replace("a/b", "mine/own"))

    assert cli.main(["render", "--split", "1:7", "--output", "."]) == 0

    kept = {"model": "mine/own", "split": "1:7", "server": {"extra_args": ["--seed", "a#b"]}}
    assert kept.items() <= yaml.safe_load(file.read_text()).items()


@pytest.mark.parametrize("mine", ["# mine\n", "\n", "accelerator:   cuda\n", "'accelerator': cuda\n"])
def test_flags_go_into_no_description_with_a_comment_or_a_layout_of_its_own(mine, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["render", "--model", "a/b", "--output", "."]) == 0
    file = tmp_path / "stack.yaml"
    file.write_text(edited := file.read_text() + mine)

    assert cli.main(["render", "--split", "1:7", "--output", "."]) == 2

    assert "stack.yaml: holds comments or a layout of its own, which split from here would" in capsys.readouterr().err
    assert file.read_text() == edited


@pytest.mark.parametrize("target", ["file", "file/below", "/proc/x", "taken", "x" * 300])
def test_a_folder_that_cannot_be_written_is_one_line(target, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "taken" / "compose.yaml").mkdir(parents=True)

    assert cli.main(["render", "--output", target]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"grpo-stack: render: {target}")
    assert line.endswith("; name another folder: --output DIR")


@pytest.mark.parametrize("memo", ["none/memo", "file/memo", "x" * 300 + "/memo"])
def test_a_memo_that_cannot_be_made_is_told_before_the_server_is_asked(memo, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()

    assert cli.main(["wait", "--once", "--url", "http://127.0.0.1:9", "--model", "m", "--memo", memo]) == 2
    assert f"--memo: {memo} cannot be made" in capsys.readouterr().err


@pytest.mark.parametrize("gib", ["0", "-1", "nan", "inf", "1e300", "10001", "x", ""])
def test_a_gpu_has_a_memory_that_is_one(gib, capsys):
    assert cli.main(["plan", f"--gpu-gib={gib}"]) == 2
    assert f"argument --gpu-gib: {gib!r} is no memory of a GPU" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "there is no folder"),
        ({"weights": ""}, "holds no config.json"),
        ({"config.json": "{}"}, "its config.json cannot be used"),
    ],
)
def test_plan_ends_as_up_would_for_a_model_that_is_none(files, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in files.items():
        (tmp_path / "q").mkdir(exist_ok=True)
        (tmp_path / "q" / name).write_text(text)

    assert cli.main(["plan", "--model", "./q", "--split", "1:1", "--gpu-gib", "80"]) == 2

    printed = capsys.readouterr()
    assert "vllm serve" in printed.out
    assert message in printed.err


@pytest.mark.parametrize("url", ["http://é b/", "http://a b", "http://a\nb", "http://é", "http://x/é"])
def test_a_url_that_cannot_be_sent_is_wrong_usage(url, capsys):
    assert cli.main(["wait", "--url", url, "--model", "m", "--timeout", "1"]) == 2
    assert "holds a blank, or other characters than those of ASCII" in capsys.readouterr().err


CPU = ["--preset", "cpu", "--set", "source=" + str(Path(__file__).parent.parent)]


def without_docker(monkeypatch, tmp_path):
    """A host whose Docker is not installed, and a user without proxies or tokens."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    for name in ("HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)


def test_doctor_shows_every_check_and_ends_with_exit_code_3_on_a_host_that_cannot(capsys, tmp_path, monkeypatch):
    without_docker(monkeypatch, tmp_path)

    assert cli.main(["doctor", *CPU]) == 3

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("problem  engine")
    assert "Docker is not installed" in lines[0]
    assert "→ let `make build` install it" in lines[1]
    assert lines[-1].startswith("1 problem")


def test_doctor_tells_programs_the_same(capsys, tmp_path, monkeypatch):
    without_docker(monkeypatch, tmp_path)

    assert cli.main(["doctor", *CPU, "--json"]) == 3

    printed = json.loads(capsys.readouterr().out)
    levels = {entry["check"]: entry["level"] for entry in printed["checks"]}
    assert printed["ready"] is False
    assert (levels["engine"], levels["outputs"], levels["token"]) == ("problem", "ok", "ok")


def test_a_check_can_be_left_out_of_doctor_and_of_up_and_that_is_said(capsys, tmp_path, monkeypatch):
    without_docker(monkeypatch, tmp_path)

    assert cli.main(["doctor", *CPU, "--skip", "engine"]) == 0
    assert "skipped  engine" in capsys.readouterr().out
    assert cli.main(["up", "--check", "description", *CPU, "--skip", "outputs"]) == 0
    assert "grpo-stack: skipped: outputs: left out on request" in capsys.readouterr().err
    assert cli.main(["up", *CPU, "--skip", "motor"]) == 2
    assert "there is no check 'motor'" in capsys.readouterr().err


def test_a_wrong_description_is_exit_code_2_in_doctor(capsys, tmp_path, monkeypatch):
    without_docker(monkeypatch, tmp_path)

    assert cli.main(["doctor", *CPU, "--dataset", "none.jsonl"]) == 2
    assert "there is no file" in capsys.readouterr().out


def test_plan_shows_what_each_role_runs_and_where(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))

    assert cli.main(["plan", "--model", "org/name", "--split", "2:6"]) == 0
    text = capsys.readouterr().out
    assert cli.main(["plan", "--model", "org/name", "--split", "2:6", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)

    assert "vllm-server (GPU 0,1, /dev/shm 16gb, without internet)" in text
    assert "\n  vllm serve org/name " in text
    assert list(data["roles"]) == ["prefetch", "vllm-server", "trainer"]
    assert data["roles"]["vllm-server"]["command"][:3] == ["vllm", "serve", "org/name"]
    assert data["roles"]["trainer"]["gpus"] == ["2", "3", "4", "5", "6", "7"]
    assert data["roles"]["trainer"]["command"][:2] == ["accelerate", "launch"]
    assert data["roles"]["trainer"]["supervisor"][:3] == ["grpo-stack", "supervise", "trainer"]


def test_pins_are_shown_for_people_and_for_programs(capsys):
    assert cli.main(["pins"]) == 0
    assert "trl-1.16 (default): trl 1.16.0, vllm 0.28.0" in capsys.readouterr().out
    assert cli.main(["pins", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[pins.DEFAULT]["torch"] == pins.SETS[pins.DEFAULT].torch


def test_whether_two_versions_go_together_is_answered(capsys):
    assert cli.main(["pins", "--fit", "1.16.0", "0.28.0"]) == 0
    assert cli.main(["pins", "--fit", "1.13.0", "0.30.0"]) == 2
    assert "nearest: 0.28.0" in capsys.readouterr().err


def shell(line, cwd, **environment):
    """A line of bash, in which `$cli` is grpo-stack and the first exit code of a pipe is the one that counts."""
    program = f"cli='{sys.executable} -m grpo_stack.cli'; {line}"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent), **environment}
    return subprocess.run(
        ["bash", "-c", program], cwd=cwd, env=env, capture_output=True, text=True, timeout=60, check=False
    )


NOT_READY = "wait --url http://127.0.0.1:9 --model m --timeout 1"
GIVES_UP = "supervise trainer --run run --restarts 0 -- false"
ENDS = [
    ("--help", 0),
    ("render", 0),
    ("pins --json", 0),
    ("rendr", 2),
    ("render --file none.yaml", 2),
    ("doctor --preset cpu --set source=/nowhere --skip engine", 2),
    ("doctor --preset cpu --set source=/nowhere --skip engine --json", 2),
    ("up --check --preset cpu --set source=/nowhere --skip engine", 2),
    (NOT_READY, 4),
    (f"{NOT_READY} -- touch ran", 4),
    (GIVES_UP, 5),
    ("supervise server --restarts 0 -- false", 5),
]
"""Commands, and how each of them ends."""

SINKS = ("2>/dev/full", ">/dev/full 2>&1", ">&- 2>&-")


@pytest.mark.parametrize(("words", "code"), ENDS)
def test_a_reader_that_goes_away_changes_no_exit_code(words, code, tmp_path):
    done = shell(f"$cli {words} 2>&1 | true; exit ${{PIPESTATUS[0]}}", tmp_path)

    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("words", "code", "sink"),
    # Each way with some of the commands, since each of them starts a process.
    [(*end, sink) for end, sink in zip((end for end in ENDS if end[1]), cycle(SINKS), strict=False)],
)
def test_a_fault_that_cannot_be_told_keeps_its_exit_code(words, code, sink, tmp_path):
    assert shell(f"$cli {words} {sink}", tmp_path).returncode == code


def test_output_that_is_lost_on_a_full_disk_is_a_fault_of_its_own(tmp_path):
    for words in ("render", "pins"):
        done = shell(f"$cli {words} >/dev/full", tmp_path)

        assert done.returncode == 3
        assert done.stderr == "grpo-stack: stdout: No space left on device; mind what it leads to\n"


def test_a_terminal_that_knows_no_unicode_costs_no_command(tmp_path):
    ascii_only = {"PYTHONIOENCODING": "ascii", "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}

    doctor = shell("$cli doctor --preset cpu --set source=/nowhere --skip engine", tmp_path, **ascii_only)
    plan = shell("$cli plan --preset cpu", tmp_path, **ascii_only)

    assert (doctor.returncode, plan.returncode) == (2, 0)
    assert "\\u2192 run it in the checkout" in doctor.stdout
    assert (doctor.stderr, plan.stderr) == ("", "")


def test_render_prints_utf8_whatever_the_terminal_knows(tmp_path):
    (tmp_path / "stack.yaml").write_text("run: mine\ndata: {rewards: [./é.py:reward]}\n", encoding="utf-8")

    done = shell("$cli render", tmp_path, PYTHONIOENCODING="ascii")

    assert (done.returncode, done.stderr) == (0, "")
    assert "é.py" in done.stdout


class _Server(BaseHTTPRequestHandler):
    """Answers as a vLLM server that serves the model `m` with TRL's settings."""

    answers = {  # noqa: RUF012  # read only
        "/health": {},
        "/v1/models": {"data": [{"id": "m"}]},
        "/get_world_size": {"world_size": 1},
        "/v1/completions": {"choices": [{"text": "x", "finish_reason": "length"}], "usage": {"completion_tokens": 1}},
        "/grpo_stack/identity": {
            "vllm_config": {
                "weight_transfer_config": {"backend": "gloo"},
                "model_config": {"logprobs_mode": "processed_logprobs", "max_logprobs": -1},
            }
        },
    }

    def do_GET(self):
        body = json.dumps(self.answers[self.path.partition("?")[0]]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    completions = []  # noqa: RUF012  # one entry for each completion that was asked for

    def do_POST(self):
        self.completions.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.do_GET()

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), _Server) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def test_wait_becomes_the_command_once_the_server_can_generate(server):
    gate = ["wait", "--url", server, "--model", "m", "--backend", "gloo", "--world-size", "1", "--timeout", "20"]

    done = run(*gate, "--", sys.executable, "-c", "import sys; print('went on'); sys.exit(7)")

    assert (done.returncode, done.stdout) == (7, "went on\n")


def test_wait_names_what_is_wrong_and_ends_with_exit_code_4(server):
    done = run("wait", "--url", server, "--model", "other", "--backend", "gloo", "--timeout", "20", "--", "echo", "no")

    assert (done.returncode, done.stdout) == (4, "")
    assert "'other'" in done.stderr


def test_a_health_check_is_one_look(server):
    good = run("wait", "--once", "--url", server, "--model", "m", "--backend", "gloo", "--timeout", "20")
    bad = run("wait", "--once", "--url", "http://127.0.0.1:9", "--model", "m", "--timeout", "20")

    assert (good.returncode, bad.returncode) == (0, 4)


def test_a_health_check_generates_once_and_never_again_while_its_memo_lasts(server, tmp_path):
    memo = tmp_path / "has-generated"
    once = ["wait", "--once", "--url", server, "--model", "m", "--backend", "gloo", "--memo", str(memo)]
    before = len(_Server.completions)

    codes = [run(*once).returncode for _ in range(2)]

    assert codes == [0, 0]
    assert memo.exists()
    assert len(_Server.completions) - before == 1


def test_a_health_check_that_fails_leaves_no_memo(tmp_path):
    memo = tmp_path / "has-generated"

    assert run("wait", "--once", "--url", "http://127.0.0.1:9", "--model", "m", "--memo", str(memo)).returncode == 4
    assert not memo.exists()


def test_flags_are_keys_of_the_description():
    from grpo_stack import rules, schema, spec

    data = {}
    for _, key, _ in arguments.FLAGS:
        data = rules.merge(data, {key: "1:1" if key == "split" else "text"})

    assert schema.read(spec.StackSpec, data)[1] == []
