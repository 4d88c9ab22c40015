# SPDX-License-Identifier: Apache-2.0
"""The document's kernels and better ones on an OpenCL device (spec 2.16, 5)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import DataError
from bitwright.papers.bnn_soc.device import Device
from bitwright.papers.bnn_soc.kernels import VARIANTS, stored
from bitwright.papers.bnn_soc.model import Model, Product
from bitwright.papers.bnn_soc.numbers import Floats
from bitwright.papers.bnn_soc.packing import pack32, words_of

_LANES = 16
#: Frames of a register block.
_PACKED_BLOCK, _FLOAT_BLOCK = 4, 8
#: Words that full adders take at a time.
_GROUP = 8
_FILES = {"as_printed": ("float", "-DACCUMULATOR=int")}


def vector_mult(
    device: Device, variant: str, weight: NDArray[Any], x: NDArray[Any], *, static: bool = False
) -> NDArray[Any]:
    """``weight @ x`` by one of `VARIANTS` as the document's host calls it: buffers are written, one
    work-item a row runs, the result is read back.

    Args:
        static: `popcount` built for this layer's size.

    Raises:
        DataError: sizes do not match.
        ToolError: the device cannot.
    """
    if x.shape != weight.shape[1:]:
        raise DataError(f"expected {weight.shape[1]} inputs, got {x.shape}", where=variant)
    matrix, vector = stored(variant, weight), stored(variant, x[None])
    _, result, packed = VARIANTS[variant]
    file, options = _FILES.get(variant, (variant, ""))
    if static:
        options = f"-DWORDS={matrix.shape[1]} -DINPUTS={x.size}"
    kernel = device.kernel(file, "vectorMult", options)
    out = device.empty(len(matrix) * np.dtype(result).itemsize)
    lengths = (matrix.shape[1], x.size) if packed else (x.size,)
    buffers = (device.upload(matrix), device.upload(vector), out)
    device.run(kernel, (len(matrix),), *buffers, *map(np.int32, lengths))
    return device.download(out, (len(matrix),), result)


class DeviceMatrix:
    """Weights that stay on a device, for many frames at a time.

    Args:
        weight: (rows, inputs), of signs if ``binary``, else floats.
    """

    def __init__(self, device: Device, weight: NDArray[Any], *, binary: bool) -> None:
        self.device, self.binary = device, binary
        self.rows, self.inputs = weight.shape
        self._padded = -(-self.rows // _LANES) * _LANES
        matrix = pack32(weight) if binary else np.asarray(weight, dtype=np.float32)
        short = -matrix.shape[1] % _GROUP if binary else 0
        matrix = np.pad(matrix, ((0, self._padded - self.rows), (0, short)))
        blocks = matrix.reshape(-1, _LANES, matrix.shape[1]).transpose(0, 2, 1)
        self._weight = device.upload(blocks)
        self._words = matrix.shape[1]
        options = f"-DWORDS={self._words} -DINPUTS={self.inputs} -DBLOCK={_PACKED_BLOCK}"
        name = "product" if binary else "multiply"
        self._kernel = device.kernel(
            "frames", name, options if binary else f"-DLENGTH={self.inputs}"
        )

    def product(self, x: NDArray[Any]) -> NDArray[Any]:
        """``x @ weight.T`` of (frames, inputs); integers of a binarized matrix.

        Raises:
            DataError: another number of inputs.
        """
        if x.ndim != 2 or x.shape[1] != self.inputs:
            raise DataError(f"expected {self.inputs} inputs, got {x.shape}", where="activations")
        block = _PACKED_BLOCK if self.binary else _FLOAT_BLOCK
        frames = pack32(x) if self.binary else np.asarray(x, dtype=np.float32)
        groups = -(-len(x) // block)
        short = self._words - frames.shape[1]
        frames = np.pad(frames, ((0, groups * block - len(x)), (0, short)))
        kind = np.int32 if self.binary else np.float32
        out = self.device.empty(groups * block * self._padded * 4)
        size = (self._padded // _LANES, groups)
        sent = self.device.upload(frames)
        self.device.run(self._kernel, size, self._weight, sent, out, np.int32(self._padded))
        whole = self.device.download(out, (groups * block, self._padded), kind)
        return whole[: len(x), : self.rows]


def opencl_products(device: Device, model: Model) -> Product:
    """The layers of a network, resident on a device, for `Model.sums`."""
    s = model.settings
    weights = [model.signs(i) if s.binary else model.weights[i] for i in range(s.layers)]
    layers = [DeviceMatrix(device, weight, binary=s.binary) for weight in weights]
    return lambda layer, x: layers[layer].product(x)


class DeviceNetwork:
    """A binarized network whose layers follow one another on the device: one enqueue a call.

    Raises:
        DataError: a float network, biases, or an activation without the sign of the sum.
    """

    def __init__(self, device: Device, model: Model, items: int = 64) -> None:
        s = model.settings
        if not s.binary or s.bias or s.act_forward in ("sigmoid", "hard_sigmoid"):
            raise DataError("expected a binarized network without biases", where="model")
        self.device, self.settings, self._items = device, s, items
        packed = [pack32(model.signs(layer)).ravel() for layer in range(s.layers)]
        self._weight = device.upload(np.concatenate(packed))
        self._shape = device.upload(np.array(s.sizes, dtype=np.int32))
        most = max(words_of(size) for size in s.sizes)
        options = f"-DLAYERS={s.layers} -DMOST_WORDS={most}"
        self._kernel = device.kernel("network", "network", options)

    def sums(self, images: NDArray[np.uint8]) -> Floats:
        """Sums of the output units, (N, classes)."""
        s = self.settings
        flat = images.reshape(len(images), -1)
        if flat.dtype != np.uint8 or flat.shape[1] != s.sizes[0]:
            raise DataError(f"expected images of {s.sizes[0]} bytes", where="images")
        frames = self.device.upload(pack32(s.input_values()[flat]))
        count, classes = len(flat), s.sizes[-1]
        out = self.device.empty(count * classes * 4)
        self.device.run(
            self._kernel, (count * self._items,), self._weight, self._shape, frames, out,
            group=(self._items,),
        )  # fmt: skip
        return self.device.download(out, (count, classes), np.int32).astype(np.float32)


def transposed_product(device: Device, weight: NDArray[Any], delta: Floats) -> NDArray[np.float32]:
    """Errors of the units in front of a layer, through its binary weights (``pull`` in C)."""
    rows, inputs = weight.shape
    bits = pack32(weight)
    out = device.empty(inputs * 4)
    kernel = device.kernel("training", "transposed")
    given = (device.upload(bits), device.upload(delta.astype(np.float32)), out)
    device.run(kernel, (inputs,), *given, np.int32(rows), np.int32(bits.shape[1]))
    return device.download(out, (inputs,), np.float32)


def outer_update(
    device: Device, weight: Floats, delta: Floats, x: Floats, size: np.float32
) -> tuple[Floats, NDArray[np.uint32]]:
    """New masters ``clip(weight + size * delta x^T)`` and their packed signs (``push``)."""
    rows, inputs = weight.shape
    bits = pack32(weight)
    masters, signs = device.upload(weight), device.upload(bits)
    kernel = device.kernel("training", "outer")
    given = (masters, signs, device.upload(delta), device.upload(x))
    lengths = (np.float32(size), np.int32(inputs), np.int32(bits.shape[1]))
    device.run(kernel, (bits.shape[1], rows), *given, *lengths)
    return (
        device.download(masters, weight.shape, np.float32),
        device.download(signs, bits.shape, np.uint32),
    )
