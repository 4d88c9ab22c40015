# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments of layers and calls: a complaint is (what is wrong, what to do)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import fx, nn

Complaint = tuple[str, str]

_AXES = 4


def pair(value: Any) -> tuple[Any, Any]:
    """One value for both axes, or one an axis."""
    if isinstance(value, list | tuple):
        return (value[0], value[-1])
    return (value, value)


def pads(layer: nn.Module | None) -> bool:
    """Whether a layer puts anything around its input."""
    padding = getattr(layer, "padding", 0)
    if isinstance(padding, str):
        return padding == "same" and any(k > 1 for k in getattr(layer, "kernel_size", ()))
    return any(padding) if isinstance(padding, tuple) else bool(padding)


def argument(node: fx.Node, position: int, name: str, default: Any) -> Any:
    """An argument of a call, given by position or by name."""
    if len(node.args) > position:
        return node.args[position]
    return node.kwargs.get(name, default)


def conv(module: nn.Conv2d) -> Complaint | None:
    if module.padding_mode != "zeros":
        return f"padding_mode={module.padding_mode!r}", "use zero padding"
    return None


def max_pool(module: nn.MaxPool2d) -> Complaint | None:
    if module.dilation not in (1, (1, 1)):
        return f"dilation={module.dilation}", "use dilation=1"
    if module.ceil_mode:
        return "ceil_mode=True", "use ceil_mode=False and pad the input instead"
    return ("return_indices=True", "use return_indices=False") if module.return_indices else None


def avg_pool(module: nn.AvgPool2d) -> Complaint | None:
    if module.ceil_mode:
        return "ceil_mode=True", "use ceil_mode=False"
    if any(pair(module.padding)) and not module.count_include_pad:
        return (
            "count_include_pad=False: the windows at the border would have another divisor",
            "use count_include_pad=True, or padding=0",
        )
    if module.divisor_override is not None:
        what = f"divisor_override={module.divisor_override}"
        return what, "leave it out, and scale the next layer"
    return None


def batch_norm(module: nn.BatchNorm1d | nn.BatchNorm2d) -> Complaint | None:
    if not module.track_running_stats or module.running_mean is None:
        return "no running statistics", "use track_running_stats=True"
    return None


def flatten(module: nn.Flatten) -> Complaint | None:
    if module.start_dim != 1 or module.end_dim != -1:
        return f"start_dim={module.start_dim}, end_dim={module.end_dim}", "use nn.Flatten()"
    return None


def upsample(module: nn.Upsample) -> Complaint | None:
    factor = module.scale_factor
    if module.mode not in ("nearest", "nearest-exact"):
        return f"mode={module.mode!r}", "use mode='nearest'"
    if module.size is not None or factor is None:
        return "it scales to a size", "give an integer scale_factor"
    if any(float(f) != math.floor(float(f)) or float(f) < 1 for f in pair(factor)):
        return f"scale_factor={factor}", "use an integer scale_factor"
    return None


def pad(module: nn.ZeroPad2d | nn.ConstantPad2d) -> Complaint | None:
    sides, value = module.padding, getattr(module, "value", 0.0)
    if value not in (0, 0.0, None):
        return f"it pads with {value}", "pad with zeros"
    if len(sides) > _AXES or any(not isinstance(s, int) or s < 0 for s in sides):
        return f"padding {tuple(sides)}", "pad height and width by whole numbers of pixels, >= 0"
    return None


def _flatten_call(node: fx.Node) -> Complaint | None:
    """``flatten(1)``, ``view(n, -1)``, ``reshape(x.size(0), 256)``, ``view(-1, 256)``: all keep the
    batch and join the rest (a wrong 256 is caught when the next layer sees the shape).
    """
    name = getattr(node.target, "__name__", str(node.target))
    if name == "flatten":
        if argument(node, 1, "start_dim", 0) == 1 and argument(node, 2, "end_dim", -1) == -1:
            return None
        return "it flattens the batch axis too", "use flatten(1)"
    shape = node.args[1:]
    if len(shape) == 1 and isinstance(shape[0], list | tuple):
        shape = tuple(shape[0])
    batch_kept = len(shape) == 2 and (isinstance(shape[0], fx.Node) or shape[0] == -1)
    if batch_kept and (isinstance(shape[1], int | fx.Node)):
        return None
    return f"{name} to {shape} is no flattening", "only (N, C, H, W) -> (N, C*H*W): use flatten(1)"


def _cat_call(node: fx.Node) -> Complaint | None:
    parts = node.args[0] if node.args else node.kwargs.get("tensors")
    if not isinstance(parts, list | tuple) or not all(isinstance(p, fx.Node) for p in parts):
        return "it joins a list that is not written out", "use torch.cat([a, b], 1)"
    if argument(node, 1, "dim", 0) not in (1, -3):
        return "it does not join channels", "use dim=1"
    return None


def _mean_call(node: fx.Node) -> Complaint | None:
    if getattr(node.target, "__name__", node.target) != "mean":
        return None
    axes = argument(node, 1, "dim", None)
    if isinstance(axes, list | tuple) and sorted(int(a) % 4 for a in axes) == [2, 3]:
        return None
    return "it does not average over height and width", "use mean((2, 3))"


def _add_call(node: fx.Node) -> Complaint | None:
    operands = [node.args[0] if node.args else None, argument(node, 1, "other", None)]
    if not all(isinstance(a, fx.Node) for a in operands) or argument(node, 2, "alpha", 1) != 1:
        return "it adds something that is no tensor of the network", "fold it into a bias"
    return None


def _pad_call(node: fx.Node) -> Complaint | None:
    mode = argument(node, 2, "mode", "constant")
    return None if mode == "constant" else (f"mode={mode!r}", "pad with zeros")


#: What is said of the arguments of a call beyond what is said of the layer that does the same.
CALLS: dict[str, Callable[[fx.Node], Complaint | None]] = {
    "flatten": _flatten_call,
    "cat": _cat_call,
    "avg_pool": _mean_call,
    "add": _add_call,
    "pad": _pad_call,
}
