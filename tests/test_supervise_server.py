"""The server's supervisor: its judgement on a clock of its own, and its deeds on real processes and sockets."""

from __future__ import annotations

import dataclasses
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from grpo_stack import activity_api, cli, process_tree
from grpo_stack.activity_api import Report
from grpo_stack.supervise import server
from grpo_stack.supervise.backoff import Restarts
from grpo_stack.supervise.evidence import MAX_GAP_S, Evidence, Limits, Look
from tests.fakes import peers
from tests.fakes.supervised import REST

ROOT = Path(__file__).parent.parent
LIMITS = Limits(boot_s=600, stuck_s=120, update_s=300)
SERVED = dataclasses.replace(REST, generated=1)
GENERATING = dataclasses.replace(SERVED, generating=1)


class Watch:
    """Looks at a server once a second."""

    def __init__(self) -> None:
        self.now = 0.0
        self.evidence = Evidence.of_start(0.0)

    def see(self, report: Report | None, seconds: int = 1, counters: object = 7, every_s: float = 1) -> str:
        """The last verdict after `seconds` of the same sight; `counters`: None: not to be had; "moving": each time others."""
        for _ in range(int(seconds / every_s)):
            self.now += every_s
            lines = () if counters is None else (str(self.now if counters == "moving" else counters),)
            look = Look(self.now, report, "connection refused", lines if report and report.generating else ())
            self.evidence = self.evidence.after(look)
        return self.evidence.verdict(LIMITS)


def test_before_the_first_answer_only_the_boot_time_counts() -> None:
    watch = Watch()

    assert watch.see(None, 600) == ""
    assert watch.see(None) == "did not answer within 600 s of its start (connection refused)"


def test_a_server_at_rest_is_fine_for_ever() -> None:
    assert Watch().see(REST, 10_000) == ""


def test_a_generation_without_any_progress_is_stuck() -> None:
    watch = Watch()
    watch.see(SERVED)

    assert watch.see(GENERATING, 121) == ""
    assert watch.see(GENERATING) == "has generated nothing for 121 s, with 1 in flight"


def test_the_first_generation_of_an_instance_has_time_to_compile() -> None:
    watch = Watch()
    first = dataclasses.replace(GENERATING, generated=0)
    watch.see(dataclasses.replace(REST, generated=0))

    assert watch.see(first, 4 * 120 + 1) == ""
    assert watch.see(first) == "has generated nothing for 481 s, with 1 in flight"


def test_a_long_generation_or_queue_is_not_stuck_while_the_engine_does_something() -> None:
    watch = Watch()

    assert watch.see(dataclasses.replace(GENERATING, generating=900, oldest_s=5000.0), 5000, counters="moving") == ""
    assert watch.see(GENERATING, 100) == ""
    assert watch.see(dataclasses.replace(GENERATING, generated=2), 100) == ""


def test_without_counters_there_is_no_evidence_of_being_stuck() -> None:
    assert Watch().see(GENERATING, 5000, counters=None) == ""


def test_counters_that_are_read_now_and_then_prove_the_whole_time_between() -> None:
    watch = Watch()
    watch.see(SERVED)
    watch.see(GENERATING)
    for _ in range(24):
        watch.see(GENERATING, 4, counters=None)
        verdict = watch.see(GENERATING)

    assert (verdict, watch.evidence.still_s) == ("", 120)
    assert watch.see(GENERATING, 5, counters=None) == ""
    assert watch.see(GENERATING) == "has generated nothing for 126 s, with 1 in flight"


def test_clients_that_give_up_early_do_not_hide_an_engine_that_is_stuck() -> None:
    watch = Watch()
    for _ in range(3):
        watch.see(GENERATING, 60)
        verdict = watch.see(SERVED, 5)

    assert verdict.startswith("has generated nothing for 17")


def test_time_without_a_generation_in_flight_is_not_counted() -> None:
    watch = Watch()
    watch.see(GENERATING, 60)
    watch.see(REST, 5000)

    assert watch.see(GENERATING, 50) == ""


def test_a_long_push_with_generations_behind_it_is_not_stuck() -> None:
    watch = Watch()
    assert watch.see(dataclasses.replace(REST, held=8, update_open_s=299.0), 299) == ""


