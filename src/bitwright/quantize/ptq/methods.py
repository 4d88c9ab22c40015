# SPDX-License-Identifier: Apache-2.0
"""The methods of post-training quantization.

A method is a value with a ``name`` and one of two functions: ``prepare`` changes the float network
before activation scales are found, ``treat`` one layer afterwards. A user's own needs nothing else;
it is named as ``package.module:name``, a class or function that gives it when called
without arguments, or the value itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from bitwright.base.errors import RecipeError
from bitwright.base.plugins import load_made
from bitwright.quantize.estimators import Estimator, parse_estimator
from bitwright.quantize.method_words import DEFAULT, ORDER, check_words, is_own
from bitwright.quantize.ptq.adaround import AdaRound
from bitwright.quantize.ptq.bias_correction import BiasCorrection, BiasKind
from bitwright.quantize.ptq.clipping import ClipSearch, Recalibrate
from bitwright.quantize.ptq.codebooks import RefitCodebooks
from bitwright.quantize.ptq.equalization import absorb_high_biases, equalize
from bitwright.quantize.ptq.folding import fold_batch_norms
from bitwright.quantize.ptq.gptq import Gptq
from bitwright.quantize.ptq.reconstruction import LayerView


@runtime_checkable
class NetworkMethod(Protocol):
    """A method of the float network."""

    name: str

    def prepare(self, model: nn.Module, example: Tensor) -> tuple[nn.Module, Any]:
        """Another float network (the one given stays as it is), and what was done, for the report.

        Args:
            example: one sample.
        """


@runtime_checkable
class LayerMethod(Protocol):
    """A method that treats the layers one after the other, in the order in which they run."""

    name: str

    def treat(self, view: LayerView, biased: bool) -> None:
        """Choose scale, table, levels or bias of one layer.

        Args:
            view: the layer, what it gets, and what it ought to give.
            biased: a later method corrects the bias, so mean errors do not count.
        """


@dataclass(frozen=True)
class Fold:
    """Batch norm into the layers before it, or into a scale and shift; see `fold_batch_norms`."""

    dense: bool = False
    name = "fold"

    def prepare(self, model: nn.Module, example: Tensor) -> tuple[nn.Module, Any]:
        return fold_batch_norms(model, example, dense=self.dense), None


@dataclass(frozen=True)
class Equalize:
    """Channel ranges evened out between neighbouring layers; see `equalize`."""

    iterations: int = 50
    name = "equalize"

    def prepare(self, model: nn.Module, example: Tensor) -> tuple[nn.Module, Any]:
        return equalize(model, iterations=self.iterations, example=example)


@dataclass(frozen=True)
class Absorb:
    """High biases moved on behind the ReLU; see `absorb_high_biases`."""

    deviations: float = 3.0
    name = "absorb"

    def prepare(self, model: nn.Module, example: Tensor) -> tuple[nn.Module, Any]:
        return absorb_high_biases(model, deviations=self.deviations, example=example)


@dataclass(frozen=True)
class Calibrate:
    """Activation scales from the calibration set; see `calibrate`.

    Attributes:
        estimator: None: by each operand's scale rule.
    """

    estimator: Estimator | None = None
    name = "calibrate"


Method = NetworkMethod | LayerMethod | Calibrate | Recalibrate


def parse_methods(methods: Sequence[str | Method]) -> tuple[Method, ...]:
    """Methods from their words: those of `ORDER`, ``calibrate:ESTIMATOR``, ``bias:analytic``,
    ``fold:dense``, and ``package.module:name`` of the user's own.

    ``calibrate`` is added where it is missing: without activation scales nothing is quantized.

    Raises:
        RecipeError: an unknown word, one given twice, one at the wrong place, or two that exclude
            each other.
        ModelError: the user's own method cannot be imported.
    """
    check_words([method if isinstance(method, str) else _word(method) for method in methods])
    parsed = [_parse(method) for method in methods]
    if not any(isinstance(method, Calibrate) for method in parsed):
        early = sum(isinstance(method, NetworkMethod) for method in parsed)
        parsed.insert(early, Calibrate())
    places = [isinstance(method, NetworkMethod) for method in parsed]
    if places != sorted(places, reverse=True):
        late = parsed[places.index(True, places.index(False))]
        raise RecipeError(
            f"{late.name} changes the float network, after activation scales were found",
            where="methods",
            hint="name it before calibrate and before methods of layers",
        )
    kinds = [isinstance(method, Calibrate) for method in parsed]
    if kinds.index(True) != sum(places):
        early_one = parsed[sum(places)].name
        raise RecipeError(
            f"{early_one} works on quantized layers, before there are scales",
            where="methods",
            hint="name it after calibrate",
        )
    return tuple(parsed)


def _word(method: Method) -> str:
    """The word that an object with settings stands for."""
    return method.name if method.name in ORDER else f"own:{type(method).__name__}"


def _parse(method: str | Method) -> Method:
    if not isinstance(method, str):
        return _checked(method, str(method.name))
    if is_own(method):
        return _checked(load_made(method, "methods"), method)
    word, _, option = method.partition(":")
    if word == "calibrate":
        return Calibrate(parse_estimator(option) if option else None)
    if word == "bias" and option:
        try:
            return BiasCorrection(BiasKind(option))
        except ValueError:
            names = ", ".join(kind.value for kind in BiasKind)
            raise RecipeError(
                f"unknown bias correction {option!r}", where="methods", hint=f"one of {names}"
            ) from None
    if method == "fold:dense":
        return Fold(dense=True)
    if option:
        raise RecipeError(f"{word} has no option {option!r}", where="methods", hint=f"write {word}")
    return _PLAIN[word]()


def _checked(method: Any, what: str) -> Method:
    """A method that has what one needs."""
    if isinstance(method, NetworkMethod | LayerMethod | Calibrate | Recalibrate):
        return method
    raise RecipeError(
        f"{what} gives a {type(method).__name__}, which is no method",
        where="methods",
        hint="a method has a name and either prepare(model, example) or treat(view, biased)",
    )


_PLAIN: dict[str, Any] = {
    "fold": Fold,
    "equalize": Equalize,
    "absorb": Absorb,
    "recalibrate": Recalibrate,
    "codebooks": RefitCodebooks,
    "clip": ClipSearch,
    "gptq": Gptq,
    "adaround": AdaRound,
    "bias": BiasCorrection,
}

__all__ = ["DEFAULT", "ORDER", "LayerMethod", "Method", "NetworkMethod", "parse_methods"]
