# SPDX-License-Identifier: Apache-2.0
"""Ristretto's search for bit widths: which widths are tried, in which order, and what is chosen.

P. Gysel, J. Pimentel, M. Motamedi, S. Ghiasi, "Ristretto: A framework for empirical study of
resource-efficient inference in CNNs", 2018, and the public code. No torch here: whoever calls says
how a setting is evaluated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from bitwright.base.errors import RecipeError

FLOAT_BITS = 32
_FIRST = 16
#: Margins are in points of accuracy; comparing sums of floats needs a hair of room.
_HAIR = 1e-9


class TrimmingMode(StrEnum):
    """The kinds of arithmetic that the search knows."""

    MINIFLOAT = "minifloat"
    DYNAMIC_FIXED_POINT = "dynamic_fixed_point"
    INTEGER_POWER_OF_2_WEIGHTS = "integer_power_of_2_weights"


class Parity(StrEnum):
    """Whose behaviour a search has: sound arithmetic, or what the public code does."""

    MENDED = "mended"
    CPU = "cpu"
    GPU = "gpu"


class Group(StrEnum):
    """What shares one width."""

    CONV_PARAMS = "conv_params"
    FC_PARAMS = "fc_params"
    ACTIVATIONS = "activations"
    ALL = "all"


@dataclass(frozen=True)
class Setting:
    """What is quantized, and to how many bits; None leaves it float.

    Attributes:
        conv_params, fc_params: weights (and biases) of convolutions and of dense layers.
        activations: inputs and outputs of both.
        exponent: exponent bits of minifloats; 0 in the other modes.
    """

    conv_params: int | None = None
    fc_params: int | None = None
    activations: int | None = None
    exponent: int = 0


Evaluate = Callable[[Setting], float]
Tell = Callable[["Trial"], None]


@dataclass(frozen=True)
class Trial:
    """One evaluation.

    Attributes:
        group: what was quantized.
        bits: to how many bits.
        accuracy: what came out, in [0, 1].
        passed: whether it lies within the margin.
    """

    group: Group
    bits: int
    accuracy: float
    passed: bool


@dataclass(frozen=True)
class Outcome:
    """What the search found.

    Attributes:
        mode: the kind of arithmetic.
        baseline: accuracy of the float network.
        margin: largest drop allowed, in percent.
        trials: every evaluation of a group, in order.
        chosen: the setting found.
        accuracy: with everything at its chosen width; not searched further, so it may lie beyond
            the margin.
    """

    mode: TrimmingMode
    baseline: float
    margin: float
    trials: tuple[Trial, ...]
    chosen: Setting
    accuracy: float

    @property
    def within_margin(self) -> bool:
        """Whether the combination, too, lies within the margin."""
        return passes(self.accuracy, self.baseline, self.margin)

    def to_json(self) -> dict[str, Any]:
        return {
            "mode": self.mode.value,
            "baseline": self.baseline,
            "error_margin": self.margin,
            "trials": [{**asdict(t), "group": t.group.value} for t in self.trials],
            "chosen": asdict(self.chosen),
            "accuracy": self.accuracy,
            "within_margin": self.within_margin,
        }

    def log(self) -> str:
        """The lines that the search writes at its end."""
        lines = [
            f"mode: {self.mode.value}",
            f"32-bit float baseline: {self.baseline:.4f}, error margin {self.margin:g} %",
        ]
        for group in dict.fromkeys(trial.group for trial in self.trials):
            lines.append(f"{_TITLES[group]}:")
            lines += [
                f"  {t.bits:2d} bits: {t.accuracy:.4f}{'' if t.passed else '  beyond the margin'}"
                for t in self.trials
                if t.group is group
            ]
        lines += [f"chosen: {_words(self.chosen)}", f"accuracy: {self.accuracy:.4f}"]
        if not self.within_margin:
            lines.append("beyond the margin: this search does not go back")
        return "\n".join(lines)


_TITLES = {
    Group.CONV_PARAMS: "parameters of convolutions",
    Group.FC_PARAMS: "parameters of dense layers",
    Group.ACTIVATIONS: "layer inputs and outputs",
    Group.ALL: "weights, inputs and outputs",
}


def _words(setting: Setting) -> str:
    if setting.exponent:
        bits = setting.activations or FLOAT_BITS
        mantissa = bits - 1 - setting.exponent
        return f"{bits}-bit minifloat, {setting.exponent} exponent and {mantissa} mantissa bits"
    found = {
        "convolution parameters": setting.conv_params,
        "dense parameters": setting.fc_params,
        "inputs and outputs": setting.activations,
    }
    return ", ".join(f"{name} {bits} bits" for name, bits in found.items() if bits is not None)


def check_margin(margin: float) -> None:
    """Raise unless a margin is a number of points that an accuracy can drop.

    Raises:
        RecipeError: it lies outside 0 .. 100.
    """
    if not math.isfinite(margin) or not 0 <= margin <= 100:
        raise RecipeError(
            f"an error margin of {margin:g} % makes no sense",
            where="error_margin",
            hint="the largest drop of accuracy, 0 to 100 percent",
        )


def passes(accuracy: float, baseline: float, margin: float) -> bool:
    """``accuracy + margin / 100 >= baseline``."""
    return accuracy + margin / 100 >= baseline - _HAIR


def search(
    mode: TrimmingMode,
    evaluate: Evaluate,
    *,
    margin: float,
    exponent: int = 0,
    weight_bits: int = 4,
    tell: Tell = lambda _: None,
) -> Outcome:
    """Ristretto's search.

    dynamic_fixed_point: for each group alone, the rest in float, the widths 16, 8, 4, 2, 1 until
    the first that fails; the smallest that passed is taken, 32 if none did; then all groups
    together are evaluated once. minifloat: one width for everything, 16, 8, .. as long as a
    mantissa bit is left. integer_power_of_2_weights: nothing is searched; features have 8 bits.

    Args:
        evaluate: accuracy of a setting in [0, 1]; that of ``Setting()`` is the baseline.
        margin: largest drop of accuracy, in percent.
        exponent: exponent bits of minifloats.
        weight_bits: bits of a power-of-two weight, the sign included.
        tell: called with each trial as it is done.

    Raises:
        RecipeError: the margin lies outside 0 .. 100, or a minifloat search has no exponent bits.
    """
    check_margin(margin)
    baseline = evaluate(Setting())
    trials: list[Trial] = []

    def halve(group: Group, setting: Callable[[int], Setting], least: int) -> int:
        """The smallest width that passes; 32 if 16 does not."""
        best, bits = FLOAT_BITS, _FIRST
        while bits >= least:
            accuracy = evaluate(setting(bits))
            trials.append(Trial(group, bits, accuracy, passes(accuracy, baseline, margin)))
            tell(trials[-1])
            if not trials[-1].passed:
                break
            best, bits = bits, bits // 2
        return best

    if mode is TrimmingMode.DYNAMIC_FIXED_POINT:
        chosen = Setting(
            conv_params=halve(Group.CONV_PARAMS, lambda b: Setting(conv_params=b), 1),
            fc_params=halve(Group.FC_PARAMS, lambda b: Setting(fc_params=b), 1),
            activations=halve(Group.ACTIVATIONS, lambda b: Setting(activations=b), 1),
        )
    elif mode is TrimmingMode.MINIFLOAT:
        if exponent < 2:
            raise RecipeError("a minifloat search needs exponent bits", where="exponent")
        whole = Setting(exponent=exponent)
        bits = halve(
            Group.ALL,
            lambda b: replace(whole, conv_params=b, fc_params=b, activations=b),
            exponent + 2,
        )
        chosen = replace(whole, conv_params=bits, fc_params=bits, activations=bits)
    else:
        chosen = Setting(conv_params=weight_bits, fc_params=weight_bits, activations=8)
    return Outcome(mode, baseline, margin, tuple(trials), chosen, evaluate(chosen))
