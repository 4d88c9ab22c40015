# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies shared by all tiers: random few-bit networks.

`integer_graphs` draws graphs of the integer dialect (numpy only), `torch_networks` plain torch
models with a policy (torch is imported when it draws). Structure is drawn by
Hypothesis, so failures shrink to few layers and small images; the arrays come from a drawn seed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from tests.integer_strategies import (
    ACTIVATION_FORMATS,
    WEIGHT_FORMATS,
    GraphLimits,
    draw_levels,
    integer_graphs,
)

__all__ = [
    "ACTIVATION_FORMATS",
    "WEIGHT_FORMATS",
    "GraphLimits",
    "TorchNetwork",
    "draw_levels",
    "integer_graphs",
    "random_norm",
    "torch_graphs",
    "torch_networks",
]

#: Why a drawn network may have no integers: no image wakes some layer, so its scale is tiny; small
#: floats need more bits than there are, or one shift for channels of unlike scale; a codebook has
#: more entries than the layer has weights.
WITHOUT_INTEGERS = (
    "53 bits",
    "62 bits",
    "more entries than",
    "units of the accumulator",
    "table over",
    "shares its scale in front of",
    "too far apart for one shift",
)


@dataclass(frozen=True)
class TorchNetwork:
    """A float torch model with batch norms in an arbitrary state, a policy, and images for it.

    Attributes:
        shape: (C, H, W) of one image.
        images: (N, C, H, W) reals.
    """

    model: Any
    policy: Any
    shape: tuple[int, ...]
    images: Any


