# SPDX-License-Identifier: Apache-2.0
"""What the document's trainer can be told: every trick is an option (spec 2.1 to 2.15)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import RecipeError

CLASSES = 10
PIXELS = 28 * 28
_MOST_UNITS, _MOST_LAYERS = 1 << 20, 64


class Activation(IntEnum):
    """By the names of spec 2.3; the numbers are those of ``network.h``."""

    SIGMOID = 0
    TANH = 1
    HARD_SIGMOID = 2
    HARD_TANH = 3
    STEP = 4


class Kernel(IntEnum):
    """Products of a layer: floats, bytes compared, 64 bits at a time."""

    MULTIPLY = 0
    XNOR8 = 1
    PACKED = 2


ACTIVATIONS = tuple(a.name.lower() for a in Activation)
KERNELS = tuple(k.name.lower() for k in Kernel)
INITIALS = ("uniform", "normal_small", "normal", "glorot_div", "glorot_mul")
INPUTS = ("threshold", "scale_sign", "scale_float")
#: What sums or errors are divided by, as a power of the number of inputs.
_FAN_IN = {"none": 0.0, "root_fan_in": 0.5, "fan_in": 1.0}
_CHOICES = {
    "kernel": KERNELS,
    "act_forward": ACTIVATIONS,
    "act_backward": tuple(a for a in ACTIVATIONS if a != "step"),
    "deriv_at": ("output", "preactivation"),
    "backprop_weights": ("binary", "float"),
    "weight_binarization": ("deterministic", "stochastic"),
    "activation_binarization": ("deterministic", "stochastic"),
    "initial": INITIALS,
    "input": INPUTS,
    "scale_sum": tuple(_FAN_IN),
    "scale_error": tuple(_FAN_IN),
    "decay": ("sample", "epoch", "none"),
    "exaggeration_rate": ("global", "layer"),
    "shuffle": ("epoch", "once", "none"),
}


@dataclass(frozen=True)
class Settings:
    """A network and how it is trained.

    Attributes:
        sizes: units of the layers, inputs first.
        binary: weights and activations are +1 and -1; else floats.
        kernel: `KERNELS`; all give the same sums of a binarized network.
        bias: one float a unit, added to the sum; not clipped.
        input: `INPUTS`; ``threshold``: +1 from ``threshold`` on, else -1; ``scale_sign``: the sign
            of 2x/255 - 1; ``scale_float``: that itself.
        present: of ``scale_float``, levels below this are pixels that are not there, and are 0 to
            the network (the pre-filter of spec 2.2). Else all of them are -1, one large input that
            every image has, and rates must be small for its sake.
        act_forward, act_backward: `ACTIVATIONS`; the derivative of the second goes back.
        deriv_at: where that derivative is taken.
        backprop_weights: errors go back through the binary copy or the masters.
        scale_sum: divide sums by the number of inputs, or by its root, the deviation of a sum of
            random signs.
        scale_error: divide errors that go back through a layer by the number of its inputs, as the
            derivative of scaled sums asks, or by its root, which keeps errors through random signs
            as large as they were. Spec 2.8 leaves that out: a hidden layer of a float network with
            scaled sums then moves 4096 times as far as the layer behind it.
        weight_binarization, activation_binarization: sign, or +1 with the hard sigmoid's
            probability (weights drawn anew after every sample; hidden units only).
        clip: masters stay in [-1, 1].
        initial: `INITIALS`: uniform in [-1, 1]; normal with sigma 0.01 or 1; uniform divided or
            multiplied by ``1 / sqrt(2 / (n_in + n_out))`` (the document prints the latter).
        rate_start, rate_end: learning rate of the first sample and behind the last.
        decay: what the rate shrinks with.
        rate_scale, rate_constant: a layer's rate is multiplied by ``rate_scale / sqrt(rate_constant
            / (n_in + n_out))`` (spec 2.10); ``rate_constant`` 0: by ``rate_scale`` alone.
        exaggeration: of targets that are reached (spec 2.12); 0 is off.
        exaggeration_rate: the rate in it.
        drop_input, drop_hidden: shares of units that are dropped.
        shuffle: a new order for every pass, one for all, or that of the file.
        seed: of everything random.
    """

    sizes: tuple[int, ...] = (PIXELS, 4096, CLASSES)
    binary: bool = True
    kernel: str = "packed"
    bias: bool = False
    input: str = "threshold"
    threshold: int = 80
    present: int = 0
    act_forward: str = "step"
    act_backward: str = "tanh"
    deriv_at: str = "output"
    backprop_weights: str = "binary"
    scale_sum: str = "none"
    scale_error: str = "none"
    weight_binarization: str = "deterministic"
    activation_binarization: str = "deterministic"
    clip: bool = True
    initial: str = "glorot_div"
    rate_start: float = 1e-6
    rate_end: float = 1e-8
    decay: str = "sample"
    rate_scale: float = 100.0
    rate_constant: float = 1.5
    exaggeration: float = 1.0
    exaggeration_rate: str = "global"
    drop_input: float = 0.0
    drop_hidden: float = 0.0
    shuffle: str = "epoch"
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be; `RecipeError` names the field."""
        for field in fields(self):
            _typed(field.name, getattr(self, field.name), field.default)
        sizes_ok = 2 <= len(self.sizes) <= _MOST_LAYERS + 1
        if not sizes_ok or not all(1 <= n <= _MOST_UNITS for n in self.sizes):
            raise RecipeError(
                f"expected inputs, hidden layers and classes, each 1 to {_MOST_UNITS}, "
                f"got {self.sizes}",
                where="sizes",
            )
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                given = getattr(self, name)
                hint = "one of " + ", ".join(known)
                raise RecipeError(f"{given!r} is not known", where=name, hint=hint)
        for name in ("drop_input", "drop_hidden"):
            _between(name, getattr(self, name), 0.0, 0.999)
        for name in ("rate_start", "rate_end", "rate_scale"):
            _between(name, getattr(self, name), 1e-30, 1e12)
        _between("exaggeration", self.exaggeration, 0.0, 1e12)
        if self.rate_constant != 0:
            _between("rate_constant", self.rate_constant, 1e-30, 1e12)
        _between("threshold", self.threshold, 0, 256)
        _between("present", self.present, 0, 256)
        _between("seed", self.seed, 0, (1 << 63) - 1)
        if self.binary and self.input == "scale_float":
            raise RecipeError(
                "a binarized network reads +1 and -1",
                where="input",
                hint="threshold or scale_sign",
            )
        if self.present and self.input != "scale_float":
            raise RecipeError(
                "pixels that are not there are 0, and inputs are +1 and -1",
                where="present",
                hint="input: scale_float",
            )
        if not self.binary and (self.kernel != "multiply" or "stochastic" in self._draws):
            raise RecipeError(
                "a float network has floats to multiply and nothing to binarize",
                where="kernel",
                hint="kernel: multiply; deterministic",
            )

    @property
    def _draws(self) -> tuple[str, str]:
        return self.weight_binarization, self.activation_binarization

    @property
    def layers(self) -> int:
        """Matrices of weights."""
        return len(self.sizes) - 1

    def changed(self, **fields_: Any) -> Settings:
        """The same with other fields; a name that is none is a `RecipeError`."""
        unknown = set(fields_) - {f.name for f in fields(self)}
        if unknown:
            known = ", ".join(f.name for f in fields(self))
            raise RecipeError(f"no such option: {', '.join(sorted(unknown))}", hint=known)
        return replace(self, **fields_)

    def rate_scale_of(self, layer: int) -> float:
        """What a layer's learning rate is multiplied by: 5704 for 784 to 4096 (spec 2.10)."""
        if self.rate_constant == 0:
            return self.rate_scale
        ends = self.sizes[layer] + self.sizes[layer + 1]
        return self.rate_scale / math.sqrt(self.rate_constant / ends)

    def error_scale_of(self, layer: int) -> float:
        """What errors that go back through a layer are divided by."""
        return float(self.sizes[layer] ** _FAN_IN[self.scale_error])

    def sum_scale_of(self, layer: int) -> float:
        """What the sums of a layer are divided by (spec 2.4)."""
        return float(self.sizes[layer] ** _FAN_IN[self.scale_sum])

    def input_values(self) -> NDArray[np.float32]:
        """What each of the 256 grey levels is to the network (spec 2.2)."""
        level = np.arange(256)
        scaled = (2 * level / 255 - 1).astype(np.float32)
        if self.input == "scale_float":
            return np.where(level >= self.present, scaled, np.float32(0))
        on = level >= self.threshold if self.input == "threshold" else scaled >= 0
        return np.where(on, 1, -1).astype(np.float32)


