"""The cut into buffers: both ends compute it, so it must lose nothing and repeat exactly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_stack.transfer.wire import ALIGNMENT, ITEM_BYTES, TensorSpec, cut

TENSORS = st.lists(
    st.builds(
        TensorSpec,
        name=st.text(min_size=1, max_size=5),
        dtype=st.sampled_from(sorted(ITEM_BYTES)),
        shape=st.lists(st.integers(0, 9), max_size=3).map(tuple),
    ),
    max_size=30,
)


@given(TENSORS, st.integers(1, 4096))
def test_every_tensor_travels_once_and_in_its_order(tensors: list[TensorSpec], chunk_bytes: int) -> None:
    chunks = list(cut(tensors, chunk_bytes))

    assert [tensor for chunk in chunks for tensor in chunk.tensors] == tensors


@given(TENSORS, st.integers(1, 4096))
def test_tensors_in_a_buffer_are_aligned_and_do_not_overlap(tensors: list[TensorSpec], chunk_bytes: int) -> None:
    for chunk in cut(tensors, chunk_bytes):
        end = 0
        for tensor, offset in zip(chunk.tensors, chunk.offsets, strict=True):
            assert offset % ALIGNMENT == 0
            assert offset >= end
            end = offset + tensor.nbytes
        assert end == chunk.nbytes


@given(TENSORS, st.integers(1, 4096))
def test_a_buffer_is_larger_than_asked_only_for_one_large_tensor(tensors: list[TensorSpec], chunk_bytes: int) -> None:
    for chunk in cut(tensors, chunk_bytes):
        assert chunk.nbytes <= chunk_bytes or len(chunk.tensors) == 1


def test_a_dtype_of_unknown_size_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="w: dtype float8_e4m3fn cannot be pushed"):
        list(cut([TensorSpec("w", "float8_e4m3fn", (2,))]))
