"""What we write for accelerate, read by accelerate itself."""

from __future__ import annotations

import pytest
from accelerate.commands import launch as commands
from accelerate.commands.config.config_args import load_config_from_file

from grpo_stack import launch, rules
from tests.image import launching

PROCESSES = 3

KINDS = {"ddp": "MULTI_GPU", "fsdp2": "FSDP", "zero2": "DEEPSPEED", "zero3": "DEEPSPEED"}


def described(parallelism):
    return launching.described(parallelism, PROCESSES)


@pytest.fixture(params=rules.PARALLELISMS)
def written(request, tmp_path):
    """The parallelism and the file for it."""
    return request.param, launching.write(described(request.param), tmp_path)


def test_accelerate_knows_every_key(written):
    parallelism, file = written

    loaded = load_config_from_file(file)

    assert (loaded.distributed_type.value, loaded.num_processes) == (KINDS[parallelism], PROCESSES)
    assert loaded.mixed_precision == "bf16"


def test_every_nested_key_is_an_option_of_accelerate_launch(written):
    """Others are set on the parsed arguments too, where nothing ever reads them."""
    parallelism, _ = written
    config = launch.config(described(parallelism))
    options = vars(commands.launch_command_parser().parse_args(["script.py"]))

    for section in ("fsdp_config", "deepspeed_config"):
        assert [key for key in config.get(section, {}) if key not in options] == []


def test_the_launcher_takes_the_file_as_meant(written):
    parallelism, file = written

    checked = launching.checked(described(parallelism), file)

    assert (checked.num_processes, checked.num_machines, checked.mixed_precision) == (PROCESSES, 1, "bf16")
    assert checked.multi_gpu is (parallelism == "ddp")
    assert checked.use_fsdp is (parallelism == "fsdp2")
    assert checked.use_deepspeed is parallelism.startswith("zero")
    assert checked.dynamo_backend == "no"
    if parallelism == "fsdp2":
        assert checked.fsdp_version == 2
        assert checked.fsdp_reshard_after_forward is True
    if checked.use_deepspeed:
        assert checked.zero_stage == int(parallelism[-1])