def test_an_update_has_a_limit_or_ten_times_the_longest() -> None:
    watch, patient = Watch(), Watch()
    open_update = dataclasses.replace(REST, update_open_s=5000.0)
    used_to_it = dataclasses.replace(open_update, longest_update_s=40.0)

    assert watch.see(open_update, 300) == ""
    assert watch.see(open_update) == "has been in one weight update for 301 s"
    assert patient.see(used_to_it, 400) == ""
    assert patient.see(used_to_it) == "has been in one weight update for 401 s"


def test_each_update_has_its_own_time() -> None:
    watch = Watch()
    for updates in range(5):
        verdict = watch.see(dataclasses.replace(REST, update_open_s=5000.0, updates=updates), 200)

    assert verdict == ""


def test_an_update_that_was_just_opened_is_young_however_long_ago_the_last_look_was() -> None:
    watch = Watch()
    watch.see(dataclasses.replace(REST, update_open_s=1.0), 400)

    assert watch.see(dataclasses.replace(REST, update_open_s=1.0)) == ""


def test_an_abandoned_update_is_over_at_once() -> None:
    verdict = Watch().see(dataclasses.replace(REST, update_open_s=0.1, abandoned=True))

    assert verdict == "is in a weight update that nobody will finish"


def test_silence_after_the_first_answer_is_stuck() -> None:
    watch = Watch()
    watch.see(REST)

    assert watch.see(None, 120) == ""
    assert watch.see(None) == "has not answered for 121 s (connection refused)"


def test_an_answer_ends_the_silence() -> None:
    watch = Watch()
    for _ in range(10):
        watch.see(None, 100)
        assert watch.see(REST) == ""


@pytest.mark.parametrize(
    "report",
    [None, GENERATING, dataclasses.replace(REST, update_open_s=5000.0)],
    ids=["silent", "generating", "update"],
)
def test_a_container_that_was_paused_is_not_taken_for_stuck(report: Report | None) -> None:
    watch = Watch()
    watch.see(REST)
    watch.see(report, 2)

    assert watch.see(report, 4000, every_s=4000) == ""
    assert max(watch.evidence.unanswered_s, watch.evidence.still_s, watch.evidence.open_s) <= 2 + MAX_GAP_S


def test_progress_is_a_generation_or_an_update() -> None:
    for field, progress in (("held", False), ("generating", False), ("generated", True), ("updates", True)):
        watch = Watch()
        watch.see(dataclasses.replace(REST, **{field: 1}))
        watch.see(None)
        assert watch.evidence.progress is progress


def test_restarts_wait_longer_each_time_until_there_are_no_more_and_progress_forgives() -> None:
    restarts, delays = Restarts(7), []
    for _ in range(7):
        restarts = restarts.after(progress=False)
        assert not restarts.exhausted
        delays.append(restarts.delay_s)

    assert delays == [1, 2, 4, 8, 16, 30, 30]
    assert restarts.after(progress=False).exhausted
    assert restarts.after(progress=True) == Restarts(7, 1)
    assert Restarts(0).after(progress=True).exhausted
    assert Restarts(10**9, 10**6).delay_s == 30


@contextmanager
def answering(status: int, body: bytes, metrics: bytes = b"") -> Iterator[str]:
    """A server that answers every request alike, but for /metrics."""

    def answers(connection: socket.socket, over: threading.Event) -> None:
        content = metrics if connection.recv(65536).startswith(b"GET /metrics ") else body
        connection.sendall(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(content), content))

    with peers.peer(answers) as url:
        yield url


OURS = dataclasses.replace(REST, instance="ours")


@pytest.mark.parametrize(
    ("status", "body", "fault"),
    [
        (503, b"", "HTTP 503"),
        (200, b"<html>", "no report of grpo_stack.activity"),
        (200, activity_api.write(dataclasses.replace(REST, instance="theirs")), "another server answers at http://"),
    ],
)
def test_an_answer_of_somebody_else_is_none(status: int, body: bytes, fault: str) -> None:
    with answering(status, body) as url:
        look = server.look(url, "ours")

    assert look.report is None
    assert look.fault.startswith(fault)


def test_no_answer_is_told_as_it_was() -> None:
    with peers.refusing() as url:
        assert server.look(url, "ours").fault == "connection refused"


