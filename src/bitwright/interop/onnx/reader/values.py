# SPDX-License-Identifier: Apache-2.0
"""What an ONNX tensor is during import: an integer edge, a unit, and what happened to it since.

``real = steps(level * unit)``: a level of an edge of the integer graph, times its unit (one, or one
per channel), then elementwise steps with per-channel constants. The next quantizer spends the
steps; nothing is ever moved past anything. How the elements of the ONNX tensor lie on the edge is
an index array, so that any chain of reshapes and transposes is data, not a pattern.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import ModelError
from bitwright.ir import IntArray

#: Element-wise operations between two quantizers; each value holds all of its own. And those of the
#: two ways that meet again: fewer, since they stand inside each other.
_MOST_STEPS, _MOST_INSIDE = 1000, 100
Floats = NDArray[np.float64]
Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Const:
    """A constant tensor; with ``levels``, the integers it was quantized to.

    Attributes:
        value: as ONNX computes it.
        levels, scale: ``real = scale * level``, both of the full shape.
    """

    value: Array
    levels: IntArray | None = None
    scale: Floats | None = None

    def moved(self, move: Callable[[Array], Array]) -> Const:
        """The same rearrangement of all three."""
        return Const(
            move(self.value),
            None if self.levels is None else move(self.levels),
            None if self.scale is None else move(self.scale),
        )


def _leaky(x: Array, slope: Array) -> Array:
    return np.where(x >= 0, x, x * slope)


def _norm(x: Array, gamma: Array, beta: Array, mean: Array, var: Array) -> Array:
    return np.asarray(gamma * (x - mean) / np.sqrt(var) + beta)


def _elu(x: Array, alpha: Array) -> Array:
    return np.where(x >= 0, x, alpha * np.expm1(np.minimum(x, 0)))


def _selu(x: Array, alpha: Array, gamma: Array) -> Array:
    return np.asarray(gamma * _elu(x, alpha))


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _erf(x: Array) -> Array:
    # Not scipy's, whose last bit is another: what a file means would change.
    found = np.fromiter(map(math.erf, x.ravel().tolist()), np.float64, x.size)
    return found.reshape(x.shape)


def _hard_sigmoid(x: Array, alpha: Array, beta: Array) -> Array:
    return np.asarray(np.clip(alpha * x + beta, 0, 1))


#: Elementwise functions and whether they rise (1) or not necessarily (0).
FUNCTIONS: dict[str, tuple[Callable[..., Array], int]] = {
    "mul": (np.multiply, 1),
    "div": (np.divide, 1),
    "add": (np.add, 1),
    "norm": (_norm, 1),
    "clip": (np.clip, 1),
    "leaky": (_leaky, 1),
    "sigmoid": (_sigmoid, 1),
    "tanh": (np.tanh, 1),
    "elu": (_elu, 1),
    "selu": (_selu, 1),
    "hard_sigmoid": (_hard_sigmoid, 1),
    "softplus": (lambda x: np.logaddexp(0, x), 1),
    "softsign": (lambda x: x / (1 + np.abs(x)), 1),
    "exp": (np.exp, 1),
    "erf": (_erf, 1),
    "floor": (np.floor, 1),
    "ceil": (np.ceil, 1),
    "round": (np.rint, 1),
    "sign": (np.sign, 1),
    "abs": (np.abs, 0),
    "hard_swish": (lambda x: x * np.clip(x / 6 + 0.5, 0, 1), 0),
    "swish": (lambda x, alpha: x * _sigmoid(alpha * x), 0),
    "gelu": (lambda x: 0.5 * x * (1 + _erf(x / np.sqrt(2))), 0),
    "mish": (lambda x: x * np.tanh(np.logaddexp(0, x)), 0),
    "square": (np.square, 0),
    "quantized": (np.asarray, 0),  # by the step's own rule
    # Of two chains of steps on the same tensor, as in x * sigmoid(x).
    "plus": (np.add, 0),
    "minus": (np.subtract, 0),
    "times": (np.multiply, 0),
    "over": (np.divide, 0),
}


#: Work on an element, in units of `Work`, where it is more than that of the others.
_SLOW = {"erf": 130, "gelu": 140} | dict.fromkeys(
    ("elu", "selu", "softplus", "mish", "leaky", "norm", "swish", "quantized"), 20
)
_QUICK = 4


def _unclipped(y: Array, lo: Array, hi: Array) -> Array:
    return np.where(y <= lo, -np.inf, np.where(y > hi, np.inf, y))


#: Where an elementwise function has some value, about: infinite where everywhere, or nowhere.
_INVERSES: dict[str, Callable[..., Array]] = {
    "mul": np.divide,
    "div": np.multiply,
    "add": np.subtract,
    "norm": lambda y, gamma, beta, mean, var: (y - beta) * np.sqrt(var) / gamma + mean,
    "clip": _unclipped,
    "leaky": lambda y, slope: np.where(y >= 0, y, y / slope),
    "sigmoid": lambda y: np.log(y / (1 - y)),
    "tanh": np.arctanh,
    "exp": np.log,
}


class QuantizerRule(Protocol):
    """A quantizer without its constants; equal to others that do the same with the same ones."""

    def reals(
        self, x: Array, constants: tuple[Floats, ...], dtype: type[np.floating[Any]]
    ) -> Array:
        """Reals ``(..., channels)`` as the quantizer leaves them."""


@dataclass(frozen=True, eq=False)
class Step:
    """One elementwise operation with constants of shape (1,) or (channels,).

    Attributes:
        op: a name in `FUNCTIONS`.
        constants: behind the tensor, as the function takes them.
        branches: of ``plus``, ``minus``, ``times`` and ``over``: two chains of steps on the same
            tensor, whose results the function takes.
        rule: of ``quantized``: what else than constants says what its quantizer does.
    """

    op: str
    constants: tuple[Floats, ...] = ()
    branches: tuple[tuple[Step, ...], ...] = ()
    rule: QuantizerRule | None = None

    def apply(self, x: Array, dtype: type[np.floating[Any]] = np.float64) -> Array:
        """Evaluate on ``(..., channels)``."""
        operands = [_after(x, branch, dtype) for branch in self.branches] or [x]
        if self.rule is not None:
            return self.rule.reals(x, self.constants, dtype)
        constants = (c.astype(dtype) for c in self.constants)
        with np.errstate(all="ignore"):
            return np.asarray(FUNCTIONS[self.op][0](*operands, *constants), dtype=dtype)

    def direction(self) -> Floats:
        """1 rising, -1 falling, 0 constant, NaN neither; per channel."""
        if self.rule is not None or not FUNCTIONS[self.op][1]:
            return np.array([np.nan])
        if self.op in ("mul", "div"):
            return np.sign(self.constants[0])
        if self.op == "norm":
            return np.sign(self.constants[0])
        if self.op in ("leaky", "elu", "selu"):
            return np.where(self.constants[0] >= 0, 1.0, np.nan)
        if self.op == "hard_sigmoid":
            return np.sign(self.constants[0])
        return np.array([1.0])

    def affine(self) -> tuple[Floats, Floats] | None:
        """(gain, offset) if the step is ``gain * x + offset``."""
        zero = np.zeros(1)
        if self.op == "mul":
            return self.constants[0], zero
        if self.op == "div":
            return 1 / self.constants[0], zero
        if self.op == "add":
            return np.ones(1), self.constants[0]
        if self.op == "norm":
            gamma, beta, mean, var = self.constants
            gain = gamma / np.sqrt(var)
            return gain, beta - gain * mean
        return None

    def spread(self, move: Callable[[Floats], Floats]) -> Step:
        """The step with its per-channel constants rearranged; scalars stay."""
        return self.changed(lambda c: c if c.size == 1 else move(c))

    def changed(self, change: Callable[..., Floats], *others: Step) -> Step:
        """The step with each constant changed, from this and those of other steps of its `form`."""
        constants = zip(self.constants, *(o.constants for o in others), strict=True)
        branches = zip(self.branches, *(o.branches for o in others), strict=True)
        return Step(
            self.op,
            tuple(change(*each) for each in constants),
            tuple(
                tuple(step.changed(change, *rest) for step, *rest in zip(*each, strict=True))
                for each in branches
            ),
            self.rule,
        )

    @property
    def rows(self) -> int:
        inside = (step.rows for branch in self.branches for step in branch)
        return max((*(c.size for c in self.constants), *inside), default=1)

    @property
    def size(self) -> int:
        """How many operations it is."""
        return 1 + sum(step.size for branch in self.branches for step in branch)

    @property
    def work(self) -> int:
        """On an element, in units of `Work`."""
        inside = sum(step.work for branch in self.branches for step in branch)
        return _SLOW.get(self.op, _QUICK) + inside

    def form(self) -> tuple[Any, ...]:
        """What two steps must share for their constants to stand for each other."""
        branches = tuple(tuple(step.form() for step in branch) for branch in self.branches)
        return self.op, len(self.constants), branches, self.rule

    def key(self) -> tuple[Any, ...]:
        """What makes two steps equal."""
        branches = tuple(tuple(step.key() for step in branch) for branch in self.branches)
        return self.op, tuple(c.tobytes() for c in self.constants), branches, self.rule


def _after(x: Array, steps: tuple[Step, ...], dtype: type[np.floating[Any]]) -> Array:
    for step in steps:
        x = step.apply(x, dtype)
    return x


@dataclass(frozen=True)
class Pool:
    """A max pool that waits for the quantizer behind it.

    Attributes:
        padding: top, left, bottom, right.
        after: how many of the value's steps lie in front of it.
    """

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]
    after: int

    @property
    def attrs(self) -> dict[str, tuple[int, ...]]:
        """Of a node of the integer graph."""
        return {"kernel": self.kernel, "stride": self.stride, "padding": self.padding}


@dataclass(frozen=True, eq=False)
class Codes:
    """A QuantizeLinear whose DequantizeLinear has not come yet: scale, zero point, range."""

    scale: Floats
    zero: Floats
    lo: int
    hi: int


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor that flows.

    Attributes:
        edge: name of the edge of the integer graph; "" for the real input before its quantizer.
        shape: ONNX shape, with a batch axis of 1.
        order: for each element its flat index in the edge's (H, W, C); None: NCHW, or a vector.
        unit: real value of level 1, (1,) or (channels,).
        steps: applied to ``level * unit``.
        pools: max pools behind the steps, not emitted yet.
        codes: set between QuantizeLinear and DequantizeLinear.
        border: zeros added by Pad, not in ``shape`` yet: (top, left, bottom, right).
        before: what the quantizer was given that made the edge, and that quantizer as a step;
            None where it is not known.
    """

    edge: str
    shape: tuple[int, ...]
    order: IntArray | None
    unit: Floats
    steps: tuple[Step, ...] = ()
    pools: tuple[Pool, ...] = ()
    codes: Codes | None = None
    border: tuple[int, int, int, int] = (0, 0, 0, 0)
    before: tuple[str, Value, Step] | None = None

    @property
    def border_any(self) -> bool:
        """Whether a Pad waits for a convolution."""
        return any(self.border)

    def then(self, op: str, *constants: Floats) -> Value:
        """The value after one more step.

        Raises:
            ModelError: so many follow each other that no network means it.
        """
        if len(self.steps) >= _MOST_STEPS:
            raise ModelError(
                f"more than {_MOST_STEPS} element-wise operations in a row", where=f"before {op}"
            )
        return replace(self, steps=(*self.steps, Step(op, constants)))

    def unfolded(self) -> Value | None:
        """The same reals as a function of what the quantizer in front was given; None if that is
        not known, or lies in another order.
        """
        if self.before is None or self.codes is not None or self.pools or self.border_any:
            return None
        edge, given, step = self.before
        same = self.edge == edge and self.shape == given.shape and self.order is given.order
        if not same or not np.array_equal(self.unit, step.constants[0]):
            return None
        if len(given.steps) + len(self.steps) >= _MOST_STEPS:
            return None
        return replace(given, steps=(*given.steps, step, *self.steps))

    def meeting(self, op: str, other: Value) -> Value | None:
        """``op`` of two values that are functions of the same elements; None if these are not.

        Raises:
            ModelError: so many steps lie between where the two part and here that no network means
                it.
        """
        if (self.edge, self.shape, self.pools, self.border) != (
            other.edge, other.shape, other.pools, other.border,
        ) or self.codes is not None or other.codes is not None:  # fmt: skip
            return None
        same_order = self.order is other.order or (
            self.order is not None
            and other.order is not None
            and np.array_equal(self.order, other.order)
        )
        if not same_order or not np.array_equal(self.unit, other.unit):
            return None
        common = 0
        for one, two in zip(self.steps, other.steps, strict=False):
            if one is not two and one.key() != two.key():
                break
            common += 1
        if any(pool.after > common for pool in self.pools):
            return None
        met = Step(op, (), (self.steps[common:], other.steps[common:]))
        if met.size > _MOST_INSIDE:
            raise ModelError(
                f"more than {_MOST_INSIDE} element-wise operations between where two tensors part "
                "and where they meet",
                hint="put a quantizer in between",
            )
        return replace(self, steps=(*self.steps[:common], met))

    def reals(self, levels: Array, dtype: type[np.floating[Any]] = np.float64) -> Array:
        """Reals of levels ``(..., channels)``."""
        return _after(np.asarray(levels, dtype=dtype) * self.unit.astype(dtype), self.steps, dtype)

    def inverse(self, reals: Floats) -> Floats | None:
        """About the levels at which it is so large, as fractions; None if some step has no inverse.

        It is a guess: rounding, and what is clipped, are not looked at closely.
        """
        found = reals
        for step in reversed(self.steps):
            if step.op not in _INVERSES:
                return None
            found = np.asarray(_INVERSES[step.op](found, *step.constants))
        return np.asarray(found / self.unit)

    @property
    def work(self) -> int:
        """On an element, in units of `Work`."""
        return _QUICK + sum(step.work for step in self.steps)

    def direction(self) -> Floats:
        """1 rising, -1 falling, 0 constant, NaN neither; (1,) or (channels,)."""
        found = np.sign(self.unit)
        for step in self.steps:
            found = found * step.direction()
        return found

    def affine(self) -> tuple[Floats, Floats] | None:
        """(gain, offset) with ``real = gain * level + offset``, or None."""
        gain, offset = self.unit, np.zeros(1)
        for step in self.steps:
            form = step.affine()
            if form is None:
                return None
            gain, offset = gain * form[0], offset * form[0] + form[1]
        return gain, offset

    @property
    def rows(self) -> int:
        """1 if every channel is treated alike, else the number of channels."""
        return max(self.unit.size, *(s.rows for s in self.steps), 1)

    def spread(self, move: Callable[[Floats], Floats]) -> Value:
        """The value with its per-channel constants rearranged."""
        return replace(
            self,
            unit=self.unit if self.unit.size == 1 else move(self.unit),
            steps=tuple(step.spread(move) for step in self.steps),
        )


def one_if_equal(numbers: Floats) -> Floats:
    """One number for all channels, if they are equal."""
    return numbers if (numbers != numbers[0]).any() else numbers[:1]
