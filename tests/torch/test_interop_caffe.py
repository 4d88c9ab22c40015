# SPDX-License-Identifier: Apache-2.0
"""Caffe's prototxt and caffemodel: exact both ways, Caffe's rules, damaged and foreign files."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.interop_networks import images, networks
from torch import nn

from bitwright.base.errors import BitwrightError, DataError, ModelError
from bitwright.cli import entry
from bitwright.interop import ops
from bitwright.interop.caffe.files import blob_array, parse_prototxt, read_caffemodel
from bitwright.interop.caffe.read import load_caffe, network_of_net
from bitwright.interop.caffe.write import caffe_windows, net_of, save_caffe
from bitwright.interop.model_files import load_model
from bitwright.interop.network import InputConvention, Network, NetworkBuilder
from bitwright.interop.network_from_torch import network_of
from bitwright.interop.network_to_torch import module_of
from bitwright.interop.ops import Pool, windows
from bitwright.models import build_model

NETWORKS = networks()


def numbers_of(net: object) -> dict[str, list[np.ndarray]]:
    return {m.name: [blob_array(b, m.name) for b in m.blobs] for m in net.layer if m.blobs}  # type: ignore[attr-defined]


def same_state(a: nn.Module, b: nn.Module) -> bool:
    first = {k: v for k, v in a.state_dict().items() if "num_batches" not in k}
    second = {k: v for k, v in b.state_dict().items() if "num_batches" not in k}
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def comes_back(network: Network, folder: Path) -> None:
    """The file has the network's outputs."""
    back = load_caffe(*save_caffe(network, folder / "net.prototxt"))
    shape = network.shapes[network.layers[0].name]
    image = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted, found = module_of(network)(image), module_of(back)(image)
    assert torch.allclose(wanted, found, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", list(NETWORKS))
def test_there_and_back_is_the_same_network_bit_for_bit(name: str, tmp_path: Path) -> None:
    model, shape = NETWORKS[name]
    network = network_of(model, shape)
    paths = save_caffe(network, tmp_path / "net.prototxt")
    back = load_caffe(*paths)
    again = module_of(back)
    assert same_state(model, again)
    norms = {k: m.eps for k, m in model.named_modules() if hasattr(m, "eps")}
    assert norms == {k: m.eps for k, m in again.named_modules() if hasattr(m, "eps")}
    with torch.no_grad():
        assert torch.equal(model(images(shape)), again(images(shape)))
    assert back.shapes.items() >= {k: network.shapes[k] for k in back.shapes}.items()


def test_pools_keep_torchs_size_where_caffe_rounds_up() -> None:
    pool = nn.Sequential(nn.Conv2d(3, 4, 1), nn.MaxPool2d(3, 2, 1)).eval()
    net = net_of(network_of(pool, (40, 40, 3)))
    assert caffe_windows(40, 3, 2, 1) == 21  # what Caffe's Pooling alone would make
    assert [m.type for m in net.layer] == [
        "Input", "Convolution", "Pooling", "Slice", "Silence", "Slice", "Silence",
    ]  # fmt: skip
    assert [list(m.slice_param.slice_point) for m in net.layer if m.type == "Slice"] == [[20], [20]]
    back = network_of_net(net, numbers_of(net), {})
    assert back.shapes[back.output] == (4, 20, 20)
    assert back[back.output].op == Pool("max", (3, 3), (2, 2), (1, 1), round_up=False)


@given(st.integers(1, 60), st.integers(1, 7), st.integers(1, 4), st.integers(0, 3), st.booleans())
def test_window_counts_are_torchs(size: int, kernel: int, stride: int, pad: int, up: bool) -> None:
    if 2 * pad > kernel or size + 2 * pad < kernel:
        return
    pool = nn.MaxPool1d(kernel, stride, pad, ceil_mode=up)
    expected = pool(torch.zeros(1, 1, size)).shape[-1]
    assert windows(size, kernel, stride, pad, round_up=up) == expected
    if up and (pad or stride <= kernel):
        assert caffe_windows(size, kernel, stride, pad) == expected


def test_batch_norm_is_two_layers_and_its_third_blob_counts() -> None:
    model, shape = NETWORKS["plain"]
    net = net_of(network_of(model, shape))
    norm = next(m for m in net.layer if m.type == "BatchNorm")
    scale = next(m for m in net.layer if m.type == "Scale")
    assert norm.batch_norm_param.use_global_stats and list(norm.blobs[2].data) == [1.0]
    assert scale.scale_param.bias_term and list(scale.bottom) == [norm.top[0]]
    for m in net.layer:  # a moving average that Caffe has not normalised: everything times 4
        if m.type == "BatchNorm":
            for blob in m.blobs:
                blob.data[:] = [4 * value for value in blob.data]
    again = module_of(network_of_net(net, numbers_of(net), {}))
    assert same_state(model, again)
    norm.batch_norm_param.use_global_stats = False
    with pytest.raises(ModelError, match="use_global_stats"):
        network_of_net(net, numbers_of(net), {})


@pytest.mark.parametrize("arrays", [("gamma", "beta"), ("gamma",), ("beta",), ()])
@pytest.mark.parametrize("scaled", [False, True])
def test_norms_of_keras_with_and_without_factor_and_offset(
    arrays: tuple[str, ...], scaled: bool, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    own = {name: rng.normal(size=3).astype(np.float32) for name in ("mean", *arrays)}
    own["variance"] = rng.uniform(0.1, 2, 3).astype(np.float32)
    b = NetworkBuilder()
    edge = b.add("norm", ops.Norm(1e-3), (b.add("data", ops.Input((3, 4, 4))),), own)
    if scaled:
        gamma = rng.normal(size=3).astype(np.float32)
        edge = b.add("factor", ops.Scale(), (edge,), {"gamma": gamma})
    comes_back(b.network("net", edge, InputConvention()), tmp_path)


def test_layers_that_caffe_needs_besides_take_no_name_of_the_network(tmp_path: Path) -> None:
    """A pool that rounds down and a norm become two layers; theirs are names of others here."""
    rng = np.random.default_rng(0)
    b = NetworkBuilder()
    x = b.add("data", ops.Input((2, 7, 7)))
    pool = b.add("p", ops.Pool("max", (2, 2), (2, 2)), (x,))
    names = ("p/kept2", "p/rest2", "p/slice2", "p/kept3", "n/scale")
    for name in names:
        gamma = {"gamma": rng.normal(size=2).astype(np.float32)}
        x = b.add(name, ops.Scale(), (x,), gamma)
    x = b.add("q", ops.Pool("max", (2, 2), (2, 2)), (x,))
    own = {name: rng.uniform(0.5, 1, 2).astype(np.float32) for name in ("mean", "variance", "beta")}
    norm = b.add("n", ops.Norm(1e-3), (pool,), own)
    edge = b.add("sum", ops.Add(), (x, norm, pool))
    comes_back(b.network("net", edge, InputConvention()), tmp_path)


def test_the_input_convention_travels(tmp_path: Path) -> None:
    model, shape = NETWORKS["face"]
    convention = InputConvention("RGB", 0.00392156862745098, (104.0, 117.0, 123.5))
    network = network_of(model, shape, convention=convention)
    back = load_caffe(*save_caffe(network, tmp_path / "net.prototxt"))
    assert back.convention.channel_order == "RGB"
    assert back.convention.mean == convention.mean
    assert np.float32(back.convention.scale) == np.float32(convention.scale)


#: Layers as quantized networks of the literature list them.
LISTING = """
layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TRAIN }
        data_param { source: "train_lmdb" batch_size: 30 backend: LMDB } }
layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TEST }
        transform_param { scale: 0.5 mean_value: 100 }
        data_param { source: "test_lmdb" batch_size: 30 backend: LMDB } }
layer { name: "conv1" type: "ConvolutionRistretto" bottom: "data" top: "conv1"
        convolution_param { num_output: 4 bias_term: true pad: 3 kernel_size: 7 stride: 2 }
        quantization_param { %s } }
layer { name: "batch1" type: "BatchNorm" bottom: "conv1" top: "batch1"
        batch_norm_param { use_global_stats: true } }
layer { name: "scale1" type: "Scale" bottom: "batch1" top: "scale1"
        scale_param { bias_term: true } }
layer { name: "relu1" type: "ReLU" bottom: "scale1" top: "scale1" }
layer { name: "global_pool" type: "Pooling" bottom: "scale1" top: "global_pool"
        pooling_param { pool: AVE global_pooling: true } }
layer { name: "fc128" type: "FcRistretto" bottom: "global_pool" top: "fc128"
        inner_product_param { num_output: 6 }
        quantization_param { %s } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc128" bottom: "label" top: "loss" }
layer { name: "accuracy" type: "Accuracy" bottom: "fc128" bottom: "label" top: "accuracy"
        include { phase: TEST } }
"""
PARAMS = {
    "minifloat": ("precision: MINIFLOAT mant_bits: 3 exp_bits: 4",) * 2,
    "dfp": (
        "bw_layer_in: 8 bw_layer_out: 8 bw_params: 8 fl_layer_in: 0 fl_layer_out: 9 fl_params: 18",
        "bw_layer_in: 8 bw_layer_out: 8 bw_params: 4 fl_layer_in: 9 fl_layer_out: 10 fl_params: 3",
    ),
    "pow2": (
        "precision: INTEGER_POWER_OF_2_WEIGHTS bw_layer_in: 8 bw_layer_out: 8 fl_layer_in: 0 "
        "fl_layer_out: 9 exp_min: -20 exp_max: -13",
        "precision: INTEGER_POWER_OF_2_WEIGHTS bw_layer_in: 8 bw_layer_out: 8 fl_layer_in: 9 "
        "fl_layer_out: 10 exp_min: -9 exp_max: -2",
    ),
}


def listed(kind: str) -> tuple[Network, dict[str, list[np.ndarray]]]:
    net = parse_prototxt(LISTING % PARAMS[kind])
    rng = np.random.default_rng(0)
    numbers = {
        "conv1": [rng.random((4, 3, 7, 7), np.float32), rng.random(4, np.float32)],
        "batch1": [rng.random(4, np.float32) for _ in range(2)] + [np.ones(1, np.float32)],
        "scale1": [rng.random(4, np.float32) for _ in range(2)],
        "fc128": [rng.random((6, 4), np.float32), rng.random(6, np.float32)],
    }
    return network_of_net(net, numbers, {}, input_shape=(20, 20, 3)), numbers


@pytest.mark.parametrize("kind", list(PARAMS))
def test_listings_of_ristretto_load_and_come_back(kind: str) -> None:
    network, numbers = listed(kind)
    conv, fc = network["conv1"], network["fc128"]
    for layer, text in ((conv, PARAMS[kind][0]), (fc, PARAMS[kind][1])):
        parts = text.replace(":", "").split()
        pairs = zip(parts[::2], parts[1::2], strict=True)
        words = {k: int(v) if v.lstrip("-").isdigit() else v for k, v in pairs}
        assert dict(layer.notes["quantization"]) == words
    assert network.output == "fc128"
    assert network.convention == InputConvention("BGR", 0.5, (100.0,))
    assert [type(layer.op).__name__ for layer in network.layers] == [
        "Input", "Conv", "Norm", "Activation", "GlobalPool", "Flatten", "Dense",
    ]  # fmt: skip
    again = net_of(network)
    types = {m.name: m.type for m in again.layer}
    assert types["conv1"] == "ConvolutionRistretto" and types["fc128"] == "FcRistretto"
    x = images((20, 20, 3))
    model = module_of(network)
    with torch.no_grad():
        conv_out = torch.nn.functional.conv2d(
            x, *(torch.from_numpy(a) for a in numbers["conv1"]), stride=2, padding=3
        )
        mean, var, _ = (torch.from_numpy(a)[:, None, None] for a in numbers["batch1"])
        gamma, beta = (torch.from_numpy(a)[:, None, None] for a in numbers["scale1"])
        hidden = (gamma * (conv_out - mean) / (var + 1e-5).sqrt() + beta).relu().mean((2, 3))
        weight, bias = (torch.from_numpy(a) for a in numbers["fc128"])
        expected = hidden @ weight.T + bias
        assert torch.allclose(model(x), expected, atol=1e-5)


def test_a_data_layer_needs_the_shape_of_its_images() -> None:
    net = parse_prototxt(LISTING % PARAMS["dfp"])
    with pytest.raises(ModelError, match="how large"):
        network_of_net(net, {n: [] for n in ("conv1", "batch1", "scale1", "fc128")}, {})


def test_old_ways_to_say_the_input_and_newer_ways_to_round() -> None:
    pool = 'layer { name: "p" type: "Pooling" bottom: "x" top: "p" pooling_param { %s } }'
    size = "kernel_size: 3 stride: 2 pad: 1"
    for text in (
        'input: "x" input_dim: 1 input_dim: 2 input_dim: 40 input_dim: 40 ',
        'input: "x" input_shape { dim: 1 dim: 2 dim: 40 dim: 40 } ',
        'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 2 dim: 40 '
        "dim: 40 } } } ",
    ):
        for more, side in (("", 21), ("round_mode: FLOOR", 20)):
            net = parse_prototxt(text + pool % f"{size} {more}")
            found = network_of_net(net, {}, {})
            assert found.shapes[found.output] == (2, side, side)
            with torch.no_grad():
                assert module_of(found)(torch.rand(1, 2, 40, 40)).shape[2:] == (side, side)


def test_what_data_layers_say_of_their_images(caplog: pytest.LogCaptureFixture) -> None:
    text = 'layer { name: "x" type: "%s" top: "x" %s } layer { name: "p" type: "ReLU" bottom: "x" '
    text += 'top: "p" }'
    for kind, said, scale in (
        # What stood there in files of before, Caffe moves in layers of before alone.
        ("Data", "data_param { scale: 0.25 } transform_param { scale: 2 }", 2),
        ("ImageData", "image_data_param { scale: 0.5 }", 1),
        ("Data", "transform_param { scale: 0.125 }", 0.125),
    ):
        found = network_of_net(parse_prototxt(text % (kind, said)), {}, {}, input_shape=(4, 4, 1))
        assert found.convention == InputConvention("grey", scale) and not caplog.messages
    for said in ("mean_value: 1 mean_value: 2", "scale: 0", "scale: 1e-50"):
        net = parse_prototxt(text % ("Data", f"transform_param {{ {said} }}"))
        with pytest.raises(ModelError, match=r"2 means for 1 channels|the scale not 0"):
            network_of_net(net, {}, {}, input_shape=(4, 4, 1))
    net = parse_prototxt(text % ("Data", 'transform_param { mean_file: "mean.binaryproto" }'))
    network_of_net(net, {}, {}, input_shape=(4, 4, 1))
    assert "the image 'mean.binaryproto' is taken off" in caplog.messages[-1]
    before = len(caplog.messages)
    for side, more in ((4, 0), (3, 1)):  # of the input's own size it is nothing to speak of
        net = parse_prototxt(text % ("Data", f"transform_param {{ crop_size: {side} }}"))
        network_of_net(net, {}, {}, input_shape=(4, 4, 1))
        assert len(caplog.messages) == before + more
    assert "3 x 3 pixels are cut out" in caplog.messages[-1]


def test_what_a_slice_cuts_off_has_to_be_silenced() -> None:
    text = (
        'input: "x" input_dim: 1 input_dim: 2 input_dim: 8 input_dim: 8 '
        'layer { name: "s" type: "Slice" bottom: "x" top: "a" top: "b" '
        "slice_param { axis: 2 slice_point: 5 } } "
    )
    with pytest.raises(ModelError, match="no Silence takes"):
        network_of_net(parse_prototxt(text), {}, {})
    silent = 'layer { name: "q" type: "Silence" bottom: "b" }'
    network = network_of_net(parse_prototxt(text + silent), {}, {})
    x = torch.rand(1, 2, 8, 8)
    assert torch.equal(module_of(network)(x), x[:, :, :5])


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, Path]:
    model, shape = NETWORKS["plain"]
    return save_caffe(network_of(model, shape), tmp_path / "net.prototxt")


def test_files_cut_anywhere_are_refused(saved: tuple[Path, Path], tmp_path: Path) -> None:
    prototxt, caffemodel = saved
    for path, step in ((prototxt, 97), (caffemodel, 1999)):
        whole = path.read_bytes()
        cut = tmp_path / f"cut{path.suffix}"
        for length in range(0, len(whole) - 1, step):
            cut.write_bytes(whole[:length])
            pair = (cut, caffemodel) if path is prototxt else (prototxt, cut)
            with pytest.raises(BitwrightError) as refused:
                load_caffe(*pair)
            assert len(str(refused.value)) < 700


def test_files_of_another_network_are_refused(saved: tuple[Path, Path], tmp_path: Path) -> None:
    prototxt, caffemodel = saved
    other = build_model("mnist_cnn", 10, (16, 16, 1))  # the same names, another dense layer
    foreign = save_caffe(network_of(other, (16, 16, 1)), tmp_path / "other.prototxt")
    with pytest.raises(DataError, match="weights of layer 'fc1' has the shape"):
        load_caffe(prototxt, foreign[1])
    dense, shape = NETWORKS["dense"]
    strange = save_caffe(network_of(dense, shape), tmp_path / "strange.prototxt")
    with pytest.raises(DataError, match="another network"):
        load_caffe(prototxt, strange[1])
    with pytest.raises(DataError, match=r"is no text|no Caffe network"):
        load_caffe(caffemodel, caffemodel)
    with pytest.raises(DataError, match="cannot be read"):
        load_caffe(prototxt, tmp_path / "missing.caffemodel")


def test_numbers_that_are_not_finite_are_refused(saved: tuple[Path, Path]) -> None:
    net = read_caffemodel(saved[1])
    net.layer[1].blobs[0].data[3] = float("nan")
    saved[1].write_bytes(net.SerializeToString())
    with pytest.raises(DataError, match="NaN"):
        load_caffe(*saved)


def test_a_classifier_that_was_taken_off_may_stay_in_the_numbers(saved: tuple[Path, Path]) -> None:
    prototxt, caffemodel = saved
    text = prototxt.read_text()
    kept = text[: text.rindex("layer {")]  # without the last dense layer
    prototxt.write_text(kept)
    with pytest.raises(DataError, match="ignore-extra"):
        load_caffe(prototxt, caffemodel)
    network = load_caffe(prototxt, caffemodel, ignore_extra=True)
    assert network.shapes[network.output] == (32,)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (nn.ReLU6(), "relu6 has no counterpart in Caffe"),
        (nn.AvgPool2d(3, 1, 1, count_include_pad=False), "count the padding"),
        (nn.ZeroPad2d((0, 1, 0, 1)), "Pad has no counterpart"),
    ],
)
def test_what_caffe_cannot_say_is_refused_and_nothing_written(
    module: nn.Module, words: str, tmp_path: Path
) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), module).eval()
    with pytest.raises(ModelError, match=words):
        save_caffe(network_of(model, (8, 8, 3)), tmp_path / "net.prototxt")
    assert not list(tmp_path.iterdir())


