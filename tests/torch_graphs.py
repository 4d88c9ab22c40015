# SPDX-License-Identifier: Apache-2.0
"""Random torch networks whose tensors fork and join, for `tests.strategies.torch_networks`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

#: (operation, indices of the tensors it reads)
Step = tuple[str, tuple[int, ...]]

_ACTIVATIONS: tuple[Callable[[], nn.Module], ...] = (
    nn.ReLU,
    nn.ReLU,
    nn.ReLU6,
    nn.Hardtanh,
    lambda: nn.LeakyReLU(0.1),
    nn.PReLU,
    nn.Sigmoid,
    nn.Tanh,
    nn.SiLU,
    nn.GELU,
    nn.Hardswish,
    nn.ELU,
)
_LARGEST = 12


class DrawnNet(nn.Module):
    """Runs a list of steps; each appends one tensor."""

    def __init__(self, steps: list[Step], layers: dict[str, nn.Module]) -> None:
        super().__init__()
        self.steps = steps
        for name, layer in layers.items():
            self.add_module(name, layer)

    def weighted(self) -> list[str]:
        """Paths of the layers with a weight that the scores depend on."""
        needed = {len(self.steps)}
        for index in reversed(range(len(self.steps))):
            if index + 1 in needed:
                needed |= set(self.steps[index][1])
        return [
            name
            for name, module in self.named_modules()
            if isinstance(module, nn.Conv2d | nn.Linear)
            and int(name.split(".")[0][1:]) + 1 in needed
        ]

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for index, (op, sources) in enumerate(self.steps):
            operands = [values[source] for source in sources]
            values.append(self.step(op, f"m{index}", operands))
        return values[-1]

    def step(self, op: str, name: str, operands: list[Tensor]) -> Tensor:
        if op == "layer":
            return getattr(self, name)(operands[0])
        if op == "add":
            return operands[0] + operands[1]
        if op == "sub":
            return operands[0] - operands[1]
        if op == "cat":
            return torch.cat(operands, 1)
        if op == "mean":
            return operands[0].mean((2, 3))
        if op == "shuffle":
            b, c, h, w = operands[0].shape
            return operands[0].view(b, 2, c // 2, h, w).transpose(1, 2).reshape(b, c, h, w)
        if op == "leaky":
            return F.leaky_relu(operands[0], 0.2)
        assert op == "flatten"
        return operands[0].flatten(1)


@dataclass
class GraphDrawer:
    """A network being drawn: the shapes of its tensors, and which hold no zero."""

    draw: st.DrawFn
    shapes: list[tuple[int, int, int]]
    bipolar_input: bool
    bipolar: bool
    steps: list[Step] = field(default_factory=list)
    layers: dict[str, nn.Module] = field(default_factory=dict)

    def pick(self) -> int:
        """A tensor: mostly the last."""
        if self.draw(st.integers(0, 5)) > 0:
            return len(self.shapes) - 1
        return self.draw(st.integers(0, len(self.shapes) - 1))

    def put(self, op: str, sources: tuple[int, ...], shape: tuple[int, int, int]) -> None:
        self.steps.append((op, sources))
        self.shapes.append(shape)

    def layer(self, layer: nn.Module, source: int) -> None:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Using padding='same'")
            out = layer.eval()(torch.zeros(1, *self.shapes[source]))
        self.layers[f"m{len(self.steps)}"] = layer
        self.put("layer", (source,), tuple(out.shape[1:]))

    @property
    def may_pad(self) -> bool:
        return not self.bipolar and not self.bipolar_input

    def conv(self) -> None:
        source = self.pick()
        channels, *size = self.shapes[source]
        kernel = tuple(self.draw(st.integers(1, min(3, s))) for s in size)
        dilation = self.draw(st.integers(1, 2)) if all(s >= 2 * 2 + 1 for s in size) else 1
        padding: Any = tuple(k // 2 for k in kernel) if self.may_pad else 0
        if self.may_pad and self.draw(st.integers(0, 4)) == 0:
            padding = "same"
        stride = self.draw(st.integers(1, 2)) if padding != "same" else 1
        groups = self.draw(st.sampled_from([g for g in (1, 2, channels) if channels % g == 0]))
        rows = groups * self.draw(st.integers(1, max(1, min(4, _LARGEST // groups))))
        bias = self.draw(st.booleans())
        conv = nn.Conv2d(
            channels, rows, kernel, stride, padding, dilation, groups=groups, bias=bias
        )
        self.layer(conv, source)

    def norm(self) -> None:
        from tests.strategies import random_norm

        source = self.pick()
        norm = nn.BatchNorm2d(self.shapes[source][0])
        self.layer(random_norm(norm, self.draw(st.integers(0, 2**31 - 1))), source)

    def activation(self) -> None:
        if self.draw(st.integers(0, 5)) == 0:
            source = self.pick()
            self.put("leaky", (source,), self.shapes[source])
        else:
            self.layer(self.draw(st.sampled_from(_ACTIVATIONS))(), self.pick())

    def pool(self) -> None:
        source = self.pick()
        kernel = self.draw(st.integers(1, min(2, *self.shapes[source][1:])))
        stride = self.draw(st.integers(1, 2))
        padding = self.draw(st.integers(0, kernel // 2)) if self.may_pad else 0
        kind = self.draw(st.sampled_from([nn.MaxPool2d, nn.AvgPool2d]))
        self.layer(kind(kernel, stride, padding), source)

    def pad(self) -> None:
        if not self.may_pad:
            return
        source = self.pick()
        sides = tuple(self.draw(st.integers(0, 2)) for _ in range(4))
        padded = nn.Sequential(
            nn.ZeroPad2d(sides), nn.Conv2d(self.shapes[source][0], 2, 1, stride=2, bias=False)
        )
        self.layer(padded, source)

    def resize(self) -> None:
        source = self.pick()
        channels, height, width = self.shapes[source]
        if height % 2 == 0 and width % 2 == 0 and 4 * channels <= _LARGEST:
            self.layer(nn.PixelUnshuffle(2), source)
        elif max(height, width) <= 4:
            self.layer(nn.Upsample(scale_factor=2), source)

    def shuffle(self) -> None:
        source = self.pick()
        if self.shapes[source][0] % 2 == 0:
            self.put("shuffle", (source,), self.shapes[source])

    def add(self) -> None:
        first = self.pick()
        same = [i for i, shape in enumerate(self.shapes) if shape == self.shapes[first]]
        second = self.draw(st.sampled_from(same))
        op = self.draw(st.sampled_from(["add", "add", "sub"]))
        self.put(op, (first, second), self.shapes[first])

    def concat(self) -> None:
        first = self.pick()
        size = self.shapes[first][1:]
        same = [i for i, shape in enumerate(self.shapes) if shape[1:] == size]
        others = self.draw(st.lists(st.sampled_from(same), min_size=1, max_size=2))
        channels = sum(self.shapes[i][0] for i in (first, *others))
        if channels <= _LARGEST:
            self.put("cat", (first, *others), (channels, *size))

    def head(self) -> None:
        """Scores: an image, averages, or a dense layer's."""
        last = len(self.shapes) - 1
        channels, height, width = self.shapes[last]
        kind = self.draw(st.sampled_from(["image", "dense", "mean", "averages"]))
        if kind == "image":
            self.layer(nn.Conv2d(channels, self.draw(st.integers(1, 3)), 1), last)
        elif kind == "dense":
            self.steps.append(("flatten", (last,)))
            self.layers[f"m{len(self.steps)}"] = nn.Linear(channels * height * width, 3)
            self.steps.append(("layer", (last + 1,)))
        else:
            self.steps.append(("mean", (last,)))
            if kind == "mean":
                self.layers[f"m{len(self.steps)}"] = nn.Linear(channels, 3)
                self.steps.append(("layer", (last + 1,)))


def draw_graph(
    draw: st.DrawFn, shape: tuple[int, int, int], bipolar_input: bool, bipolar: bool
) -> DrawnNet:
    """A network of up to ten steps and a head."""
    drawer = GraphDrawer(draw, [shape], bipolar_input, bipolar)
    drawer.conv()
    makers = (
        drawer.conv,
        drawer.conv,
        drawer.norm,
        drawer.activation,
        drawer.activation,
        drawer.pool,
        drawer.pad,
        drawer.resize,
        drawer.shuffle,
        drawer.add,
        drawer.add,
        drawer.concat,
        drawer.concat,
        drawer.concat,
    )
    for _ in range(draw(st.integers(2, 10), label="steps")):
        draw(st.sampled_from(makers))()
    drawer.head()
    return DrawnNet(drawer.steps, drawer.layers).eval()
