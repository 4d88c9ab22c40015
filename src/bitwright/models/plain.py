# SPDX-License-Identifier: Apache-2.0
"""Plain chains: perceptrons and small CNNs.

Every factory of the zoo is plain ``torch.nn`` without any special layer and takes ``num_classes``,
``input_shape`` as (H, W, C), and options. Every classifier takes (N, C, H, W) float32 in [0, 1] and
gives (N, num_classes) scores. A layer that is followed by batch norm has no bias, every other one
has. Activations are ReLU, ReLU6, or hard tanh for signed and binary networks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from bitwright.base.errors import ModelError
from bitwright.models.common import Shape, activation_layer, check_options, too_small


class Stack:
    """Collects named layers while it follows the shape of what flows through them."""

    def __init__(self, name: str, input_shape: Shape, activation: str) -> None:
        self._name = name
        self._input_shape = input_shape
        self._activation = activation_layer(name, activation)
        self._height, self._width, self._channels = image_of(name, input_shape)
        self._layers: OrderedDict[str, nn.Module] = OrderedDict()
        self._count = {"conv": 0, "pool": 0, "dropout": 0, "fc": 0}

    def conv(
        self,
        channels: int,
        kernel: int = 3,
        padding: int = 0,
        *,
        stride: int = 1,
        norm: bool = True,
    ) -> None:
        """Convolution, batch norm or else a bias, activation."""
        number = self._next("conv")
        self._layers[f"conv{number}"] = nn.Conv2d(
            self._channels, channels, kernel, stride, padding, bias=not norm
        )
        if norm:
            self._layers[f"bn{number}"] = nn.BatchNorm2d(channels)
        self._layers[f"act{number}"] = self._activation()
        self._slide(kernel, stride, padding)
        self._channels = channels

    def pool(self, kernel: int = 2) -> None:
        """The maximum of windows of ``kernel`` x ``kernel``, two pixels apart."""
        self._layers[f"pool{self._next('pool')}"] = nn.MaxPool2d(kernel, 2)
        self._slide(kernel, 2, 0)

    def flatten(self) -> None:
        """One vector an input; a row of a table is one already."""
        if len(self._input_shape) > 1:
            self._layers["flatten"] = nn.Flatten()
        self._channels *= self._height * self._width
        self._height = self._width = 1

    def dense(self, features: int, *, norm: bool = True) -> None:
        """Matrix-vector product, batch norm or else a bias, activation."""
        number = self._next("fc")
        self._layers[f"fc{number}"] = nn.Linear(self._channels, features, bias=not norm)
        if norm:
            self._layers[f"fc_bn{number}"] = nn.BatchNorm1d(features)
        self._layers[f"fc_act{number}"] = self._activation()
        self._channels = features

    def dropout(self, share: float) -> None:
        """Zero this share of the values, in training only; nothing where the share is 0."""
        if share:
            self._layers[f"dropout{self._next('dropout')}"] = nn.Dropout(share)

    def classify(self, num_classes: int) -> nn.Sequential:
        """The last matrix-vector product, with bias; gives the finished model."""
        self._layers[f"fc{self._next('fc')}"] = nn.Linear(self._channels, num_classes)
        return nn.Sequential(self._layers)

    def _next(self, kind: str) -> int:
        self._count[kind] += 1
        return self._count[kind]

    def _slide(self, kernel: int, stride: int, padding: int) -> None:
        """The size of the image behind a window that slides over it."""
        height, width = (
            (size + 2 * padding - kernel) // stride + 1 for size in (self._height, self._width)
        )
        if height < 1 or width < 1:
            raise too_small(self._name, self._input_shape, next(reversed(self._layers)))
        self._height, self._width = height, width


def image_of(name: str, shape: Sequence[int]) -> Shape:
    """(H, W, C) of an image, or of a row of a table, (F,), as a perceptron sees it.

    Raises:
        ModelError: it is the shape of a signal, (L, C).
    """
    match tuple(shape):
        case (height, width, channels):
            return height, width, channels
        case (features,):
            return 1, 1, features
    raise ModelError(
        f"takes images or rows of a table, not signals {tuple(shape)} (length, channels)",
        where=name,
        hint="signal_cnn takes signals",
    )


def mlp(
    num_classes: int,
    input_shape: Shape,
    *,
    widths: Sequence[int] = (64, 64),
    activation: str = "relu",
    batch_norm: bool = True,
) -> nn.Sequential:
    """Perceptron: hidden layers of these widths, with batch norm or with biases; the classifier."""
    check_options("mlp", widths=widths, batch_norm=batch_norm)
    stack = Stack("mlp", input_shape, activation)
    stack.flatten()
    for width in widths:
        stack.dense(width, norm=batch_norm)
    return stack.classify(num_classes)


def signal_cnn(
    num_classes: int,
    input_shape: Sequence[int],
    *,
    widths: Sequence[int] = (16, 24, 32),
    kernel: int = 9,
    stride: int = 2,
    activation: str = "relu",
) -> nn.Sequential:
    """Convolutions along time with batch norm, the first with a stride, each with a pool of 2; the
    mean over time, then the classifier.

    Args:
        input_shape: (L, C) of a signal.
        kernel: samples of the first window; those behind have 3.
        stride: of the first convolution.
    """
    check_options("signal_cnn", widths=widths, kernel=kernel, stride=stride)
    if len(input_shape) != 2:
        raise ModelError(
            f"takes signals (length, channels), not inputs {tuple(input_shape)}", where="signal_cnn"
        )
    layer = activation_layer("signal_cnn", activation)
    length, channels = input_shape
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, width in enumerate(widths, 1):
        size, step = (kernel, stride) if number == 1 else (3, 1)
        layers[f"conv{number}"] = nn.Conv1d(channels, width, size, step, size // 2, bias=False)
        layers[f"bn{number}"] = nn.BatchNorm1d(width)
        layers[f"act{number}"] = layer()
        layers[f"pool{number}"] = nn.MaxPool1d(2)
        channels, length = width, ((length + 2 * (size // 2) - size) // step + 1) // 2
        if length < 1:
            raise too_small("signal_cnn", input_shape, f"pool{number}")
    layers["mean"] = nn.AdaptiveAvgPool1d(1)
    layers["flatten"] = nn.Flatten()
    layers["fc"] = nn.Linear(channels, num_classes)
    return nn.Sequential(layers)


def plain_cnn(
    num_classes: int,
    input_shape: Shape,
    *,
    widths: Sequence[int] = (8, 16),
    activation: str = "relu",
) -> nn.Sequential:
    """3 x 3 convolutions that keep the size, each with a 2 x 2 pool, then the classifier.

    With the default widths and 8 x 8 grey digits: 1 864 weights, 23 680 multiplications an image.
    """
    check_options("plain_cnn", widths=widths)
    stack = Stack("plain_cnn", input_shape, activation)
    for width in widths:
        stack.conv(width, padding=1)
        stack.pool()
    stack.flatten()
    return stack.classify(num_classes)


def lenet(
    num_classes: int,
    input_shape: Shape,
    *,
    widths: Sequence[int] = (6, 16, 120, 84),
    activation: str = "relu",
) -> nn.Sequential:
    """LeNet-5 with batch norm, max pooling and ReLU (after LeCun et al. 1998, figure 2)."""
    check_options("lenet", widths=widths)
    if len(widths) != 4:
        raise ModelError(f"LeNet has four widths, found {list(widths)}", where="lenet")
    stack = Stack("lenet", input_shape, activation)
    stack.conv(widths[0], kernel=5, padding=2)
    stack.pool()
    stack.conv(widths[1], kernel=5)
    stack.pool()
    stack.flatten()
    stack.dense(widths[2])
    stack.dense(widths[3])
    return stack.classify(num_classes)


def cnv(
    num_classes: int,
    input_shape: Shape,
    *,
    widths: Sequence[int] = (64, 128, 256, 512),
    activation: str = "relu",
) -> nn.Sequential:
    """CNV of FINN (Umuroglu et al. 2017, section 5.1): three pairs of 3 x 3 convolutions without
    padding, a 2 x 2 pool after the first two pairs, two hidden dense layers.
    """
    check_options("cnv", widths=widths)
    if len(widths) != 4:
        raise ModelError(f"CNV has four widths, found {list(widths)}", where="cnv")
    stack = Stack("cnv", input_shape, activation)
    for width in widths[:2]:
        stack.conv(width)
        stack.conv(width)
        stack.pool()
    stack.conv(widths[2])
    stack.conv(widths[2])
    stack.flatten()
    stack.dense(widths[3])
    stack.dense(widths[3])
    return stack.classify(num_classes)
