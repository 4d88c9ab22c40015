# SPDX-License-Identifier: Apache-2.0
"""Measures on this machine what a step of training costs at every level of a ladder.

Every product of every layer runs alone, on tensors of the sizes that it has at the batch size, in
float32 as torch computes it and at each level by the engine that would run it; so does quantizing
every tensor. What is left of a float32 step is the whole step less its products. What is left of a
step in few bits is measured by itself, with an engine that multiplies nothing: tensors then lie in
memory as that level's engine leaves them, which is what the time of batch norm depends on.
Everything runs several times; the median counts, half the range is the spread.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from bitwright.base.figures import Source
from bitwright.low_precision.arithmetic.apply import apply_arithmetic, layer_formats
from bitwright.low_precision.arithmetic.emulated import float_product
from bitwright.low_precision.arithmetic.geometry import Engine, Geometry, Product, Size
from bitwright.low_precision.arithmetic.layers import Context, LayerFormats
from bitwright.low_precision.arithmetic.norms import use_native_norms
from bitwright.low_precision.arithmetic.operand_quantizer import quantize
from bitwright.low_precision.arithmetic.operands import Operand
from bitwright.low_precision.config import LowPrecision
from bitwright.low_precision.costs.counting import count_network
from bitwright.low_precision.costs.model import Cost, CostTable, LevelCosts, PartCost, total
from bitwright.low_precision.costs.network import LayerWork
from bitwright.low_precision.ladder import FLOAT32
from bitwright.low_precision.make import make_policy
from bitwright.low_precision.policy import EpochSeen, Plan

OnProgress = Callable[[str, int, int], None]
CLOCKS: Mapping[str, Callable[[], float]] = {
    "wall": time.perf_counter,
    "cpu": time.process_time,
}


@dataclass
class _Clock:
    """Times calls; of equal ones only the first is really run."""

    device: torch.device
    repeats: int
    now: Callable[[], float]
    seen: dict[object, Cost] = field(default_factory=dict)

    def __call__(self, call: Callable[[], object], key: object = None) -> Cost:
        if key is not None and key in self.seen:
            return self.seen[key]
        call()  # warm: memory is there, engines have chosen
        times = []
        for _ in range(self.repeats):
            self._wait()
            start = self.now()
            call()
            self._wait()
            times.append(self.now() - start)
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
        clock: ``wall``; or ``cpu``, the processor's time on one thread, where other programs run.
    """

    batch: int
    steps: int
    device: str = "cpu"
    repeats: int = 5
    seed: int = 0
    clock: Literal["wall", "cpu"] = "wall"


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
    clock = _Clock(place, setup.repeats, CLOCKS[setup.clock])
    network = count_network(model, sample_shape, setup.batch, name)
    copied = copy.deepcopy(model).to(place)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(setup.seed)
        if settings.norms == "fast":
            use_native_norms(copied)
        one_step = _step(copied, torch.rand(setup.batch, *sample_shape, device=place))
        step = clock(one_step)
        context = Context(engine, setup.seed)
        target = apply_arithmetic(copied, context)
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
            if level != FLOAT32:
                context.engine = _EmptyEngine(measure.made)
                target.use(dict.fromkeys(target.layers, _UNROUNDED))
                levels[level] = replace(levels[level], rest=clock(one_step))
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
            f"{setup.repeats} runs of everything, medians, {setup.clock} time; "
            f"batch {setup.batch}, "
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
    policy = make_policy(settings, plan)
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


class _Unrounded(LayerFormats):
    """float32 operands that nevertheless go to an engine."""

    @property
    def is_float(self) -> bool:
        return False


_UNROUNDED = _Unrounded()
#: Product and size of its result -> strides of the result.
_Memory = dict[tuple[Product, tuple[int, ...]], tuple[int, ...]]


@dataclass(frozen=True)
class _EmptyEngine(Engine):
    """An engine that gives tensors as another engine does, and computes none of them.

    Attributes:
        made: how the results of products lie in memory.
    """

    made: _Memory
    name: str = "nothing"

    def supports(self, product: Product, left: Operand, right: Operand, geometry: Geometry) -> bool:
        return True

    def multiply(
        self, product: Product, left: Operand, right: Operand, geometry: Geometry, size: Size
    ) -> Tensor:
        stride = self.made.get((product, tuple(size)))
        if stride is None:  # a padding that the layer itself does, before it multiplies
            return left.tensor.new_empty(size)
        return left.tensor.new_empty_strided(size, stride)


@dataclass(frozen=True)
class _Level:
    """Measures one level.

    Attributes:
        made: how the results of products lie in memory.
    """

    name: str
    formats: Mapping[str, LayerFormats]
    engine: Engine
    clock: _Clock
    device: torch.device
    made: _Memory = field(default_factory=dict)

    def costs(self, layers: tuple[LayerWork, ...]) -> LevelCosts:
        return LevelCosts(
            self.name,
            tuple(each for layer in layers for each in self._products(layer)),
            quantize=tuple(each for layer in layers for each in self._quantize(layer)),
        )

    def _products(self, layer: LayerWork) -> Iterator[PartCost]:
        tensors = _Tensors(layer, self.device)
        for name in layer.products:
            product = Product(name)
            given = self.formats[layer.layer].of(product)
            key = (layer.shape, product, given.left, given.right)
            left, right, size = tensors.sides(product)
            task: tuple[Any, ...] = (left(), right(), tensors.geometry, size)
            call, unit = partial(float_product, product, *task), "torch float32"
            if given.left is not None or given.right is not None:
                operands = quantize(task[0], given.left, 1), quantize(task[1], given.right, 2)
                call = partial(self.engine.multiply, product, *operands, *task[2:])
                unit = self.engine.name
                result = call()
                self.made[product, tuple(result.shape)] = result.stride()
            yield PartCost(layer.layer, name, self.clock(call, key), unit)

    def _quantize(self, layer: LayerWork) -> Iterator[PartCost]:
        formats, tensors = self.formats[layer.layer], _Tensors(layer, self.device)
        wanted = [
            ("weights", tensors.weight, formats.forward.right, False),
            ("activations", tensors.input, formats.forward.left, False),
        ]
        if len(layer.products) > 1:
            wanted.append(("gradients", tensors.gradient, formats.grad_weight.right, False))
        likely = {  # something like what a product gives
            Product.FORWARD: tensors.gradient,
            Product.GRAD_INPUT: tensors.input,
            Product.GRAD_WEIGHT: tensors.weight,
        }
        for product in map(Product, layer.products):
            result = formats.of(product).result
            part = "activations" if product is Product.FORWARD else "gradients"
            wanted.append((part, likely[product], result, True))
        for part, tensor, spec, back in wanted:
            if spec is None:
                continue
            made = tensor()

            def call(x: Tensor = made, spec=spec, back: bool = back) -> object:  # type: ignore[no-untyped-def]
                operand = quantize(x, spec, 1)
                return operand.reals() if back else operand

            cost = self.clock(call, ("quantize", tuple(made.shape), spec, back))
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

    @property
    def geometry(self) -> Geometry:
        layer = self.layer
        return Geometry(layer.stride, layer.padding, layer.dilation, layer.groups)

    def sides(self, product: Product) -> tuple[Callable[[], Tensor], Callable[[], Tensor], Size]:
        """What makes the operands of a product, and the size of its result."""
        layer = self.layer
        return {
            Product.FORWARD: (self.input, self.weight, layer.output),
            Product.GRAD_INPUT: (self.gradient, self.weight, layer.input),
            Product.GRAD_WEIGHT: (self.input, self.gradient, layer.weight),
        }[product]
