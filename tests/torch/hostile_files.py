# SPDX-License-Identifier: Apache-2.0
"""A folder of files made to do harm, each named after its reader: ``READER/WHAT.ENDING``.

python -m tests.torch.hostile_files FOLDER
"""

from __future__ import annotations

import gzip
import io
import itertools
import json
import struct
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import IO

import h5py
import numpy as np
import torch
from onnx import TensorProto, helper
from PIL import Image
from tests.hostile_pictures import many_scans, wide_tile

MIB, GIB = 1 << 20, 1 << 30
COMMAND = {"name": "os:system", "options": {"command": "touch HARMED"}}


def _zeros(stream: IO[bytes], size: int) -> None:
    for _ in range(size // MIB):
        stream.write(bytes(MIB))


def _zip_of_zeros(name: str, size: int) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open(name, "w", force_zip64=True) as member:
            _zeros(member, size)
    return out.getvalue()


def _named_again(name: str, times: int) -> bytes:
    """A zip file whose directory names one member many times."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, bytes(100 * MIB))
        archive.filelist += [archive.getinfo(name)] * times
    return out.getvalue()


def _gzip_of_zeros(start: bytes, size: int) -> bytes:
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1) as stream:
        stream.write(start)
        _zeros(stream, size)
    return out.getvalue()


def _tar_of_zeros() -> bytes:
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1) as stream:
        member = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
        member.size = 8 * GIB
        stream.write(member.tobuf())
        _zeros(stream, GIB)
    return out.getvalue()


def _locked_zip(name: str) -> bytes:
    """A member that says it is encrypted, packed in a way that nobody knows."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(name, b"x" * 100)
    body = bytearray(out.getvalue())
    central = body.index(b"PK\x01\x02")
    body[6] |= 1
    body[central + 8] |= 1
    body[8:10] = body[central + 10 : central + 12] = struct.pack("<H", 97)
    return bytes(body)


def _png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(10_000_000), 9)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    )


def tensor_file(facts: object) -> bytes:
    """A safetensors file of one tensor."""
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    head = json.dumps({"__metadata__": {"bitwright": json.dumps(facts)}, "w": entry}).encode()
    return struct.pack("<Q", len(head)) + head + bytes(4)


def packed_file(head: object, parts: bytes = b"") -> bytes:
    """A packed model with this header."""
    text = json.dumps(head).encode()
    body = b"BWQ2" + struct.pack("<I", len(text)) + text + parts
    return body + struct.pack("<I", zlib.crc32(body))


def _torch(value: object) -> bytes:
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


def _doubled() -> object:
    value: object = [0.0]
    for _ in range(60):
        value = [value, value]
    return value


class _Runs:
    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        import os

        return os.system, ("touch HARMED",)


def _hdf5(fill: Callable[[h5py.File], None]) -> bytes:
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        fill(file)
    return out.getvalue()


def _chunk_of_gigabytes(file: h5py.File) -> None:
    made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    made.set_chunk((GIB // 4,))
    made.set_deflate(9)
    made.set_deflate(9)
    space = h5py.h5s.create_simple((4,), (h5py.h5s.UNLIMITED,))
    held = h5py.h5d.create(file.id, b"x", h5py.h5t.IEEE_F32LE, space, made)
    held.write_direct_chunk((0,), zlib.compress(zlib.compress(bytes(GIB), 9), 9))


def one_text_again_and_again(size: int, count: int) -> bytes:
    """An HDF5 file with a list of texts, which all are the same bytes of the file."""

    def is_collection(place: int) -> bool:
        return 0 < place and body[place : place + 4] == b"GCOL"

    def references(length: int) -> Iterator[int]:
        at = -1
        while (at := body.find(struct.pack("<I", length), at + 1)) >= 0:
            if is_collection(int.from_bytes(body[at + 4 : at + 12], "little")):
                yield at

    texts = np.array(["x" * size, *"y" * (count - 1)], object)
    body = bytearray(_hdf5(lambda file: file.attrs.update(layer_names=texts)))
    first = next(references(size))
    for at in [*references(1)]:
        body[at : at + 16] = body[first : first + 16]
    return bytes(body)


def _sets_of_zeros(file: h5py.File) -> None:
    for number in range(40):
        file.create_dataset(f"x{number}", (10**8,), "f4", chunks=(10**6,))


def _ways_without_end(file: h5py.File) -> None:
    place = file
    for _ in range(30):
        place["one"] = place["two"] = (inner := place.create_group("both"))
        place = inner


def _onnx(nodes: list[object], shape: list[int | str], constants: list[object]) -> bytes:
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [given], [made], constants)
    return bytes(helper.make_model(graph).SerializeToString())


def _long_chain() -> bytes:
    names = ["x", *(f"e{n}" for n in range(20_000)), "y"]
    nodes = [helper.make_node("Relu", [a], [b]) for a, b in itertools.pairwise(names)]
    return _onnx(nodes, [1, 1, 4, 4], [])


def _outside() -> bytes:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../../etc/passwd")
    return _onnx([helper.make_node("Add", ["x", "w"], ["y"])], [1, 4], [tensor])


def _claims() -> bytes:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1 << 20, 1 << 20])
    return _onnx([helper.make_node("MatMul", ["x", "w"], ["y"])], [1, 1 << 20], [tensor])


