import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_stack import split
from grpo_stack.schema import Invalid
from grpo_stack.split import Split


@pytest.mark.parametrize(
    ("text", "server", "trainer"),
    [
        ("4:4", (0, 1, 2, 3), (4, 5, 6, 7)),
        ("2:6", (0, 1), (2, 3, 4, 5, 6, 7)),
        ("1:1", (0,), (1,)),
        ("0-3:4-7", (0, 1, 2, 3), (4, 5, 6, 7)),
        ("6,7:0-5", (6, 7), (0, 1, 2, 3, 4, 5)),
        ("0,2:1,3", (0, 2), (1, 3)),
        ("0, 1 : 2", (0, 1), (2,)),
    ],
)
def test_counts_ids_and_ranges_name_the_gpus_of_each_side(text, server, trainer):
    assert split.parse(text) == Split(server, trainer)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0-3:3-7", "GPU 3 would serve and train; give each side its own"),
        ("0,0:1", "GPU 0 is named twice on one side; name each once"),
        ("0:4", "0:4 leaves one side without a GPU; each needs at least one"),
        ("4:0", "4:0 leaves one side without a GPU; each needs at least one"),
        ("3-0:4-7", "range 3-0 runs backwards; write 0-3"),
        ("-1:2,3", "'-1' is no GPU id"),
        ("4", "does not name two sides; write SERVER:TRAINER, as in 4:4 (counts) or 0-3:4-7 (GPU ids)"),
        ("4:", "does not name two sides"),
        ("1:2:3", "does not name two sides"),
        (244, "244 is no split; write SERVER:TRAINER, as in 4:4 (counts) or 0-3:4-7 (GPU ids), in quotes"),
    ],
)
def test_a_wrong_split_is_refused_with_the_way_out(text, message):
    with pytest.raises(Invalid) as caught:
        split.parse(text)

    assert message in str(caught.value)


@given(st.permutations(range(8)), st.integers(1, 7))
def test_a_split_of_any_ids_reads_back_from_its_own_text(gpus, cut):
    chosen = Split(tuple(gpus[:cut]), tuple(gpus[cut:]))
    text = str(chosen)

    # A single id on each side would read as two counts.
    if len(gpus[:cut]) > 1 or len(gpus[cut:]) > 1:
        assert split.parse(text) == chosen
