# SPDX-License-Identifier: Apache-2.0
"""What Keras' configuration says: words, numbers, axes, calls and classes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bitwright.base.errors import BitwrightError, ModelError
from bitwright.interop import ops
from bitwright.interop.keras.config import nodes_of
from bitwright.interop.keras.files import KerasFile, KerasLayer, KerasNode
from bitwright.interop.keras.layers import build
from bitwright.interop.keras.read import load_keras

h5py = pytest.importorskip("h5py")
FULL = Path(__file__).resolve().parents[1] / "golden" / "keras_full.h5"


def _copied(tmp_path: Path) -> Path:
    path = tmp_path / "copy.h5"
    path.write_bytes(FULL.read_bytes())
    return path


def _changed(tmp_path: Path, change: dict[str, object]) -> Path:
    """The file with other fields of its layer ``fl``."""
    path = _copied(tmp_path)
    with h5py.File(path, "r+") as file:
        config = json.loads(file.attrs["model_config"])
        layer = next(x for x in config["config"]["layers"] if x["name"] == "fl")
        layer.update(change)
        file.attrs["model_config"] = json.dumps(config)
    return path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"class_name": "LSTM"}, "'LSTM' are not supported"),
        ({"config": {"name": "fl", "data_format": "channels_first"}}, "channels first"),
        ({"inbound_nodes": [[["nowhere", 0, 0, {}]]]}, "'nowhere', which comes later"),
        ({"config": None}, "has no configuration"),
        ({"inbound_nodes": [[["c", 0, 0, {"training": True}]]]}, "called with training=True"),
        (
            {"inbound_nodes": [{"args": [], "kwargs": {"mask": None, "training": True}}]},
            "called with training=True",
        ),
        ({"name": "b1"}, "a second layer of this name"),
        ({"registered_name": "mine>Flatten"}, "a class of its own, 'mine>Flatten'"),
        ({"module": "mine.layers"}, "a class of its own, 'mine.layers'"),
        ({"inbound_nodes": [{"args": [{}, True], "kwargs": {}}]}, "called with argument=True"),
        ({"inbound_nodes": [{"args": [], "kwargs": {"inputs": {}}}]}, "tensors alone, by position"),
        (
            {"config": {"name": "fl", "activation": {"module": "mine", "class_name": "relu"}}},
            "a class of its own, 'mine'",
        ),
        ({"config": {"name": "fl", "dtype": "int8"}}, "numbers of 'int8'"),
        (
            {"config": {"name": "fl", "dtype": {"class_name": "GPTQDTypePolicy"}}},
            "numbers of 'GPTQDTypePolicy'",
        ),
        (
            {"config": {"name": "fl", "dtype": "int8_from_float32"}},
            "numbers of 'int8_from_float32'",
        ),
        (
            {"config": {"name": "fl", "dtype": {"class_name": "QuantizedDTypePolicy"}}},
            "numbers of 'QuantizedDTypePolicy'",
        ),
    ],
)
def test_configurations_that_are_not_understood(
    change: dict[str, object], words: str, tmp_path: Path
) -> None:
    path = _changed(tmp_path, change)
    with pytest.raises(BitwrightError, match=words):
        load_keras(path)


@pytest.mark.parametrize(
    ("axis", "fits"), [(-1, True), (3, True), ([-1], True), (1, False), (2, False)]
)
def test_a_softmax_over_rows_is_none_over_channels(axis: object, fits: bool) -> None:
    nodes = [
        KerasNode("x", "InputLayer", {"batch_shape": [None, 4, 5, 3]}, ()),
        KerasNode("s", "Softmax", {"axis": axis}, ("x",)),
    ]
    file = KerasFile(Path("net.h5"), ())
    if fits:
        assert build(nodes, file, "s")["s"].op == ops.Activation("softmax")
        return
    with pytest.raises(ModelError, match="softmax over axis"):
        build(nodes, file, "s")


@pytest.mark.parametrize(
    ("behind", "words"),
    [
        ([], "ends in a flattened image"),
        ([("t", "Softmax", ("f",))], "ends in a flattened image"),
        ([("g", "Flatten", ("y",)), ("a", "Add", ("f", "g")), ("d", "Dense", ("a",))], "reads a"),
        ([("g", "Flatten", ("x",)), ("a", "Add", ("f", "g")), ("d", "Dense", ("a",))], None),
        ([("d", "Dense", ("f",))], None),
        ([("c", "Concatenate", ("f", "f"))], "ends in a flattened image"),
        ([("c", "Concatenate", ("f", "f")), ("d", "Dense", ("c",))], None),
        ([("o", "Conv2D", ("x",)), ("h", "Flatten", ("o",))], None),
    ],
)
def test_a_flattened_image_that_cannot_be_put_in_order_is_refused(
    behind: list[tuple[str, str, tuple[str, ...]]], words: str | None
) -> None:
    pool = {"pool_size": (1, 4), "strides": (1, 4)}
    wide = {"filters": 8, "kernel_size": 1, "strides": 1, "use_bias": False}
    nodes = [
        KerasNode("x", "InputLayer", {"batch_shape": [None, 4, 4, 2]}, ()),
        KerasNode("p", "MaxPooling2D", pool, ("x",)),
        KerasNode("y", "Conv2D", wide, ("p",)),
        KerasNode("f", "Flatten", {}, ("x",)),
        *(KerasNode(n, k, wide | {"units": 3, "filters": 1}, i) for n, k, i in behind),
    ]
    length = 64 if any(kind == "Concatenate" for _, kind, _ in behind) else 32
    layers = (
        KerasLayer("y", {"kernel": np.ones((1, 1, 2, 8), np.float32)}),
        KerasLayer("d", {"kernel": np.ones((length, 3), np.float32)}),
        KerasLayer("o", {"kernel": np.ones((1, 1, 2, 1), np.float32)}),  # one channel
    )
    file = KerasFile(Path("net.h5"), layers)
    if words is None:
        assert build(nodes, file, nodes[-1].name).output == nodes[-1].name
        return
    with pytest.raises(ModelError, match=words):
        build(nodes, file, nodes[-1].name)


@pytest.mark.parametrize(
    ("kind", "config", "words"),
    [
        ("Conv2D", {"padding": "SAME"}, None),
        ("MaxPooling2D", {"padding": "Same"}, None),
        ("Conv2D", {"padding": "causal"}, "padding 'causal', not 'valid' or 'same'"),
        ("MaxPooling2D", {"padding": 1}, "padding 1, not"),
        ("GlobalAveragePooling2D", {"data_format": "Channels_First"}, "channels first"),
        ("GlobalAveragePooling2D", {"data_format": "rows"}, "data_format 'rows', not"),
        ("LeakyReLU", {"alpha": 0.1, "negative_slope": 0.2}, "two slopes"),
        ("LeakyReLU", {"alpha": 0.2, "negative_slope": 0.2}, None),
        ("Conv2D", {"strides": [1.9, 1.9]}, "expected whole numbers, found .1.9, 1.9"),
        ("Conv2D", {"kernel_size": [3, 3, 3]}, "Conv2D whose configuration is broken"),
        ("Conv2D", {"filters": "2"}, "expected whole numbers"),
        ("MaxPooling2D", {"pool_size": "33"}, "expected whole numbers, found '33'"),
        ("BatchNormalization", {"epsilon": "1e-3"}, "epsilon '1e-3' is no number"),
        ("ZeroPadding2D", {"padding": [[1, 1], [0, 0.5]]}, "expected whole numbers"),
        ("LeakyReLU", {"alpha": None}, None),
    ],
)
def test_words_are_read_as_keras_reads_them(
    kind: str, config: dict[str, object], words: str | None
) -> None:
    """Keras lowers the letters of these words and refuses others."""
    sizes = {"filters": 2, "kernel_size": 3, "strides": 2, "pool_size": 3, "use_bias": False}
    nodes = [
        KerasNode("x", "InputLayer", {"batch_shape": [None, 9, 9, 3]}, ()),
        KerasNode("s", kind, sizes | config, ("x",)),
    ]
    layer = KerasLayer("s", {"kernel": np.ones((3, 3, 3, 2), np.float32)})
    file = KerasFile(Path("net.h5"), (layer,) if kind == "Conv2D" else ())
    if words is not None:
        with pytest.raises(ModelError, match=words):
            build(nodes, file, "s")
        return
    found = build(nodes, file, "s")
    assert found.shapes["s"][-2:] == ((9, 9) if kind == "LeakyReLU" else (5, 5))


def test_what_keras_writes_of_its_own_is_taken(tmp_path: Path) -> None:
    """As Keras 2 and 3 and those between them write modules, policies and calls."""
    for number, change in enumerate(
        (
            {"module": "keras.layers", "registered_name": None},
            {"module": "keras_core.layers"},
            {"module": "tensorflow.python.keras.layers", "registered_name": "Flatten"},
            {"registered_name": "keras>Flatten"},
            {"config": {"name": "fl", "dtype": "mixed_bfloat16"}},
            {
                "config": {
                    "name": "fl",
                    "dtype": {"class_name": "DTypePolicy", "config": {"name": "float32"}},
                }
            },
        )
    ):
        path = _changed(tmp_path, change)
        assert load_keras(path).layers, number


@pytest.mark.parametrize("name", ["input", "first"])
def test_a_sequential_model_need_not_name_its_input(name: str) -> None:
    options = {"name": name, "batch_input_shape": [None, 8, 8, 3]}
    layers = [
        {"class_name": "ReLU", "config": options},
        {"class_name": "ReLU", "config": {"name": "input" if name == "first" else "second"}},
    ]
    nodes, _ = nodes_of({"class_name": "Sequential", "config": {"layers": layers}})
    found = build(nodes, KerasFile(Path("net.h5"), ()), None)
    assert [type(layer.op).__name__ for layer in found.layers] == [
        "Input",
        "Activation",
        "Activation",
    ]
    options["batch_input_shape"] = [None, 8.9, "8", 3]  # type: ignore[list-item]
    nodes, _ = nodes_of({"class_name": "Sequential", "config": {"layers": layers}})
    with pytest.raises(ModelError, match="expected whole numbers"):
        build(nodes, KerasFile(Path("net.h5"), ()), None)
    own = {"class_name": "Functional", "module": "mine", "config": {}}
    with pytest.raises(ModelError, match="model: is of a class of its own"):
        nodes_of(own)
