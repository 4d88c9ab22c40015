# SPDX-License-Identifier: Apache-2.0
"""Exported files hold the network, number by number; whatever its numbers are, another is seen."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.interop_networks import networks

from bitwright.base.errors import MismatchError, ModelError
from bitwright.interop import ops
from bitwright.interop.model_files import load_model, save_model, save_network
from bitwright.interop.network import InputConvention, Network, NetworkBuilder
from bitwright.interop.network_from_torch import network_of
from bitwright.interop.network_passes import prune
from bitwright.interop.network_to_torch import module_of
from bitwright.interop.same_network import require_same
from bitwright.pipeline import export_network
from bitwright.pipeline.export_network import export_model

pytest.importorskip("safetensors")
pytest.importorskip("h5py")
ENDINGS = {"caffe": ".prototxt", "keras": ".h5", "safetensors": ".safetensors"}
#: Numbers in which others drown, that are lost in float32, or are like none at all.
_FACTORS = (1.0, 1.0, 1.0, 0.0, 1e-25, 1e25, 1e37)


def _array(draw: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    numbers = np.random.default_rng(draw(st.integers(0, 1 << 20)))
    return (numbers.normal(size=shape) * draw(st.sampled_from(_FACTORS))).astype(np.float32)


def _layer(draw: Any, b: NetworkBuilder, front: str, name: str) -> str:  # noqa: PLR0912 - one each
    """One more layer behind another, of any kind that fits it."""
    shape = b.shapes[front]
    channels = shape[0]
    pair = st.tuples(st.integers(1, 3), st.integers(1, 3))
    small = st.tuples(st.integers(0, 1), st.integers(0, 1))
    images = ["conv", "depthwise", "pool", "global", "pad", "crop", "flatten"]
    kinds = ["norm", "scale", "activation", "dropout", "add", "concat", "share"]
    kind = draw(st.sampled_from(kinds + (images if len(shape) == 3 else ["dense", "dense"])))
    op: ops.Op
    arrays: dict[str, Any] = {}
    others = [n for n, s in b.shapes.items() if s[1:] == shape[1:] and len(s) == len(shape)]
    inputs: tuple[str, ...] = (front,)
    if kind == "conv":
        outputs, kernel = draw(st.integers(1, 3)), draw(pair)
        op = ops.Conv(draw(pair), draw(small), draw(pair))
        arrays["weight"] = _array(draw, (outputs, channels, *kernel))
    elif kind == "depthwise":
        outputs = channels
        op = ops.Conv((1, 1), draw(small), (1, 1), channels)
        arrays["weight"] = _array(draw, (channels, 1, *draw(pair)))
    elif kind == "dense":
        outputs, op = draw(st.integers(1, 4)), ops.Dense()
        arrays["weight"] = _array(draw, (outputs, channels))
    elif kind == "norm":
        op = ops.Norm(draw(st.sampled_from((1e-5, 1e-3, 0.1))))
        arrays = {"mean": _array(draw, (channels,)), "variance": abs(_array(draw, (channels,)))}
        arrays |= {n: _array(draw, (channels,)) for n in ("gamma", "beta") if draw(st.booleans())}
    elif kind == "scale":
        op, arrays["gamma"] = ops.Scale(), _array(draw, (channels,))
        if draw(st.booleans()):
            arrays["beta"] = _array(draw, (channels,))
    elif kind == "activation":
        function = draw(st.sampled_from(ops.FUNCTIONS))
        slope = draw(st.sampled_from((0.0, 0.1))) if function == "relu" else 0.0
        op = ops.Activation(function, slope)
    elif kind == "pool":
        kernel = draw(pair)
        op = ops.Pool(
            draw(st.sampled_from(ops.MODES)), kernel, draw(pair),
            draw(st.tuples(*(st.integers(0, side // 2) for side in kernel))),
            draw(st.booleans()), draw(st.booleans()),
        )  # fmt: skip
    elif kind == "global":
        op = ops.GlobalPool(draw(st.sampled_from(ops.MODES)))
    elif kind in ("pad", "crop"):
        sign = 1 if kind == "pad" else -1
        op = ops.Pad(tuple(sign * side for side in draw(st.tuples(*[st.integers(0, 1)] * 4))))  # type: ignore[arg-type]
    elif kind == "dropout":
        op = ops.Dropout(draw(st.sampled_from((0.25, 0.5))))
    elif kind == "add":
        op = ops.Add()
        inputs = (front, draw(st.sampled_from([n for n in others if b.shapes[n] == shape])))
    elif kind == "concat":
        op, inputs = ops.Concat(), (front, draw(st.sampled_from(others)))
    elif kind == "flatten":
        op = ops.Flatten()
    else:  # what follows reads another layer
        return str(draw(st.sampled_from([*b.shapes])))
    if "weight" in arrays and draw(st.booleans()):
        arrays["bias"] = _array(draw, (outputs,))
    try:
        return b.add(name, op, inputs, arrays)
    except ModelError:  # such as a window larger than the image
        return front


@st.composite
def drawn_networks(draw: Any) -> Network:
    b = NetworkBuilder()
    shape = (draw(st.integers(1, 3)), draw(st.integers(3, 7)), draw(st.integers(3, 7)))
    front = b.add("data", ops.Input(shape))
    for number in range(draw(st.integers(1, 9))):
        front = _layer(draw, b, front, f"layer{number}")
    scale = draw(st.sampled_from((1.0, 1 / 255, 0.017)))
    mean = (103.94,) * shape[0] if draw(st.booleans()) else ()
    convention = InputConvention({1: "grey", 3: "RGB"}.get(shape[0], ""), scale, mean)
    return prune(b.network("n", front, convention), front)


def _again(network: Network, kind: str) -> Network:
    """The network, written and read."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"net{ENDINGS[kind]}")
        save_network(network, kind, path)
        found = load_model(path, input_shape=None).network
    assert found is not None
    return found


