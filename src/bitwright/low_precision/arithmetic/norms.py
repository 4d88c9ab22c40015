# SPDX-License-Identifier: Apache-2.0
"""Batch norm and ReLU of a training step in channels-last memory, in C.

Around fast products these are the larger part of a step. Compared with torch's they go over memory
less often, and of a ReLU only a bit an element is kept for the way back, or nothing where it
follows a batch norm. The numbers are those of float32, not bit for bit those of torch; they depend
on the values alone, not on threads.
"""

from __future__ import annotations

import copy
import ctypes
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.autograd.function import once_differentiable

from bitwright.low_precision.arithmetic.product_kernels import PRODUCT, CNorm


def _memory_of(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _pointer(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def _native(x: Tensor) -> bool:
    """Whether the C program can take a tensor."""
    plain = type(x) in (Tensor, nn.Parameter)
    return plain and x.device.type == "cpu" and x.dtype == torch.float32 and x.numel() > 0


class _BatchNorm(torch.autograd.Function):
    """Normalisation by the statistics of the batch; see `TrainingBatchNorm2d`."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running: tuple[Tensor | None, Tensor | None],
        settings: dict[str, float],
    ) -> Tensor:
        x = _memory_of(x)
        out = torch.empty_like(x)
        mean, scale = torch.empty(2, x.shape[1])
        spec = _spec(x, weight, bias, settings, mean, scale)
        spec.running_mean, spec.running_var = map(_pointer, running)
        spec.out = out.data_ptr()
        _run("bw_norm_forward", spec)
        ctx.save_for_backward(x, weight, bias, mean, scale)
        ctx.settings = settings
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, mean, scale = ctx.saved_tensors
        y, out = _memory_of(gradients[0]), torch.empty_like(x)
        grad_weight, grad_bias = torch.empty(2, x.shape[1])
        spec = _spec(x, weight, bias, ctx.settings, mean, scale)
        spec.y, spec.out = y.data_ptr(), out.data_ptr()
        spec.grad_weight, spec.grad_bias = grad_weight.data_ptr(), grad_bias.data_ptr()
        _run("bw_norm_backward", spec)
        parameters = (
            None if weight is None else grad_weight,
            None if bias is None else grad_bias,
        )
        return out, *parameters, None, None


class _ReLU(torch.autograd.Function):
    """Keeps a bit an element."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x if torch.ops.aten.is_non_overlapping_and_dense(x) else x.contiguous()
        out = torch.empty_like(x)
        bits = torch.empty((x.numel() + 7) // 8, dtype=torch.uint8)
        library = PRODUCT.cdll
        assert library is not None
        library.bw_relu_forward(
            x.data_ptr(), out.data_ptr(), bits.data_ptr(), x.numel(), torch.get_num_threads()
        )
        ctx.save_for_backward(bits)
        ctx.memory = x.shape, x.stride()
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (bits,) = ctx.saved_tensors
        shape, stride = ctx.memory
        out = torch.empty_strided(shape, stride)
        gradient = gradients[0]
        if gradient.stride() != stride:
            gradient = torch.empty_strided(shape, stride).copy_(gradient)
        library = PRODUCT.cdll
        assert library is not None
        library.bw_relu_backward(
            gradient.data_ptr(), out.data_ptr(), bits.data_ptr(), out.numel(),
            torch.get_num_threads(),
        )  # fmt: skip
        return out


def _spec(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    settings: dict[str, float],
    mean: Tensor,
    scale: Tensor,
) -> CNorm:
    n, channels, height, width = x.shape
    return CNorm(
        rows=n * height * width,
        channels=channels,
        threads=torch.get_num_threads(),
        **settings,
        x=x.data_ptr(),
        weight=_pointer(weight),
        bias=_pointer(bias),
        mean=mean.data_ptr(),
        scale=scale.data_ptr(),
    )


def _run(name: str, spec: CNorm) -> None:
    if getattr(PRODUCT.cdll, name)(ctypes.byref(spec)):
        raise MemoryError(f"{name}: not enough memory for its sums")


class TrainingBatchNorm2d(nn.BatchNorm2d):
    """`nn.BatchNorm2d`, in C while it trains on the CPU, torch's otherwise.

    Attributes:
        relu: whether a ReLU is part of it.
    """

    relu = False

    def forward(self, input: Tensor) -> Tensor:
        """(N, C, H, W) float32."""
        if not self._is_native(input):
            out = super().forward(input)
            return out.relu() if self.relu else out
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        assert self.momentum is not None
        settings = {"eps": self.eps, "momentum": self.momentum, "relu": int(self.relu)}
        running = (self.running_mean, self.running_var)
        return _BatchNorm.apply(input, self.weight, self.bias, running, settings)  # type: ignore[no-any-return, no-untyped-call]

    def _is_native(self, x: Tensor) -> bool:
        own = (self.weight, self.bias, self.running_mean, self.running_var)
        return (
            self.training
            and self.momentum is not None
            and x.dim() == 4
            and x.shape[1] == self.num_features
            and x.numel() > x.shape[1]  # of one value a channel torch says what is wrong
            and all(t is None or (_native(t) and t.is_contiguous()) for t in own)
            and _native(x)
            and PRODUCT.cdll is not None
        )


class TrainingReLU(nn.ReLU):
    """`nn.ReLU`, in C while gradients are wanted on the CPU, torch's otherwise."""

    def forward(self, input: Tensor) -> Tensor:
        """Any float32 tensor."""
        wanted = torch.is_grad_enabled() and input.requires_grad and not self.inplace
        if wanted and _native(input) and PRODUCT.cdll is not None:
            return _ReLU.apply(input)  # type: ignore[no-any-return, no-untyped-call]
        return super().forward(input)


class PassedReLU(nn.ReLU):
    """A ReLU that the batch norm before it does; remembers what it is."""

    def forward(self, input: Tensor) -> Tensor:
        """The same tensor."""
        return input


def use_native_norms(model: nn.Module) -> None:
    """Let batch norms and ReLUs of a network train in C, in place; parameters and names stay.

    A ReLU that alone takes a batch norm's result becomes part of it, unless a hook watches either.
    Only `nn.BatchNorm2d` and `nn.ReLU` themselves, no subclasses.
    """
    for norm, relu in _pairs(model):
        norm.__class__, relu.__class__ = TrainingBatchNorm2d, PassedReLU
        norm.relu = True
    for module in model.modules():
        if type(module) is nn.BatchNorm2d:
            module.__class__ = TrainingBatchNorm2d
        elif type(module) is nn.ReLU:
            module.__class__ = TrainingReLU


def use_plain_norms(model: nn.Module) -> None:
    """Undo `use_native_norms`."""
    for module in model.modules():
        if type(module) is TrainingBatchNorm2d:
            module.__class__ = nn.BatchNorm2d
            module.__dict__.pop("relu", None)
        elif type(module) in (TrainingReLU, PassedReLU):
            module.__class__ = nn.ReLU


class _Tracer(fx.Tracer):
    """Every module without parts is one step, whatever package it is from."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not list(m.children()) or super().is_leaf_module(m, module_qualified_name)


def _pairs(model: nn.Module) -> list[tuple[Any, Any]]:
    """Batch norms whose only reader is a ReLU that runs once, in training and in evaluation (where
    a network may leave out a branch); none if the network has no graph.
    """
    found = [
        (norm, relu)
        for norm, relu in _pairs_of(model, training=True)
        if not (_is_watched(norm) or _is_watched(relu))
    ]
    always = {id(norm): id(relu) for norm, relu in _pairs_of(model, training=False)}
    return [(norm, relu) for norm, relu in found if always.get(id(norm)) == id(relu)]


def _is_watched(module: nn.Module) -> bool:
    """Whether a hook sees what passes between a batch norm and its ReLU, or its gradient."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, name) for name in hooks)


def _pairs_of(model: nn.Module, training: bool) -> list[tuple[Any, Any]]:
    try:
        # A copy: a forward may count its calls, say.
        graph = _Tracer().trace(copy.deepcopy(model).train(training))
    except Exception:  # whatever a forward that cannot be traced raises
        return []
    calls = [node for node in graph.nodes if node.op == "call_module"]
    modules = {node: model.get_submodule(str(node.target)) for node in calls}
    often = [id(module) for module in modules.values()]
    found = []
    for node, norm in modules.items():
        if type(norm) is not nn.BatchNorm2d or len(node.users) != 1:
            continue
        relu = modules.get(next(iter(node.users)))
        if type(relu) is nn.ReLU and often.count(id(norm)) == often.count(id(relu)) == 1:
            found.append((norm, relu))
    return found