def _expanded() -> bytes:
    shape = helper.make_tensor("s", TensorProto.INT64, [4], [1, 4096, 4096, 4096])
    nodes = [helper.make_node("ConstantOfShape", ["s"], ["c"])]
    nodes += [helper.make_node("Add", ["x", "c"], ["y"])]
    return _onnx(nodes, [1, 1, 1, 1], [shape])


def _enlarged() -> bytes:
    """209 bytes that ask for 64 million pixels, rearranged."""
    scales = helper.make_tensor("s", TensorProto.FLOAT, [4], [1.0, 1.0, 4000.0, 4000.0])
    axes = helper.make_node("Transpose", ["r"], ["y"], perm=[0, 2, 3, 1])
    resize = helper.make_node("Resize", ["x", "", "s"], ["r"], mode="nearest")
    return _onnx([resize, axes], [1, 1, 8, 8], [scales])


def _concatenated() -> bytes:
    nodes = [helper.make_node("Concat", [f"c{n}"] * 2, [f"c{n + 1}"], axis=0) for n in range(40)]
    nodes.append(helper.make_node("MatMul", ["x", "c40"], ["y"]))
    return _onnx(nodes, [1, 64], [helper.make_tensor("c0", TensorProto.FLOAT, [1, 1], [1.0])])


def _many_constants() -> bytes:
    sides = helper.make_tensor("s", TensorProto.INT64, [2], [8000, 8000])
    names = [f"c{n}" for n in range(12)]
    nodes = [helper.make_node("ConstantOfShape", ["s"], [name]) for name in names]
    nodes.append(helper.make_node("Concat", names, ["c"], axis=1))
    nodes.append(helper.make_node("MatMul", ["x", "c"], ["y"]))
    return _onnx(nodes, [1, 8000], [sides])


def _chain(op: str, count: int, shape: list[int | str], **attrs: object) -> bytes:
    """Many nodes on pixels of 8 bits, which are scaled differently in each channel."""
    channels = int(shape[1])
    gains = np.linspace(0.9, 1.1, channels, dtype=np.float32)
    scales = [("scale", 2.0**-8), ("zero", 0.0), ("bits", 8.0)]
    constants = [
        *(helper.make_tensor(name, TensorProto.FLOAT, [], [value]) for name, value in scales),
        helper.make_tensor("gains", TensorProto.FLOAT, [channels, *[1] * (len(shape) - 2)], gains),
    ]
    quantizer = {"domain": "qonnx.custom_op.general", "signed": 0, "narrow": 0}
    operands = [name for name, _ in scales]
    nodes = [helper.make_node("Quant", ["x", *operands], ["q"], **quantizer)]
    nodes.append(helper.make_node("Mul", ["q", "gains"], ["e0"]))
    for n in range(count):
        nodes.append(helper.make_node(op, [f"e{n}"], [f"e{n + 1}"], **attrs))
    nodes.append(helper.make_node("Quant", [f"e{count}", *operands], ["y"], **quantizer))
    return _onnx(nodes, shape, constants)


def _folded(op: str) -> bytes:
    """Hundreds of powers of nine million constants."""
    nodes = [helper.make_node("ConstantOfShape", ["s"], ["c0"])]
    for n in range(500):
        nodes.append(helper.make_node(op, [f"c{n}"] * (2 if op == "Pow" else 1), [f"c{n + 1}"]))
    nodes.append(helper.make_node("MatMul", ["x", "c500"], ["y"]))
    return _onnx(nodes, [1, 3000], [helper.make_tensor("s", TensorProto.INT64, [2], [3000] * 2)])