@pytest.mark.parametrize("kind", ENDINGS)
@given(network=drawn_networks())
@settings(max_examples=30)
def test_a_file_holds_the_network_that_was_written(kind: str, network: Network) -> None:
    """A network that a format can say comes back as the same one."""
    assume(network.parameters() > 0)  # Keras' files without weights are taken for broken ones
    try:
        found = _again(network, kind)
    except ModelError:
        assume(False)
    require_same(network, found, "file")
    both = [module_of(one).double() for one in (network, found)]
    (op,) = (layer.op for layer in network.layers if isinstance(layer.op, ops.Input))
    image = torch.rand(2, *op.shape, dtype=torch.float64)
    with torch.no_grad():
        expected, made = (module(image) for module in both)
    assert torch.allclose(expected, made, rtol=1e-6, atol=0, equal_nan=True)


def test_a_mean_of_all_pixels_is_read_as_an_image_and_as_a_vector() -> None:
    """Keras' Flatten was left out behind every such mean, also where it gives an image."""
    b = NetworkBuilder()
    ones = np.ones((4, 3), np.float32)
    mean = b.add("mean", ops.GlobalPool("mean"), (b.add("data", ops.Input((3, 6, 6))),))
    dense = b.add("dense", ops.Dense(), (b.add("flat", ops.Flatten(), (mean,)),), {"weight": ones})
    conv = b.add("conv", ops.Conv(), (mean,), {"weight": ones.reshape(4, 3, 1, 1)})
    end = b.add("sum", ops.Add(), (dense, b.add("flat_conv", ops.Flatten(), (conv,))))
    network = b.network("n", end, InputConvention())
    require_same(network, _again(network, "keras"), "file")


def _changed(network: Network, choose: Callable[[int], int]) -> Network:
    """The network with one number, setting or wire of its last layers changed."""
    layers = [*network.layers]
    place = len(layers) - 1 - choose(len(layers) - 1)
    layer, number = layers[place], choose(1 << 20)
    arrays: Mapping[str, Any] = layer.arrays
    op = layer.op
    if arrays:
        name = sorted(arrays)[number % len(arrays)]
        values = arrays[name].copy()
        at = np.unravel_index(number % values.size, values.shape)
        values[at] = np.nextafter(values[at], np.float32(np.inf), dtype=np.float32)
        layers[place] = replace(layer, arrays={**arrays, name: values})
    elif isinstance(op, ops.Activation):
        layers[place] = replace(
            layer, op=ops.Activation("tanh" if op.function != "tanh" else "relu")
        )
    elif isinstance(op, ops.Pool | ops.GlobalPool):
        layers[place] = replace(layer, op=replace(op, mode="mean" if op.mode == "max" else "max"))
    elif isinstance(op, ops.Concat) and place == len(layers) - 1:
        layers[place] = replace(layer, inputs=(*layer.inputs, layer.inputs[0]))
    else:
        assume(False)
    return replace(network, layers=tuple(layers))


