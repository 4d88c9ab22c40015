# SPDX-License-Identifier: Apache-2.0
"""Convolution and linear layers whose three products run in stated formats.

A layer shares its parameters with the plain one it stands for. The weight stays float32 (the
master copy); every product quantizes its operands just before it multiplies them, so what flows
between the layers is quantized once a pass, and batch norm, activations and sums stay float32
(MuPPET, Rajagopal et al. 2020; Vink 2023, section 3.2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from bitwright.formats import Rounding
from bitwright.low_precision.arithmetic.geometry import Engine, Geometry, Product
from bitwright.low_precision.arithmetic.operand_quantizer import not_finite, quantize
from bitwright.low_precision.arithmetic.operands import NotFinite, Operand
from bitwright.low_precision.arithmetic.seeds import Stream, tensor_seed
from bitwright.quantize.spec import QuantSpec


@dataclass(frozen=True)
class ProductFormats:
    """Formats of one product; None is float32.

    Attributes:
        left, right: of the operands, in the order in which `Product` names them.
        result: of what comes out.
    """

    left: QuantSpec | None = None
    right: QuantSpec | None = None
    result: QuantSpec | None = None

    @property
    def is_float(self) -> bool:
        return self.left is None and self.right is None and self.result is None


@dataclass(frozen=True)
class LayerFormats:
    """Formats of a layer's three products."""

    forward: ProductFormats = ProductFormats()
    grad_input: ProductFormats = ProductFormats()
    grad_weight: ProductFormats = ProductFormats()

    def of(self, product: Product) -> ProductFormats:
        found: ProductFormats = getattr(self, product.value)
        return found

    @property
    def is_float(self) -> bool:
        return all(self.of(product).is_float for product in Product)


@dataclass(eq=False)
class Context:
    """What all layers of a network share while it trains.

    Attributes:
        engine: multiplies.
        seed: of the run.
        step: number of the training step.
        worker: rank of this process.
        on_result: gets path of the layer, product and its exact result, of training steps alone.
    """

    engine: Engine
    seed: int = 0
    step: int = 0
    worker: int = 0
    on_result: Callable[[str, Product, Tensor], None] | None = None
    _finite: list[tuple[str, Tensor]] = field(default_factory=list)

    def check_later(self, name: str, finite: Tensor) -> None:
        """Remember whether an operand on a GPU was finite, for `not_finite`."""
        self._finite.append((name, finite))

    def not_finite(self) -> NotFinite | None:
        """The error for the first operand since the last call that was not finite; waits once for
        the device, if it has to.
        """
        found, self._finite = self._finite, []
        if not found:
            return None
        flags = torch.stack([finite for _, finite in found]).tolist()
        wrong = [name for (name, _), finite in zip(found, flags, strict=True) if not finite]
        return not_finite(wrong[0]) if wrong else None

    def __deepcopy__(self, memo: dict[int, Any]) -> Context:
        return self  # a copied network trains in the same run


