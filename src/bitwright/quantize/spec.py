# SPDX-License-Identifier: Apache-2.0
"""`QuantSpec`, how one tensor is quantized, and the rules that make one, as plain values.

No torch here: a recipe is checked without loading it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import ClassVar

from bitwright.formats import Format
from bitwright.formats.rounding import Overflow, Rounding


class Role(StrEnum):
    """What an operand is to its layer. Gradients belong to training in low precision.

    Attributes:
        INPUT: the network's input; in training in low precision that of a layer.
        WEIGHT: the weights of a layer.
        ACTIVATION: what a layer with weights, or an element-wise one, gives.
        BIAS: added to the sums of a layer.
        GRAD_OUTPUT: the gradient of what a layer gives.
        GRAD_INPUT: the gradient of what a layer takes.
        GRAD_WEIGHT: the gradient of its weights.
        ACCUMULATOR: the sums themselves.
    """

    INPUT = "input"
    WEIGHT = "weight"
    ACTIVATION = "activation"
    BIAS = "bias"
    GRAD_OUTPUT = "grad_output"
    GRAD_INPUT = "grad_input"
    GRAD_WEIGHT = "grad_weight"
    ACCUMULATOR = "accumulator"


#: What the products of training take, and what they give.
OPERAND_ROLES = (Role.INPUT, Role.WEIGHT, Role.GRAD_OUTPUT)
RESULT_ROLES = (Role.ACTIVATION, Role.GRAD_INPUT, Role.GRAD_WEIGHT)


class Product(StrEnum):
    """What a convolution or linear layer multiplies in one step of training.

    forward: input x weight; grad_input: gradient of the output x weight; grad_weight: input x
    gradient of the output.
    """

    FORWARD = "forward"
    GRAD_INPUT = "grad_input"
    GRAD_WEIGHT = "grad_weight"


#: The roles of what each product takes, left and right, and of what it gives.
PRODUCT_ROLES: Mapping[Product, tuple[Role, Role, Role]] = {
    Product.FORWARD: (Role.INPUT, Role.WEIGHT, Role.ACTIVATION),
    Product.GRAD_INPUT: (Role.GRAD_OUTPUT, Role.WEIGHT, Role.GRAD_INPUT),
    Product.GRAD_WEIGHT: (Role.INPUT, Role.GRAD_OUTPUT, Role.GRAD_WEIGHT),
}


class Granularity(StrEnum):
    """How many scales a tensor has; a block format has one a block, ``per_block``, by itself."""

    PER_TENSOR = "per_tensor"
    PER_CHANNEL = "per_channel"
    PER_BLOCK = "per_block"


class Scope(StrEnum):
    """Which layers share the table of a codebook: none, those of a group, all of the network.

    The groups are those of batch-norm folding: layers into which a batch norm was merged, batch
    norms that became a diagonal 1x1 convolution, and all others.
    """

    LAYER = "layer"
    GROUP = "group"
    NETWORK = "network"


class ScaleRule(str):
    """Where a scale comes from: the name of a rule, and what a policy must know about it.

    What a rule computes is in `scale_rules`; there a user adds one.

    max: the largest magnitude; percentile: that percentile of the magnitudes; mse: the clipping
    that minimises the squared error; mean: the mean magnitude (XNOR-Net, TWN); learned: a parameter
    trained with the network (LSQ); const: a given number; entropy: the clipping whose histogram
    loses the least information (the Kullback-Leibler divergence that TensorRT's calibration
    minimises), for activations. For activations the statistics are exponential averages over
    training batches.

    minmax: the range between the running averages of the minimum and of the maximum, of weights
    too (the moving-average min-max observer of PyTorch); interval: a learned range, its minimum and
    maximum are trained with the network by the plain straight-through gradient (Jung et al. 2019,
    Kim et al. 2019). With a ``zero_point`` both count, else the one farther from zero.

    dynamic: a power of two found anew for every tensor from its largest and smallest element
    (MuPPET, Rajagopal et al. 2020): weights, and every operand of training in low precision.

    Attributes:
        has_range: the scale follows from a range that is state or a parameter.
        trained: the state is a parameter.
        follows: an activation's statistics go on following the batches of training.
        stateless: it needs nothing but the tensor at hand.
    """

    MAX: ClassVar[ScaleRule]
    PERCENTILE: ClassVar[ScaleRule]
    MSE: ClassVar[ScaleRule]
    MEAN: ClassVar[ScaleRule]
    LEARNED: ClassVar[ScaleRule]
    CONST: ClassVar[ScaleRule]
    ENTROPY: ClassVar[ScaleRule]
    MINMAX: ClassVar[ScaleRule]
    INTERVAL: ClassVar[ScaleRule]
    DYNAMIC: ClassVar[ScaleRule]

    _known: ClassVar[dict[str, ScaleRule]] = {}

    has_range: bool
    trained: bool
    follows: bool
    stateless: bool

    def __new__(cls, name: str) -> ScaleRule:
        """The rule of a name; ValueError if there is none. There is one object a name."""
        if name not in cls._known:
            raise ValueError(f"{name!r} is no scale rule")
        return cls._known[name]

    @classmethod
    def named(
        cls,
        name: str,
        *,
        has_range: bool = False,
        trained: bool = False,
        follows: bool = False,
        stateless: bool = False,
    ) -> ScaleRule:
        """A new rule; ValueError if the name is taken."""
        if name in cls._known:
            raise ValueError(f"there is a scale rule {name!r} already")
        rule = str.__new__(cls, name)
        rule.has_range, rule.trained = has_range, trained
        rule.follows, rule.stateless = follows, stateless
        cls._known[name] = rule
        return rule

    @classmethod
    def all(cls) -> tuple[ScaleRule, ...]:
        """Every rule, in the order they were made."""
        return tuple(cls._known.values())

    @property
    def value(self) -> str:
        """The name."""
        return str(self)

    def __str__(self) -> str:
        return str.__str__(self)


ScaleRule.MAX = ScaleRule.named("max", follows=True, stateless=True)
ScaleRule.PERCENTILE = ScaleRule.named("percentile", follows=True, stateless=True)
ScaleRule.MSE = ScaleRule.named("mse", follows=True, stateless=True)
ScaleRule.MEAN = ScaleRule.named("mean")
ScaleRule.LEARNED = ScaleRule.named("learned", trained=True)
ScaleRule.CONST = ScaleRule.named("const", stateless=True)
ScaleRule.ENTROPY = ScaleRule.named("entropy")
ScaleRule.MINMAX = ScaleRule.named("minmax", has_range=True, follows=True)
ScaleRule.INTERVAL = ScaleRule.named("interval", has_range=True, trained=True)
ScaleRule.DYNAMIC = ScaleRule.named("dynamic", stateless=True)


@dataclass(frozen=True)
class QuantSpec:
    """How one tensor is quantized: format x granularity x scale rule x rounding x overflow.

    Attributes:
        format: the number format.
        granularity: one scale a tensor, an output channel, or a block.
        scale: the scale rule.
        power_of_two: the scale is rounded to a power of two.
        rounding, overflow: the rule between two levels and beyond the last ones.
        percentile: for ``percentile``, in percent.
        momentum: weight of a new batch in the running statistics of an activation, and of a new
            step in those of a weight (``minmax``).
        value: for ``const``, the scale.
        positive: levels below zero stay unused: a signed format behind a ReLU.
        scope: of a codebook, which layers share its table.
        zero_point: affine: the codes cover an interval that need not be symmetric, and one of them,
            found with the scale, is real zero. ``format`` is then the one before it is found.
    """

    format: Format
    granularity: Granularity
    scale: ScaleRule
    power_of_two: bool = False
    rounding: Rounding = Rounding.HALF_EVEN
    overflow: Overflow = Overflow.SAT
    percentile: float = 99.9
    momentum: float = 0.1
    value: float = 1.0
    positive: bool = False
    scope: Scope = Scope.LAYER
    zero_point: bool = False

    @property
    def lowest(self) -> int:
        """The smallest level in use; with a zero point, the smallest that there may be."""
        if self.zero_point:
            return self.format.min_level - self.format.max_level
        return 0 if self.positive else self.format.min_level

    @property
    def has_range(self) -> bool:
        """Whether the scale follows from an interval that is state or a parameter."""
        return self.scale.has_range

    @property
    def scale_text(self) -> str:
        """The scale rule in words, as `explain` prints it."""
        text = self.scale.value
        if self.scale is ScaleRule.PERCENTILE:
            text = f"percentile {self.percentile:g}"
        elif self.scale is ScaleRule.CONST:
            text = f"const {self.value:g}"
        implied = self.scale is ScaleRule.DYNAMIC
        text = f"{text}, power of two" if self.power_of_two and not implied else text
        text = f"{text}, with zero point" if self.zero_point else text
        return text if self.scope is Scope.LAYER else f"{text}, one table a {self.scope.value}"


@dataclass(frozen=True)
class Layer:
    """What a policy may know about a layer: its path, type name, and place in the network."""

    path: str
    type: str
    first: bool = False
    last: bool = False


@dataclass(frozen=True)
class Selector:
    """Chooses layers; in training also one of their products. All given must hold.

    Attributes:
        layers: paths, as ``named_modules()`` gives them, with ``*`` and ``?`` for any letters.
        type: name of the class, such as ``Linear``, in any case.
        position: only the ``first`` or the ``last`` layer with weights.
        product: in training in low precision alone: only this product of the layer.
    """

    layers: str = "*"
    type: str | None = None
    position: str | None = None
    product: Product | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it names one path, without signs that stand for others."""
        return not any(sign in self.layers for sign in "*?[")

    def matches(self, layer: Layer, product: Product | None = None) -> bool:
        if not fnmatchcase(layer.path, self.layers):
            return False
        if self.product is not None and product is not self.product:
            return False
        if self.type is not None and self.type.lower() != layer.type.lower():
            return False
        if self.position == "first":
            return layer.first
        return self.position != "last" or layer.last

    def __str__(self) -> str:
        parts = [] if self.layers == "*" else [self.layers]
        parts += [] if self.type is None else [f"type {self.type}"]
        parts += [] if self.position is None else [f"the {self.position} layer"]
        parts += [] if self.product is None else [f"product {self.product.value}"]
        return ", ".join(parts) or "every layer"