def _mlp(widths: list[int]) -> dict[str, object]:
    model = {"name": "mlp", "options": {"widths": widths, "num_classes": 2}}
    return {"model": model, "input_shape": [4, 4, 1], "input": {}}


def _layers(*layers: tuple[str, str, dict[str, object], list[str]]) -> dict[str, object]:
    """A network without numbers, as a safetensors file describes it."""
    return {"layers": {
        "version": 1, "name": "n", "output": layers[-1][0], "input": {},
        "layers": [
            {"name": name, "op": op, "options": options, "inputs": inputs, "arrays": [],
             "notes": {}}
            for name, op, options, inputs in layers
        ],
    }}  # fmt: skip


def branches(side: int, count: int) -> dict[str, object]:
    """A network that holds so many images at a time, of (side x side x 1)."""
    names = [f"b{number}" for number in range(count)]
    return _layers(
        ("x", "Input", {"shape": [1, side, side]}, []),
        *((name, "Activation", {"function": "relu"}, ["x"]) for name in names),
        ("sum", "Add", {}, names),
        ("mean", "GlobalPool", {"mode": "mean"}, ["sum"]),
    )


def window(side: int, kernel: int) -> dict[str, object]:
    """A network that looks at windows of (kernel x kernel) of an image (side x side x 1)."""
    pool = {"mode": "max", "kernel": [kernel, kernel], "stride": [1, 1]}
    return _layers(
        ("x", "Input", {"shape": [1, side, side]}, []),
        ("pool", "Pool", pool, ["x"]),
        ("mean", "GlobalPool", {"mode": "mean"}, ["pool"]),
    )


