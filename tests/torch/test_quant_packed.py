# SPDX-License-Identifier: Apache-2.0
"""Packed quantized models: the same integers from a small file, and nothing else accepted."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn

from bitwright.base.errors import DataError, ModelError
from bitwright.explore.model_sizes import model_size
from bitwright.formats.packing import packed_size
from bitwright.interop.packed import load_packed, save_packed
from bitwright.quantize import Policy, apply

#: Every family, with the scale rules that the state alone does not determine.
WEIGHTS: dict[str, Any] = {
    "int4-learned": {"format": "int4", "scale": "learned"},
    "int4-max": "int4",
    "int3-mse": {"format": "int3", "scale": "mse"},
    "int8-po2": {"format": "int8", "power_of_two": True, "scale": "learned"},
    "bipolar": "bipolar",
    "ternary": "ternary",
    "dfp8": "dfp8",
    "fixed": "fixed<6,1>",
    "e4m3": "e4m3",
    "e4m3-study": {"format": "e4m3<finite,flush>", "scale": "const"},
    "e5m2-learned": {"format": "e5m2", "scale": "learned"},
    "e8m7": "e8m7",
    "po2": "po2_4",
    "po2-zero": "po2_5<zero>",
    "cb16": "cb16",
    "cb10-channel": {"format": "cb10", "granularity": "per_channel"},
    "cb16-group": {"format": "cb16:e4m3", "scope": "network"},
    "cb16-float": "cb16:e8m23",
    "mxfp4": "mx<e2m1,4>",
    "mxint8": "mx<fixed<8,2>,4>",
}


def policy(weight: Any, bias: str | None = None) -> Policy:
    given = {"weight": weight, "activation": "uint4"}
    if weight == WEIGHTS["cb10-channel"]:
        # Scores that are compared need one scale.
        last = {"position": "last", "role": "weight", "granularity": "per_tensor"}
        given["rules"] = [last]
    return Policy.from_dict(given if bias is None else given | {"bias": bias})


def trained(seed: int, rules: Policy) -> fx.GraphModule:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(3, 7, 3, padding=1, bias=False),
        nn.BatchNorm2d(7),
        nn.ReLU(),
        nn.Conv2d(7, 7, 3, groups=7),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(7 * 16, 5),
    )
    images = torch.rand(8, 3, 6, 6)
    converted = apply(model, rules, "train", images)
    optimizer = torch.optim.SGD(converted.parameters(), 0.05)
    for _ in range(2):
        optimizer.zero_grad()
        converted(images).square().mean().backward()
        optimizer.step()
    return converted.eval()


@pytest.mark.parametrize("kind", WEIGHTS)
def test_a_packed_model_computes_the_same(tmp_path: Path, kind: str) -> None:
    rules = policy(WEIGHTS[kind], "dfp12" if kind in ("dfp8", "e4m3") else None)
    model, other = trained(1, rules), trained(2, rules)
    report = save_packed(tmp_path / "m.bwq", model)
    assert (tmp_path / "m.bwq").stat().st_size == report.total
    load_packed(tmp_path / "m.bwq", other)
    images = torch.rand(4, 3, 6, 6)
    with torch.no_grad():
        assert torch.equal(model(images), other(images))
    if kind not in ("e8m7", "cb16-float"):  # these are simulated only
        one, two = apply(model, rules, "freeze"), apply(other, rules, "freeze")
        state = two.state_dict()
        assert all(torch.equal(value, state[key]) for key, value in one.state_dict().items())
        assert torch.equal(one.levels(images), two.levels(images))
    again = save_packed(tmp_path / "again.bwq", other)
    assert (again.codes, again.tables) == (report.codes, report.tables)


@pytest.mark.parametrize("bias", [None, "e5m7", "dfp16"])
@pytest.mark.parametrize("kind", [*WEIGHTS, "e5m7", "e5m12"])
def test_the_file_has_the_size_that_is_counted(tmp_path: Path, kind: str, bias: str | None) -> None:
    """To the bit: what is not counted are the header, filled-up bytes, and activations."""
    model = trained(1, policy(WEIGHTS.get(kind, kind), bias))
    report = save_packed(tmp_path / "m.bwq", model)
    size = model_size(model, sample_shape=(3, 6, 6))
    assert report.parameter_bits == size.parameter_bits
    coded = [e for e in size.entries if e.role == "weight" or (e.role == "bias" and bias)]
    if max(entry.bits for entry in coded) <= 16:
        assert report.codes == sum(packed_size(entry.count, entry.bits) for entry in coded)
        assert report.padding < 8 * len(coded)
    assert 8 * report.tables == size.part("table")
    assert 8 * report.exponents == size.part("exponents")
    assert 8 * report.scales == sum(entry.scales for entry in coded)
    assert report.features == 4 * 3


def test_a_learned_power_of_two_takes_one_byte(tmp_path: Path) -> None:
    """What was learned of it below its rounding is forgotten, as the weights' own digits are."""
    rules = policy(WEIGHTS["int8-po2"])
    model, other = trained(1, rules), trained(2, rules)
    assert save_packed(tmp_path / "m.bwq", model).scales == 7 + 7 + 1
    load_packed(tmp_path / "m.bwq", other)
    for mine, back in ((m.get_submodule("0").weight_quantizer.scale for m in (model, other)),):
        assert torch.equal(back, torch.exp2(torch.log2(back).round()))
        assert ((mine / back).log2().abs() <= 0.5).all()