def test_hostile_names_become_plain_paths() -> None:
    text = LISTING % PARAMS["dfp"]
    name = 'x\\")); import os; (\\"'
    net = parse_prototxt(text.replace('"conv1"', f'"{name}"'))
    _, numbers = listed("dfp")
    numbers[net.layer[2].name] = numbers.pop("conv1")
    model = module_of(network_of_net(net, numbers, {}, input_shape=(20, 20, 3)))
    assert "import os" not in model.code
    assert model(images((20, 20, 3))).shape == (2, 6)


def test_export_takes_the_shape_that_a_file_leaves_open(
    saved: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, (height, width, channels) = NETWORKS["plain"]
    shape = f"{height}x{width}x{channels}"
    text = saved[0].read_text()
    first = re.search(r'layer \{\s+name: "(\w+)"\s+type: "Input".*?\n\}\n', text, re.DOTALL)
    assert first
    data = f'layer {{ name: "{first[1]}" type: "Data" top: "{first[1]}" }}\n'
    saved[0].write_text(text.replace(first[0], data))
    arguments = ["export", str(saved[0]), "--format", "safetensors", "--out"]
    assert entry.run([*arguments, str(tmp_path / "no.safetensors")]) != 0
    assert "--input-shape" in capsys.readouterr().err
    out = tmp_path / "net.safetensors"
    assert entry.run([*arguments, str(out), "--input-shape", shape]) == 0
    loaded = load_model(out)
    assert loaded.input_shape == (height, width, channels)
    assert same_state(model, loaded.model)
    capsys.readouterr()
    arguments = ["export", str(tmp_path), "--out", str(tmp_path / "x.onnx")]
    assert entry.run([*arguments, "--input-shape", shape]) == 2
    assert "--input-shape" in capsys.readouterr().err


def test_a_window_beside_the_image_is_refused_before_it_is_written(tmp_path: Path) -> None:
    """Caffe makes 3 windows of 1 with stride 3 in 5 pixels, the last beside them; torch makes 2."""
    b = NetworkBuilder()
    x = b.add("data", ops.Input((1, 5, 5)))
    network = b.network("n", b.add("p", ops.Pool("max", (1, 1), (3, 3)), (x,)))
    with pytest.raises(ModelError, match="stands beside the image"):
        save_caffe(network, tmp_path / "n.prototxt")
    assert not [*tmp_path.iterdir()]


def test_an_order_of_channels_that_caffe_does_not_know_is_refused(tmp_path: Path) -> None:
    b = NetworkBuilder()
    end = b.add("act", ops.Activation("relu"), (b.add("data", ops.Input((3, 4, 4))),))
    with pytest.raises(ModelError, match="channel order 'rgb' has no counterpart"):
        save_caffe(b.network("n", end, InputConvention("rgb")), tmp_path / "n.prototxt")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("state", "rule", "built"),
    [
        ("", "include { stage: 'x' }", False),
        ("stage: 'x'", "include { stage: 'x' }", True),
        ("stage: 'x'", "include { not_stage: 'x' }", False),
        ("", "include { not_stage: 'x' }", True),
        ("", "include { max_level: -1 }", False),
        ("level: 2", "include { min_level: 2 max_level: 2 }", True),
        ("level: 1", "include { min_level: 2 }", False),
        ("", "include { phase: TRAIN } include { phase: TEST max_level: 0 }", True),
        ("level: 3", "exclude { min_level: 3 }", False),
        ("stage: 'a' stage: 'b'", "exclude { stage: 'a' stage: 'c' }", True),
    ],
)
def test_layers_are_those_of_the_nets_level_and_stages(state: str, rule: str, built: bool) -> None:
    net = parse_prototxt(
        "input: 'data' input_dim: 1 input_dim: 3 input_dim: 4 input_dim: 4 "
        f"state {{ {state} }} "
        "layer { name: 'one' type: 'ReLU' bottom: 'data' top: 'data' } "
        f"layer {{ name: 'two' type: 'TanH' bottom: 'data' top: 'data' {rule} }} "
    )
    names = [layer.name for layer in network_of_net(net, {}, {}).layers]
    assert ("two" in names) is built and "one" in names