def parse_changes(base: Settings, texts: Iterable[str]) -> Settings:
    """``base`` with changes such as ``rate_start=1e-4``: each value is of the type that the option
    has, sizes are joined by ``-``.

    Raises:
        RecipeError: no such option, or no value of it.
    """
    changes: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or key not in base.__dataclass_fields__:
            known = ", ".join(base.__dataclass_fields__)
            raise RecipeError(f"{text!r} changes no option", where="--set", hint=known)
        try:
            changes[key] = _value(value, getattr(base, key))
        except ValueError as error:
            raise RecipeError(f"{value!r} is no value", where=f"--set {key}") from error
    return base.changed(**changes)


def _value(text: str, old: Any) -> Any:
    if isinstance(old, bool):
        if text not in ("true", "false"):
            raise ValueError(text)
        return text == "true"
    if isinstance(old, tuple):
        return tuple(int(part) for part in text.split("-"))
    return type(old)(text)


def _typed(name: str, value: Any, default: Any) -> None:
    """Refuse a value of another type than the default's; an integer is a number, too."""
    if isinstance(default, tuple):
        right = isinstance(value, tuple) and all(type(n) is int for n in value)
    elif isinstance(default, float):
        right = isinstance(value, int | float) and not isinstance(value, bool)
    else:
        right = type(value) is type(default)
    if not right:
        raise RecipeError(f"expected a value such as {default!r}, got {value!r}", where=name)


