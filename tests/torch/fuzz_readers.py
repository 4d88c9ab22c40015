# SPDX-License-Identifier: Apache-2.0
"""Every reader of files, each with real files of its kind, made here."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
import yaml
from PIL import Image
from tests.torch.fuzz_hardware_readers import HARDWARE_READERS
from tests.torch.fuzz_reader import Reader
from torch import nn

from bitwright.build.target import load_board, load_target
from bitwright.data.annotated import load as load_annotated
from bitwright.data.cifar import load as load_cifar
from bitwright.data.cifar import parse_binary, parse_python
from bitwright.data.decoding import PICTURES, Decoding, decode_image
from bitwright.data.detection import load_voc
from bitwright.data.folders import load as load_folder
from bitwright.data.image_database import Stored, read_database, read_list, write_database
from bitwright.data.labels import BoxLabels, LabelKind, MapLabels, ValueLabels
from bitwright.data.mnist import read_idx
from bitwright.data.preparation import fit_preparation
from bitwright.data.preprocessing import DataLevels, HostInput, NumberRule, Preprocessing
from bitwright.host.board_files import c_header
from bitwright.host.description import FILE as BOARD
from bitwright.host.description import Description, Input, Output, read_description
from bitwright.host.images import levels_of, read_image, to_levels
from bitwright.host.numbers import levels_of_numbers
from bitwright.host.protocol import Flags, Packet, Parser, Reply, reply
from bitwright.hw.folding import load_folding
from bitwright.interop.caffe.write import save_caffe
from bitwright.interop.hdf5 import read_hdf5
from bitwright.interop.keras.write import save_keras
from bitwright.interop.model_files import LoadedModel, load_model, load_weights, save_model
from bitwright.interop.network import InputConvention
from bitwright.interop.network_from_torch import network_of
from bitwright.interop.onnx.export_qonnx import export_qonnx
from bitwright.interop.onnx.reader import load as load_onnx
from bitwright.interop.packed_model import load_packed_model, save_packed_model
from bitwright.ir import INTEGER, load_graph, random_feeds, save_graph
from bitwright.low_precision.costs.devices import load_device
from bitwright.models import ModelSpec, build_model
from bitwright.papers.faces.images import read_landmarks
from bitwright.papers.faces.pairs import parse_pairs
from bitwright.pipeline.designs.folder import Design, DesignSettings, open_design
from bitwright.pipeline.import_network import integer_graph
from bitwright.pipeline.recipe import load_recipe
from bitwright.pipeline.recipe_hardware import HardwareSection
from bitwright.pipeline.recipe_yaml import load_value
from bitwright.pipeline.run_files import read_record
from bitwright.quantize import Policy, apply
from bitwright.sim.spec import Port, load_design
from bitwright.train.checkpoint import load_checkpoint, save_checkpoint
from bitwright.train.records import read_metrics
from bitwright.train.teacher_outputs import TeacherOutputs, read_outputs, write_outputs

SHAPE = (8, 8, 1)


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(4, 3),
    ).eval()  # fmt: skip


def _quantized() -> LoadedModel:
    spec = ModelSpec(name="digits_cnn", options={"widths": [2, 3]})
    quant = {"weight": "int3", "activation": "uint4", "input": "uint4"}
    images = torch.rand(8, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    observed = apply(build_model(spec, 10, SHAPE), Policy.from_dict(quant), "calibrate", images)
    with torch.no_grad():
        observed.eval()(images)
    model = apply(observed, Policy.from_dict(quant), "train").eval()
    return LoadedModel(model, SHAPE, InputConvention(), None, spec, quant, 10)


def _saved(kind: str, name: str, folder: Path) -> Path:
    return save_model(_network(), kind, folder / name, SHAPE)[0]


def _zoo_tensors(folder: Path) -> Path:
    spec = ModelSpec(name="mlp", options={"widths": [4]})
    model, path = build_model(spec, 3, SHAPE), folder / "zoo.safetensors"
    return save_model(model, "safetensors", path, SHAPE, spec=spec)[0]


def _weights(folder: Path) -> Path:
    torch.save(_network().state_dict(), folder / "net.pt")
    return folder / "net.pt"


def _old_weights(folder: Path) -> Path:
    path = folder / "old.pt"
    torch.save(_network().state_dict(), path, _use_new_zipfile_serialization=False)
    return path


def _read_weights(path: Path) -> object:
    return load_weights(_network(), path, SHAPE)


def _packed(folder: Path) -> Path:
    save_packed_model(folder / "net.bwq", _quantized())
    return folder / "net.bwq"


def _graph(folder: Path) -> Path:
    save_graph(integer_graph(_quantized()), folder / "net.bwg")
    return folder / "net.bwg"


def _design_folder(folder: Path) -> Path:
    graph = integer_graph(_quantized())
    settings = DesignSettings(hardware=HardwareSection(target="ecp5-25k", fill=0.5))
    Design(folder, graph, settings, random_feeds(graph, 2, np.random.default_rng(0))).save()
    return folder


def _onnx(folder: Path) -> Path:
    export_qonnx(integer_graph(_quantized()), folder / "net.onnx")
    return folder / "net.onnx"


def _float_onnx(folder: Path) -> Path:
    """A convolution, a ReLU and a dense layer."""
    from onnx import helper, numpy_helper

    shapes = {"w": (2, 1, 3, 3), "b": (2,), "d": (72, 3)}
    numbers = [
        numpy_helper.from_array(np.full(shape, 0.1, np.float32), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], strides=[1, 1], pads=[0, 0, 0, 0]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Flatten", ["r"], ["f"], axis=1),
        helper.make_node("Gemm", ["f", "d"], ["y"], alpha=1.0),
    ]
    ends = [helper.make_tensor_value_info("x", 1, (1, 1, 8, 8))]
    ends += [helper.make_tensor_value_info("y", 1, (1, 3))]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], numbers)
    (folder / "net.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    return folder / "net.onnx"


def _caffe(place: int, folder: Path) -> Path:
    return save_caffe(network_of(_network(), SHAPE), folder / "net.prototxt")[place]


def _read_caffe(path: Path) -> object:
    return load_model(path.with_suffix(".prototxt"))


def _keras(name: str, folder: Path) -> Path:
    return save_keras(network_of(_network(), SHAPE), folder / name)


def _hdf5(folder: Path) -> Path:
    with h5py.File(folder / "x.h5", "w") as file:
        file["group/numbers"] = np.arange(12.0)
        file.attrs["names"] = ["a", "b"]
    return folder / "x.h5"


def _checkpoint(folder: Path) -> Path:
    save_checkpoint(folder / "c.pt", {"model": _network().state_dict(), "losses": [1.0, 2.0]})
    return folder / "c.pt"


def _outputs(folder: Path) -> Path:
    scores = torch.rand(4, 3)
    write_outputs(folder / "o.pt", TeacherOutputs(scores, torch.arange(4), "data", "teacher"))
    return folder / "o.pt"


def _pixels() -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(0).integers(0, 256, (12, 10, 3), dtype=np.uint8)


def _picture(kind: str, folder: Path) -> Path:
    path = folder / f"0.{kind.lower()}"
    Image.fromarray(_pixels()).save(path, kind)
    return path


def _read_picture(path: Path) -> object:
    return decode_image(path.read_bytes(), Decoding(size=(8, 8)), str(path))


def _idx(name: str, folder: Path) -> Path:
    body = bytes([0, 0, 8, 3, 0, 0, 0, 4, 0, 0, 0, 5, 0, 0, 0, 6]) + bytes(range(120))
    (folder / name).write_bytes(gzip.compress(body) if name.endswith(".gz") else body)
    return folder / name


def _cifar_rows() -> bytes:
    return np.random.default_rng(0).integers(0, 10, (4, 3073), dtype=np.uint8).tobytes()


def _cifar_binary(folder: Path) -> Path:
    (folder / "b.bin").write_bytes(_cifar_rows())
    return folder / "b.bin"


def _cifar_python(folder: Path) -> Path:
    rows = np.frombuffer(_cifar_rows(), np.uint8).reshape(4, -1)
    pixels, labels = rows[:, 1:].tobytes(), b"".join(b"K" + bytes([n]) for n in rows[:, 0])
    body = b"\x80\x02}(U\x04dataT" + len(pixels).to_bytes(4, "little") + pixels
    (folder / "b.pickle").write_bytes(body + b"U\x06labels](" + labels + b"eu.")
    return folder / "b.pickle"


def _cifar_archive(folder: Path) -> Path:
    names = [*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"]
    with tarfile.open(folder / "cifar.tar.gz", "w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(_cifar_rows())
            archive.addfile(member, io.BytesIO(_cifar_rows()))
    return folder / "cifar.tar.gz"


def _nothing(*_: object) -> None:
    pass


def _read_cifar(path: Path) -> object:
    return load_cifar(path, name="c", validation=0.2, seed=0, progress=_nothing)


def _images(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "images.zip", "w") as archive:
        for label in "ab":
            for number in range(6):
                body = io.BytesIO()
                Image.fromarray(np.roll(_pixels(), number)).save(body, "PNG")
                archive.writestr(f"{label}/{number}.png", body.getvalue())
    return folder / "images.zip"


def _read_images(path: Path) -> object:
    shares = {"validation": 0.2, "test": 0.2}
    return load_folder(path, Decoding(size=(8, 8)), name="i", seed=0, **shares)


def _voc(folder: Path) -> Path:
    box = "<bndbox><xmin>2</xmin><ymin>2</ymin><xmax>7</xmax><ymax>9</ymax></bndbox>"
    size = "<size><width>10</width><height>12</height><depth>3</depth></size>"
    with zipfile.ZipFile(folder / "voc.zip", "w") as archive:
        for number in range(3):
            body = io.BytesIO()
            Image.fromarray(_pixels()).save(body, "PNG")
            archive.writestr(f"images/{number}.png", body.getvalue())
            text = f"<annotation><filename>{number}.png</filename>{size}<object><name>r</name>"
            archive.writestr(f"annotations/{number}.xml", f"{text}{box}</object></annotation>")
    return folder / "voc.zip"


def _database(folder: Path) -> Path:
    images = ((part, f"{n}.png", n) for part in ("TRAIN", "TEST") for n in range(4))
    stored = ((part, Stored(key, np.roll(_pixels(), label), label)) for part, key, label in images)
    write_database(folder / "images.db", stored)
    return folder / "images.db"


def _text(name: str, text: str, folder: Path) -> Path:
    (folder / name).write_text(text)
    return folder / name


def _as_text(parse: Callable[[str, str], object], path: Path) -> object:
    try:
        return parse(path.read_text(), str(path))
    except UnicodeDecodeError:
        return None


def _of_package(place: str, folder: Path) -> Path:
    import bitwright

    source = Path(bitwright.__file__).parent / place
    (folder / source.name).write_bytes(source.read_bytes())
    return folder / source.name


RECIPE = {
    "name": "tiny", "description": "a text", "data": "digits",
    "model": {"name": "digits_cnn", "options": {"widths": [2, 3]}},
    "quant": {"input": "uint4", "weight": "int3", "activation": "uint2",
              "rules": [{"role": "weight", "layers": "conv.*", "format": "int8"}]},
    "train": {"float": {"epochs": 3, "batch_size": 32, "lr": 0.01}, "quantized": {"epochs": 2}},
    "hardware": {"target": "ecp5-25k", "target_fps": 50_000}, "simulate": {"images": 12},
}  # fmt: skip
METRICS = (
    '{"epoch": 1, "lr": 0.1, "train_loss": 1.5, "train_accuracy": 0.5, "validation_loss": 1.25, '
    '"validation_accuracy": 0.5, "seconds": 2.0}\n'
)
DEVICE = "low_precision/costs/devices/xeon-vnni.toml"
FOLDING = {"Defaults": {"PE": [1, ["conv"]]}, "conv1": {"PE": 2, "SIMD": 4}, "fc": {"PE": 1}}


def _design(folder: Path) -> Path:
    from tests.verilator.lib_cases import CASES

    from bitwright.rtl import module_files
    from bitwright.sim import write_module_bench

    case = next(c for c in CASES if c.module in module_files())
    write_module_bench(
        folder, case.module, case.parameters, case.inputs, case.outputs, case.memories
    )
    return folder


def _host_input(folder: Path) -> HostInput:
    """Of `_design_folder`, whose input has 8 x 8 pixels."""
    Image.fromarray(_pixels()).save(folder / "0.png")
    table = tuple(range(16)) * 16
    how = Preprocessing(size=SHAPE[:2], channels=1, levels=(table,))
    return HostInput(
        inputs="images", shape=SHAPE, format="uint4", scale=0.1, rounding="half_even",
        data=DataLevels(type="uint8", scale=1 / 255), preprocessing=how,
        preparation=NumberRule(**fit_preparation(np.arange(8.0).reshape(2, 2, 2), 4).to_json()),
        classes=tuple(map(str, range(10))),
    )  # fmt: skip


def _host_file(folder: Path) -> Path:
    _design_folder(folder)
    (folder / "input.json").write_text(_host_input(folder).model_dump_json(indent=1))
    return folder


def _read_host_file(folder: Path) -> object:
    """As `board` and `implement` use it: with what else is known of the design."""
    given = open_design(folder).host
    assert given is not None
    levels_of_numbers(np.zeros((1, *SHAPE)), given)
    how = given.preprocessing
    return how and to_levels(read_image(folder / "0.png", how), how)


def _board(folder: Path) -> Path:
    frame, answer = 64, 10
    ports = [
        Port(name=name, width=8, lane_bits=bits, lanes=1, beats=beats)
        for name, bits, beats in (("x", 4, frame), ("y", 8, answer))
    ]
    given = _host_input(folder)
    description = Description(
        protocol=1, name="toy", digest="0123456789abcdef", clock_mhz=100, baud=3e6,
        buffer_bytes=2048, chunk=10, input=Input(port=ports[0], shape=SHAPE, scale=(0.1,)),
        outputs=(Output(name="scores", port=ports[1], shape=(answer,)),),
        preprocessing=given.preprocessing, classes=given.classes,
    )  # fmt: skip
    (folder / BOARD).write_text(description.to_json())
    return folder


def _read_board(folder: Path) -> object:
    """All that a host does with it."""
    found = read_description(folder / BOARD)
    found.hello().payload(), c_header(found)
    if found.preprocessing is not None:
        found.input.pack(levels_of([folder / "0.png"], found))
    return found.unpack([bytes(found.answer_bytes)])


def _board_bytes(folder: Path) -> Path:
    said = (b"", bytes(10), bytes(range(10)))
    packets = [Packet(Reply.ANSWER, 1, n, 64, 64, n, 0, 0, Flags.OPEN, 9, s) for n, s in
               enumerate(said)]  # fmt: skip
    (folder / "said").write_bytes(b"".join(map(reply, packets)))
    return folder / "said"


def _read_board_bytes(path: Path) -> object:
    parser = Parser(10)
    return [*parser.feed(path.read_bytes()), *parser.hurry()]


def _annotated(kind: str, folder: Path) -> Path:
    """Images with boxes, maps or values beside them, in a zip file."""
    mask = io.BytesIO()
    Image.fromarray(_pixels()[:, :, 0] % 3).save(mask, "PNG")
    lines = {
        "boxes": ["file,class,xmin,ymin,xmax,ymax", *(f"images/{n}.png,a,1,1,5,6" for n in "012")],
        "values": ["file,angle,depth", *(f"images/{n}.png,0.5,{n}" for n in "012")],
    }
    with zipfile.ZipFile(folder / "all.zip", "w") as archive:
        for number in range(3):
            body = io.BytesIO()
            Image.fromarray(_pixels()).save(body, "PNG")
            archive.writestr(f"images/{number}.png", body.getvalue())
            if kind == "maps":
                archive.writestr(f"masks/{number}.png", mask.getvalue())
        if kind in lines:
            archive.writestr(f"{kind}.csv", "\n".join(lines[kind]))
    return folder / "all.zip"


def _read_annotated(kind: LabelKind, path: Path) -> object:
    shares = {"validation": 0.3, "test": 0.3}
    return load_annotated(path, Decoding(size=(8, 8)), kind, name="a", seed=0, **shares)


def _record(folder: Path) -> Path:
    fields = {
        "schema": 1, "name": "train", "key": "00", "inputs": {"a": "1"},
        "artefacts": {"x": [3, "ff"]}, "seconds": 1.5, "parts": {"p": "q"},
    }  # fmt: skip
    (folder / "step.json").write_text(json.dumps(fields))
    return folder


READERS = (
    Reader("safetensors", partial(_saved, "safetensors", "net.safetensors"), load_model),
    Reader("zoo", _zoo_tensors, partial(load_model, classes=3)),
    Reader("pt", _weights, _read_weights),
    Reader("pt before torch 1.6", _old_weights, _read_weights),
    Reader("bwq", _packed, load_packed_model, 0.05),
    Reader("bwg", _graph, partial(load_graph, dialects={"integer": INTEGER})),
    Reader("onnx", _onnx, load_onnx),
    Reader("float onnx", _float_onnx, load_model),
    Reader("prototxt", partial(_caffe, 0), _read_caffe),
    Reader("caffemodel", partial(_caffe, 1), _read_caffe),
    Reader("keras h5", partial(_keras, "net.h5"), load_model, 0.008),
    Reader("keras", partial(_keras, "net.keras"), load_model, 0.008),
    Reader("hdf5", _hdf5, lambda path: read_hdf5(path, str(path)), 0.008),
    Reader("checkpoint", _checkpoint, load_checkpoint),
    Reader("teacher outputs", _outputs, read_outputs),
    *(Reader(kind, partial(_picture, kind), _read_picture) for kind in PICTURES),
    Reader("idx", partial(_idx, "x-idx3-ubyte"), read_idx),
    Reader("idx.gz", partial(_idx, "x-idx3-ubyte.gz"), read_idx),
    Reader("cifar", _cifar_binary, lambda path: parse_binary(path.read_bytes(), str(path))),
    Reader("cifar python", _cifar_python, lambda path: parse_python(path.read_bytes(), str(path))),
    Reader("cifar.tar.gz", _cifar_archive, _read_cifar, 0.3),
    Reader("images", _images, _read_images, 0.2),
    Reader("voc", _voc, load_voc, 0.3),
    Reader("image database", _database, read_database),
    Reader("recipe", partial(_text, "r.yaml", yaml.safe_dump(RECIPE)), load_recipe),
    Reader("recipe as JSON", partial(_text, "r.yaml", json.dumps(RECIPE)), load_recipe),
    Reader("yaml value", partial(_text, "v", "[1, {a: b}]"), partial(_as_text, load_value)),
    Reader("folding", partial(_text, "f.json", json.dumps(FOLDING)), load_folding),
    Reader("target", partial(_of_package, "build/targets/ecp5-25k.toml"), load_target),
    Reader("board", partial(_of_package, "build/boards/ulx3s.toml"), load_board),
    Reader("list", partial(_text, "list.txt", "a/1.png 0\nb/2.png 1\n"), read_list),
    Reader("pairs", partial(_text, "pairs.txt", "1\t2\nA\t1\t2\nB\t2\t3\nA\t1\tB\t2\nC\t1\tA\t3\n"),
           partial(_as_text, parse_pairs)),
    Reader("landmarks", partial(_text, "l.csv", "image,a,b,c,d,e,f\nA/A_1.png,1,2,3,4,5,6\n"),
           partial(_as_text, read_landmarks)),
    Reader("design", _design, load_design, place="design.json"),
    Reader("design settings", _design_folder, open_design, place="hardware.json"),
    Reader("design levels", _design_folder, open_design, place="levels.npz"),
    Reader("design input", _host_file, _read_host_file, place="input.json"),
    Reader("design graph", _host_file, _read_host_file, place="graph.bwg"),
    Reader("board description", _board, _read_board, place=BOARD),
    Reader("board's packets", _board_bytes, _read_board_bytes),
    *(
        Reader(kind.name, partial(_annotated, kind.name), partial(_read_annotated, kind), 0.3)
        for kind in (BoxLabels(), MapLabels(), ValueLabels())
    ),
    Reader("step", _record, read_record, place="step.json"),
    Reader("metrics", partial(_text, "m.jsonl", METRICS), read_metrics),
    Reader("device", partial(_of_package, DEVICE), load_device),
    *HARDWARE_READERS,
)  # fmt: skip
