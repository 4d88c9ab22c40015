# SPDX-License-Identifier: Apache-2.0
"""Batch norm and ReLU in C are those of torch, up to float32 rounding, and repeat bit for bit."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from bitwright.low_precision.arithmetic.norms import (
    PassedReLU,
    TrainingBatchNorm2d,
    TrainingReLU,
    use_native_norms,
    use_plain_norms,
)
from bitwright.low_precision.arithmetic.product_kernels import PRODUCT
from bitwright.models import build_model

pytestmark = pytest.mark.skipif(PRODUCT.cdll is None, reason="no C compiler")
Found = dict[str, Tensor]


def trained_once(module: nn.Module, x: Tensor, gradient: Tensor | None = None) -> Found:
    """Output, gradients and buffers of one pass both ways."""
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    out = module(x)
    out.backward(torch.ones_like(out) if gradient is None else gradient)
    assert x.grad is not None
    found = {"out": out.detach(), "x": x.grad, **dict(module.named_buffers())}
    found |= {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    return {name: tensor.clone() for name, tensor in found.items()}


def assert_close(mine: Found, other: Found, tolerance: float = 1e-5) -> None:
    assert mine.keys() == other.keys()
    for name, tensor in mine.items():
        scale = float(other[name].double().abs().max()) or 1.0
        away = float((tensor.double() - other[name].double()).abs().max())
        assert away <= tolerance * scale, (name, away, scale)


def example(channels: int, seed: int = 0, offset: float = 5.0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    x, g = torch.randn(2, 33, channels, 9, 7, generator=draw)
    return x * 3 + offset, g


@pytest.mark.parametrize("channels", [1, 5, 8, 16, 19, 64])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("affine", [False, True])
def test_batch_norm_is_torchs(channels: int, relu: bool, affine: bool) -> None:
    layers: list[nn.Module] = [nn.BatchNorm2d(channels, affine=affine, eps=1e-3, momentum=0.3)]
    if affine:
        nn.init.uniform_(layers[0].weight, -1, 1)
        nn.init.normal_(layers[0].bias)
    plain = nn.Sequential(*layers, *([nn.ReLU()] if relu else []))
    ours = copy.deepcopy(plain)
    use_native_norms(ours)
    assert type(ours[0]) is TrainingBatchNorm2d and ours[0].relu is relu
    # A mean that is large beside the spread; not with a ReLU, whose sign would be one of rounding.
    for offset in (0.0,) if relu else (0.0, 100.0):
        x, g = example(channels, offset=offset)
        for given in (x, x.contiguous(memory_format=torch.channels_last)):
            tolerance = 1e-5 if offset == 0.0 else 1e-3
            assert_close(trained_once(ours, given, g), trained_once(plain, given, g), tolerance)


def test_results_do_not_depend_on_threads() -> None:
    x, g = example(48)
    x, g = x.repeat(8, 1, 1, 1), g.repeat(8, 1, 1, 1)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            module = nn.Sequential(nn.BatchNorm2d(48), nn.ReLU(), nn.BatchNorm2d(48))
            use_native_norms(module)
            found.append(trained_once(module, x, g))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(found[0][name], other[name]) for name in other)


@pytest.mark.parametrize("shape", [(1,), (7,), (3, 8), (5, 3, 9, 9), (40, 16, 31, 31)])
def test_relu_is_torchs_and_keeps_bits(shape: tuple[int, ...]) -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=draw)
    x.view(-1)[::5] = 0.0
    x.view(-1)[::7] = float("nan")
    relu, saved = TrainingReLU(), []
    g = torch.randn(shape, generator=draw)
    given = [x]
    if len(shape) == 4:
        given.append(x.contiguous(memory_format=torch.channels_last))
    for one in given:
        a, b = one.clone().requires_grad_(), one.clone().requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
            mine = relu(a)
        other = b.relu()
        assert torch.equal(mine.nan_to_num(9.0), other.nan_to_num(9.0))
        mine.backward(g)
        other.backward(g)
        assert torch.equal(a.grad, b.grad)
    assert all(t.numel() == -(-x.numel() // 8) and t.element_size() == 1 for t in saved)


def test_a_network_trains_as_before_and_comes_back() -> None:
    plain = build_model("resnet20", 10, (32, 32, 3), seed=1)
    kinds = [type(module) for module in plain.modules()]
    ours = copy.deepcopy(plain)
    use_native_norms(ours)
    assert list(ours.state_dict()) == list(plain.state_dict())
    # The stem and the first activation of each of nine blocks follow a batch norm directly.
    assert sum(type(m) is PassedReLU for m in ours.modules()) == 10
    assert sum(type(m) is TrainingReLU for m in ours.modules()) == 9
    x = torch.randn(16, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    assert_close(trained_once(ours, x), trained_once(plain, x), 1e-3)
    ours.eval()
    plain.eval()
    assert_close({"out": ours(x).detach()}, {"out": plain(x).detach()}, 1e-3)
    use_plain_norms(ours)
    assert [type(module) for module in ours.modules()] == kinds
    assert not any("relu" in module.__dict__ for module in ours.modules())


def test_what_is_read_twice_is_not_fused() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.relu = nn.BatchNorm2d(4), nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            out = self.norm(x)
            return self.relu(out) + out

    class Shared(Twice):
        def forward(self, x: Tensor) -> Tensor:
            return self.relu(self.norm(x)) + self.relu(x)

    class Untraceable(Twice):
        def forward(self, x: Tensor) -> Tensor:
            return self.relu(self.norm(x)) if float(x.detach().sum()) < 1e9 else x

    for kind in (Twice, Shared, Untraceable):
        plain = kind()
        ours = copy.deepcopy(plain)
        use_native_norms(ours)
        assert type(ours.relu) is TrainingReLU and not ours.norm.relu
        x, g = example(4)
        assert_close(trained_once(ours, x, g), trained_once(plain, x, g))


def test_hooks_and_branches_of_training_see_the_norm_itself() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.relu = nn.BatchNorm2d(4), nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            out = self.norm(x)
            return self.relu(out) - out if self.training else self.relu(out)

    for begin in (True, False):
        plain = Branching().train(begin)
        ours = copy.deepcopy(plain)
        use_native_norms(ours)
        assert not ours.norm.relu
        x, g = example(4)
        assert_close(trained_once(ours.train(), x, g), trained_once(plain.train(), x, g))

    watched = nn.Sequential(nn.BatchNorm2d(4), nn.ReLU())
    seen: list[Tensor] = []
    watched[0].register_forward_hook(lambda *given: seen.append(given[-1].detach()))
    use_native_norms(watched)
    watched(example(4, offset=0.0)[0])
    assert float(seen[-1].min()) < 0


def test_errors_and_other_types_are_torchs() -> None:
    norm = nn.BatchNorm2d(4)
    use_native_norms(norm)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        norm(torch.zeros(1, 4, 1, 1))
    with pytest.raises(ValueError, match="4D"):
        norm(torch.zeros(2, 4))
    double = nn.BatchNorm2d(4).double()
    use_native_norms(double)
    assert double(torch.randn(2, 4, 3, 3, dtype=torch.float64)).dtype == torch.float64
