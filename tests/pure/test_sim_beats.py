# SPDX-License-Identifier: Apache-2.0
"""Tensors to beats and back; the first difference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitwright.base.errors import GraphError
from bitwright.sim import StreamSpec, compare, pack, unpack


@st.composite
def streams(draw: st.DrawFn) -> tuple[StreamSpec, np.ndarray]:
    kind = draw(st.sampled_from(["unsigned", "signed", "bipolar"]))
    bits = 1 if kind == "bipolar" else draw(st.integers(1, 40))
    lanes, beats = draw(st.integers(1, 9)), draw(st.integers(1, 5))
    width = lanes * bits + draw(st.integers(0, 9))
    spec = StreamSpec(lanes, bits, beats, width, kind == "signed", kind == "bipolar")
    low, high = spec.interval
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    levels = rng.integers(low, high + 1, (draw(st.integers(0, 3)), beats * lanes))
    return spec, (2 * (levels > 0) - 1 if spec.bipolar else levels)


@given(streams())
def test_beats_hold_the_lanes_in_order(case: tuple[StreamSpec, np.ndarray]) -> None:
    spec, levels = case
    beats = pack(spec, levels)
    assert beats.shape == (len(levels) * spec.beats, spec.beat_bytes)
    mask = (1 << spec.lane_bits) - 1
    for beat, row in zip(beats, levels.reshape(-1, spec.lanes), strict=True):
        codes = [(int(v) + 1) // 2 if spec.bipolar else int(v) & mask for v in row]
        word = sum(code << (spec.lane_bits * lane) for lane, code in enumerate(codes))
        assert int.from_bytes(beat.tobytes(), "little") == word
    np.testing.assert_array_equal(unpack(spec, beats), levels)


def test_unpack_ignores_padding() -> None:
    spec = StreamSpec(1, 3, 1, 8, signed=True)
    assert unpack(spec, np.array([[0b11111100]], dtype=np.uint8)).tolist() == [[-4]]


@pytest.mark.parametrize(
    ("levels", "message"),
    [([[8, 0]], "do not fit lanes"), ([[1]], "expected 2 elements"), ([[-1, 0]], "do not fit")],
)
def test_pack_rejects(levels: list[list[int]], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        pack(StreamSpec(2, 3, 1, 6), np.array(levels))


def test_bipolar_zero_is_no_level() -> None:
    with pytest.raises(GraphError, match="got 0"):
        pack(StreamSpec(2, 1, 1, 2, bipolar=True), np.array([[1, 0]]))


def test_unpack_rejects_half_frames() -> None:
    with pytest.raises(GraphError, match="whole frames"):
        unpack(StreamSpec(1, 8, 2, 8), np.zeros((3, 1), dtype=np.uint8))


@pytest.mark.parametrize("fields", [(0, 1, 1, 1), (2, 4, 1, 7), (1, 64, 1, 64)])
def test_impossible_layouts(fields: tuple[int, int, int, int]) -> None:
    with pytest.raises(GraphError):
        StreamSpec(*fields)


def test_first_difference_in_stream_order() -> None:
    want = {"a": np.arange(24).reshape(3, 8), "b": np.zeros((3, 2), dtype=np.int64)}
    got = {name: values.copy() for name, values in want.items()}
    assert compare(want, got) is None
    got["a"][2, 5] = 99
    got["a"][2, 6] = 98
    got["b"][1, 1] = -1
    found = compare(want, got, {"a": 4})
    assert found is not None
    assert (found.port, found.frame, found.beat, found.element) == ("b", 1, 1, 1)
    assert str(found) == "b: frame 1, beat 1, element 1: expected 0, got -1 (1 elements differ)"
    got["b"][1, 1] = 0
    found = compare(want, got, {"a": 4})
    assert found is not None
    assert (found.frame, found.beat, found.element, found.expected, found.got) == (2, 1, 5, 21, 99)
    with pytest.raises(GraphError):
        compare(want, {"a": want["a"]})
