import json

from grpo_stack import lifecycle


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

    told = lifecycle.describe_step(metrics)

    assert told == "step 3/25  reward 0.41  13.2 s (generate 6.1, push 1.4, optimize 5.5)"


def test_a_step_without_timing_is_told_as_far_as_it_goes():
    assert lifecycle.describe_step({"step": 1}) == "step 1/?"


def test_only_complete_new_lines_of_a_growing_file_are_read(tmp_path):
    file = tmp_path / "metrics.jsonl"
    lines = lifecycle.new_lines(file)

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
    lines = lifecycle.new_lines(file)

    # The generator looks at the file when it is first asked.
    next(lines)
    with file.open("a") as stream:
        stream.write('{"step": 2}\n')

    assert [json.loads(line)["step"] for line in next(lines)] == [2]
