# SPDX-License-Identifier: Apache-2.0
"""The simulated accelerators as engines of training in few bits, and as layers in float32.

Recipes name them as ``low_precision.engine``; `bitwright.low_precision` puts them under the layers
of a network, so forward and backward passes, policies and optimizers are those of any training.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from bitwright.base.errors import ModelError
from bitwright.engine.config import ENGINES, EngineConfig
from bitwright.engine.training.products import multiply
from bitwright.low_precision.arithmetic.apply import LowPrecisionModel, apply_arithmetic
from bitwright.low_precision.arithmetic.geometry import (
    Engine,
    Geometry,
    Product,
    Size,
    shapes_of,
)
from bitwright.low_precision.arithmetic.layers import (
    Context,
    LayerFormats,
    LowPrecisionConv2d,
)
from bitwright.low_precision.arithmetic.operands import Operand, scaled
from bitwright.low_precision.costs.network import LayerWork
from bitwright.papers.fpga_training.barista.model import FLOAT32 as BARISTA_FLOAT32
from bitwright.papers.fpga_training.barista.model import Arithmetic, Tiles, times
from bitwright.papers.fpga_training.barista.model import fixed_point as barista_fixed
from bitwright.papers.fpga_training.barista.product import blocked_product
from bitwright.papers.fpga_training.devices import Board, load_board
from bitwright.papers.fpga_training.fpgpt.card import Card
from bitwright.papers.fpga_training.fpgpt.kernel import FLOAT32, fixed_point
from bitwright.papers.fpga_training.jobs import convolution_job, matrix_job

Array = np.ndarray[Any, Any]
#: The widest numbers that the simulated engines multiply, and those of their own choice.
_WIDEST = 16


class SimulatedEngine(Engine):
    """An accelerator that multiplies group by group, as numbers on the host.

    Integers are added exactly and rounded once, as every engine's; reals are float32, in the order
    in which the hardware adds.
    """

    def supports(self, product: Product, left: Operand, right: Operand, geometry: Geometry) -> bool:
        """Operands in a CPU's memory: both integers of up to 16 bits, or both reals."""
        if left.tensor.device.type != "cpu" or bool(left.bits) != bool(right.bits):
            return False
        return max(left.bits, right.bits) <= _WIDEST

    def multiply(
        self, product: Product, left: Operand, right: Operand, geometry: Geometry, size: Size
    ) -> Tensor:
        images, kernels, outputs = shapes_of(product, tuple(left.shape), tuple(right.shape), size)
        moves = (geometry.stride, geometry.padding, geometry.dilation, geometry.groups)
        # Engines are not told which layer it is: messages and counts have its shapes.
        name = " by ".join("x".join(map(str, shape)) for shape in (images, kernels))
        work = LayerWork(name, "conv", images, kernels, outputs, *moves)
        a, b = left.tensor.detach().numpy(), right.tensor.detach().numpy()
        groups = geometry.groups
        # Which axis of each operand and of the result has the channels of a group.
        axes = {Product.FORWARD: (1, 0, 1), Product.GRAD_INPUT: (1, 0, 1)}.get(product, (1, 1, 0))
        parts = zip(np.split(a, groups, axes[0]), np.split(b, groups, axes[1]), strict=True)
        out = np.concatenate(
            [self.product(work, product, x, y, max(left.bits, right.bits)) for x, y in parts],
            axes[2],
        )
        result = torch.from_numpy(np.ascontiguousarray(out))
        if not left.bits:
            return result.float()
        return scaled(result.double(), left.exponent + right.exponent)

    @abstractmethod
    def product(
        self, work: LayerWork, product: Product, left: Array, right: Array, bits: int
    ) -> Array:
        """One group of channels: integers of so many bits as int64, or (0) float32."""


class FpgptEngine(SimulatedEngine):
    """FPGPT: every product as the convolution that its kernel runs.

    Args:
        card: that runs them; without one a U250 with the best kernel of each convolution.
    """

    name = "fpgpt"

    def __init__(self, card: Card | None = None) -> None:
        self._given = card
        self.cards: dict[int, Card] = {}

    def card(self, bits: int) -> Card:
        """The card for operands of so many bits (0: float32): kernels multiply one kind."""
        if self._given is not None:
            return self._given
        if bits not in self.cards:
            self.cards[bits] = Card(load_board("u250"), fixed_point(bits) if bits else FLOAT32)
        return self.cards[bits]

    def product(
        self, work: LayerWork, product: Product, left: Array, right: Array, bits: int
    ) -> Array:
        card = self.card(bits)
        if bits > card.numbers.bits:
            raise ModelError(
                f"operands of {bits} bits on kernels of {card.numbers.bits} bits",
                where=card.board.name,
                hint="take a card whose kernels are as wide, or a level of fewer bits",
            )
        return card.run(convolution_job(work, product), left, right)


