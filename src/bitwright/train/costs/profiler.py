# SPDX-License-Identifier: Apache-2.0
"""Measures on this machine what a step of training costs at every level of a ladder.

Every product of every layer runs alone, on tensors of the sizes that it has at the batch size, in
float32 as torch computes it and at each level by the engine that would run it; so does quantizing
every tensor. A whole float32 step less its products is what is left. Everything runs several times;
the median counts, half the range is the spread.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional

from bitwright.figures import Source
from bitwright.train.arithmetic.apply import apply_arithmetic, layer_formats
from bitwright.train.arithmetic.geometry import Engine, Geometry, Product
from bitwright.train.arithmetic.layers import Context, LayerFormats, ProductFormats
from bitwright.train.arithmetic.operands import Operand
from bitwright.train.arithmetic.quantise import quantise
from bitwright.train.costs.counting import count_network
from bitwright.train.costs.model import Cost, CostTable, LevelCosts, PartCost, total
from bitwright.train.costs.network import LayerWork
from bitwright.train.precision.config import LowPrecision
from bitwright.train.precision.ladder import FLOAT32
from bitwright.train.precision.policy import EpochSeen, Plan

OnProgress = Callable[[str, int, int], None]


@dataclass
class _Clock:
    """Times calls; of equal ones only the first is really run."""

    device: torch.device
    repeats: int
    seen: dict[object, Cost] = field(default_factory=dict)

    def __call__(self, call: Callable[[], object], key: object = None) -> Cost:
        if key is not None and key in self.seen:
            return self.seen[key]
        call()  # warm: memory is there, engines have chosen
        times = []
        for _ in range(self.repeats):
            self._wait()
            start = time.perf_counter()
            call()
            self._wait()
            times.append(time.perf_counter() - start)
        cost = Cost(statistics.median(times), None, (max(times) - min(times)) / 2)
        if key is not None:
            self.seen[key] = cost
        return cost

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


@dataclass(frozen=True)
class Setup:
    """How to measure.

    Attributes:
        batch: images a step.
        steps: of an epoch.
        device: where.
        repeats: of each measurement.
        seed: of weights and images.
    """

    batch: int
    steps: int
    device: str = "cpu"
    repeats: int = 5
    seed: int = 0


def profile_network(
    model: nn.Module,
    sample_shape: tuple[int, ...],
    settings: LowPrecision,
    engine: Engine,
    setup: Setup,
    *,
    name: str | None = None,
    on_progress: OnProgress = lambda what, done, total: None,
) -> CostTable:
    """The costs of training a network here.

    Args:
        model: plain float32 network, left as it was.
        sample_shape: (C, H, W).
        settings: the ladder and its formats.
        engine: multiplies.

    Raises:
        ModelError: an image does not pass, or nothing can train in few bits.
    """
    place = torch.device(setup.device)
    clock = _Clock(place, setup.repeats)
    network = count_network(model, sample_shape, setup.batch, name)
    copied = copy.deepcopy(model).to(place)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(setup.seed)
        step = clock(_step(copied, torch.rand(setup.batch, *sample_shape, device=place)))
        target = apply_arithmetic(copied, Context(engine, setup.seed))
        formats = {FLOAT32: {path: LayerFormats() for path in target.layers}}
        for index, level in enumerate(settings.ladder):
            policy = settings.arithmetic(index)
            if policy is not None:
                formats[level] = layer_formats(policy, target.layers)
        levels = {}
        for done, (level, found) in enumerate(formats.items()):
            on_progress("measuring products", done, len(formats))
            measure = _Level(level, found, engine, clock, place)
            levels[level] = measure.costs(network.layers)
        decide = clock(_policy(settings, target.layers, place))
    on_progress("measuring products", len(formats), len(formats))
    products = total(each.cost for each in levels[FLOAT32].products)
    left = Cost(max(0.0, step.seconds - products.seconds), None, step.spread)
    return CostTable(
        f"{network.name} on this machine",
        Source.MEASUREMENT,
        setup.steps,
        left,
        decide,
        levels,
        (
            f"{setup.repeats} runs of everything, medians; batch {setup.batch}, "
            f"{torch.get_num_threads()} threads, {place.type}, torch {torch.__version__}, "
            f"engine {engine.name}",
            f"a whole float32 step takes {step.seconds:.4g} s, its products {products.seconds:.4g}",
        ),
    )


def _step(model: nn.Module, images: Tensor) -> Callable[[], None]:
    """A whole training step."""
    model.train()
    with torch.no_grad():
        classes = model(images[:2]).shape[-1]
    labels = torch.randint(classes, (len(images),), device=images.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def _policy(
    settings: LowPrecision, layers: Mapping[str, nn.Module], device: torch.device
) -> Callable[[], None]:
    """What follows an epoch in few bits, with the policy's memory full."""
    plan = Plan(tuple(layers), len(settings.ladder), settings.float_level, 1000, 1, 1)
    policy = settings.make(plan)
    gradients = {
        path: torch.randn_like(layer.weight, device=device)  # type: ignore[arg-type]
        for path, layer in layers.items()
    }
    epoch = iter(range(10**6))

    def decide() -> None:
        if policy.wants_gradients:
            policy.after_epoch(
                EpochSeen(next(epoch), {path: g.clone() for path, g in gradients.items()})
            )

    for _ in range(4):
        decide()
    return decide


