# SPDX-License-Identifier: Apache-2.0
"""Counts what a training step of any module multiplies and moves, without computing anything.

Forward and backward pass run once on tensors that have a shape and no values (torch's *meta*
device), so autograd itself says which gradients are needed, and the network may branch as it likes
as long as it does not look at values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bitwright.base.errors import ModelError
from bitwright.low_precision.arithmetic.geometry import Geometry
from bitwright.low_precision.costs.network import LayerWork, Network
from bitwright.models.modes import modes_kept

_PRODUCTS = ("convolution", "convolution_backward", "addmm", "mm", "bmm", "baddbmm")


class _Traffic(TorchDispatchMode):
    """Adds up what operations read and write; products and views apart."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self.operations = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if func.is_view or name in _PRODUCTS or name in ("detach", "empty_like", "empty"):
            return out
        tensors = [t for t in tree_leaves((args, kwargs, out)) if isinstance(t, Tensor)]
        moved = sum({id(t): t.numel() * t.element_size() for t in tensors}.values())
        if moved:
            self.bytes += moved
            self.operations += 1
        return out


def count_network(
    model: nn.Module, sample_shape: tuple[int, ...], batch: int = 1, name: str | None = None
) -> Network:
    """All products of a training step, and what else it moves.

    Args:
        model: plain network in float32; it is left as it was.
        sample_shape: (C, H, W) of one image.
        batch: images a step.

    Raises:
        ModelError: such an image does not pass, the network looks at values in its forward, or it
            has no convolution or linear layer.
    """
    called = type(model).__name__ if name is None else name
    layers: list[LayerWork] = []
    paths = {
        module: path
        for path, module in model.named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear)
    }
    hooks = [
        module.register_forward_hook(
            lambda module, args, out: layers.append(_work(paths[module], module, args[0], out))
        )
        for module in paths
    ]
    traffic = _Traffic()
    try:
        with modes_kept(model), traffic:
            model.train()
            _run(model, torch.empty((batch, *sample_shape), device="meta"))
    except (RuntimeError, ValueError, NotImplementedError, AssertionError) as error:
        raise ModelError(
            f"a step on {batch} images of shape {sample_shape} cannot be counted: "
            f"{str(error).splitlines()[0]}",
            where=called,
            hint="check the input shape; forward must not look at values or make tensors on a "
            "fixed device",
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    if not layers:
        raise ModelError("has no convolution or linear layer to train", where=called)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return Network(
        called,
        batch,
        tuple(layers),
        trained,
        traffic.bytes,
        traffic.operations,
        tuple(paths.values()),
    )


def _run(model: nn.Module, images: Tensor) -> None:
    state: Mapping[str, Tensor] = {
        path: torch.empty_like(tensor, device="meta").requires_grad_(tensor.requires_grad)
        for path, tensor in [*model.named_parameters(), *model.named_buffers()]
    }
    out = functional_call(model, dict(state), (images,))
    scores = [t for t in tree_leaves(out) if isinstance(t, Tensor) and t.requires_grad]
    if scores:
        torch.autograd.backward([score.float().log_softmax(-1).mean() for score in scores])


def _work(path: str, module: nn.Module, x: Tensor, out: Tensor) -> LayerWork:
    """What a layer does, from its input and output."""
    weight: Tensor = module.weight  # type: ignore[assignment]
    needed = ["forward"]
    if x.requires_grad:
        needed.append("grad_input")
    if weight.requires_grad:
        needed.append("grad_weight")
    products = tuple(needed)
    if isinstance(module, nn.Linear):
        rows = x.numel() // x.shape[-1]
        sizes = (rows, x.shape[-1], 1, 1), (*weight.shape, 1, 1), (rows, out.shape[-1], 1, 1)
        return LayerWork(path, "linear", *sizes, products=products)
    assert isinstance(module, nn.Conv2d)
    geometry = Geometry.of(module)
    padding = geometry.padding
    if module.padding == "same":  # it may pad one more at the end, which no count of products sees
        spans = zip(geometry.dilation, module.kernel_size, strict=True)
        above, beside = (d * (k - 1) // 2 for d, k in spans)
        padding = above, beside
    shapes = tuple(x.shape), tuple(weight.shape), tuple(out.shape)
    moves = geometry.stride, padding, geometry.dilation, geometry.groups
    return LayerWork(path, "conv", *shapes, *moves, products)
