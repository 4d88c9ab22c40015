# SPDX-License-Identifier: Apache-2.0
"""Products of +1 and -1: all engines give the integer product, for every length."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitwright.base.errors import DataError
from bitwright.base.native import FLAG_SETS, find_compiler
from bitwright.ir.executor import xnor
from bitwright.ir.executor.xnor import XNOR, BinaryMatrix, pack_signs, unpack_signs

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler")
LENGTHS = [*range(1, 201), 784, 4096]
#: Processors' ways of counting bits, as flags of the compiler.
BUILDS = {"this processor": (), "avx2": ("-mno-avx512f", "-mno-amx-int8"), "portable": None}


@cache
def library(name: str) -> Any:
    """The kernels for another processor, as far as this one can run them."""
    compiler, flags = find_compiler(), BUILDS[name]
    assert compiler is not None
    if name == "this processor":
        return XNOR.require()
    if flags is None:
        return XNOR.build(compiler, (*FLAG_SETS[1], "-DBW_GENERIC"))
    return XNOR.build(compiler, (*FLAG_SETS[0], *flags))


def signs(random: np.random.Generator, *shape: int) -> np.ndarray:
    return (2 * random.integers(0, 2, shape) - 1).astype(np.int8)


@pytest.mark.parametrize("build", BUILDS)
def test_every_length(build: str) -> None:
    random = np.random.default_rng(1)
    for length in LENGTHS:
        weight, x = signs(random, 19, length), signs(random, 7, length)
        matrix = BinaryMatrix(weight, library(build))
        expected = x.astype(np.int64) @ weight.T.astype(np.int64)
        for engine in matrix.engines():
            assert np.array_equal(matrix.product(x, engine=engine), expected), (length, engine)


@given(
    st.integers(1, 70), st.integers(1, 150), st.integers(1, 700), st.integers(1, 3),
    st.sampled_from([np.int8, np.float32, np.int64, np.float64]), st.integers(0, 1 << 32),
)  # fmt: skip
@settings(max_examples=60)
def test_every_shape(
    rows: int, outputs: int, columns: int, threads: int, kind: type, seed: int
) -> None:
    """Of any type of activations, by any engine, with any threads; 0 counts as +1."""
    random = np.random.default_rng(seed)
    weight = random.integers(-1, 2, (outputs, columns)).astype(np.int8)
    x = random.integers(-1, 2, (rows, columns)).astype(kind)
    expected = np.where(x >= 0, 1, -1) @ np.where(weight >= 0, 1, -1).T
    matrix = BinaryMatrix(weight)
    for engine in (*matrix.engines(), None):
        assert np.array_equal(matrix.product(x, engine=engine, threads=threads), expected)
    if np.all(x) and np.all(weight):  # the identities of spec 2.6
        assert np.abs(expected).max() <= columns and not ((expected - columns) % 2).any()


@given(st.integers(1, 20), st.integers(1, 300), st.sampled_from([np.int8, np.float32]))
def test_packed_signs_come_back(rows: int, columns: int, kind: type) -> None:
    levels = signs(np.random.default_rng(columns), rows, columns).astype(kind)
    words = pack_signs(levels)
    assert words.shape == (rows, -(-columns // 64))
    assert np.array_equal(unpack_signs(words, columns), levels)
    for build in ("avx2", "portable"):
        assert np.array_equal(pack_signs(levels, library(build)), words)


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(2)
    weight, x = signs(random, 9, 130), signs(random, 5, 130)
    words = pack_signs(x)
    monkeypatch.setitem(vars(XNOR), "loaded", type(XNOR.loaded)(None))
    assert np.array_equal(pack_signs(x), words)
    matrix = BinaryMatrix(weight)
    assert matrix.engines() == ("float32",)
    assert np.array_equal(matrix.product(x), x.astype(int) @ weight.T.astype(int))


def test_an_engine_with_wrong_sums_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    random = np.random.default_rng(3)
    weight, x = signs(random, 9, 130), signs(random, 5, 130)
    monkeypatch.setattr(xnor, "_CHOSEN", {})
    right = BinaryMatrix._popcount
    monkeypatch.setattr(BinaryMatrix, "_popcount", lambda *a: right(*a) + 1)
    matrix = BinaryMatrix(weight)
    assert np.array_equal(matrix.product(x), x.astype(int) @ weight.T.astype(int))
    assert "popcount gave wrong sums" in caplog.text


def test_what_does_not_fit_is_refused() -> None:
    random = np.random.default_rng(4)
    matrix = BinaryMatrix(signs(random, 9, 130))
    with pytest.raises(DataError, match="expected 130 columns, got 128"):
        matrix.product(signs(random, 5, 128))
    with pytest.raises(DataError, match="rows of 3 64-bit words"):
        matrix.packed_product(np.zeros((5, 2), np.uint64))
    out = np.zeros((5, 9), np.int32)
    assert matrix.product(signs(random, 5, 130), out=out) is out and out.any()
    for wrong in (np.zeros((5, 8), np.int32), np.zeros((5, 9), np.int64), out.T.copy().T):
        with pytest.raises(DataError, match=r"\(5, 9\) of int32 in one piece"):
            matrix.product(signs(random, 5, 130), out=wrong)
    with pytest.raises(DataError, match="no engine 'gpu' here"):
        matrix.product(signs(random, 5, 130), engine="gpu")
    with pytest.raises(DataError, match="expected a matrix"):
        BinaryMatrix(np.zeros(5, np.int8))
    with pytest.raises(DataError, match="130 columns take rows of 3 words"):
        unpack_signs(np.zeros((2, 2), np.uint64), 130)