def test_fixed_levels_survive(tmp_path: Path) -> None:
    rules = policy("int4")
    model, other = trained(1, rules), trained(2, rules)
    quantizer = model.get_submodule("0").weight_quantizer
    wanted = torch.randint(-7, 8, (7, 3, 3, 3))
    quantizer.fix_levels(wanted, torch.linspace(0.1, 0.3, 7, dtype=torch.float64))
    save_packed(tmp_path / "m.bwq", model)
    load_packed(tmp_path / "m.bwq", other)
    levels, unit = other.get_submodule("0").weight_quantizer.levels(other.get_submodule("0").weight)
    assert torch.equal(levels, wanted.double())
    assert torch.equal(unit, quantizer.fixed_unit)


def broken(path: Path, change: Any) -> Path:
    """The file with its entries changed, and a checksum that is right."""
    content = path.read_bytes()
    length = int.from_bytes(content[4:8], "little")
    entries = json.loads(content[8 : 8 + length])
    change(entries)
    header = json.dumps(entries).encode()
    body = content[:4] + len(header).to_bytes(4, "little") + header + content[8 + length : -4]
    other = path.with_name("broken.bwq")
    other.write_bytes(body + zlib.crc32(body).to_bytes(4, "little"))
    return other


def _counted_twice(entries: list[dict[str, Any]]) -> None:
    entries.append(next(entry for entry in entries if "count" in entry))


def test_files_of_other_models_and_broken_ones(tmp_path: Path) -> None:
    path = tmp_path / "m.bwq"
    model = trained(1, policy(WEIGHTS["cb16"]))
    save_packed(path, model)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    cases = [
        (lambda e: e.pop(0), DataError, "holds no cb16 codes"),
        (lambda e: e[0].update(name="7.weight"), ModelError, "another model or policy: 7.weight"),
        (lambda e: e[-1].update(name="x"), ModelError, "another model or policy"),
        (lambda e: e[0].update(shape=[7, 3, 3, 1]), ModelError, "shape"),
        (lambda e: e[0]["parts"].pop(), DataError, "parts"),
        (lambda e: e[0]["parts"].insert(0, -1), DataError, "no parts"),
        (lambda e: e[0].update(parts=[4, 31, 96]), DataError, "31 bytes for 16 codes of 16 bits"),
        (lambda e: e[0].update(scale="float64"), DataError, "4 bytes of float64 scales"),
        (lambda e: e[0].update(scale="one"), DataError, "4 bytes of scales that are said to be 1"),
        (lambda e: e.append(dict(e[-1], parts=[0])), DataError, "few or too many|is there twice"),
        (lambda e: e.insert(1, e[0] | {"parts": [0, 0, 0]}), DataError, "0 bytes|is there twice"),
        (_counted_twice, DataError, "is there twice"),
    ]
    for change, error, message in cases:
        with pytest.raises(error, match=message):
            load_packed(broken(path, change), model)
    with pytest.raises(ModelError, match=r"holds cb16 weights, the policy has int3n?"):
        load_packed(path, trained(1, policy("int3")))
    whole = path.read_bytes()
    for cut in (b"", whole[:3], whole[:100], whole[:-100], b"PK" + whole[2:]):
        path.write_bytes(cut)
        with pytest.raises(DataError, match=r"no packed model|not whole"):
            load_packed(path, model)
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 4
    path.write_bytes(bytes(flipped))
    with pytest.raises(DataError, match="checksum"):
        load_packed(path, model)
    with pytest.raises(DataError, match="cannot be read"):
        load_packed(tmp_path / "absent.bwq", model)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_codes_and_scale_of_a_file_are_what_counts(tmp_path: Path) -> None:
    """With another scale than the policy's its weights were those of neither."""
    rules = policy({"format": "int4", "scale": "const", "value": 2.0**-6})
    model, path = trained(1, rules), tmp_path / "m.bwq"
    save_packed(path, model)
    content = path.read_bytes()
    length = int.from_bytes(content[4:8], "little")
    head, body = json.loads(content[8 : 8 + length]), bytearray(content[8 + length : -4])
    assert head[0]["pinned"] is False
    body[:4] = struct.pack("<f", 0.02)
    text = json.dumps(head).encode()
    changed = content[:4] + len(text).to_bytes(4, "little") + text + body
    path.write_bytes(changed + zlib.crc32(changed).to_bytes(4, "little"))
    other = trained(2, rules)
    load_packed(path, other)
    name = head[0]["name"].removesuffix(".weight")
    own, read = (m.get_submodule(name) for m in (model, other))
    levels, unit = own.weight_quantizer.levels(own.weight)
    again, step = read.weight_quantizer.levels(read.weight)
    assert torch.equal(again.double(), levels.double())
    assert float(unit.max()) == 2.0**-6 and float(step.max()) == pytest.approx(0.02)


@pytest.mark.parametrize("rounding", ["floor", "ceil", "half_up"])
@pytest.mark.parametrize("scale", ["learned", "const", "minmax", "interval"])
def test_every_rounding_comes_back(rounding: str, scale: str, tmp_path: Path) -> None:
    """A level times its unit, divided by the unit, may be just below the level: rounded down, it
    was another network.
    """
    weight = {"format": "int4", "scale": scale, "rounding": rounding}
    rules = policy(weight | ({"value": 0.0137} if scale == "const" else {}))
    images = torch.rand(4, 3, 6, 6)
    for seed in range(4):
        model, other = trained(seed, rules), trained(9, rules)
        save_packed(tmp_path / "m.bwq", model)
        load_packed(tmp_path / "m.bwq", other)
        assert torch.equal(other(images), model(images))


def test_weights_that_are_not_finite_are_not_packed(tmp_path: Path) -> None:
    model = trained(1, policy("int4"))
    with torch.no_grad():
        model.get_submodule("0").weight[0, 0, 0, 0] = float("nan")
    with pytest.raises(ModelError, match="NaN"):
        save_packed(tmp_path / "m.bwq", model)
    assert not (tmp_path / "m.bwq").exists()