@dataclass(frozen=True)
class Change:
    """The fields of a specification that a rule sets; None leaves a field as it was.

    Attributes:
        keep_float: no quantizer here.
        format: of the numbers, as ``bitwright list formats`` names them; of integers and floats the
            width is part of the name. ``dfpN`` is ``intN`` with one power-of-two scale a tensor.
        granularity: how many scales a tensor has; a block format has one a block by itself. Left
            out, weights have one a channel (one in all in the last layer; in power-of-two formats,
            codebooks, with a zero point or a dynamic scale), everything else has one.
        scale: where a scale comes from. Left out, it goes by the format and the operand.
        power_of_two: scales are rounded to powers of two.
        rounding: of a value between two levels. Left out, ``half_even``; in training as
            ``low_precision.rounding`` says.
        overflow: of a value beyond the last level. Left out, ``sat``.
        percentile: of ``scale: percentile``, in percent. Left out, 99.9.
        momentum: weight of a new batch in running statistics. Left out, 0.1; of ``minmax`` 0.01.
        value: of ``scale: const``, the scale. Left out, 1.
        narrow: of signed integers, the lowest level is left out, so that levels are symmetric. Left
            out, weights without a zero point are.
        scope: of a codebook, which layers share its table. Left out, ``layer``.
        zero_point: affine: a level found from the data is real zero (scale rules ``minmax``, of
            which it is the default, and ``interval``).
    """

    keep_float: bool | None = None
    format: Format | None = None
    granularity: Granularity | None = None
    scale: ScaleRule | None = None
    power_of_two: bool | None = None
    rounding: Rounding | None = None
    overflow: Overflow | None = None
    percentile: float | None = None
    momentum: float | None = None
    value: float | None = None
    narrow: bool | None = None
    scope: Scope | None = None
    zero_point: bool | None = None

    def over(self, earlier: Change) -> Change:
        """This change on top of an earlier one."""
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        if self.format is not None and self.keep_float is None:
            given["keep_float"] = False
        return replace(earlier, **{k: v for k, v in given.items() if v is not None})


@dataclass(frozen=True)
class Rule:
    """Selector x role -> change, with the place in the recipe it came from."""

    selector: Selector
    role: Role
    change: Change
    where: str = "policy"


@dataclass(frozen=True)
class Resolved:
    """The outcome for one operand: a specification, or None to keep it float, and the reason."""

    spec: QuantSpec | None
    reason: str
