# SPDX-License-Identifier: Apache-2.0
"""The methods of post-training quantization, their words and their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bitwright.base.errors import RecipeError
from bitwright.quantize.ptq.adaround import AdaRound
from bitwright.quantize.ptq.bias_correction import BiasCorrection, BiasKind
from bitwright.quantize.ptq.clipping import ClipSearch, Recalibrate
from bitwright.quantize.ptq.codebooks import RefitCodebooks
from bitwright.quantize.ptq.estimators import Estimator, parse_estimator
from bitwright.quantize.ptq.gptq import Gptq


@dataclass(frozen=True)
class Fold:
    """Batch norm into the layers before it, or into a scale and shift; see `fold_batch_norms`."""

    dense: bool = False
    name = "fold"


@dataclass(frozen=True)
class Equalize:
    """Channel ranges evened out between neighbouring layers; see `equalize`."""

    iterations: int = 50
    name = "equalize"


@dataclass(frozen=True)
class Absorb:
    """High biases moved on behind the ReLU; see `absorb_high_biases`."""

    deviations: float = 3.0
    name = "absorb"


@dataclass(frozen=True)
class Calibrate:
    """Activation scales from the calibration set; see `calibrate`.

    Attributes:
        estimator: None: by each operand's scale rule.
    """

    estimator: Estimator | None = None
    name = "calibrate"


Method = (
    Fold
    | Equalize
    | Absorb
    | Calibrate
    | Recalibrate
    | RefitCodebooks
    | ClipSearch
    | Gptq
    | AdaRound
    | BiasCorrection
)
LayerMethod = RefitCodebooks | ClipSearch | Gptq | AdaRound | BiasCorrection

#: The words, in the only order that makes sense: the float network first, then activation scales,
#: then tables, levels and biases of each layer, layer by layer.
ORDER = (
    "fold",
    "equalize",
    "absorb",
    "calibrate",
    "recalibrate",
    "codebooks",
    "clip",
    "gptq",
    "adaround",
    "bias",
)
#: Each chooses the levels of the weights, so only one of them can.
_CHOOSE = ("clip", "gptq", "adaround")
DEFAULT = ("fold", "calibrate", "gptq", "bias")


def parse_methods(methods: Sequence[str | Method]) -> tuple[Method, ...]:
    """Methods from their words: those of `ORDER`, and ``calibrate:ESTIMATOR``, ``bias:analytic``,
    ``fold:dense``.

    ``calibrate`` is added where it is missing: without activation scales nothing is quantized.

    Raises:
        RecipeError: an unknown word, one given twice, one at the wrong place, or two that exclude
            each other.
    """
    parsed = [_parse(method) for method in methods]
    if not any(isinstance(method, Calibrate) for method in parsed):
        early = sum(ORDER.index(m.name) < ORDER.index("calibrate") for m in parsed)
        parsed.insert(early, Calibrate())
    names = [method.name for method in parsed]
    for name in names:
        if names.count(name) > 1:
            raise RecipeError(f"{name} is given twice", where="methods", hint="name it once")
    wanted = sorted(names, key=ORDER.index)
    if names != wanted:
        raise RecipeError(
            f"the order {', '.join(names)} makes no sense",
            where="methods",
            hint=f"write {', '.join(wanted)}",
        )
    chosen = [name for name in names if name in _CHOOSE]
    if len(chosen) > 1:
        raise RecipeError(
            f"{' and '.join(chosen)} both choose the levels of the weights",
            where="methods",
            hint="keep one of them",
        )
    return tuple(parsed)


def _parse(method: str | Method) -> Method:
    if not isinstance(method, str):
        return method
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
    plain = _PLAIN.get(method)
    if plain is None:
        raise RecipeError(
            f"unknown method {method!r}", where="methods", hint=f"one of {', '.join(ORDER)}"
        )
    return plain()


_PLAIN: dict[str, type[Method]] = {
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