def _between(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise RecipeError(f"expected {low:g} to {high:g}, got {value!r}", where=name)


def weight_scale(inputs: int, outputs: int) -> float:
    """``1 / sqrt(2 / (n_in + n_out))``, the reciprocal of Glorot's deviation (spec 2.9)."""
    return 1.0 / math.sqrt(2.0 / (inputs + outputs))


def initial_weights(settings: Settings) -> list[NDArray[np.float32]]:
    """A matrix (outputs, inputs) for each layer by ``settings.initial``."""
    found = []
    for layer, (inputs, outputs) in enumerate(
        zip(settings.sizes, settings.sizes[1:], strict=False)
    ):
        random = np.random.default_rng([settings.seed, layer])
        shape = (outputs, inputs)
        if settings.initial in ("normal_small", "normal"):
            deviation = 0.01 if settings.initial == "normal_small" else 1.0
            weight = random.standard_normal(shape, dtype=np.float32) * np.float32(deviation)
        else:
            weight = 2 * random.random(shape, dtype=np.float32) - 1
            scale = weight_scale(inputs, outputs)
            factor = {"glorot_div": 1 / scale, "glorot_mul": scale}.get(settings.initial, 1.0)
            weight = weight * np.float32(factor)
        found.append(np.clip(weight, -1, 1) if settings.clip else weight)
    return found


def rates(settings: Settings, cycles: int, per_epoch: int) -> NDArray[np.float64]:
    """The learning rate of each of ``cycles`` samples (spec 2.10): ``start * (end / start)^(k/n)``.

    Args:
        per_epoch: samples of a pass, for ``decay: epoch``.
    """
    k: NDArray[np.float64] = np.arange(cycles, dtype=np.float64)
    n: float = cycles
    if settings.decay == "none":
        return np.full(cycles, settings.rate_start)
    if settings.decay == "epoch":
        k, n = np.floor(k / per_epoch), math.ceil(cycles / per_epoch)
    ratio = settings.rate_end / settings.rate_start
    found: NDArray[np.float64] = settings.rate_start * ratio ** (k / max(n, 1))
    return found


def order(settings: Settings, cycles: int, samples: int) -> NDArray[np.int64]:
    """The index of the sample of each cycle: passes over all, shuffled as the settings say."""
    passes = math.ceil(cycles / samples)
    found = []
    for number in range(passes):
        if settings.shuffle == "none":
            found.append(np.arange(samples))
        else:
            drawn = [settings.seed, 1 << 20, number if settings.shuffle == "epoch" else 0]
            found.append(np.random.default_rng(drawn).permutation(samples))
    return np.concatenate(found)[:cycles].astype(np.int64)
