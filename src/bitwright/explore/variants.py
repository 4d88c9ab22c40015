# SPDX-License-Identifier: Apache-2.0
"""Which formats a comparison has, and which policy and method each of them gets. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bitwright.base.errors import FormatError, RecipeError
from bitwright.base.trust import is_plugin
from bitwright.formats import Format, FormatFamily, load_format, parse_format

#: Weights, then activations, of every family at several widths.
DEFAULT = (
    "int8/uint8", "int6/uint6", "int5/uint5", "int4/uint4", "int3/uint4", "int2/uint4",
    "dfp8/dfp8", "dfp6/dfp8", "dfp4/dfp8", "fixed<8,1>/uint8", "ternary/uint8", "bipolar/uint8",
    "e8m7/e8m7", "e5m2/e5m2", "e4m3/e4m3", "e3m2/e3m2", "e2m3/e2m3", "e2m1/e2m1",
    "po2_6/uint8", "po2_4/uint8", "po2_4<zero>/uint8", "po2_3<zero>/uint8",
    "cb64/uint8", "cb16/uint8", "cb16/uint4", "cb4/uint8", "cb16:e4m3/e4m3",
    "mxint8/mxint8", "mxfp8/mxfp8", "mxfp6/mxfp6", "mxfp4/mxfp4",
)  # fmt: skip

#: Words for ways of post-training quantization; any list of methods may be given instead.
METHODS: Mapping[str, tuple[str, ...]] = {
    "naive": ("fold", "calibrate"),
    "calibrated": ("fold", "calibrate", "bias"),
    "equalized": ("fold", "equalize", "calibrate", "bias"),
    "gptq": ("fold", "calibrate", "gptq", "bias"),
    "adaround": ("fold", "calibrate", "adaround", "bias"),
}
DEFAULT_METHOD = "gptq"
_INPUT = "uint8"
#: How a recipe and a comparison write an integer with one power-of-two scale a tensor.
DYNAMIC = FormatFamily(
    "dynamic fixed point",
    "dfpN",
    "shorthand in recipes and comparisons: intN with one power-of-two scale a tensor",
    ("dfp8", "dfp4"),
    lambda name: parse_format(f"int{name[3:]}") if is_dynamic(name) else None,
)


@dataclass(frozen=True)
class Variant:
    """One row to be: formats by the names that a recipe takes (``dfp8`` included).

    Attributes:
        weight, activation, input: names of formats.
        method: a word of `METHODS`, or methods joined by ``+``.
    """

    weight: str
    activation: str
    method: str = DEFAULT_METHOD
    input: str = _INPUT

    @property
    def name(self) -> str:
        return f"{self.weight}/{self.activation}"

    @property
    def family(self) -> str:
        """The family of the weights, for the plot."""
        if is_dynamic(self.weight):
            return DYNAMIC.family
        found = format_of(self.weight)
        of_floats = found.is_codebook and found.number.is_float
        return "codebook, minifloat" if of_floats else found.family

    @property
    def methods(self) -> tuple[str, ...]:
        return METHODS.get(self.method) or tuple(self.method.split("+"))

    @property
    def weight_format(self) -> Format:
        return format_of(self.weight)

    @property
    def activation_format(self) -> Format:
        return format_of(self.activation)

    @property
    def policy(self) -> dict[str, Any]:
        """The ``quant`` section of a recipe.

        ``naive`` takes the largest magnitude as the scale of everything, as Ristretto does; all
        others the clipping with the smallest squared error, where the format has a choice.
        """
        careful = self.method != "naive"
        return {
            "input": self.input,
            "weight": _operand(self.weight, careful=careful, weight=True),
            "activation": _operand(self.activation, careful=careful, weight=False),
        }


def _operand(name: str, *, careful: bool, weight: bool) -> dict[str, Any]:
    found = format_of(name)
    fields: dict[str, Any] = {"format": name}
    if found.has_own_scale or found.sign_only:
        return fields  # they carry their scale, or its only rule is the default
    if weight and found.mean_scaled:
        return fields
    only_max = found.block > 0 or found.is_codebook
    return {**fields, "scale": "mse" if careful and not only_max else "max"}


def is_dynamic(name: str) -> bool:
    """Whether a name is ``dfpN``."""
    plain = name.strip().lower()
    return plain.startswith("dfp") and plain[3:].isdecimal()


def format_of(name: str) -> Format:
    """The format of a name; ``dfpN`` is an integer of N bits with a power-of-two scale.

    Raises:
        FormatError: there is no such format.
    """
    return DYNAMIC.parse(name.strip().lower()) or load_format(name)


def parse_variants(
    text: str | None,
    *,
    weights: str | None = None,
    activations: str | None = None,
    method: str = DEFAULT_METHOD,
) -> tuple[Variant, ...]:
    """The variants that a user asks for, each once.

    Args:
        text: names separated by commas outside of brackets, each ``WEIGHT`` or
            ``WEIGHT/ACTIVATION``; None: `DEFAULT`, or what the next two say.
        weights: names of formats; combined with ``activations``, every one with every one.
        activations: names of formats; alone, or with ``text`` without a slash, they replace the
            activations of each weight format.
        method: see `Variant`.

    Raises:
        FormatError: an unknown format.
        RecipeError: nothing is left, or text and weights are both given.
    """
    if text is not None and weights is not None:
        raise RecipeError(
            "--formats names the weights already",
            where="--weight-formats",
            hint="say either --formats or --weight-formats",
        )
    names = split_names(text if text is not None else weights)
    chosen = split_names(activations)
    pairs: list[tuple[str, str]] = []
    for entry in names or DEFAULT:
        weight, _, activation = entry.partition("/")
        _known(weight, "weights")
        if chosen and (not activation or not names):
            pairs += [(weight, other) for other in chosen]
        else:
            pairs.append((weight, activation or partner(weight)))
    variants = []
    for weight, activation in dict.fromkeys(pairs):
        _known(activation, "activations")
        variants.append(Variant(weight, activation, method))
    return tuple(variants)


def _known(name: str, what: str) -> None:
    try:
        format_of(name)
    except (FormatError, RecipeError) as error:
        raise FormatError(f"{what}: {error.message}", where="--formats", hint=error.hint) from error


def partner(weight: str) -> str:
    """Activations that suit weights: floats and blocks themselves, else integers of their width."""
    found = format_of(weight)
    if found.is_float or found.block or is_dynamic(weight):
        return weight
    if found.is_integer:
        return f"uint{max(found.bits, 4)}"
    if found.is_codebook and found.number.is_float:
        return found.number.name if found.number.exact_levels else "uint8"
    return "uint8"


def split_names(text: str | None) -> list[str]:
    """Names separated by commas; those inside ``<>`` and ``{}`` belong to a name."""
    names: list[str] = []
    depth, start = 0, 0
    body = text or ""
    for place, sign in enumerate(body):
        depth += (sign in "<{") - (sign in ">}")
        if sign == "," and depth == 0:
            names.append(body[start:place])
            start = place + 1
    names.append(body[start:])
    plain = (name.strip() for name in names)
    return [name if is_plugin(name.partition("/")[0]) else name.lower() for name in plain if name]


def check_method(method: str) -> None:
    """`RecipeError` if a method is no word of `METHODS` and no list of known methods."""
    from bitwright.quantize.ptq.methods import parse_methods

    if method in METHODS:
        return
    try:
        parse_methods(method.split("+"))
    except RecipeError as error:
        raise RecipeError(
            error.message,
            where="--method",
            hint=f"one of {', '.join(METHODS)}, or methods joined by +: {error.hint or ''}",
        ) from error