def test_the_counters_of_the_engine_are_read_while_it_generates() -> None:
    metrics = (
        b'# HELP\nvllm:generation_tokens_total{e="0"} 5.0\nvllm:request_success_total 9\nvllm:kv_cache_usage_perc 0.1'
    )
    with answering(200, activity_api.write(dataclasses.replace(OURS, generating=1)), metrics) as url:
        busy = server.look(url, "ours")
    with answering(200, activity_api.write(OURS), metrics) as url:
        rest = server.look(url, "ours")
    with answering(200, activity_api.write(dataclasses.replace(OURS, generating=1)), b"vllm:other 1") as url:
        blind = server.look(url, "ours")

    assert busy.counters == ('vllm:generation_tokens_total{e="0"} 5.0', "vllm:kv_cache_usage_perc 0.1")
    assert (rest.counters, rest.blind) == ((), False)
    assert (blind.counters, blind.blind) == ((), True)


def test_the_counters_are_left_alone_while_batches_are_soon_done() -> None:
    busy = activity_api.write(dataclasses.replace(OURS, generating=1))
    evidence = Evidence.of_start(0.0)
    with answering(200, busy, b"vllm:kv_cache_usage_perc 0.1") as url:
        soon = server.watched(url, "ours", evidence)
        late = server.watched(url, "ours", dataclasses.replace(soon, unread_s=server.COUNTERS_S))

    assert (soon.counters, late.counters) == ((), ("vllm:kv_cache_usage_perc 0.1",))


def test_a_server_without_counters_is_told_of_once(capsys: pytest.CaptureFixture[str]) -> None:
    evidence = Evidence.of_start(0.0)
    with answering(200, activity_api.write(dataclasses.replace(OURS, generating=1)), b"vllm:other 1") as url:
        for _ in range(3):
            evidence = server.watched(url, "ours", evidence, counters_s=0)

    assert capsys.readouterr().err.count("/metrics shows no counters") == 1


PRELUDE = """
import sys
from grpo_stack import cli
from grpo_stack.supervise import backoff, child, server
server.POLL_S, server.CALL_S, server.QUICK_GRACE_S, server.FIRST_STARTS = 0.02, 0.5, 0.3, 1
backoff.LONGEST_S = 0.02
sys.exit(cli.main(sys.argv[1:]))
"""
"""The command line, in a hurry."""


@dataclasses.dataclass
class Supervisor:
    process: subprocess.Popen[str]
    folder: Path
    said: list[str]

    def hears(self, words: str) -> str:
        """Reads on until a line holds `words`; that line."""
        assert self.process.stderr
        for line in self.process.stderr:
            self.said.append(line.rstrip("\n"))
            if words in line:
                return self.said[-1]
        raise AssertionError(f"{words!r} was never said: {self.said}")

    def ends(self) -> int:
        _, rest = self.process.communicate(timeout=20)
        self.said += rest.splitlines()
        return self.process.returncode

    @property
    def starts(self) -> list[list[str]]:
        return [line.split() for line in (self.folder / "starts").read_text().splitlines()]

    def leaves_nothing(self) -> bool:
        return not any(process_tree.find(int(pid)) for pid, _, _ in self.starts)


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[object]:
    running: list[subprocess.Popen[str]] = []

    def begin(*behaviours: str, options: str = "") -> Supervisor:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        memo = tmp_path / "memo"
        memo.touch()
        words = [
            *["supervise", "server", "--stuck-after", "1", "--grace", "0.3"],
            "--memo",
            str(memo),
            *options.split(),
        ]
        command = [sys.executable, "-m", "tests.fakes.supervised", str(port), str(tmp_path), *behaviours]
        process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE, *words, "--url", f"http://127.0.0.1:{port}", "--", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        running.append(process)
        watchdog = threading.Timer(20, process.kill)  # ends every wait of a test for it
        watchdog.daemon = True
        watchdog.start()
        return Supervisor(process, tmp_path, [])

    yield begin
    for process in running:
        with process:
            process.kill()


