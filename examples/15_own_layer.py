# SPDX-License-Identifier: Apache-2.0
"""Lesson 15: layers of your own, without editing the package.

A blur in front of a stride (Zhang 2019, "Making convolutional networks shift-invariant again"):
each channel is averaged with the weights 1 2 1 / 2 4 2 / 1 2 1 of 16. And an activation with a
learned bend. torch.fx keeps both whole; `register_layer` says what they are in integers.
"""

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from bitwright import data, lower, train
from bitwright.quantize import Elementwise, Policy, apply, register_layer
from bitwright.quantize.integers.affine import AffineValue, Context

BINOMIAL = np.outer([1, 2, 1], [1, 2, 1])


class Blur(nn.Module):
    """Every second pixel of the blurred image."""

    def forward(self, x: Tensor) -> Tensor:
        kernel = torch.from_numpy(BINOMIAL).to(x) / BINOMIAL.sum()
        weight = kernel.expand(x.shape[1], 1, 3, 3)
        return F.conv2d(x, weight, stride=2, padding=1, groups=x.shape[1])


def blur_in_integers(
    context: Context, node: fx.Node, module: nn.Module, value: AffineValue
) -> AffineValue:
    """The exact sum; the sixteenth goes into the gain, which the next quantizer takes up."""
    path, channels = str(node.target), value.shape[0]
    attributes = {
        "stride": (2, 2),
        "padding": (1, 1, 1, 1),
        "groups": channels,
        "weight_format": "uint3",
        "weight_scale": (1 / BINOMIAL.sum(),),
    }
    weight = np.broadcast_to(BINOMIAL[None, :, :, None], (channels, 3, 3, 1)).copy()
    edge = context.add("conv", path, value, attributes, {"weight": weight})
    gain, offset = value.gain / BINOMIAL.sum(), np.zeros(1)
    return AffineValue(edge, gain, offset, path, context.shape_behind(node))


class Bend(nn.Module):
    """x above zero, x / (1 + s |x|) below: it never falls, whatever s the training finds."""

    def __init__(self) -> None:
        super().__init__()
        self.bend = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x > 0, x, x / (1 + F.softplus(self.bend) * x.abs()))


register_layer(Blur, integers=blur_in_integers)
register_layer(Bend, function=Elementwise(monotone=True))


def make_model() -> nn.Module:
    """Also what a recipe names: ``model: {name: "my_model:make_model"}``."""
    torch.manual_seed(0)
    first = [nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), Bend(), Blur()]
    second = [nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), Bend(), Blur()]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(64, 10))


def main() -> None:
    digits = data.load_dataset("digits")
    policy = Policy.uniform(input="uint4", weight="int4", activation="int4")
    model = apply(make_model(), policy, "train", torch.from_numpy(digits.train.reals()))
    train.fit(model, digits, train.TrainConfig(epochs=8, lr=0.01), run_dir="runs/lesson-15")

    images = torch.from_numpy(digits.test.reals())
    model.eval()
    with torch.no_grad():
        scores, simulated = model(images), model.simulate(images)
    integers = model.integers((1, 8, 8))
    graph = lower.optimise(integers.graph, check=8)
    print("\n".join(f"{node.name}: {node.op}" for node in graph))
    levels = graph.run({"x": integers.edges(images)["x"]})
    assert np.array_equal((levels["scores"] * integers.score_scale).astype(np.float32), scores)
    share = float((levels["label"][:, 0] == digits.test.labels).mean())
    apart = float((scores - simulated).abs().max() / scores.abs().max())
    print(f"{100 * share:.2f} % of the test images; integer graph == model, every score")
    print(f"in training the scores are at most {100 * apart:.2f} % of the largest from that")
    assert share > 0.9 and apart < 0.01


if __name__ == "__main__":
    main()