@given(network=drawn_networks(), data=st.data())
@settings(max_examples=100)
def test_the_smallest_change_is_another_network(network: Network, data: st.DataObject) -> None:
    """Whatever else its numbers hide: one by the last bit, one function, one wire."""
    assume(len(network.layers) > 1)
    other = _changed(network, lambda end: data.draw(st.integers(0, max(end - 1, 0))))
    with pytest.raises(MismatchError, match="no layer of the network that was written"):
        require_same(network, other, "file")
    require_same(network, network, "file")


def test_what_is_fed_is_part_of_it() -> None:
    b = NetworkBuilder()
    end = b.add("act", ops.Activation("relu"), (b.add("data", ops.Input((3, 4, 4))),))
    rgb, bgr = (b.network("n", end, InputConvention(order)) for order in ("RGB", "BGR"))
    with pytest.raises(MismatchError, match="is fed"):
        require_same(rgb, bgr, "file")


@pytest.mark.parametrize("kind", ENDINGS)
def test_another_network_in_the_file_is_removed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An export whose writer loses the last bit of one number ends, and leaves nothing."""
    model, shape = networks()["dense"]
    source, out = tmp_path / "source.h5", tmp_path / f"out{ENDINGS[kind]}"
    save_model(model, "keras", source, shape)
    assert export_model(source, kind, out, None)["compared_values"] > 0
    layers = [layer for layer in network_of(model, shape).layers if "weight" in layer.arrays]

    def spoilt(network: Network, *more: Any) -> tuple[Path, ...]:
        chosen = next(x for x in network.layers if x.arrays.keys() >= layers[-1].arrays.keys())
        weight = chosen.arrays["weight"].copy()
        weight.flat[0] = np.nextafter(weight.flat[0], np.float32(1))
        return save_network(
            network.with_arrays({chosen.name: {**chosen.arrays, "weight": weight}}), *more
        )

    for path in out.parent.glob("out*"):
        path.unlink()
    monkeypatch.setattr("bitwright.interop.model_files.save_network", spoilt)
    with pytest.raises(MismatchError, match="no layer of the network that was written"):
        export_model(source, kind, out, None)
    assert not [*out.parent.glob("out*")]


def test_a_forward_that_its_layers_do_not_say_is_refused(tmp_path: Path) -> None:
    """Layers are taken from a trace; a module that computes something else beside is seen."""
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 4))
    traced = module_of(network_of(model, (4, 4, 1)))
    export_network._check_outputs(model, traced, (4, 4, 1), "here")
    model[1].register_forward_hook(lambda module, given, made: made * 1.001)
    with pytest.raises(MismatchError, match="the outputs differ by"):
        export_network._check_outputs(model, traced, (4, 4, 1), "here")
    with torch.no_grad():
        model[1].bias.fill_(torch.inf)
    with pytest.raises(MismatchError, match="differ by"):
        export_network._check_outputs(model, traced, (4, 4, 1), "here")


@pytest.mark.parametrize(
    "factors",
    [
        (1e-25, 1e-25, 1e25, 1e25),  # 0 in float32, x in float64
        (1e-25, 1e-25, 1e25, 1e25, 1e30),  # 0 in float32; in float64 nothing is left beside it
        (1e30, 1e30),  # infinite in float32
    ],
)
def test_what_floats_lose_hides_no_other_network(factors: tuple[float, ...]) -> None:
    """Once taken for the same, by outputs: beside what is lost or too large, x and 2 x change their
    signs.
    """
    found = []
    for sign in (1, -1):
        b = NetworkBuilder()
        x = lost = b.add("data", ops.Input((2, 4, 4)))
        for number, factor in enumerate(factors):
            gamma = {"gamma": np.full(2, factor, np.float32)}
            lost = b.add(f"s{number}", ops.Scale(), (lost,), gamma)
        kept = b.add("kept", ops.Scale(), (x,), {"gamma": sign * np.array([1, 2], np.float32)})
        found.append(b.network("n", b.add("sum", ops.Add(), (lost, kept))))
    require_same(found[0], found[0], "file")
    with pytest.raises(MismatchError, match="layer 'kept' computes what no layer"):
        require_same(found[0], found[1], "file")
