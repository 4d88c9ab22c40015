# SPDX-License-Identifier: Apache-2.0
"""Views, transposes and size arithmetic of a user's own module, recognised for what they do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.join_networks import ReorgLayer
from torch import Tensor, nn

from bitwright.base.errors import ModelError
from bitwright.lower.compare import compare_edges
from bitwright.quantize import Policy, apply, inspect_model

POLICY = Policy.uniform()


class Around(nn.Module):
    """A function between two layers."""

    def __init__(self, function: Callable[[Tensor], Tensor], tail: nn.Module) -> None:
        super().__init__()
        self.conv, self.function, self.tail = nn.Conv2d(2, 4, 1), function, tail

    def forward(self, x: Tensor) -> Tensor:
        return self.tail(self.function(F.relu(self.conv(x))))


def blocks_by_permute(x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    x = x.reshape(n, c, h // 2, 2, w // 2, 2)
    return x.permute(0, 1, 3, 5, 2, 4).reshape(n, 4 * c, h // 2, w // 2)


def blocks_in_numbers(x: Tensor) -> Tensor:
    x = x.view(-1, 4, 3, 2, 2, 2)
    return x.permute(0, 5, 3, 1, 2, 4).contiguous().view(-1, 16, 3, 2)


def shuffle(x: Tensor) -> Tensor:
    n, c, h, w = x.size()
    x = x.view(n, 2, c // 2, h, w)
    return torch.transpose(x, 1, 2).contiguous().view(n, -1, h, w)


def there_and_back(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


CHAINS = {
    "reorg": (ReorgLayer(), 16),
    "permute": (blocks_by_permute, 16),
    "numbers": (blocks_in_numbers, 16),
    "shuffle": (shuffle, 4),
    "identity": (there_and_back, 4),
    "unshuffle": (lambda x: F.pixel_unshuffle(x, 2), 16),
    "module": (nn.ChannelShuffle(2), 4),
}


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("groups", [1, 2, 0], ids=["dense", "grouped", "depthwise"])
def test_each_chain_is_the_same_in_integers(name: str, groups: int) -> None:
    torch.manual_seed(1)
    function, channels = CHAINS[name]
    groups = groups or channels
    tail = nn.Sequential(nn.Conv2d(channels, 2 * channels, 1, groups=groups), nn.ReLU())
    model = Around(function, nn.Sequential(tail, nn.Conv2d(2 * channels, 3, 1))).eval()
    x = torch.rand(5, 2, 6, 4)
    before = model(x)
    exact = apply(model, Policy.uniform(None, None, None), "train", x)
    assert torch.allclose(exact(x), before, atol=1e-6)
    frozen = apply(model, POLICY, "freeze", x)
    graph = frozen.graph
    compare_edges(graph, frozen.edges(x), accumulators=True).require()


@pytest.mark.parametrize("name", ["reorg", "permute", "unshuffle", "module", "identity"])
def test_size_arithmetic_needs_no_example(name: str) -> None:
    function, channels = CHAINS[name]
    assert not inspect_model(Around(function, nn.Conv2d(channels, 3, 1)), POLICY)


def test_numbers_need_an_example() -> None:
    model = Around(blocks_in_numbers, nn.Conv2d(16, 3, 1))
    with pytest.raises(ModelError, match="example_input"):
        apply(model, POLICY, "train")
    assert not inspect_model(model, POLICY, torch.zeros(1, 2, 6, 4))
    assert apply(model, POLICY, "train", sample_shape=(2, 6, 4))


FLATTENS: dict[str, Callable[[Tensor], Tensor]] = {
    "view": lambda x: x.view(x.size(0), -1),
    "numbers": lambda x: x.view(-1, 96),
    "product": lambda x: x.view(-1, x.shape[1] * x.shape[2] * x.shape[3]),
    "start": lambda x: torch.flatten(x, start_dim=1),
    "squeezed": lambda x: x.mean((2, 3), keepdim=True).squeeze(-1).squeeze(-1),
    "shuffled": lambda x: shuffle(x).flatten(1),
}


@pytest.mark.parametrize("name", FLATTENS)
def test_every_way_to_flatten(name: str) -> None:
    torch.manual_seed(2)
    features = 4 if name == "squeezed" else 96
    model = Around(FLATTENS[name], nn.Linear(features, 3)).eval()
    x = torch.rand(5, 2, 6, 4)
    frozen = apply(model, POLICY, "freeze", x)
    graph = frozen.graph
    compare_edges(graph, frozen.edges(x), accumulators=True).require()


def test_sizes_in_pools_and_interpolation() -> None:
    class Sized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.out = nn.Conv2d(2, 2, 3, 2, 1), nn.Conv2d(4, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            y = F.relu(self.down(x))
            y = F.interpolate(y, size=x.shape[2:])
            x = torch.cat([F.relu(x), y], 1)
            return F.avg_pool2d(self.out(x), x.size()[2:])

    x = torch.rand(4, 2, 6, 4)
    with pytest.raises(ModelError, match="size of the input"):
        inspect_model(Sized(), POLICY)
    frozen = apply(Sized().eval(), POLICY, "freeze", x)
    compare_edges(frozen.graph, frozen.edges(x), accumulators=True).require()


def test_other_chains_are_refused_with_the_line() -> None:
    def rotate(x: Tensor) -> Tensor:
        x = x.transpose(2, 3)
        return x.contiguous()

    with pytest.raises(ModelError, match="one thing") as caught:
        inspect_model(Around(rotate, nn.Conv2d(4, 3, 1)), POLICY, torch.zeros(1, 2, 6, 4))
    said = str(caught.value)
    assert "no hardware" in said and "space to depth" in said
    assert "test_quant_canonicalize.py" in said and "contiguous" in said


def test_an_indivisible_image_is_refused() -> None:
    model = Around(nn.PixelUnshuffle(2), nn.Conv2d(16, 3, 1))
    with pytest.raises(ModelError, match="does not pass"):
        apply(model, POLICY, "freeze", torch.rand(2, 2, 5, 4))
