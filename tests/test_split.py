import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_stack import split
from grpo_stack.schema import Invalid
from grpo_stack.split import Split

UUID = "GPU-8a1c6c1e-0000-1111-2222-333344445555"


def ids(text):
    return tuple(text.split())


@pytest.mark.parametrize(
    ("text", "server", "trainer"),
    [
        ("4:4", "0 1 2 3", "4 5 6 7"),
        ("2:6", "0 1", "2 3 4 5 6 7"),
        ("1:1", "0", "1"),
        ("0-3:4-7", "0 1 2 3", "4 5 6 7"),
        ("6,7:0-5", "6 7", "0 1 2 3 4 5"),
        ("0,2:1,3", "0 2", "1 3"),
        ("0, 1 : 2", "0 1", "2"),
        (" 4 : 4 ", "0 1 2 3", "4 5 6 7"),
        (f"GPU-{UUID[4:].upper()}:1", UUID, "1"),
        (f"{UUID}:1", UUID, "1"),
        ("00,1:02", "0 1", "2"),
    ],
)
def test_counts_ids_ranges_and_uuids_name_the_gpus_of_each_side(text, server, trainer):
    found = split.parse(text)

    assert (found.server, found.trainer, found.mode) == (ids(server), ids(trainer), "separate")


def test_only_counts_leave_open_which_gpus():
    assert split.parse("2:2").counted
    assert not split.parse("0-1:2-3").counted


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("shared", Split(("0",), ("0",), "shared")),
        ("shared:3", Split(("3",), ("3",), "shared")),
        (f"shared:{UUID}", Split((UUID,), (UUID,), "shared")),
        ("colocate", Split((), ("0",), "colocate")),
        ("colocate:0-1", Split((), ("0", "1"), "colocate")),
    ],
)
def test_one_gpu_can_do_both_and_a_trainer_can_generate_by_itself(text, expected):
    assert split.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0-3:3-7", "GPU 3 would serve and train; give each side its own, or write shared:3"),
        ("0,0:1", "GPU 0 is named twice on one side; name each once"),
        ("0,00:1", "GPU 0 is named twice on one side; name each once"),
        (f"{UUID},1:{UUID}", f"GPU {UUID} would serve and train"),
        ("0:4", "0:4 leaves one side without a GPU; each needs at least one"),
        ("4:0", "4:0 leaves one side without a GPU; each needs at least one"),
        ("3-0:4-7", "range 3-0 runs backwards; write 0-3"),
        ("-1:2,3", "'-1' is no GPU id"),
        ("MIG-8a1c6c1e-0000-1111-2222-333344445555:1", "is a MIG slice, which NCCL cannot use for a weight push"),
        ("GPU-8a1c:1", "'GPU-8a1c' is no GPU id"),
        ("shared:0,1", "shared takes one GPU, 2 are named"),
        ("shared:x", "'x' is no GPU id"),
        ("4", "does not name two sides; write SERVER:TRAINER, as in 4:4 (counts) or 0-3:4-7 (GPU ids)"),
        ("4:", "does not name two sides"),
        ("", "does not name two sides"),
        ("1:2:3", "does not name two sides"),
        ("²:1", "'²' is no GPU id"),
        ("0 1:2 3", "'0 1' is no GPU id"),
        ("1 2:4", "'1 2' is no GPU id"),
        ("0 -1:2", "'0 -1' is no GPU id"),
        (f"{UUID}:GPU-{UUID[4:].upper()}", f"GPU {UUID} would serve and train"),
        ("99999999:1", "99999999 is beyond the GPUs of any host; stay below 1024"),
        ("1024:1", "1024 is beyond the GPUs of any host"),
        ("0-99999999:100000000", "99999999 is beyond the GPUs of any host"),
        ("shared:5000", "5000 is beyond the GPUs of any host"),
        (f"{'9' * 5000}:1", f"{'9' * 20}… is beyond the GPUs of any host"),
        (f"0-{'9' * 5000}:1", f"{'9' * 20}… is beyond the GPUs of any host"),
        ("x" * 5000, "... does not name two sides"),
        (244, "244 is no split; write SERVER:TRAINER"),
    ],
)
def test_a_wrong_split_is_refused_with_the_way_out(text, message):
    with pytest.raises(Invalid) as caught:
        split.parse(text)

    assert message in str(caught.value)


@given(st.permutations(range(8)), st.integers(1, 7))
def test_a_split_of_any_ids_reads_back_from_its_own_text(gpus, cut):
    names = tuple(str(gpu) for gpu in gpus)
    chosen = Split(names[:cut], names[cut:])

    assert split.parse(str(chosen)) == chosen


@given(st.text(alphabet="0123456789,-: GPUMIGsharedcoloate", max_size=20))
def test_any_text_is_a_split_without_overlap_or_refused_as_invalid(text):
    try:
        found = split.parse(text)
    except Invalid:
        return
    assert found.mode != "separate" or not set(found.server) & set(found.trainer)
    assert found.trainer