class _TorchLayers:
    """The layers of a `TorchNetwork` being drawn."""

    def __init__(self, draw: st.DrawFn, shape: tuple[int, int, int], activation: str) -> None:
        self.draw = draw
        self.channels, self.height, self.width = shape
        self.activation = activation
        self.layers: list[Any] = []

    def norm_and_activation(self, norm: Any, size: int, pool: bool) -> None:
        from torch import nn

        flag = st.booleans()
        if self.draw(flag):
            self.layers.append(random_norm(norm(size), self.draw(st.integers(0, 2**31 - 1))))
        early = pool and self.draw(flag)
        if early:
            self.pool()
        signed = self.activation.startswith(("int", "bipolar", "ternary", "fixed", "e4"))
        self.layers.append(nn.Hardtanh() if signed else nn.ReLU())
        if pool and not early:
            self.pool()

    def pool(self) -> None:
        from torch import nn

        kernel = self.draw(st.integers(1, min(2, self.height, self.width)))
        stride = self.draw(st.integers(1, 2))
        self.layers.append(nn.MaxPool2d(kernel, stride))
        self.height, self.width = ((s - kernel) // stride + 1 for s in (self.height, self.width))

    def conv(self, padded: bool) -> None:
        from torch import nn

        pads = tuple(self.draw(st.integers(0, 1)) if padded else 0 for _ in range(2))
        room = (self.height + 2 * pads[0], self.width + 2 * pads[1])
        kernel = tuple(
            self.draw(st.integers(max(1, p), min(3, r))) for p, r in zip(pads, room, strict=True)
        )
        stride = tuple(self.draw(st.integers(1, 2)) for _ in range(2))
        groups = self.channels if self.draw(st.booleans()) else 1
        rows = groups * self.draw(st.integers(1, 3))
        self.layers.append(
            nn.Conv2d(
                self.channels,
                rows,
                kernel,
                stride,
                pads,
                groups=groups,
                bias=self.draw(st.booleans()),
            )
        )
        self.height, self.width = (
            (r - k) // s + 1 for r, k, s in zip(room, kernel, stride, strict=True)
        )
        self.channels = rows
        self.norm_and_activation(nn.BatchNorm2d, rows, self.draw(st.booleans()))


def random_norm(norm: Any, seed: int) -> Any:
    """Batch norm with arbitrary statistics: negative and zero gains, far offsets."""
    import torch

    rng = torch.Generator().manual_seed(seed)
    size = norm.num_features
    gain = torch.randn(size, generator=rng)
    gain[torch.rand(size, generator=rng) < 0.15] = 0.0
    norm.weight.data.copy_(gain)
    norm.bias.data.copy_(torch.randn(size, generator=rng) * 0.5)
    norm.running_mean.copy_(torch.randn(size, generator=rng) * 0.3)
    norm.running_var.copy_(torch.rand(size, generator=rng) * 2 + 0.01)
    return norm


#: Formats beyond the integers, which a policy names: of weights, of activations, of the input.
UNEVEN_WEIGHTS = (
    *("e4m3", "e2m1", "e5m2", "e3m2<finite,flush>", "po2_4", "po2_3<zero>", "po2_5<zero,linear>"),
    *("cb2", "cb4:e4m3", "mx<e2m1,2>", "mx<e4m3,3>", "mx<fixed<8,2>,2>", "dfp8", "fixed<6,1>"),
)
UNEVEN_ACTIVATIONS = ("e4m3", "e2m1", "e3m3<finite,flush>", "e5m2", "dfp8", "fixed<7,2>")
UNEVEN_INPUTS = ("e4m3", "e3m4", "dfp8")
UNEVEN_BIASES = (None, None, "dfp12", "e4m3")


#: Scale rules beside the default ones, of plain integers.
WEIGHT_RULES = (
    *(
        {"scale": rule}
        for rule in ("percentile", "mse", "learned", "dynamic", "minmax", "interval")
    ),
    {"scale": "max", "power_of_two": True},
    {"scale": "mse", "power_of_two": True},
)
ACTIVATION_RULES = (
    *({"scale": rule} for rule in ("percentile", "mse", "entropy", "minmax", "learned")),
    {"scale": "max", "power_of_two": True},
)


def _affine(
    draw: st.DrawFn,
    name: str,
    rules: tuple[str, ...] = ("minmax", "interval"),
    scales: tuple[dict[str, Any], ...] = (),
) -> Any:
    """A plain integer format as it is, or sometimes with a zero point or another scale rule."""
    choice = draw(st.integers(0, 3)) if re.fullmatch(r"u?int\d+n?", name) else 3
    if choice == 0:
        rule = draw(st.sampled_from(rules))
        return {"format": name.rstrip("n"), "scale": rule, "zero_point": True}
    if choice == 1 and scales and not name.endswith("1"):
        return {"format": name, **draw(st.sampled_from(scales))}
    return name


@st.composite
def torch_networks(draw: st.DrawFn, images: int = 8) -> TorchNetwork:
    """A small convolutional classifier as a plain `nn.Sequential`, with a uniform policy."""
    import torch
    from torch import nn

    from bitwright.quantize import Policy

    plain = [w for w in WEIGHT_FORMATS if not w.startswith("uint")]
    weight = draw(st.sampled_from([*plain, *UNEVEN_WEIGHTS]))
    even = [*ACTIVATION_FORMATS, "int7", "uint7", "bipolar"]
    activation = draw(st.sampled_from([*even, *UNEVEN_ACTIVATIONS]))
    given = draw(st.sampled_from(("uint8", "int8", "uint4", "uint1", "bipolar", *UNEVEN_INPUTS)))
    bias = draw(st.sampled_from(UNEVEN_BIASES))
    shape = (draw(st.integers(1, 3)), draw(st.integers(1, 7)), draw(st.integers(1, 7)))
    torch.manual_seed(draw(st.integers(0, 2**31 - 1), label="seed"))
    net = _TorchLayers(draw, shape, activation)
    for index in range(draw(st.integers(0, 2), label="convs")):
        source = given if index == 0 else activation
        net.conv(padded=source != "bipolar")
    net.layers.append(nn.Flatten())
    features = net.channels * net.height * net.width
    for _ in range(draw(st.integers(0, 1), label="hidden")):
        width = draw(st.integers(1, 6))
        net.layers.append(nn.Linear(features, width, bias=draw(st.booleans())))
        net.norm_and_activation(nn.BatchNorm1d, width, pool=False)
        features = width
    net.layers.append(nn.Linear(features, draw(st.integers(1, 4)), bias=draw(st.booleans())))
    signed = given in ("int8", "bipolar")
    policy = Policy.from_dict(
        {
            "weight": _affine(draw, weight, scales=WEIGHT_RULES),
            "activation": _affine(draw, activation, scales=ACTIVATION_RULES),
            "input": (entry := _affine(draw, given)),
            "bias": bias,
        }
    )
    x = torch.rand(images, *shape)
    x = x * 2 - 1 if signed or isinstance(entry, dict) else x
    return TorchNetwork(nn.Sequential(*net.layers).eval(), policy, shape, x)


@st.composite
def torch_graphs(draw: st.DrawFn, images: int = 6) -> TorchNetwork:
    """A network with sums, concatenations, averages, rearrangements and all kinds of activations,
    some of its layers in formats of their own; the scores may be an image.
    """
    import torch
    from tests.torch_graphs import draw_graph

    from bitwright.quantize import Policy

    weights = [w for w in WEIGHT_FORMATS if not w.startswith("uint")] + [*UNEVEN_WEIGHTS]
    activations = [a for a in (*ACTIVATION_FORMATS, "int7", "uint7") if a != "uint1"]
    weight = _affine(draw, draw(st.sampled_from(weights)), scales=WEIGHT_RULES)
    activation = draw(st.sampled_from([*activations, *UNEVEN_ACTIVATIONS]))
    given = draw(st.sampled_from(("uint8", "int8", "uint4", "uint8", "bipolar", *UNEVEN_INPUTS)))
    shape = (draw(st.integers(1, 3)), draw(st.integers(2, 7)), draw(st.integers(2, 7)))
    torch.manual_seed(draw(st.integers(0, 2**31 - 1), label="seed"))
    model = draw_graph(draw, shape, given == "bipolar", activation == "bipolar")
    rules = [
        {"layers": draw(st.sampled_from(model.weighted())), "role": "weight", "format": one}
        for one in draw(st.lists(st.sampled_from(weights), max_size=2), label="mixed")
        if model.weighted() and isinstance(weight, str)
    ]
    policy = Policy.from_dict(
        {
            "weight": weight,
            # A trained interval in front of a concatenation is refused: see its own test.
            "activation": _affine(draw, activation, ("minmax",), ACTIVATION_RULES),
            "input": (entry := _affine(draw, given)),
            "bias": draw(st.sampled_from(UNEVEN_BIASES)),
            "rules": rules,
        }
    )
    x = torch.rand(images, *shape)
    x = x * 2 - 1 if given in ("int8", "bipolar") or isinstance(entry, dict) else x
    return TorchNetwork(model, policy, shape, x)