@dataclass(frozen=True)
class _Level:
    """Measures one level."""

    name: str
    formats: Mapping[str, LayerFormats]
    engine: Engine
    clock: _Clock
    device: torch.device

    def costs(self, layers: tuple[LayerWork, ...]) -> LevelCosts:
        return LevelCosts(
            self.name,
            tuple(each for layer in layers for each in self._products(layer)),
            quantise=tuple(each for layer in layers for each in self._quantise(layer)),
        )

    def _products(self, layer: LayerWork) -> Iterator[PartCost]:
        tensors = _Tensors(layer, self.device)
        for name in layer.products:
            product = Product(name)
            given = self.formats[layer.layer].of(product)
            key = (layer.shape, product, given.left, given.right)
            if given.left is None and given.right is None:
                call, unit = tensors.plain(product), "torch float32"
            else:
                call, unit = tensors.on(self.engine, product, given), self.engine.name
            yield PartCost(layer.layer, name, self.clock(call, key), unit)

    def _quantise(self, layer: LayerWork) -> Iterator[PartCost]:
        formats, tensors = self.formats[layer.layer], _Tensors(layer, self.device)
        wanted = [
            ("weights", tensors.weight, formats.forward.right, False),
            ("activations", tensors.input, formats.forward.left, False),
        ]
        if len(layer.products) > 1:
            wanted.append(("gradients", tensors.gradient, formats.grad_weight.right, False))
        for product in map(Product, layer.products):
            result = formats.of(product).result
            part = "activations" if product is Product.FORWARD else "gradients"
            wanted.append((part, tensors.result(product), result, True))
        for part, tensor, spec, back in wanted:
            if spec is None:
                continue
            made = tensor()

            def call(x: Tensor = made, spec=spec, back: bool = back) -> object:  # type: ignore[no-untyped-def]
                operand = quantise(x, spec, 1)
                return operand.reals() if back else operand

            cost = self.clock(call, ("quantise", tuple(made.shape), spec, back))
            yield PartCost(layer.layer, part, cost)


@dataclass(frozen=True)
class _Tensors:
    """Tensors of the sizes that a layer has in training, with values of the usual kind."""

    layer: LayerWork
    device: torch.device

    def input(self) -> Tensor:
        return torch.rand(self.layer.input, device=self.device)

    def weight(self) -> Tensor:
        spread = prod(self.layer.weight[1:]) ** -0.5
        return torch.randn(self.layer.weight, device=self.device) * spread

    def gradient(self) -> Tensor:
        return torch.randn(self.layer.output, device=self.device) * 1e-3

    def result(self, product: Product) -> Callable[[], Tensor]:
        """Something like what a product gives."""
        return {
            Product.FORWARD: self.gradient,
            Product.GRAD_INPUT: self.input,
            Product.GRAD_WEIGHT: self.weight,
        }[product]

    @property
    def geometry(self) -> Geometry:
        layer = self.layer
        return Geometry(layer.stride, layer.padding, layer.dilation, layer.groups)

    def plain(self, product: Product) -> Callable[[], object]:
        """As torch computes it for a plain layer."""
        x, w = self.input(), self.weight()
        if self.layer.kind == "linear":
            x, w = x.flatten(1), w.flatten(1)
            g = self.gradient().flatten(1)
            return {
                Product.FORWARD: lambda: functional.linear(x, w),
                Product.GRAD_INPUT: lambda: g @ w,
                Product.GRAD_WEIGHT: lambda: g.t() @ x,
            }[product]
        layer = self.layer
        moves = (layer.stride, layer.padding, layer.dilation)
        if product is Product.FORWARD:
            return lambda: functional.conv2d(x, w, None, *moves, layer.groups)
        g = self.gradient()
        mask = (product is Product.GRAD_INPUT, product is Product.GRAD_WEIGHT, False)
        return lambda: torch.ops.aten.convolution_backward(
            g, x, w, None, *moves, False, (0, 0), layer.groups, mask
        )

    def on(self, engine: Engine, product: Product, formats: ProductFormats) -> Callable[[], object]:
        """By an engine, on quantized operands."""
        geometry = self.geometry
        if product is Product.FORWARD:
            x, w = self._pair(self.input(), self.weight(), formats)
            return lambda: engine.forward(x, w, geometry)
        if product is Product.GRAD_INPUT:
            g, w = self._pair(self.gradient(), self.weight(), formats)
            return lambda: engine.grad_input(g, w, geometry, self.layer.input)
        x, g = self._pair(self.input(), self.gradient(), formats)
        return lambda: engine.grad_weight(x, g, geometry, self.layer.weight)

    @staticmethod
    def _pair(left: Tensor, right: Tensor, formats: ProductFormats) -> tuple[Operand, Operand]:
        return quantise(left, formats.left, 1), quantise(right, formats.right, 2)
