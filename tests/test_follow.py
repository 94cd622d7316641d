import json

import pytest

from grpo_stack import follow
from grpo_stack.errors import HostError, RunError
from grpo_stack.facts import Container


def test_a_step_is_told_with_reward_and_where_its_seconds_went():
    metrics = {
        "step": 3,
        "max_steps": 25,
        "reward": 0.412,
        "seconds/step": 13.24,
        "seconds/generate": 6.1,
        "seconds/push": 1.4,
        "seconds/optimize": 5.5,
    }

    told = follow.describe_step(metrics)

    assert told == "step 3/25  reward 0.41  13.2 s (generate 6.1, push 1.4, optimize 5.5)"


def test_a_step_without_timing_is_told_as_far_as_it_goes():
    assert follow.describe_step({"step": 1}) == "step 1/?"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"step": 1, "max_steps": 9, "reward": null, "seconds/step": 2.0, "seconds/push": null}', "step 1/9  2.0 s"),
        ('{"step": 1, "max_steps": null, "reward": "high", "seconds/step": null}', "step 1/?"),
        ('{"step": 1, "max_steps": 9, "reward": -Infinity}', "step 1/9  reward -inf"),
        ('{"train_runtime": 12.0}', "step ?/?"),
    ],
)
def test_what_is_no_number_in_a_line_is_left_out_and_ends_nothing(line, told):
    assert follow.describe_step(json.loads(line)) == told


def test_only_complete_new_lines_of_a_growing_file_are_read(tmp_path):
    file = tmp_path / "metrics.jsonl"
    lines = follow.new_lines(file)

    assert next(lines) == []
    file.write_text('{"step": 1}\n{"st')
    assert [json.loads(line)["step"] for line in next(lines)] == [1]
    with file.open("a") as stream:
        stream.write('ep": 2}\n')
    assert [json.loads(line)["step"] for line in next(lines)] == [2]
    assert next(lines) == []


def test_what_an_earlier_run_wrote_is_not_told_again(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1}\n')
    lines = follow.new_lines(file)

    # The generator looks at the file when it is first asked.
    next(lines)
    with file.open("a") as stream:
        stream.write('{"step": 2}\n')

    assert [json.loads(line)["step"] for line in next(lines)] == [2]


def test_a_file_that_was_cut_back_is_read_on_from_its_new_end(tmp_path):
    file = tmp_path / "metrics.jsonl"
    lines = follow.new_lines(file)
    assert next(lines) == []
    file.write_text('{"step": 1}\n{"step": 2}\n')
    assert len(next(lines)) == 2

    file.write_text('{"step": 1}\n')
    assert next(lines) == []
    with file.open("a") as stream:
        stream.write('{"step": 2, "again": true}\n')

    assert [json.loads(line) for line in next(lines)] == [{"step": 2, "again": True}]


SERVICES = ("prefetch", "vllm-server", "trainer")


def box(service, state="running", code=None):
    return Container(name=service, service=service, state=state, exit_code=code, health=None, oom_killed=False)


def look(at, trainer=None, server=None, steps=0):
    boxes = {"trainer": trainer or box("trainer"), "vllm-server": server or box("vllm-server")}
    return follow.Look(at, boxes, steps)


