# SPDX-License-Identifier: Apache-2.0
"""The document's kernels on the CPU, models in files, backends that agree; reads stay in bounds."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitwright.base.errors import DataError, ModelError
from bitwright.base.native import find_compiler
from bitwright.ir.executor import Executor
from bitwright.ir.executor.xnor import unpack_signs
from bitwright.papers.bnn_soc.graph import binary_graph
from bitwright.papers.bnn_soc.kernels import BINARY, vector_mult
from bitwright.papers.bnn_soc.model import FORMAT, Model, decide
from bitwright.papers.bnn_soc.packing import pack32
from bitwright.papers.bnn_soc.settings import Settings, initial_weights

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler")
PACKAGE = Path(__file__).resolve().parents[2] / "src" / "bitwright"
LENGTHS = [*range(1, 201), 784, 4096]


def signs(random: np.random.Generator, *shape: int) -> np.ndarray:
    return 2 * random.integers(0, 2, shape) - 1


def network(*sizes: int, **options: object) -> Model:
    s = Settings(sizes=sizes, **options)  # type: ignore[arg-type]
    start = [np.zeros(n, np.float32) if s.bias else None for n in sizes[1:]]
    return Model(s, tuple(initial_weights(s)), tuple(start))


def test_every_length() -> None:
    random = np.random.default_rng(1)
    for length in LENGTHS:
        weight, x = signs(random, 11, length), signs(random, length)
        for variant in BINARY:
            assert np.array_equal(vector_mult(variant, weight, x), weight @ x), (variant, length)


def test_floats_and_the_printed_listing() -> None:
    random = np.random.default_rng(2)
    weight, x = random.uniform(-0.9, 0.9, (9, 784)), random.uniform(-0.9, 0.9, 784)
    np.testing.assert_allclose(vector_mult("float", weight, x), weight @ x, rtol=1e-4, atol=1e-4)
    assert not vector_mult("as_printed", weight, x).any()


@given(st.integers(1, 9), st.integers(1, 140))
def test_packed_rows_come_back(rows: int, columns: int) -> None:
    levels = signs(np.random.default_rng(columns), rows, columns)
    words = pack32(levels)
    assert words.shape == (rows, -(-columns // 32))
    assert np.array_equal(unpack_signs(words, columns), levels)
    first = [(int(words[0, j // 32]) >> (j % 32)) & 1 for j in range(columns)]
    assert first == list((levels[0] > 0).astype(int))


@given(st.lists(st.integers(1, 90), min_size=1, max_size=3), st.integers(1, 5), st.integers(0, 999))
@settings(max_examples=12)
def test_all_backends_agree(sizes: list[int], images: int, seed: int) -> None:
    model = network(*sizes, 10, seed=seed)
    pixels = np.random.default_rng(seed).integers(0, 256, (images, sizes[0]), dtype=np.uint8)
    expected = model.sums(pixels)
    assert np.array_equal(model.sums(pixels, model.cpu("float32")), expected)
    for variant in BINARY:
        by_row = model.sums(
            pixels,
            lambda layer, x, v=variant: np.array(
                [vector_mult(v, model.signs(layer), row) for row in x]
            ),
        )
        assert np.array_equal(by_row, expected)
    graph = binary_graph(model)
    levels = model.settings.input_values()[pixels].astype(np.int64)
    assert np.array_equal(graph.run({"x": levels})[graph.outputs[0]], expected)
    assert np.array_equal(Executor(graph).run({"x": levels})[graph.outputs[0]], expected)


@pytest.mark.parametrize("packed", [False, True])
def test_models_come_back(tmp_path: Path, packed: bool) -> None:
    model = network(784, 50, 10, bias=True, seed=3)
    path = tmp_path / "m.safetensors"
    model.save(path, packed=packed)
    found = Model.load(path)
    assert found.settings == model.settings
    images = np.random.default_rng(0).integers(0, 256, (3, 28, 28), dtype=np.uint8)
    assert np.array_equal(found.sums(images), model.sums(images))


def test_a_packed_file_takes_a_thirtieth(tmp_path: Path) -> None:
    model = network(784, 512, 10)
    sizes = []
    for packed in (False, True):
        model.save(tmp_path / "m", packed=packed)
        sizes.append((tmp_path / "m").stat().st_size)
    assert 29 < sizes[0] / sizes[1] < 32  # 784 inputs take 25 words, and there is a header


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    from safetensors.numpy import save

    path = tmp_path / "m"
    network(64, 40, 10).save(path, packed=True)
    whole = path.read_bytes()
    for cut in (0, 5, 100, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(DataError):
            Model.load(path)
    arrays = {"layer1.packed": np.zeros((40, 3), np.uint32)}
    about = {"format": FORMAT, "settings": json.dumps({"sizes": [64, 40, 10]})}
    path.write_bytes(save(arrays, metadata=about))
    with pytest.raises(DataError, match="takes 40 rows of 2 words, the file has"):
        Model.load(path)
    path.write_bytes(save(arrays, metadata=about | {"settings": '{"sizes": [64, -1]}'}))
    with pytest.raises(DataError, match="settings are damaged"):
        Model.load(path)
    path.write_bytes(save(arrays))
    with pytest.raises(DataError, match="no network of this kind"):
        Model.load(path)


def test_wrong_images_are_refused() -> None:
    model = network(784, 20, 10)
    for wrong in (np.zeros((2, 27, 27), np.uint8), np.zeros((2, 28, 28), np.uint16)):
        with pytest.raises(DataError, match="expected images of 784 bytes"):
            model.sums(wrong)
    with pytest.raises(ModelError, match="binarized network"):
        binary_graph(network(784, 20, 10, bias=True))


def test_decisions() -> None:
    s = Settings(sizes=(4, 3))
    sums = np.array([[2, -2, -2], [2, 4, -2], [-2, 0, -2]], dtype=np.float32)
    found = decide(s, sums, np.array([0, 1, 0]))
    assert list(found.classes) == [0, 1, 1]
    assert found.argmax == pytest.approx(2 / 3) and found.strict == pytest.approx(1 / 3)
    assert found.confusion[0, 1] == 1 and np.trace(found.confusion) == 2
    floats = Settings(
        sizes=(4, 3), binary=False, kernel="multiply", input="scale_float", act_forward="tanh"
    )
    weak = np.array([[0.3, -0.3, -0.1]], dtype=np.float32)
    label = np.zeros(1, np.int64)
    assert decide(floats, weak, label).strict == 1
    assert decide(floats, weak, label, threshold=0.2).strict == 0  # -0.1 is not decided


@pytest.mark.long
def test_no_read_leaves_its_buffer(tmp_path: Path) -> None:
    """Buffers of exactly the right size, under the compiler's address checks."""
    compiler = find_compiler()
    assert compiler is not None
    executor = PACKAGE / "ir" / "executor" / "native"
    sources = [
        Path(__file__).with_name("bnn_bounds.c"),
        PACKAGE / "papers" / "bnn_soc" / "native" / "kernels.c",
        *(executor / name for name in ("xnor_product.c", "pool.c")),
    ]
    flags = ["-O1", "-g", "-march=native", "-fsanitize=address,undefined", "-std=gnu11", "-pthread"]
    program = tmp_path / "main"
    command = [compiler, *flags, "-fno-sanitize-recover=all", f"-I{executor}"]
    command += [*map(str, sources), "-o", str(program)]
    subprocess.run(command, check=True, timeout=120)
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "in bounds\n", done.stderr