class LowPrecisionLayer(nn.Module):
    """The part that convolutions and linear layers share; a mixin in front of the plain layer.

    Attributes:
        context: shared by the network.
        number: place in the network, which its random numbers depend on.
        path: its name there.
        formats: None: exactly the plain layer.
    """

    weight: Tensor
    bias: Tensor | None
    context: Context
    number: int
    path: str
    formats: LayerFormats | None
    _last_step: int
    _calls: int

    def bind(self, context: Context, number: int, path: str) -> None:
        """Make it part of a network; float32 until ``formats`` are set."""
        self.context, self.number, self.path, self.formats = context, number, path, None
        self._last_step, self._calls = -1, 0

    def count_call(self) -> int:
        """How often the layer has run before in this step."""
        if self._last_step != self.context.step:
            self._last_step, self._calls = self.context.step, 0
        self._calls += 1
        return self._calls - 1

    def multiply(self, x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
        """The forward product of images and kernels, with the gradients of the other two."""
        assert self.formats is not None
        call = _Call(self, self.formats, self.count_call())
        return _Multiply.apply(x, weight, geometry, call)  # type: ignore[no-any-return, no-untyped-call]


class LowPrecisionConv2d(LowPrecisionLayer, nn.Conv2d):
    """`nn.Conv2d` whose products run in the formats of ``formats``."""

    def forward(self, input: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, O, H', W'); or one image, (C, H, W)."""
        if self.formats is None:
            return nn.Conv2d.forward(self, input)
        if input.dim() == 3:
            return self.forward(input[None])[0]
        geometry = Geometry.of(self)
        if self.padding_mode != "zeros" or isinstance(self.padding, str):
            mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
            input = functional.pad(input, self._reversed_padding_repeated_twice, mode=mode)
            geometry = replace(geometry, padding=(0, 0))
        out = self.multiply(input, self.weight, geometry)
        return out if self.bias is None else out + self.bias.view(1, -1, 1, 1)


class LowPrecisionLinear(LowPrecisionLayer, nn.Linear):
    """`nn.Linear` whose products run in the formats of ``formats``."""

    def forward(self, input: Tensor) -> Tensor:
        """(..., inputs) -> (..., outputs)."""
        if self.formats is None:
            return nn.Linear.forward(self, input)
        rows = input.reshape(-1, input.shape[-1], 1, 1)
        out = self.multiply(rows, self.weight[:, :, None, None], Geometry())
        out = out.view(*input.shape[:-1], self.out_features)
        return out if self.bias is None else out + self.bias


@dataclass(frozen=True, eq=False)
class _Call:
    """One run of a layer."""

    layer: LowPrecisionLayer
    formats: LayerFormats
    call: int

    @property
    def engine(self) -> Engine:
        return self.layer.context.engine

    def quantized(
        self, x: Tensor, spec: QuantSpec | None, stream: Stream, axis: int = 1
    ) -> Operand:
        """An operand, or a result; blocks lie along ``axis``, that of the sum it is to enter."""
        layer, context = self.layer, self.layer.context
        seed = tensor_seed(
            context.seed, context.step, layer.number, self.call, stream, context.worker
        )
        if not layer.training and spec is not None and spec.rounding is Rounding.STOCHASTIC:
            # What is measured must not depend on chance.
            spec = replace(spec, rounding=Rounding.HALF_EVEN)
        name = f"the {stream.name.lower()} of {layer.path}"
        operand = quantize(x, spec, seed, name=name, axis=axis)
        if operand.finite is not None:
            context.check_later(name, operand.finite)
        return operand

    def result(self, out: Tensor, product: Product, stream: Stream) -> Tensor:
        context = self.layer.context
        if context.on_result is not None and self.layer.training:
            context.on_result(self.layer.path, product, out)
        spec = self.formats.of(product).result
        return out if spec is None else self.quantized(out, spec, stream).reals()


class _Multiply(torch.autograd.Function):
    """Forward product, and on the way back the two others."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, geometry: Geometry, call: _Call) -> Tensor:
        formats, engine = call.formats, call.engine
        left = call.quantized(x, formats.forward.left, Stream.INPUT)
        right = call.quantized(weight, formats.forward.right, Stream.WEIGHT)
        out = engine.forward(left, right, geometry)
        # Operands of the way back; as a rule the same ones.
        again = formats.grad_weight.left
        if ctx.needs_input_grad[1] and _differs(again, formats.forward.left):
            left = call.quantized(x, again, Stream.INPUT, axis=0)
        again = formats.grad_input.right
        if ctx.needs_input_grad[0] and _differs(again, formats.forward.right):
            right = call.quantized(weight, again, Stream.WEIGHT, axis=0)
        ctx.save_for_backward(left.tensor, right.tensor)
        ctx.operands = replace_tensor(left, None), replace_tensor(right, None)
        ctx.sizes = tuple(x.shape), tuple(weight.shape)
        ctx.geometry, ctx.call = geometry, call
        return call.result(out, Product.FORWARD, Stream.ACTIVATION)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        call, geometry = ctx.call, ctx.geometry
        formats, engine = call.formats, call.engine
        left, right = (
            replace_tensor(operand, tensor)
            for operand, tensor in zip(ctx.operands, ctx.saved_tensors, strict=True)
        )
        grad_x = grad_weight = operand = None
        if ctx.needs_input_grad[0]:
            operand = call.quantized(gradients[0], formats.grad_input.left, Stream.GRAD_OUTPUT)
            grad_x = engine.grad_input(operand, right, geometry, ctx.sizes[0])
            grad_x = call.result(grad_x, Product.GRAD_INPUT, Stream.GRAD_INPUT)
        if ctx.needs_input_grad[1]:
            spec = formats.grad_weight.right
            if operand is None or _differs(spec, formats.grad_input.left):
                operand = call.quantized(gradients[0], spec, Stream.GRAD_OUTPUT, axis=0)
            grad_weight = engine.grad_weight(left, operand, geometry, ctx.sizes[1])
            grad_weight = call.result(grad_weight, Product.GRAD_WEIGHT, Stream.GRAD_WEIGHT)
        return grad_x, grad_weight, None, None


def _differs(spec: QuantSpec | None, before: QuantSpec | None) -> bool:
    """Whether a tensor is another operand in a second product, which sums over another axis."""
    return spec != before or (spec is not None and spec.format.block > 0)


def replace_tensor(operand: Operand, tensor: Tensor | None) -> Operand:
    """The same operand around another tensor; autograd keeps the tensors itself."""
    if operand.bits:
        return replace(operand, levels=tensor)
    return replace(operand, real=tensor)