def _zip_of(name: str, body: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(name, body)
    return out.getvalue()


def _annotated(text: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("annotations/0.xml", text)
        archive.writestr("images/0.png", _png(10, 10))
    return out.getvalue()


def _beside(files: dict[str, bytes]) -> bytes:
    """Nine images and what is said of them."""
    small = io.BytesIO()
    Image.new("L", (10, 10)).save(small, "PNG")
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for number in range(9):
            archive.writestr(f"images/{number}.png", small.getvalue())
        for name, body in files.items():
            archive.writestr(name, body)
    return out.getvalue()


def _grey(side: int) -> bytes:
    out = io.BytesIO()
    Image.new("L", (side, side)).save(out, "PNG")
    return out.getvalue()


def _loaders() -> bytes:
    """A whole board whose loader is a compiler."""
    text = resources.files("bitwright.build").joinpath("boards/ulx3s.toml").read_text()
    head, _, rest = text.partition("[loaders]")
    loaders = '[loaders]\ncc = ["-x", "c", "-E", "-o", "HARMED"]\n'
    return f"{head}{loaders}[pins]{rest.partition('[pins]')[2]}".encode()


def _entities() -> bytes:
    """XML whose entities are a thousand million times as long as the file."""
    lines = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
    text = f'<!DOCTYPE a [<!ENTITY l0 "lol">{lines}]><annotation>&l9;</annotation>'
    return _annotated(text)


_DEEP = "[" * 100_000
_BOMB = "a0: &a0 [x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 30)
)
_IDX = bytes([0, 0, 8, 3]) + struct.pack(">III", 1 << 11, 1 << 11, 1 << 11)

#: Reader and name of the file -> its content.
FILES: dict[tuple[str, str], Callable[[], bytes]] = {
    ("safetensors", "command.safetensors"): lambda: tensor_file(
        {"model": COMMAND, "input_shape": [8, 8, 1], "input": {}}
    ),
    ("safetensors", "deep.safetensors"): lambda: tensor_file(None).replace(
        b'"null"', json.dumps(_DEEP).encode()
    ),
    ("safetensors", "branches.safetensors"): lambda: tensor_file(branches(10_000, 50)),
    ("safetensors", "header.safetensors"): lambda: struct.pack("<Q", 1 << 62) + b"{}",
    ("zoo", "wide.safetensors"): lambda: tensor_file(_mlp([30_000, 30_000])),
    ("zoo", "long.safetensors"): lambda: tensor_file(_mlp([2] * 20_000)),
    ("bwq", "wide.bwq"): lambda: packed_file({"about": {
        **_mlp([30_000, 30_000]), "quant": {"weight": "int4"}, "classes": 2}, "entries": []}),
    ("bwg", "frame.bwg"): lambda: _zip_of("graph.txt", b"graph x integer\n"
        b"input x : uint4[4000,4000,100] * 0x1p+0 in [0,15]\noutput x\n"),
    ("onnx", "enlarged.onnx"): _enlarged,
    ("onnx", "doubled.onnx"): _concatenated,
    ("onnx", "many.onnx"): _many_constants,
    ("onnx", "erf.onnx"): lambda: _chain("Erf", 900, [1, 1000]),
    ("onnx", "tanh.onnx"): lambda: _chain("Tanh", 900, [1, 16384]),
    ("onnx", "transposed.onnx"): lambda: _chain(
        "Transpose", 500, [1, 1024, 64, 64], perm=[0, 2, 3, 1]),
    ("onnx", "pools.onnx"): lambda: _chain("MaxPool", 60_000, [1, 1, 2, 2], kernel_shape=[1, 1]),
    ("onnx", "powers.onnx"): lambda: _folded("Pow"),
    ("onnx", "exponentials.onnx"): lambda: _folded("Exp"),
    ("pt", "quantized.pt"): lambda: _torch(
        {"w": torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.qint8)}),
    ("target", "tcl.toml"): lambda: b'part = "x[exec touch HARMED]"',
    ("board", "pins.toml"): lambda: b'[pins]\nclk = "A1\\";\\nSYSCONFIG X"',
    ("board", "loader.toml"): _loaders,
    ("board description", "board.json"): lambda: json.dumps({
        "preprocessing": {"size": [1 << 16, 1 << 16], "channels": 1, "levels": [[0] * 256]}
    }).encode(),
    ("maps", "masks.zip"): lambda: _beside(
        dict.fromkeys((f"masks/{n}.png" for n in range(9)), _grey(8000))
    ),
    ("values", "lines.zip"): lambda: _beside({"values.csv": b"file,v\n" + b"a,1\n" * 20_000_000}),
    ("boxes", "lines.zip"): lambda: _beside(
        {"boxes.csv": b"file,class,xmin,ymin,xmax,ymax\n" + b"images/0.png,a,1,1,2,2\n" * 700_000}
    ),
    ("zoo", "large.safetensors"): lambda: tensor_file(
        {"model": {"name": "lfc"}, "input_shape": [50_000, 50_000, 3], "input": {}}
    ),
    ("bwq", "command.bwq"): lambda: packed_file({"about": {
        "model": COMMAND, "quant": {"weight": "int4"}, "input_shape": [4, 4, 1], "classes": 2,
        "input": {}}, "entries": []}),
    ("bwq", "shapes.bwq"): lambda: packed_file({"about": {
        "layers": {"version": 1, "name": "n", "output": "d", "input": {}, "layers": [
            {"name": "x", "op": "Input", "options": {"shape": [1 << 20]}, "inputs": [],
             "arrays": [], "notes": {}},
            {"name": "d", "op": "Dense", "options": {}, "inputs": ["x"], "arrays": ["weight"],
             "notes": {}}]},
        "shapes": {"d/weight": [1 << 20, 1 << 20]}, "quant": {"weight": "int4"},
        "input_shape": [1, 1, 1 << 20], "classes": 2, "input": {}}, "entries": []}),
    ("bwg", "bomb.bwg"): lambda: _zip_of_zeros("graph.txt", GIB),
    ("bwg", "array.bwg"): lambda: _zip_of_zeros(f"{'0' * 64}.npy", GIB),
    ("bwg", "locked.bwg"): lambda: _locked_zip("graph.txt"),
    ("keras", "bomb.keras"): lambda: _zip_of_zeros("config.json", GIB),
    ("keras", "locked.keras"): lambda: _locked_zip("config.json"),
    ("hdf5", "zeros.h5"): lambda: _hdf5(_sets_of_zeros),
    ("hdf5", "chunk.h5"): lambda: _hdf5(_chunk_of_gigabytes),
    ("hdf5", "texts.h5"): lambda: one_text_again_and_again(MIB, 3900),
    ("hdf5", "ways.h5"): lambda: _hdf5(_ways_without_end),
    ("onnx", "claims.onnx"): _claims,
    ("onnx", "expanded.onnx"): _expanded,
    ("onnx", "outside.onnx"): _outside,
    ("onnx", "chain.onnx"): _long_chain,
    ("prototxt", "deep.prototxt"): lambda: b"layer {" * 100_000,
    ("prototxt", "large.prototxt"): lambda: b"""
        name: "n" input: "data" input_shape { dim: 1 dim: 3 dim: 100000 dim: 100000 }
        layer { name: "c" type: "Convolution" bottom: "data" top: "c"
                convolution_param { num_output: 2000000000 kernel_size: 3 } }""",
    ("pt", "command.pt"): lambda: _torch(_Runs()),
    ("pt", "repeated.pt"): lambda: _torch({"w": torch.zeros(1).expand(1 << 20, 1 << 20)}),
    ("pt", "doubled.pt"): lambda: _torch(_doubled()),
    ("pt", "again.pt"): lambda: _named_again("archive/data.pkl", 300),
    ("bwg", "again.bwg"): lambda: _named_again(f"{'0' * 64}.npy", 300),
    ("pt", "bomb.pt"): lambda: _zip_of_zeros("archive/data.pkl", GIB),
    ("teacher outputs", "repeated.pt"): lambda: _torch({
        "schema": 1, "scores": torch.zeros(1, 1).expand(1 << 20, 1 << 20),
        "indices": torch.zeros(1).long().expand(1 << 20), "data": "d", "teacher": "t"}),
    ("PNG", "wide.png"): lambda: _png(100_000, 100_000),
    ("PNG", "large.png"): lambda: _png(14_000, 12_000),
    ("PNG", "script.png"): lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(x) run\n",
    ("JPEG", "scans.jpg"): lambda: many_scans(8192, 500),
    ("PPM", "plain.ppm"): lambda: b"P3 2200 6600 255\n" + b"0 " * 2200 * 6600 * 3,
    ("PPM", "slow.ppm"): lambda: b"P6 8192 8192 254\n" + bytes(8192 * 8192 * 3),
    ("TIFF", "tile.tif"): lambda: wide_tile(46_000),
    ("idx", "claims"): lambda: _IDX,
    ("idx.gz", "bomb.gz"): lambda: _gzip_of_zeros(_IDX, GIB),
    ("cifar.tar.gz", "bomb.tar.gz"): _tar_of_zeros,
    ("cifar python", "command.pickle"): lambda: b"cos\nsystem\n(S'touch HARMED'\ntR.",
    ("images", "bomb.zip"): lambda: _zip_of_zeros("a/0.png", GIB),
    ("images", "outside.zip"): lambda: _zip_of_zeros("../../a/0.png", MIB),
    ("images", "locked.zip"): lambda: _locked_zip("a/0.png"),
    ("voc", "entities.zip"): _entities,
    ("voc", "elements.zip"): lambda: _annotated(
        f"<annotation>{'<a/>' * 45_000_000}</annotation>"),
    ("recipe", "bomb.yaml"): _BOMB.encode,
    ("recipe", "merged.yaml"): lambda: _BOMB.replace("[x, x]", "{b: 1}").encode(),
    ("recipe", "command.yaml"): lambda: json.dumps(
        {"name": "x", "data": "digits", "model": COMMAND}
    ).encode(),
    ("recipe", "python.yaml"): lambda: b"name: !!python/object/apply:os.system ['touch HARMED']\n",
    ("recipe", "deep.yaml"): _DEEP.encode,
    ("yaml value", "bomb.txt"): lambda: b"[" + b"[" * 50_000,
    ("folding", "deep.json"): _DEEP.encode,
    ("step", "step.json"): _DEEP.encode,
    ("design", "design.json"): lambda: json.dumps(
        {"files": ["lib/x.sv;\texec\t--\ttouch HARMED"], "top": "x"}
    ).encode(),
    ("target", "deep.toml"): lambda: b"x = " + b"[" * 100_000,
    ("target", "dotted.toml"): lambda: b"a" + b".a" * 60_000 + b" = 1",
    ("target", "wide.toml"): lambda: b"clock_mhz = 0x" + b"f" * 20_000,
    ("metrics", "deep.jsonl"): _DEEP.encode,
}  # fmt: skip


def make(folder: Path) -> list[tuple[str, Path]]:
    """Write all of them; reader and file of each."""
    found = []
    for (reader, name), content in FILES.items():
        path = folder / reader.replace(" ", "_") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content())
        found.append((reader, path))
    return found


if __name__ == "__main__":
    print(f"{len(make(Path(sys.argv[1])))} files in {sys.argv[1]}")
