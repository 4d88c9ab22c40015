# SPDX-License-Identifier: Apache-2.0
"""dlib's face recognition network in torch, with the published weights: a teacher of embeddings.

The network is the one that dlib publishes as ``dlib_face_recognition_resnet_model_v1.dat`` (King,
"dlib-models", public domain; on PyPI inside ``face_recognition_models``): ResNet-34 with fewer
layers and half the filters, 5.6 million parameters, 150 x 150 RGB in, 128 values out. dlib itself
is not needed. The file is dlib's own serialisation; every tensor in it is found by the name of its
layer and checked against the size that the layer must have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from bitwright.base.errors import DataError, ModelError
from bitwright.base.files import read_bytes

SIDE = 150
EMBEDDING = 128
#: RGB means of the training images and the divisor, both part of the network.
_MEANS = (122.782, 117.001, 104.298)
_DIVISOR = 256.0
#: Filters and whether the image is halved, from the input on.
_BLOCKS = (
    *((32, False),) * 3,
    *((64, True), (64, False), (64, False), (64, False)),
    *((128, True), (128, False), (128, False)),
    *((256, True), (256, False), (256, False)),
    (256, True),
)
_STEM = (32, 7)
_CON, _AFFINE, _FC = b"\x05con_4", b"\x07affine_", b"\x04fc_2"


class Affine(nn.Module):
    """A batch norm whose statistics are folded: one factor and one offset a channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(channels))
        self.offset = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> the same shape."""
        return x * self.factor[:, None, None] + self.offset[:, None, None]


class DlibBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut without parameters.

    The shortcut of a halving block is a 2 x 2 average; where it and the convolutions disagree in
    size or channels the smaller one is filled up with zeros.
    """

    def __init__(self, inputs: int, width: int, *, halves: bool) -> None:
        super().__init__()
        stride, padding = (2, 0) if halves else (1, 1)
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding)
        self.affine1 = Affine(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1)
        self.affine2 = Affine(width)
        self.halves = halves

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) -> (N, width, H / 2 or H, W / 2 or W)."""
        out = self.affine1(self.conv1(x)).relu()
        out = self.affine2(self.conv2(out))
        if self.halves:
            x = functional.avg_pool2d(x, 2, 2)
        sizes = [max(a, b) for a, b in zip(out.shape[1:], x.shape[1:], strict=True)]
        return (_filled(out, sizes) + _filled(x, sizes)).relu()


def _filled(x: Tensor, sizes: list[int]) -> Tensor:
    channels, rows, columns = (size - own for size, own in zip(sizes, x.shape[1:], strict=True))
    return functional.pad(x, (0, columns, 0, rows, 0, channels))


class DlibFaceNet(nn.Module):
    """Takes (N, 3, 150, 150) RGB in [0, 1], gives (N, 128) descriptors."""

    means: Tensor

    def __init__(self) -> None:
        super().__init__()
        width, kernel = _STEM
        self.conv = nn.Conv2d(3, width, kernel, 2)
        self.affine = Affine(width)
        self.pool = nn.MaxPool2d(3, 2)
        blocks = []
        for filters, halves in _BLOCKS:
            blocks.append(DlibBlock(width, filters, halves=halves))
            width = filters
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(width, EMBEDDING, bias=False)
        self.register_buffer("means", torch.tensor(_MEANS).view(3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Same person below a Euclidean distance of about 0.6, says dlib's documentation."""
        if x.shape[1:] != (3, SIDE, SIDE):
            raise ModelError(
                f"images must be (N, 3, {SIDE}, {SIDE}), found {tuple(x.shape)}",
                where="dlib teacher",
            )
        x = (x * 255.0 - self.means) / _DIVISOR
        x = self.blocks(self.pool(self.affine(self.conv(x)).relu()))
        return self.fc(x.mean((2, 3)))


def load_dlib_resnet(path: str | Path) -> DlibFaceNet:
    """Read the published weights.

    Args:
        path: ``dlib_face_recognition_resnet_model_v1.dat``, unpacked.

    Raises:
        DataError: the file is missing, cut short, or another network.
    """
    hint = "it is inside the package face_recognition_models on PyPI"
    content = read_bytes(Path(path), hint=hint)
    model = DlibFaceNet()
    reader = _Reader(content, str(path))
    with torch.no_grad():
        for conv, affine in _units(model):
            filters = conv.out_channels
            values = reader.tensor(_CON, conv.weight.numel() + filters)
            conv.weight.copy_(torch.from_numpy(values[:-filters]).view_as(conv.weight))
            assert conv.bias is not None
            conv.bias.copy_(torch.from_numpy(values[-filters:]))
            both = reader.tensor(_AFFINE, 2 * filters)
            affine.factor.copy_(torch.from_numpy(both[:filters]))
            affine.offset.copy_(torch.from_numpy(both[filters:]))
        dense = reader.tensor(_FC, model.fc.weight.numel(), skipped=2)  # its outputs and inputs
        model.fc.weight.copy_(torch.from_numpy(dense).view(-1, EMBEDDING).T)
    model.eval()
    return model


def _units(model: DlibFaceNet) -> Iterator[tuple[nn.Conv2d, Affine]]:
    yield model.conv, model.affine
    for block in model.blocks:
        assert isinstance(block, DlibBlock)
        yield block.conv1, block.affine1
        yield block.conv2, block.affine2


@dataclass
class _Reader:
    """Goes through the file from layer to layer."""

    content: bytes
    where: str
    at: int = 0

    def tensor(self, name: bytes, size: int, *, skipped: int = 0) -> NDArray[np.float32]:
        """The parameters of the next layer of this name, behind some integers of its own."""
        found = self.content.find(name, self.at)
        layer = name[1:].decode()
        if found < 0:
            raise self._error(f"has no layer {layer} behind byte {self.at}")
        self.at = found + len(name)
        version, *shape = [self._integer() for _ in range(skipped + 5)][skipped:]
        if version != 2 or int(np.prod(shape)) != size:
            raise self._error(f"layer {layer} has {shape} values (version {version}), not {size}")
        end = self.at + 4 * size
        if end > len(self.content):
            raise self._error(f"ends inside layer {layer}")
        values = np.frombuffer(self.content, "<f4", size, self.at).astype(np.float32)
        self.at = end
        if not np.isfinite(values).all():
            raise self._error(f"layer {layer} holds values that are no finite numbers")
        return values

    def _integer(self) -> int:
        """dlib's packed integer: a byte with the count of bytes, then those, lowest first."""
        if self.at >= len(self.content):
            raise self._error("ends inside a number")
        count = self.content[self.at] & 0x0F
        start = self.at + 1
        self.at = start + count
        return int.from_bytes(self.content[start : self.at], "little")

    def _error(self, message: str) -> DataError:
        return DataError(
            message,
            where=self.where,
            hint="expected dlib_face_recognition_resnet_model_v1.dat, unpacked (22 466 066 bytes)",
        )