@pytest.mark.parametrize("code", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("service", ["trainer", "vllm-server"])
def test_what_a_supervisor_decided_is_final(service, code):
    ended = box(service, "exited", code)

    verdict = follow.Watcher(SERVICES).decide(look(0, **{service.removeprefix("vllm-"): ended}))

    assert verdict == ("failed", service)


def test_a_trainer_that_ends_with_0_has_finished_whatever_the_server_does():
    done = look(0, trainer=box("trainer", "exited", 0), server=box("vllm-server", "exited", 0))

    assert follow.Watcher(SERVICES).decide(done) == ("ended", "trainer")


@pytest.mark.parametrize(
    ("service", "code"), [("trainer", 137), ("trainer", 130), ("vllm-server", 137), ("vllm-server", 0)]
)
def test_a_container_that_was_ended_from_outside_may_come_back_by_itself_and_is_started_if_it_does_not(service, code):
    watcher, name = follow.Watcher(SERVICES), service.removeprefix("vllm-")
    ended = {name: box(service, "exited", code)}

    assert watcher.decide(look(0, **ended)) == ("go on", "")
    assert watcher.decide(look(4.9, **ended)) == ("go on", "")
    assert watcher.decide(look(4.95)) == ("go on", "")
    assert watcher.decide(look(6, **ended)) == ("go on", "")
    assert watcher.decide(look(11, **ended)) == ("start", service)


def test_a_container_that_never_stays_up_is_given_up_unless_there_are_steps_in_between():
    watcher, now = follow.Watcher(SERVICES), 0.0
    for turn in range(20):
        for wait in (0.0, follow.RETURN_S):
            verdict = watcher.decide(look(now + wait, trainer=box("trainer", "exited", 137), steps=turn))
        assert verdict == ("start", "trainer")
        now += 100

    def end_again_and_again() -> None:
        for turn in range(follow.RESTARTS + 1):
            for wait in (0.0, follow.RETURN_S):
                watcher.decide(look(now + 100 * turn + wait, trainer=box("trainer", "exited", 137), steps=19))

    with pytest.raises(RunError, match="trainer was ended from outside 6 times without a step in between"):
        end_again_and_again()


def test_a_removed_container_is_said_by_name():
    with pytest.raises(
        RunError, match="the container of vllm-server was removed while it ran; start the run again with"
    ):
        follow.Watcher(SERVICES).decide(follow.Look(0, {"trainer": box("trainer")}, 0))


def test_a_silent_docker_is_borne_for_a_while_and_not_for_ever():
    watcher = follow.Watcher(SERVICES)
    watcher.decide(look(0))

    assert watcher.decide(follow.Look(follow.SILENCE_S, None, 0)) == ("go on", "")
    assert watcher.decide(look(follow.SILENCE_S + 1)) == ("go on", "")
    assert watcher.decide(follow.Look(2 * follow.SILENCE_S, None, 0)) == ("go on", "")
    with pytest.raises(HostError, match="Docker has not answered for 180 s"):
        watcher.decide(follow.Look(2 * follow.SILENCE_S + 2, None, 0))


def test_colocate_has_no_server_to_miss():
    watcher = follow.Watcher(("prefetch", "trainer"))

    assert watcher.decide(follow.Look(0, {"trainer": box("trainer")}, 0)) == ("go on", "")


class Told:
    """A progress display that keeps what it is told."""

    def __init__(self):
        self.phases = []

    def phase(self, text):
        self.phases.append(text)

    def detail(self, text):
        pass


def test_steps_and_events_are_told_once_and_a_torn_line_ends_nothing(tmp_path):
    told = Told()
    teller = follow.Teller(tmp_path, told)
    assert teller.tell({}, 0.0) == 0
    ready = {"event": "ready", "line": "the server is ready after 9 s"}
    events = [
        {**ready, "attempt": 1},
        {"event": "noticed", "line": "training was killed"},
        {**ready, "attempt": 2},
        {"event": "ended"},
    ]
    (tmp_path / "events.jsonl").write_text('{"event": "no\n' + "".join(json.dumps(event) + "\n" for event in events))
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward": null}\n{"total": 9}\n{"step": null}\n{"st\n')

    assert teller.tell({}, 1.0) == 1

    assert told.phases == ["training was killed", "the server is ready after 9 s", "step 1/?"]


def test_a_server_process_whose_health_nobody_asks_is_told_ready_by_the_gate(tmp_path):
    told = Told()
    teller = follow.Teller(tmp_path, told)
    teller.tell({}, 0.0)
    ready = {"event": "ready", "attempt": 1, "line": "the server is ready after 9 s"}
    (tmp_path / "events.jsonl").write_text(json.dumps(ready) + "\n")

    teller.tell({"vllm-server": box("vllm-server")}, 1.0)

    assert told.phases == ["the server is ready after 9 s"]