class BaristaEngine(SimulatedEngine):
    """Barista: every product image by image as a tiled matrix product, windows laid out on the
    host, which adds weight gradients of images up and folds input gradients back.

    Attributes:
        tiles: sizes of the kernel.
        seconds: by stage (``transfer``, ``kernel``), of all products so far, by its model.
    """

    name = "barista"

    def __init__(self, tiles: Tiles | None = None, board: Board | None = None) -> None:
        self.tiles = tiles or Tiles(16, 16, 64)  # that the document built
        self.board = board or load_board("xcvu9p")
        self.seconds = {"transfer": 0.0, "kernel": 0.0}

    def product(
        self, work: LayerWork, product: Product, left: Array, right: Array, bits: int
    ) -> Array:
        arithmetic = barista_fixed(bits) if bits else BARISTA_FLOAT32
        took = times(matrix_job(work, product), self.tiles, arithmetic, self.board)
        self.seconds["transfer"] += took.host * len(left)
        self.seconds["kernel"] += took.kernel * len(left)
        each = {
            Product.FORWARD: self._forward,
            Product.GRAD_INPUT: self._grad_input,
            Product.GRAD_WEIGHT: self._grad_weight,
        }[product]
        kind = np.float32 if not bits else np.int64
        return each(work, left.astype(kind), right.astype(kind), arithmetic)

    def _times(self, a: Array, b: Array, arithmetic: Arithmetic) -> Array:
        return blocked_product(a, b, self.tiles, arithmetic.sums)

    def _forward(self, work: LayerWork, x: Array, w: Array, how: Arithmetic) -> Array:
        rows = w.reshape(len(w), -1)
        out = [self._times(rows, window, how) for window in _windows(work, x)]
        return np.stack(out).reshape(len(x), len(w), *work.output[2:])

    def _grad_input(self, work: LayerWork, g: Array, w: Array, how: Arithmetic) -> Array:
        columns = w.reshape(len(w), -1).T
        found = [self._times(columns, one.reshape(len(w), -1), how) for one in g]
        folded = functional.fold(
            torch.from_numpy(np.stack(found)).to(_wide(g)),
            work.input[2:],
            work.weight[2:],
            work.dilation,
            work.padding,
            work.stride,
        )
        return folded.numpy().astype(g.dtype)

    def _grad_weight(self, work: LayerWork, x: Array, g: Array, how: Arithmetic) -> Array:
        out = np.zeros((g.shape[1], x.shape[1] * prod(work.weight[2:])), x.dtype)
        for window, one in zip(_windows(work, x), g, strict=True):
            out += self._times(one.reshape(len(one), -1), window.T, how)
        return out.reshape(g.shape[1], x.shape[1], *work.weight[2:])


class ProgrammedEngine(SimulatedEngine):
    """Bitwright's own programmed engine: every product as programs of it, run by its emulator.

    Attributes:
        config: of the engine.
    """

    name = "programmed"

    def __init__(self, config: EngineConfig | None = None) -> None:
        self.config = config or ENGINES["e256"]

    def supports(self, product: Product, left: Operand, right: Operand, geometry: Geometry) -> bool:
        """Integers of up to 16 bits."""
        return super().supports(product, left, right, geometry) and bool(left.bits)

    def product(
        self, work: LayerWork, product: Product, left: Array, right: Array, bits: int
    ) -> Array:
        # The engine's programs have the groups of a layer, and these are already apart.
        inputs = (work.input[0], work.input[1] // work.groups, *work.input[2:])
        outputs = (work.output[0], work.output[1] // work.groups, *work.output[2:])
        weights = (work.weight[0] // work.groups, *work.weight[1:])
        one = replace(work, input=inputs, weight=weights, output=outputs, groups=1)
        return multiply(one, product, left, right, self.config)


def _wide(array: Array) -> torch.dtype:
    """In which torch moves numbers exactly: integers in float64, whose sums stay below 2^53."""
    return torch.float32 if array.dtype == np.float32 else torch.float64


def _windows(work: LayerWork, x: Array) -> Array:
    """(N, C KH KW, positions): the host's im2col."""
    columns = functional.unfold(
        torch.from_numpy(x).to(_wide(x)),
        work.weight[2:],
        work.dilation,
        work.padding,
        work.stride,
    )
    return columns.numpy().astype(x.dtype)


class Conv2d(LowPrecisionConv2d):
    """`nn.Conv2d` whose three products run in float32 on a simulated accelerator.

    Args:
        engine: the accelerator.
        args, options: of `nn.Conv2d`.
    """

    def __init__(self, *args: Any, engine: SimulatedEngine, **options: Any) -> None:
        super().__init__(*args, **options)
        self.bind(Context(engine), 0, "conv")
        self.formats = LayerFormats()


def accelerate(
    model: nn.Module, engine: SimulatedEngine, layers: Collection[str] | None = None
) -> LowPrecisionModel:
    """Put a network's convolutions on a simulated accelerator, in place, in float32.

    Args:
        layers: paths of those that run there; the others stay on the CPU. None: all convolutions.

    Raises:
        ModelError: a path is no convolution.
    """
    found = apply_arithmetic(model, Context(engine))
    convolutions = [path for path, layer in found.layers.items() if isinstance(layer, nn.Conv2d)]
    chosen = convolutions if layers is None else list(layers)
    wrong = [path for path in chosen if path not in convolutions]
    if wrong:
        raise ModelError(
            f"{wrong[0]!r} is no convolution of this network",
            hint=f"convolutions: {', '.join(convolutions)}",
        )
    for path in chosen:
        found.layers[path].formats = LayerFormats()
    return found
