"""Observations in, verdicts out; the clock is a number."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from grpo_stack.heartbeat import PHASES, Beat
from grpo_stack.supervise.deadlines import ENDING_S, Deadlines
from grpo_stack.supervise.verdict import Limits, Verdict, judge
from grpo_stack.supervise.watch import GONE, SILENT, STALLED_S, UP, Answer, Observation, Watch

LIMITS = Limits(grace_s=100, gone_s=2)
DEADLINES = Deadlines(floor_s=300, boot_s=1800)
STEP = ["generate", "push", "reward", "optimize", "save"]


def beat(phase: str, step: int = 4, at: float = 10, **known: Any) -> Beat:
    return Beat(phase, step, 9, at, **known)


def up(instance: str | None = "first", at: float = 11) -> Answer:
    return Answer(UP, "HTTP 200", at, instance)


def gone(at: float) -> Answer:
    return Answer(GONE, "connection refused", at)


def silent(at: float) -> Answer:
    return Answer(SILENT, "no whole answer within 5 s", at)


class Run:
    """A watch, and what was decided last. Every look is at most a second after the one before, as the real ones are."""

    def __init__(self, let_go: bool = True, instance: str | None = "first") -> None:
        self.watch = Watch(DEADLINES, looked_at=10)
        self.verdict: Verdict | None = None
        if let_go:
            self.watch = self.watch.let_go(10, instance)

    def see(self, now: float, **seen: Any) -> Verdict | None:
        """One look."""
        observation = Observation(now, **seen)
        self.watch = self.watch.after(observation)
        self.verdict = judge(self.watch, observation, LIMITS)
        return self.verdict

    def until(self, now: float, **seen: Any) -> Verdict | None:
        """Look every second."""
        while self.watch.looked_at < now and self.verdict is None:
            self.see(min(now, self.watch.looked_at + 1), **seen)
        return self.verdict


def code(verdict: Verdict | None) -> tuple[str, int | None] | None:
    return verdict and (verdict.what, verdict.exit_code)


RESTART = None

ENDS = [
    # the last beat, exit code of the child, stops → what, exit code of the run
    (None, 0, 0, ("done", 0)),
    (None, 1, 0, ("child-ended", RESTART)),
    (None, -9, 0, ("child-ended", RESTART)),
    (None, 143, 1, ("stopped", 130)),
    *[(beat(phase), 1, 0, ("child-ended", RESTART)) for phase in ("start", "waiting", "load", *STEP)],
    *[(beat(phase), -11, 0, ("child-ended", RESTART)) for phase in ("start", "waiting", "load", *STEP)],
    *[(beat(phase), 0, 0, ("done", 0)) for phase in STEP],
    *[(beat(phase), 1, 1, ("stopped", 130)) for phase in ("start", "waiting", "load", *STEP)],
    *[(beat("done", 9), child, 0, ("done", 0)) for child in (0, 1, -6)],
    (beat("done", 9), 0, 1, ("done", 0)),  # the stop came too late
    (beat("stopped"), 0, 1, ("stopped", 130)),
    (beat("stopped"), 1, 1, ("stopped", 130)),
    *[(beat("failed", exit_code=own), 1, 0, ("failed", own)) for own in (2, 3, 4, 5)],
    (beat("failed", exit_code=3), 1, 1, ("failed", 3)),  # no room for the checkpoint of a stop
    (beat("failed"), 1, 0, ("child-ended", RESTART)),
]


@pytest.mark.parametrize(("last", "exit_code", "stops", "expected"), ENDS)
def test_a_child_that_has_ended(
    last: Beat | None, exit_code: int, stops: int, expected: tuple[str, int | None]
) -> None:
    assert code(Run().see(11, beat=last, exit_code=exit_code, stops=stops)) == expected


@pytest.mark.parametrize(
    ("exit_code", "said"), [(1, "exit code 1"), (-9, "SIGKILL"), (-15, "SIGTERM"), (-40, "signal 40")]
)
def test_how_a_child_ended_is_said(exit_code: int, said: str) -> None:
    verdict = Run().see(11, exit_code=exit_code)

    assert verdict is not None
    assert verdict.evidence == f"training ended with {said}"


def test_a_child_that_ended_of_its_server_says_so() -> None:
    verdict = Run().see(11, exit_code=1, answer=gone(11))

    assert verdict is not None
    assert verdict.evidence == "training ended with exit code 1; the server: connection refused"


def test_the_words_of_a_failure_are_passed_on() -> None:
    verdict = Run().see(11, beat=beat("failed", exit_code=2, message="dataset: no such file"), exit_code=1)

    assert verdict is not None
    assert verdict.evidence == "dataset: no such file"


@pytest.mark.parametrize("phase", [None, *PHASES])
def test_a_run_in_order_goes_on(phase: str | None) -> None:
    assert Run().until(30, beat=phase and beat(phase), answer=up()) is None


@pytest.mark.parametrize("phase", [None, "start", "waiting", "load", *STEP])
def test_another_instance_ends_the_attempt_at_once(phase: str | None) -> None:
    verdict = Run().see(11, beat=phase and beat(phase), answer=up("second"))

    assert code(verdict) == ("server-restarted", RESTART)


@pytest.mark.parametrize(("bound", "found"), [(None, "second"), ("first", None), (None, None), ("first", "first")])
def test_an_instance_that_is_not_told_or_the_same_is_no_evidence(bound: str | None, found: str | None) -> None:
    assert Run(instance=bound).see(11, beat=beat("generate"), answer=up(found)) is None


@pytest.mark.parametrize("phase", [None, "start", "waiting", "load", *STEP])
def test_a_server_that_is_gone_for_two_seconds_ends_the_attempt(phase: str | None) -> None:
    run = Run()
    now = phase and beat(phase)

    assert run.see(11, beat=now, answer=gone(11)) is None
    assert run.see(12, beat=now, answer=gone(11)) is None  # the same answer, not a second one
    assert run.see(14, beat=now, answer=gone(11)) is None
    assert run.see(14.5, beat=now, answer=gone(12.9)) is None
    assert code(run.see(15, beat=now, answer=gone(13))) == ("server-gone", RESTART)


@pytest.mark.parametrize("between", [up(at=12), silent(12)])
def test_a_server_that_is_gone_now_and_then_is_not_gone(between: Answer) -> None:
    run = Run()
    for now, answer in ((11, gone(11)), (12, between), (13, gone(13)), (14, between), (14.9, gone(14.9))):
        assert run.see(now, beat=beat("generate"), answer=answer) is None


def test_silence_alone_is_no_evidence_and_leaves_it_to_the_deadlines() -> None:
    run = Run()
    now = 10.0
    while run.see(now := now + 1, beat=beat("generate"), answer=silent(now)) is None:
        assert now < 10 + 4 * 300 + 2

    assert code(run.verdict) == ("phase-overdue", RESTART)
    assert now > 10 + 4 * 300


@pytest.mark.parametrize("lost", [up("second"), gone(14)])
@pytest.mark.parametrize(
    "last", [beat("save", 9), beat("optimize", 9), beat("done", 9), beat("stopped"), beat("failed", exit_code=2)]
)
def test_after_the_last_step_nobody_needs_the_server(last: Beat, lost: Answer) -> None:
    run = Run()
    run.see(11, beat=last, answer=replace(lost, at=11))

    assert run.see(14, beat=last, answer=lost) is None


@pytest.mark.parametrize("lost", [up("second"), gone(14)])
def test_before_training_is_let_go_the_gate_alone_judges_the_server(lost: Answer) -> None:
    run = Run(let_go=False)
    run.see(11, beat=beat("waiting", 0), answer=replace(lost, at=11))

    assert run.see(14, beat=beat("waiting", 0), answer=lost) is None


def test_a_gate_that_will_never_open_ends_the_run() -> None:
    verdict = Run(let_go=False).see(11, beat=beat("waiting", 0), gate="it serves another model")

    assert code(verdict) == ("server-not-ready", 4)
    assert verdict is not None
    assert verdict.evidence == "it serves another model"


def test_a_child_that_failed_while_the_gate_failed_has_the_last_word() -> None:
    failed = beat("failed", 0, exit_code=2, message="dataset: no such file")

    assert code(Run(let_go=False).see(11, beat=failed, exit_code=1, gate="not ready")) == ("failed", 2)


@pytest.mark.parametrize("phase", STEP)
def test_a_phase_past_its_first_deadline(phase: str) -> None:
    run = Run()

    assert run.until(10 + 4 * 300, beat=beat(phase)) is None
    assert code(run.until(10 + 4 * 300 + 1, beat=beat(phase))) == ("phase-overdue", RESTART)


@pytest.mark.parametrize("phase", STEP)
def test_a_phase_past_its_later_deadline(phase: str) -> None:
    run = Run()
    run.see(10.5, beat=beat(phase, at=10))
    run.see(11.5, beat=beat("reward" if phase != "reward" else "push", at=11))
    run.see(12.5, beat=beat(phase, at=12))

    assert run.until(12 + 300, beat=beat(phase, at=12)) is None
    assert code(run.until(12 + 301, beat=beat(phase, at=12))) == ("phase-overdue", RESTART)


def test_a_slow_phase_gets_five_times_what_it_took() -> None:
    run = Run()
    run.until(10 + 400, beat=beat("generate", at=10))
    run.see(411, beat=beat("optimize", at=410))
    run.see(412, beat=beat("generate", at=412))

    assert run.until(412 + 2000, beat=beat("generate", at=412)) is None
    assert code(run.until(412 + 2001, beat=beat("generate", at=412))) == ("phase-overdue", RESTART)


@pytest.mark.parametrize("phase", ["start", "load"])
def test_imports_and_loading_have_the_budget_of_the_gate(phase: str) -> None:
    run = Run()

    assert run.until(10 + 1800, beat=beat(phase, 0)) is None
    assert code(run.until(10 + 1801, beat=beat(phase, 0))) == ("phase-overdue", RESTART)


def test_waiting_has_no_deadline_before_the_word_to_go_and_the_floor_after_it() -> None:
    run = Run(let_go=False)
    waiting = beat("waiting", 0)
    assert run.until(9000, beat=waiting) is None
    run.watch = run.watch.let_go(9000, "first")

    assert run.until(9300, beat=waiting) is None
    assert code(run.until(9301, beat=waiting)) == ("phase-overdue", RESTART)


def test_without_a_heartbeat_there_is_no_deadline() -> None:
    assert Run().until(5_000, answer=up()) is None


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (beat("done", 9), ("done", 0)),
        (beat("stopped"), ("stopped", 130)),
        (beat("failed", exit_code=3), ("failed", 3)),
        (beat("failed"), ("phase-overdue", RESTART)),
    ],
)
def test_processes_that_do_not_end_after_the_last_word_are_ended_with_its_meaning(
    last: Beat, expected: tuple[str, int | None]
) -> None:
    run = Run()

    assert run.until(10 + ENDING_S, beat=last) is None
    assert code(run.until(10 + ENDING_S + 1, beat=last)) == expected


def test_time_in_which_the_supervisor_itself_stood_still_counts_for_nobody() -> None:
    run = Run()
    run.see(11, beat=beat("generate"))

    assert run.see(50_000, beat=beat("generate")) is None
    assert run.until(50_000 + 1199, beat=beat("generate")) is None
    assert code(run.until(50_000 + 1201, beat=beat("generate"))) == ("phase-overdue", RESTART)


def test_a_slow_look_is_no_standstill() -> None:
    run = Run()
    now = 10.0
    while run.see(now := now + STALLED_S, beat=beat("generate")) is None:
        assert now <= 10 + 1200

    assert now == 10 + 1205


@pytest.mark.parametrize("phase", ["start", "waiting", "load"])
def test_a_stop_where_there_is_nothing_to_save_ends_at_once(phase: str) -> None:
    assert code(Run(let_go=phase == "load").see(11, beat=beat(phase, 0), stops=1)) == ("stopped", 130)


@pytest.mark.parametrize("phase", [None, *STEP])
def test_a_stop_waits_for_the_end_of_the_step_as_long_as_its_grace(phase: str | None) -> None:
    run = Run()
    now = phase and beat(phase)
    run.see(11, beat=now, stops=1)

    assert run.until(110, beat=now, stops=1) is None
    verdict = run.until(111, beat=now, stops=1)
    assert code(verdict) == ("stopped", 130)
    assert verdict is not None
    assert verdict.at_once


def test_a_stop_whose_grace_ends_after_the_last_word_keeps_its_meaning() -> None:
    run = Run()
    run.see(11, beat=beat("done", 9), stops=1)

    assert code(run.until(111, beat=beat("done", 9), stops=1)) == ("done", 0)


@pytest.mark.parametrize("phase", [None, *STEP])
def test_a_second_signal_leaves_no_time(phase: str | None) -> None:
    verdict = Run().see(11, beat=phase and beat(phase), stops=2)

    assert code(verdict) == ("stopped", 130)
    assert verdict is not None
    assert verdict.at_once


@pytest.mark.parametrize("phase", ["generate", "push"])
def test_a_stop_does_not_wait_for_a_step_that_has_lost_its_server(phase: str) -> None:
    run = Run()
    run.see(11, beat=beat(phase), answer=up(), stops=1)

    assert code(run.see(12, beat=beat(phase), answer=up("second"), stops=1)) == ("stopped", 130)


@pytest.mark.parametrize("phase", ["reward", "optimize", "save"])
def test_a_stop_does_wait_for_a_step_that_can_end_without_its_server(phase: str) -> None:
    run = Run()
    run.see(11, beat=beat(phase), answer=up(), stops=1)

    assert run.see(12, beat=beat(phase), answer=up("second"), stops=1) is None


def test_a_stop_does_not_ask_about_deadlines() -> None:
    run = Run()
    run.until(1200, beat=beat("optimize"))
    run.see(1201, beat=beat("optimize"), stops=1)

    assert run.until(1250, beat=beat("optimize"), stops=1) is None


def test_progress_is_a_step_beyond_the_highest_ever_completed() -> None:
    run = Run()
    run.see(11, beat=beat("load", 0))
    run.see(12, beat=beat("generate", 4, at=11))
    run.see(13, beat=beat("generate", 7, at=12))
    again = run.watch.next_attempt(20)

    assert run.watch.highest == again.highest == 7
    assert again.after(Observation(21, beat=beat("generate", 6))).highest == 7
    assert again.after(Observation(21, beat=beat("generate", 8))).highest == 8


def test_steps_that_a_checkpoint_brings_along_are_not_completed_in_this_attempt() -> None:
    run = Run()
    run.see(11, beat=beat("load", 0))
    assert not run.watch.has_stepped
    run.see(12, beat=beat("optimize", 6, at=12))
    assert not run.watch.has_stepped
    run.see(13, beat=beat("optimize", 7, at=13))
    assert run.watch.has_stepped


def test_a_new_attempt_knows_of_the_old_one_what_outlives_a_process_and_no_more() -> None:
    run = Run()
    run.see(11, beat=beat("generate", 4), answer=gone(11), stops=0)
    run.see(12, beat=beat("push", 4, at=12), answer=gone(12))
    again = run.watch.next_attempt(20)

    assert again == Watch(run.watch.deadlines.next_attempt(), looked_at=20, highest=4)
    assert again.deadlines.longest_s == {"generate": 2}
