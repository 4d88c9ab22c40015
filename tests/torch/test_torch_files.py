# SPDX-License-Identifier: Apache-2.0
"""Files of torch.save: what they hold is what torch itself reads, and nothing else is."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.pace import within
from torch import Tensor, nn

from bitwright.base.errors import DataError
from bitwright.models.tensors import load_plain


def _network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(2, 2, bias=False))


def _trained() -> dict[str, Any]:
    net = _network()
    optimizer = torch.optim.AdamW(net.parameters(), lr=torch.tensor(0.01))
    net[2](torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}


def _shared() -> dict[str, Tensor]:
    whole = torch.arange(12.0).reshape(3, 4)
    return {"whole": whole, "row": whole[1], "turned": whole.t(), "every": whole[:, ::2]}


CONTENTS: dict[str, Any] = {
    "state": lambda: _network().state_dict(),
    "training": _trained,
    "views of one storage": _shared,
    "parameter": lambda: {"w": nn.Parameter(torch.ones(2)), "b": torch.ones(2, requires_grad=True)},
    "kinds": lambda: {
        str(kind): torch.tensor([[1, 0, 3]]).to(kind)
        for kind in (torch.float64, torch.half, torch.bfloat16, torch.int8, torch.uint8,
                     torch.int16, torch.int32, torch.int64, torch.bool)
    },
    "empty": lambda: [torch.zeros(0, 3), torch.tensor(2.5), {}, (), []],
    "values": lambda: {"a": (1, -(2**40), 2.5, "ä", None, True), 7: [[False]], "t": (1, 2),
                       "k": torch.float16, "s": torch.Size([2, 3]), "d": torch.device("cuda", 1)},
    "ordered": lambda: OrderedDict(b=1, a=2),
}  # fmt: skip


def _same(one: Any, two: Any) -> bool:
    if type(one) is not type(two):
        return False
    if isinstance(one, Tensor):
        alike = (one.dtype, one.stride(), one.requires_grad, one.storage_offset()) == (
            two.dtype, two.stride(), two.requires_grad, two.storage_offset())  # fmt: skip
        return alike and torch.equal(one, two)
    if isinstance(one, dict):
        described = getattr(one, "_metadata", None) == getattr(two, "_metadata", None)
        keys = list(one) == list(two)
        return described and keys and all(_same(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(_same, one, two))
    return bool(one == two)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("kind", CONTENTS)
def test_what_torch_reads(kind: str, zipped: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save(CONTENTS[kind](), path, _use_new_zipfile_serialization=zipped)
    found, expected = load_plain(path), torch.load(path, weights_only=True)
    assert _same(found, expected)
    if kind == "views of one storage":
        found["whole"][1, 1] = 100.0
        assert found["row"][1] == found["turned"][1, 1] == 100.0


def _global(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def _text(text: str) -> bytes:
    return b"X" + struct.pack("<I", len(text.encode())) + text.encode()


def _int(number: int) -> bytes:
    body = pickle.encode_long(number)
    return b"\x8a" + bytes([len(body)]) + body


def _tuple(*parts: bytes) -> bytes:
    return b"(" + b"".join(parts) + b"t"


def _call(function: bytes, *parts: bytes) -> bytes:
    return function + _tuple(*parts) + b"R"


def _dict(*parts: bytes) -> bytes:
    return b"}(" + b"".join(parts) + b"u"


ORDERED = _global("collections", "OrderedDict") + b")R"
REBUILD = _global("torch._utils", "_rebuild_tensor_v2")


def _storage(count: int = 4) -> bytes:
    parts = (_text("storage"), _global("torch", "FloatStorage"), _text("0"), _text("cpu"))
    return _tuple(*parts, _int(count)) + b"Q"


def _tensor(
    count: int = 4, offset: int = 0, shape: tuple[int, ...] = (4,), strides: tuple[int, ...] = (1,)
) -> bytes:
    sizes = (_tuple(*map(_int, shape)), _tuple(*map(_int, strides)))
    return _call(REBUILD, _storage(count), _int(offset), *sizes, b"\x89", ORDERED)


def _of_type(state: bytes) -> bytes:
    parts = (_storage(), _int(0), _tuple(_int(4)), _tuple(_int(1)), b"\x89", ORDERED)
    function = _global("torch._tensor", "_rebuild_from_type_v2")
    return _call(function, REBUILD, _global("torch", "Tensor"), _tuple(*parts), state)


def _bytearray(count: int) -> bytes:
    return _call(_global("builtins", "bytearray"), _int(count))


def _file(path: Path, body: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", b"\x80\x02" + body + b".")
        archive.writestr("a/version", "3\n")
        archive.writestr("a/byteorder", "little")
        archive.writestr("a/data/0", struct.pack("<4f", 1, 2, 3, 4))
    return path


def test_what_python_2_wrote(tmp_path: Path) -> None:
    """The weights that torchvision gives for networks of its first years are such files."""
    sizes = (_tuple(_int(2), _int(2)), _tuple(_int(2), _int(1)))
    tensor = _call(_global("torch._utils", "_rebuild_tensor"), _storage(), _int(0), *sizes)
    pairs = b"](](U\1a" + tensor + b"e](U\1b" + tensor + b"ee"
    path = _file(tmp_path / "a.pt", _call(_global("collections", "OrderedDict"), pairs))
    found = load_plain(path)
    assert _same(found, torch.load(path, weights_only=True)) and list(found) == ["a", "b"]
    assert found["a"].tolist() == [[1, 2], [3, 4]]


#: Pickles that were read, for up to a minute or with gigabytes, or ended in other errors.
HOSTILE: dict[str, bytes] = {
    "bytearray": _bytearray(6 * 10**9),
    "tensor": _dict(_text("w"), _call(_global("torch", "Tensor"), _int(1 << 15), _int(1 << 15))),
    "size": _call(_global("torch", "Size"), _bytearray(10**8)),
    "codec": _call(_global("_codecs", "encode"), _text("\u4e00" * 20_000), _text("punycode")),
    "keys": _dict(*(_int((2**61 - 1) * k) + b"N" for k in range(1, 30_000))),
    "attribute": _dict(_text("w"), _of_type(_dict(_text("is_floating_point"), _int(1)))),
    "get": ORDERED + _dict(_text("get"), _int(1)) + b"b",
    "class": ORDERED + _dict(_text("__class__"), _global("torch", "Tensor")) + b"b",
    "metadata": ORDERED + _dict(_text("_metadata"), _dict(_text(""), _int(1))) + b"b",
    "ordered": _call(_global("collections", "OrderedDict"), _dict(_text("a"), _int(1))),
    "opcodes": b"(" * (1 << 21),
    "integer": _int(1 << 1000),
    "longer than its record": _dict(_text("w"), _tensor(count=1 << 28, shape=(1 << 28,))),
    "beyond its storage": _dict(_text("w"), _tensor(shape=(2, 4), strides=(4, 1))),
    "behind its storage": _dict(_text("w"), _tensor(offset=1)),
    "backwards": _dict(_text("w"), _tensor(strides=(-1,))),
    "axes": _dict(_text("w"), _tensor(shape=(1,) * 5000, strides=(1,) * 5000)),
    "name": _dict(_text("w"), _global("torch", "FloatStorage")),
    "code": _call(_global("os", "system"), _text("false")),
    "cut in a mark": b"(N",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_nothing_but_tensors_and_plain_values(kind: str, tmp_path: Path) -> None:
    path = _file(tmp_path / "a.pt", HOSTILE[kind])
    with within(5):
        with pytest.raises(DataError, match=r"a\.pt: is no checkpoint of torch"):
            load_plain(path)


def test_an_older_file_holds_what_it_names(tmp_path: Path) -> None:
    path, buffer = tmp_path / "a.pt", io.BytesIO()
    torch.save({"w": torch.ones(1000)}, buffer, _use_new_zipfile_serialization=False)
    whole = buffer.getvalue()
    key = whole[whole.rindex(b"]q\0X") :].split(b"q\1a.")[0]
    (size,) = struct.unpack("<I", key[4:8])
    harms = {
        "cut": whole[:-100],
        "no storage": whole.replace(key + b"q\1a.", b"]q\0."),  # its memory was what lay there
        "other": whole.replace(key, key.replace(key[8 : 8 + size], b"7" * size)),
    }
    for harm, content in harms.items():
        path.write_bytes(content)
        assert content != whole, harm
        with pytest.raises(DataError, match="is no checkpoint of torch"):
            load_plain(path)