def test_a_server_that_fails_is_started_again_as_another_instance_however_it_failed(supervise) -> None:
    supervisor = supervise("dies", "stuck", "abandoned", "stops", "healthy")
    seen = []
    for _ in range(4):
        supervisor.hears("vLLM answers")
        seen.append(supervisor.hears("starting it again in 0.02 s"))
    supervisor.hears("vLLM answers")
    supervisor.process.send_signal(signal.SIGTERM)

    assert supervisor.ends() == 0
    assert [re.sub(r"for \d+ s", "for N s", line.partition(";")[0]) for line in seen[:3]] == [
        "grpo-stack: vLLM ended by itself (exit code 0)",
        "grpo-stack: vLLM has generated nothing for N s, with 1 in flight",
        "grpo-stack: vLLM is in a weight update that nobody will finish",
    ]
    assert re.match(r"grpo-stack: vLLM has not answered for \d+ s \(no whole answer within 0.5 s\);", seen[3])
    assert [line.rpartition("(")[2] for line in seen] == [f"restart {n} of 5)" for n in (1, 1, 1, 2)]
    assert len({instance for _, instance, _ in supervisor.starts}) == 5
    assert {memo for _, _, memo in supervisor.starts} == {"False"}
    assert supervisor.leaves_nothing()
    assert all(line.startswith("grpo-stack: ") for line in supervisor.said)


def test_a_server_that_does_not_hear_is_killed_after_the_grace_and_that_is_a_clean_end(supervise) -> None:
    supervisor = supervise("deaf")
    supervisor.hears("vLLM answers")
    supervisor.process.send_signal(signal.SIGTERM)

    assert supervisor.ends() == 0
    assert supervisor.said[-2:] == [
        "grpo-stack: asked to stop: vLLM has 0.3 s to end",
        "grpo-stack: vLLM was ended, as asked",
    ]
    assert supervisor.leaves_nothing()


def test_a_stop_while_the_server_loads_is_a_clean_end(supervise) -> None:
    supervisor = supervise("mute")
    supervisor.hears("started vLLM")
    supervisor.process.send_signal(signal.SIGTERM)

    assert supervisor.ends() == 0


@pytest.mark.parametrize(
    ("behaviours", "options", "starts", "words"),
    [
        (["refuses"], "", 1, "vLLM ended by itself (exit code 2); it refuses its arguments; its last lines are above"),
        (["fails"], "", 2, "vLLM ended by itself (exit code 1); gave up after 2 starts without an answer"),
        (["dies"], "--restarts 1", 2, "gave up after 1 restart without anything generated"),
    ],
)
def test_a_server_that_never_gets_anywhere_is_given_up(supervise, behaviours, options, starts, words) -> None:
    supervisor = supervise(*behaviours, options=options)

    assert supervisor.ends() == 5
    assert words in supervisor.said[-1]
    assert supervisor.said[-2] == f"loading, start {starts}"
    assert len(supervisor.starts) == starts
    assert supervisor.leaves_nothing()


def test_a_server_that_never_answers_is_given_up(supervise) -> None:
    supervisor = supervise("mute", options="--boot-timeout 0.2")

    assert supervisor.ends() == 5
    reason = "did not answer within 0.2 s of its start (connection refused); gave up after 2 starts without an answer"
    assert supervisor.said[-1] == f"grpo-stack: vLLM {reason}; its last lines are above"


def test_a_server_without_the_middleware_is_told_how_to_start_with_it(supervise) -> None:
    supervisor = supervise("old")

    assert supervisor.ends() == 2
    assert supervisor.said[-1].endswith("start vLLM with --middleware grpo_stack.activity.Activity")
    assert supervisor.leaves_nothing()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("server --", "supervise server: there is no command; give it after --"),
        ("server --url ftp://x -- true", "supervise server: --url: not a URL of the form"),
        ("server --grace 0 -- true", "supervise server: 0 s is no time limit"),
        ("server --restarts -1 -- true", "supervise server: --restarts -1: give 0 or more"),
        ("trainer --run x --url http://x -- true", "supervise trainer: --url needs --model"),
        ("janitor -- true", "argument ROLE: invalid choice: 'janitor'"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["supervise", *words.split()]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"grpo-stack: {message}")


def test_a_command_that_is_not_there_is_said_at_once() -> None:
    argv = [sys.executable, "-m", "grpo_stack.cli", "supervise", "server", "--", "no-such-program"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20, cwd=ROOT, check=False)

    assert done.returncode == 2
    assert done.stderr == "grpo-stack: supervise: no-such-program cannot be run: No such file or directory\n"
