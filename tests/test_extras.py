import pytest

from grpo_stack.extras import missing

NOTHING = {"has": lambda module: False}


@pytest.mark.parametrize(
    ("optimizer", "module"),
    [
        ("adamw_8bit", "bitsandbytes"),
        ("adamw_bnb_8bit", "bitsandbytes"),
        ("paged_adamw_32bit", "bitsandbytes"),
        ("lion_32bit", "bitsandbytes"),
        ("ademamix", "bitsandbytes"),
        ("rmsprop_bnb_8bit", "bitsandbytes"),
        ("adamw_torch_8bit", "torchao"),
        ("galore_adamw_8bit", "galore_torch"),
        ("adalomo", "lomo_optim"),
        ("schedule_free_adamw", "schedulefree"),
        ("apollo_adamw_layerwise", "apollo_torch"),
        ("stable_adamw", "optimi"),
        ("grokadamw", "grokadamw"),
        ("adamw_anyprecision", "torchdistx"),
    ],
)
def test_an_optimizer_of_a_package_that_is_not_there_is_one_line(optimizer, module):
    (line,) = missing(optimizer=optimizer, **NOTHING)

    assert line == (
        f"arguments: --optim {optimizer} needs the Python module {module}, which is not installed here; leave the option out, "
        "or build the images with it (docs/images.md)"
    )
    assert missing(optimizer=optimizer, has=lambda asked: asked == module) == []


@pytest.mark.parametrize("optimizer", ["adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "adagrad", "rmsprop"])
def test_what_torch_and_transformers_have_themselves_needs_nothing(optimizer):
    assert missing(optimizer=optimizer, report_to=["none"], **NOTHING) == []


def test_everything_that_is_missing_is_said_at_once():
    lines = missing(
        optimizer="adamw_8bit", report_to=["wandb", "none"], liger=True, adapters=True, quantized=True, **NOTHING
    )

    assert [line.split(" needs the Python module ")[1].split(",")[0] for line in lines] == [
        *("bitsandbytes", "wandb", "liger_kernel", "peft", "bitsandbytes"),
    ]
