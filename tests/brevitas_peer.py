# SPDX-License-Identifier: Apache-2.0
"""Networks of Brevitas' layers, and what Brevitas computes with them: the golden numbers of
tests/torch/test_brevitas.py.

``python tests/brevitas_peer.py`` writes tests/golden/brevitas.npz; it needs Brevitas (made with
0.13.4), which nothing else here does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

GOLDEN = Path(__file__).parent / "golden" / "brevitas.npz"
SIZE = 8
#: By case: what the layers are called with, and the same as a policy.
CASES: dict[str, dict[str, Any]] = {
    "tensor": {"weight_bit_width": 4, "bit_width": 4, "input_bit_width": 8},
    "channel": {
        "weight_bit_width": 3, "weight_scaling_per_output_channel": True, "bit_width": 4,
        "input_bit_width": 8,
    },
    "learned": {
        "weight_bit_width": 4, "weight_scaling_impl_type": "PARAMETER_FROM_STATS", "bit_width": 3,
        "input_bit_width": 8,
    },
    "powers": {
        "weight_bit_width": 4, "weight_restrict_scaling_type": "POWER_OF_TWO", "bit_width": 4,
        "restrict_scaling_type": "POWER_OF_TWO", "input_bit_width": 8,
        "input_restrict_scaling_type": "POWER_OF_TWO",
    },
}  # fmt: skip
HEAD = {"weight_bit_width": 8, "weight_scaling_per_output_channel": False}
POINT = {"bit_width": 8, "signed": True}


class Net(nn.Module):
    """Layers made by functions, so that it is Brevitas' network or the one in plain layers."""

    def __init__(
        self,
        conv: Callable[..., nn.Module],
        relu: Callable[[], nn.Module],
        point: Callable[[str], nn.Module],
        linear: Callable[..., nn.Module],
    ) -> None:
        super().__init__()
        self.inp = point("input")
        self.conv1 = conv(3, 8, 3, padding=1, bias=False)
        self.bn1, self.relu1 = nn.BatchNorm2d(8), relu()
        self.pool, self.mid = nn.MaxPool2d(2), point("mid")
        self.conv2 = conv(8, 8, 3, padding=1, groups=8, bias=True)
        self.bn2, self.relu2 = nn.BatchNorm2d(8), relu()
        self.conv3 = conv(8, 12, 1, bias=False)
        self.bn3, self.relu3 = nn.BatchNorm2d(12), relu()
        self.fc = linear(12 * (SIZE // 4) ** 2, 10, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.mid(self.pool(self.relu1(self.bn1(self.conv1(self.inp(x))))))
        x = self.relu2(self.bn2(self.conv2(x)))
        x = self.relu3(self.bn3(self.conv3(x)))
        return self.fc(torch.flatten(self.pool(x), 1))


def plain() -> Net:
    """The network as a user of Bitwright writes it."""
    return Net(nn.Conv2d, nn.ReLU, lambda _: nn.Identity(), nn.Linear)


def policy(case: str) -> dict[str, Any]:
    """The policy of a case, in Brevitas' words."""
    head = {"layers": "fc", **HEAD}
    return {**CASES[case], "rules": [head, {"layers": "mid", **POINT}]}


def theirs(case: str) -> Net:
    """The network of Brevitas' layers, trained for some steps so that its scales are learned."""
    import brevitas.nn as qnn

    words = CASES[case]
    weights = {k: v for k, v in words.items() if k.startswith("weight_")}
    inputs = {k.removeprefix("input_"): v for k, v in words.items() if k.startswith("input_")}
    others = {k: v for k, v in words.items() if not k.startswith(("weight_", "input_"))}
    points = {"input": inputs, "mid": {**others, **POINT}}
    torch.manual_seed(sorted(CASES).index(case))
    net = Net(
        lambda *sizes, **how: qnn.QuantConv2d(*sizes, **how, **weights),
        lambda: qnn.QuantReLU(**others, collect_stats_steps=5),
        lambda name: qnn.QuantIdentity(**points[name], collect_stats_steps=5),
        lambda *sizes, **how: qnn.QuantLinear(*sizes, **how, **{**weights, **HEAD}),
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(12):
        loss = nn.functional.cross_entropy(net(images(16)), torch.randint(0, 10, (16,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net.eval()


def images(count: int) -> Tensor:
    return torch.randn(count, 3, SIZE, SIZE)


def integers(net: Net, x: Tensor) -> dict[str, NDArray[Any]]:
    """Brevitas' integers: of weights in its float32; of activations in float64, where no sum is
    rounded near a border between two levels.
    """
    found: dict[str, NDArray[Any]] = {}
    for path, layer in net.named_modules():
        if hasattr(layer, "quant_weight"):
            found[f"{path}.weight"] = layer.quant_weight().int().numpy().astype(np.int8)
    wide = net.double()
    for path, layer in wide.named_modules():
        if hasattr(layer, "act_quant"):
            layer.register_forward_hook(_note(found, path))
    with torch.no_grad():
        found["scores"] = wide(x.double()).numpy()
    return found


def _note(found: dict[str, NDArray[Any]], path: str) -> Callable[..., None]:
    def hook(layer: Any, inputs: Any, output: Tensor) -> None:
        scale = (
            layer.act_quant.scale() if callable(layer.act_quant.scale) else layer.quant_act_scale()
        )
        levels = output.detach() / scale.detach()
        assert float((levels - levels.round()).abs().max()) < 1e-6
        found[path] = levels.round().to(torch.int16).numpy()

    return hook


def main() -> None:
    arrays: dict[str, NDArray[Any]] = {}
    for case in CASES:
        net = theirs(case)
        state = {f"{case}/state/{k}": v.detach().numpy() for k, v in net.state_dict().items()}
        torch.manual_seed(99)
        x = images(6)
        with torch.no_grad():
            arrays |= state | {f"{case}/x": x.numpy()}
            arrays |= {f"{case}/found/{k}": v for k, v in integers(net, x).items()}
    np.savez_compressed(GOLDEN, **arrays)


if __name__ == "__main__":
    main()
