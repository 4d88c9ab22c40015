# SPDX-License-Identifier: Apache-2.0
"""Packed quantized models: the same integers from a small file, and nothing else accepted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import fx, nn

from bitwright.errors import DataError, ModelError
from bitwright.quant import Policy, apply
from bitwright.quant.packed import load_packed, pack_bits, save_packed, unpack_bits
from bitwright.train import load_checkpoint, save_checkpoint


def policy(weight: str = "int4", scale: str = "learned") -> Policy:
    return Policy.from_dict({"weight": {"format": weight, "scale": scale}, "activation": "uint4"})


def trained(seed: int, rules: Policy) -> fx.GraphModule:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(3, 7, 3, padding=1, bias=False),
        nn.BatchNorm2d(7),
        nn.ReLU(),
        nn.Conv2d(7, 7, 3, groups=7, bias=False),
        nn.BatchNorm2d(7),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(7 * 16, 5),
    )
    images = torch.rand(8, 3, 6, 6)
    converted = apply(model, rules, "train", images)
    optimizer = torch.optim.SGD(converted.parameters(), 0.05)
    for _ in range(3):
        optimizer.zero_grad()
        converted(images).square().mean().backward()
        optimizer.step()
    return converted.eval()


@pytest.mark.parametrize("weight", ["int4", "int3", "int8", "bipolar", "ternary"])
def test_a_packed_model_freezes_to_the_same_integers(tmp_path: Path, weight: str) -> None:
    rules = policy(weight)
    model, other = trained(1, rules), trained(2, rules)
    save_packed(tmp_path / "m.bwq", model)
    load_packed(tmp_path / "m.bwq", other)
    one, two = apply(model, rules, "freeze"), apply(other, rules, "freeze")
    for key, value in one.state_dict().items():
        assert torch.equal(value, two.state_dict()[key]), key
    images = torch.rand(4, 3, 6, 6)
    assert torch.equal(one.levels(images), two.levels(images))


@given(st.integers(1, 8), st.data())
def test_bits_are_packed_without_loss(bits: int, data: st.DataObject) -> None:
    codes = data.draw(st.lists(st.integers(0, 2**bits - 1), min_size=1, max_size=40))
    packed = pack_bits(torch.tensor(codes, dtype=torch.uint8), bits)
    assert len(packed) == (len(codes) * bits + 7) // 8
    assert unpack_bits(packed, bits, len(codes)).tolist() == codes
    with pytest.raises(DataError):
        unpack_bits(packed, bits, len(codes) + 8)


def test_what_cannot_be_packed_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="scale rule 'max' needs the float weight"):
        save_packed(tmp_path / "m.bwq", trained(1, policy(scale="max")))
    assert not (tmp_path / "m.bwq").exists()


def test_files_of_other_models_and_broken_ones(tmp_path: Path) -> None:
    path = tmp_path / "m.bwq"
    model = trained(1, policy())
    save_packed(path, model)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    whole = load_checkpoint(path)

    def broken(change) -> Path:  # type: ignore[no-untyped-def]
        content = load_checkpoint(path)
        change(content)
        save_checkpoint(tmp_path / "broken.bwq", content)
        return tmp_path / "broken.bwq"

    name = next(iter(whole["weights"]))
    cases = [
        (lambda c: c.update(schema=9), DataError, "version 9"),
        (lambda c: c.pop("weights"), DataError, "no 'weights'"),
        (lambda c: c["weights"].pop(name), ModelError, f"another model: layer {name}"),
        (lambda c: c["state"].popitem(), ModelError, "another model or policy"),
        (
            lambda c: c["weights"][name].update(codes=torch.zeros(3, dtype=torch.uint8)),
            DataError,
            r"\(3,\) bytes for 189 codes of 4 bits",
        ),
        (
            lambda c: c["weights"][name]["codes"].fill_(255),
            DataError,
            "levels beyond 7",
        ),
        (lambda c: c["state"].update({"1.weight": torch.zeros(3)}), ModelError, "shape"),
    ]
    for change, error, message in cases:
        with pytest.raises(error, match=message):
            load_packed(broken(change), model)
    with pytest.raises(ModelError, match=r"holds int4n? weights, the policy has int3"):
        load_packed(path, trained(1, policy("int3")))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match="no whole checkpoint"):
        load_packed(path, model)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
