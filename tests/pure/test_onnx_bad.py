# SPDX-License-Identifier: Apache-2.0
"""Files that cannot be imported: a message that names the node and the fix, never a crash."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from tests.onnx_fuzz import broken_bytes, broken_models
from tests.onnx_models import QONNX, File

from bitwright.base.errors import BitwrightError, DataError, ModelError
from bitwright.hw import Folding, map_graph
from bitwright.interop.onnx.reader import budget, load, read_model
from bitwright.interop.onnx.reader.compare import original_outputs
from bitwright.rtl.emit import emit


def good() -> File:
    """A convolution, a batch norm, a quantizer, a classifier."""
    net = File("N", 2, 6, 4)
    net.quant(4, 0.25)
    held, data = net.const(np.ones((3, 2, 3, 3))), net.net
    net.net = held
    weight = net.quant(3, 1.0)
    net.net = data
    net.op("Conv", weight, pads=(1, 1, 1, 1))
    operands = (np.ones(3), np.zeros(3), np.zeros(3), np.ones(3))
    net.op("BatchNormalization", *(net.const(o) for o in operands))
    net.op("Relu")
    net.quant(2, 0.5, signed=0)
    net.op("Flatten")
    net.op("MatMul", net.const(np.ones((72, 4))))
    return net


def _edit(change: Callable[[object], None]) -> Callable[[], bytes]:
    def made() -> bytes:
        model = onnx.ModelProto.FromString(good().model())
        change(model.graph)
        return bytes(model.SerializeToString())

    return made


def _net(build: Callable[[File], object], *shape: int | str) -> Callable[[], bytes]:
    def made() -> bytes:
        net = File(*(shape or (1, 2, 6, 4)))
        build(net)
        return net.model()

    return made


def _cycle(graph: object) -> None:
    graph.node[2].input[0] = graph.node[4].output[0]  # type: ignore[attr-defined]


def _twice(graph: object) -> None:
    graph.node[4].output[0] = graph.node[3].output[0]  # type: ignore[attr-defined]


def _short(graph: object) -> None:
    graph.initializer[3].raw_data = graph.initializer[3].raw_data[:-4]  # type: ignore[attr-defined]


def _negative(graph: object) -> None:
    del graph.initializer[3].dims[:]  # type: ignore[attr-defined]
    graph.initializer[3].dims.extend([-3, 2, 3, 3])  # type: ignore[attr-defined]


def _huge(graph: object) -> None:
    graph.input[0].type.tensor_type.shape.dim[2].dim_value = 1 << 40  # type: ignore[attr-defined]


def _dynamic(graph: object) -> None:
    graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"  # type: ignore[attr-defined]


def _outside(graph: object) -> None:
    tensor = graph.initializer[3]  # type: ignore[attr-defined]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../etc/passwd")


def _missing(graph: object) -> None:
    graph.node[2].input[0] = "nowhere"  # type: ignore[attr-defined]


def _twin_initializers(graph: object) -> None:
    graph.initializer.append(graph.initializer[3])  # type: ignore[attr-defined]


def _second_input(graph: object) -> None:
    info = helper.make_tensor_value_info("other", TensorProto.FLOAT, (1, 2, 6, 4))
    graph.input.append(info)  # type: ignore[attr-defined]
    graph.node[0].input[1] = "other"  # type: ignore[attr-defined]


def _loop(graph: object) -> None:
    graph.node[3].attribute.append(  # type: ignore[attr-defined]
        helper.make_attribute("body", helper.make_graph([], "g", [], []))
    )


def _quantized(build: Callable[[File], object]) -> Callable[[], bytes]:
    return _net(lambda n: (n.quant(4, 0.25), build(n)))


def _doubled(net: File) -> None:
    data = net.raw("Flatten", net.net)
    name = net.const(np.ones((1, 1 << 10)))
    for _ in range(40):
        name = net.raw("Concat", name, name, axis=0)
    net.raw("MatMul", data, name)


def _times(net: File, op: str, *constants: str) -> None:
    data = net.net
    net.raw("Mul", data, net.raw(op, *constants))


def _two_scales(net: File, scale: float) -> str:
    """Weights of level 4 whose rows have a scale of 1 and, of the last, another."""
    data, scales = net.net, np.ones((48, 1))
    scales[-1] = scale
    net.net = net.const(4 * scales * np.ones((48, 4)))
    weights = net.quant(4, scales)
    net.net = data
    return weights


BAD: dict[str, tuple[Callable[[], bytes], str, str]] = {
    "cycle": (_edit(_cycle), r"node Conv_2 \(Conv\).*cycle", "loops"),
    "tensor made twice": (_edit(_twice), r"Relu_4.*exists already", "rename"),
    "missing tensor": (_edit(_missing), r"Conv_2.*reads tensor 'nowhere'", ""),
    "initializers of one name": (_edit(_twin_initializers), "two initializers are named", ""),
    "initializer too short": (_edit(_short), r"initializer c3.*bytes of data", "damaged"),
    "negative dimensions": (_edit(_negative), r"initializer c3.*impossible dimensions", ""),
    "huge dimensions": (_edit(_huge), r"input inp.*dimension of 1099511627776", ""),
    "dynamic height": (_edit(_dynamic), r"input inp.*axes \[2\].*dynamic", "fixed sizes"),
    "external data": (_edit(_outside), r"initializer c3", "load the model by its path"),
    "two inputs": (_edit(_second_input), r"2 inputs", "initializers"),
    "subgraph": (_edit(_loop), r"BatchNormalization_3.*subgraph", "static graph"),
    "rank 5": (_net(lambda n: n.quant(), 1, 2, 3, 4, 5), "rank 5", "expected"),
    "unquantized input": (
        _net(lambda n: n.op("Conv", n.const(np.ones((3, 2, 1, 1))))),
        r"Conv_0.*real numbers.*input is not quantized", "--input-type uint8",
    ),
    "unquantized activation": (
        _quantized(lambda n: (n.op("Sigmoid"), n.op("Conv", n.const(np.ones((3, 2, 1, 1)))))),
        r"Conv_2.*sigmoid before it gives no whole levels", "put a quantizer",
    ),
    "unquantized weights": (
        _quantized(lambda n: n.op("Conv", n.const(np.full((3, 2, 1, 1), 0.3)))),
        r"Conv_1.*weights are real numbers", "quantize them",
    ),
    "weights from data": (
        _quantized(lambda n: n.op("Conv", n.net)), r"Conv_1.*changes with the network", "constants",
    ),
    "weights of another layer": (
        _quantized(lambda n: n.op("Conv", n.const(np.ones((3, 5, 1, 1))))),
        r"Conv_1.*do not fit 2 channels", "",
    ),
    "window larger than the image": (
        _quantized(lambda n: n.op("Conv", n.const(np.ones((3, 2, 9, 1))))),
        r"Conv_1.*does not fit", "",
    ),
    "attention": (
        _quantized(lambda n: n.op("MatMul", n.net)), r"MatMul_1.*both change", "constant weights",
    ),
    "1-D convolution": (
        _net(lambda n: (n.quant(), n.op("Conv", n.const(np.ones((3, 2, 3))))), 1, 2, 9),
        r"Conv_1.*2-D", "height of 1",
    ),
    "unknown operator": (
        _quantized(lambda n: n.op("ConvTranspose", n.const(np.ones((2, 2, 2, 2))))),
        r"ConvTranspose_1.*no integer form", "Upsample",
    ),
    "unknown domain": (
        _quantized(lambda n: n.op("Magic", domain="com.example")), r"Magic_1.*com.example", "",
    ),
    "float quantizer": (
        _quantized(lambda n: n.op("FloatQuant", domain=QONNX)), r"floating-point format", "Quant",
    ),
    "17 bits": (_net(lambda n: n.quant(17)), r"Quant_0.*17", "fewer bits"),
    "a constant of 33 bits": (
        _quantized(lambda n: n.raw("Add", n.net, (
            setattr(n, "net", n.const(np.ones((1, 2, 1, 1)))), n.quant(33, 0.5))[1])),
        r"Quant_1.*33", "",
    ),
    "half a bit": (_net(lambda n: n.quant(2.5)), r"Quant_0.*2.5", "learned bit width"),
    "negative scale": (_net(lambda n: n.quant(4, -1.0)), r"Quant_0.*scale -1", ""),
    "two quantizers of the input": (
        _net(lambda n: n.raw("Add", n.quant(3, 0.5), (setattr(n, "net", "inp"), n.quant(4))[1])),
        r"Quant_1.*second, different quantizer", "once",
    ),
    "scales in one dense product": (
        _quantized(lambda n: (
            n.op("Mul", n.const([[[1.0]], [[0.3]]])), n.op("Conv", n.const(np.ones((1, 2, 1, 1)))),
        )),
        r"Conv_2.*one scale a channel", "per tensor",
    ),
    "bilinear": (
        _quantized(lambda n: n.op(
            "Resize", n.const(np.zeros(0)), n.const((1, 1, 2, 2)), mode="linear"
        )),
        r"Resize_1.*linear", "nearest",
    ),
    "impossible reshape": (
        _quantized(lambda n: n.op("Reshape", n.const((7, 7), np.int64))),
        r"Reshape_1.*cannot reshape", "",
    ),
    "mixed pixels": (
        _quantized(lambda n: (
            n.op("Reshape", n.const((1, 2, 4, 6), np.int64)),
            n.op("Conv", n.const(np.ones((1, 2, 1, 1)))),
        )),
        r"Conv_2.*no image", "space-to-depth",
    ),
    "huge constant": (
        _quantized(lambda n: (
            n.raw("ConstantOfShape", n.const((1 << 30, 1 << 30), np.int64)),
            n.raw("Add", "t0", "t1"),
        )),
        r"ConstantOfShape_1.*impossible shape", "",
    ),
    "a constant doubled again and again": (
        _net(lambda n: (n.quant(), _doubled(n))), r"Concat_\d+.*MiB of constants", "store",
    ),
    "large constants at a time": (
        _quantized(lambda n: (
            data := n.net,
            sides := n.const((1 << 12, 1 << 12), np.int64),
            parts := [n.raw("ConstantOfShape", sides) for _ in range(2)],
            joined := n.raw("Concat", *parts, axis=0),
            n.raw("MatMul", n.raw("Flatten", data), joined),
        )),
        r"Concat_3.*MiB of constants", "store",
    ),
    "one number that is spread": (
        _quantized(lambda n: _times(
            n, "Expand", n.const([1.0]), n.const((1 << 13, 1 << 13), np.int64)
        )),
        r"Expand_1.*512 MiB of constants", "store",
    ),
    "a row times a column": (
        _quantized(lambda n: _times(
            n, "Mul", n.const(np.ones((1 << 13, 1))), n.const(np.ones((1, 1 << 13)))
        )),
        r"Mul_1.*MiB of constants", "store",
    ),
    "a row that is gathered": (
        _quantized(lambda n: _times(
            n, "Gather", n.const(np.ones((1, 1 << 12))), n.const(np.zeros(1 << 14), np.int64)
        )),
        r"Gather_1.*512 MiB of constants", "store",
    ),
    "an image of 2^28 pixels": (
        _quantized(lambda n: n.op(
            "Resize", n.const(np.zeros(0)), n.const((1, 1, 4096, 4096)), mode="nearest",
            coordinate_transformation_mode="asymmetric", nearest_mode="floor",
        )),
        r"Resize_1.*a frame of shape \(24576, 16384, 2\)", "smaller",
    ),
    "weights beyond 63 bits": (
        _quantized(lambda n: (
            n.op("Flatten"), n.op("MatMul", n.const(np.full((48, 4), 1.5e19))),
        )),
        r"MatMul_2.*level 1.5e\+19", "",
    ),
    "a factor of one weight that would wrap to 0": (
        _quantized(lambda n: (
            n.op("Flatten"), n.op("MatMul", _two_scales(n, 2.0**62)),
        )),
        r"MatMul_\d+.*level 1.84467e\+19", "",
    ),
    "constant output": (
        _quantized(lambda n: n.raw("Neg", n.const(1.0))), "does not depend", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_message_names_node_and_fix(name: str) -> None:
    make, message, hint = BAD[name]
    with pytest.raises((ModelError, DataError), match=f"(?s){message}") as error:
        load(make())
    assert hint in (error.value.hint or "")


def test_the_good_file_is_good() -> None:
    assert [n.op for n in load(good().model()).graph][-1] == "top_k"


def test_what_is_enlarged_and_pooled_takes_no_memory() -> None:
    """No frame of the 64 million elements is ever written out."""
    body = _quantized(lambda n: (
        n.op("Resize", n.const(np.zeros(0)), n.const((1, 1, 1024, 1024)), mode="nearest",
             coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
        n.op("Relu"),
        n.op("MaxPool", kernel_shape=(2, 2), strides=(2, 2)),
    ))()  # fmt: skip
    tracemalloc.start()
    try:
        graph = load(body).graph
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert max(kind.size for kind in graph.types.values()) > 1 << 24
    assert most < 16 << 20


def test_constants_that_nothing_reads_any_more_are_let_go() -> None:
    """Each of these takes a quarter of what may be held at a time."""

    def build(net: File) -> None:
        net.quant(4, 0.25)
        for _ in range(6):
            data = net.net
            name = net.raw("ConstantOfShape", net.const((1 << 12, 1 << 9), np.int64))
            net.net = net.raw("Add", data, net.raw("ReduceSum", name, keepdims=0))
        net.quant(2, 0.5)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget, "_SPARE", 40 << 20)
        assert load(_net(build)()).graph


def _repeated(net: File, op: str, count: int, **attrs: object) -> None:
    for _ in range(count):
        net.op(op, **attrs)
    net.quant(2, 0.5, signed=0)


def _folded(net: File) -> None:
    data, name = net.net, net.raw("ConstantOfShape", net.const((100, 100), np.int64))
    for _ in range(9):
        name = net.raw("Sqrt", name)
    net.raw("Add", data, net.raw("ReduceSum", name, keepdims=0))
    net.quant(2, 0.5)


@pytest.mark.parametrize(
    ("build", "most"),
    [
        (lambda n: _repeated(n, "Erf", 20), 800_000),
        (lambda n: _repeated(n, "Tanh", 200), 800_000),
        (lambda n: _repeated(n, "Transpose", 20, perm=(0, 3, 1, 2)), 8000),
        (lambda n: _repeated(n, "MaxPool", 20, kernel_shape=(1, 1)), 0),
        (_folded, 500_000),
    ],
    ids=["erf", "tanh", "transpose", "nodes", "folding"],
)
def test_the_work_of_an_import_is_bounded(build: Callable[[File], None], most: int) -> None:
    """However it is asked for; what a node costs in any case is allowed besides."""
    body = _quantized(build)()
    nodes = len(onnx.ModelProto.FromString(body).graph.node)
    assert load(body).graph
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget, "_WORK", most + (nodes * 400_000 if most else 0))
        with pytest.raises(ModelError, match="million operations on elements") as error:
            load(body)
    assert error.value.where.startswith("node ")


def test_data_beside_the_model_are_read_if_a_node_reads_them(tmp_path: Path) -> None:
    model = onnx.ModelProto.FromString(good().model())
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(100_000_000)
    for number in range(40):
        tensor = TensorProto(name=f"w{number}", data_type=TensorProto.INT8, dims=[100_000_000])
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="w.bin")
        model.graph.initializer.append(tensor)
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString())
    tracemalloc.start()
    assert load(path).graph
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 16 << 20
    assert read_model(path).size < 101_000_000  # 40 times the same bytes


@pytest.mark.parametrize("suffix", ["\u00e7\u5c42", "a" * 400, "\x1b]0;x\x07\x1b[2J", "\nx", "*/"])
def test_names_of_any_signs_and_length(suffix: str, tmp_path: Path) -> None:
    """They become identifiers, file names and comments."""
    model = onnx.ModelProto.FromString(good().model())
    for node in model.graph.node:
        node.name = f"{node.name or node.op_type}{suffix}"
    graph = load(model.SerializeToString()).graph
    assert all(len(node.name) <= 60 and node.name.isascii() for node in graph)
    assert all(node.source.isprintable() for node in graph)
    design = emit(map_graph(graph, Folding({})), tmp_path / "rtl")
    sources = (design.parent / "lib").parent.rglob("*.*v")
    assert all(source.read_bytes().isascii() for source in sources)


@pytest.mark.parametrize("body", [b"", b"not a model", b"\x08\x01"])
def test_no_onnx_at_all(tmp_path: Path, body: bytes) -> None:
    (tmp_path / "net.onnx").write_bytes(body)
    with pytest.raises(DataError, match=r"net\.onnx: is no ONNX file"):
        load(tmp_path / "net.onnx")
    with pytest.raises(DataError, match="cannot be read"):
        load(tmp_path / "absent.onnx")


def test_every_truncation_is_refused() -> None:
    body = good().model()
    for end in range(0, len(body) - 1, 7):
        with pytest.raises(BitwrightError):
            load(body[:end])


def test_external_data_of_the_folder_is_read(tmp_path: Path) -> None:
    model = onnx.ModelProto.FromString(good().model())
    onnx.save_model(
        model, str(tmp_path / "net.onnx"), save_as_external_data=True, location="net.data",
        size_threshold=0,
    )  # fmt: skip
    imported = load(tmp_path / "net.onnx", name="network")
    assert imported.graph == load(good().model()).graph
    images = np.zeros((2, *imported.input_shape), np.float32)
    (wanted,), (run,) = (
        original_outputs(good().model(), images),
        original_outputs(tmp_path / "net.onnx", images),
    )
    assert np.array_equal(wanted, run)
    whole, longest = onnx.load(str(tmp_path / "net.onnx"), load_external_data=False), 0
    for tensor in whole.graph.initializer:  # all at the same place
        tensor.external_data[1].value = "0"
        longest = max(longest, int(tensor.external_data[2].value))
    (tmp_path / "same.onnx").write_bytes(whole.SerializeToString())
    with (tmp_path / "net.data").open("r+b") as file:
        file.truncate(longest)
    with pytest.raises(DataError, match="each tensor for itself"):
        original_outputs(tmp_path / "same.onnx", images)
    data = (tmp_path / "net.data").read_bytes()
    (tmp_path / "net.data").write_bytes(data[:10])
    with pytest.raises(DataError, match="external data"):
        load(tmp_path / "net.onnx")
    (tmp_path / "net.data").unlink()
    (tmp_path / "net.data").symlink_to("/etc/passwd")
    with pytest.raises(ModelError, match="no file in the model's folder"):
        load(tmp_path / "net.onnx")


@given(st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_damaged_bytes_never_crash(data: st.DataObject) -> None:
    _refused_or_fine(data.draw(broken_bytes(good().model())))


@given(st.data())
@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
def test_damaged_structure_never_crashes(data: st.DataObject) -> None:
    _refused_or_fine(data.draw(broken_models(good().model())))


def _refused_or_fine(body: bytes) -> None:
    try:
        load(body)
    except BitwrightError as error:
        assert error.message
