# SPDX-License-Identifier: Apache-2.0
"""From a plain module to one that trains in few bits, in place, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from bitwright.base.errors import ModelError
from bitwright.low_precision.arithmetic.accumulators import check_accumulator
from bitwright.low_precision.arithmetic.geometry import Product
from bitwright.low_precision.arithmetic.layers import (
    Context,
    LayerFormats,
    LowPrecisionConv2d,
    LowPrecisionLayer,
    LowPrecisionLinear,
    ProductFormats,
)
from bitwright.low_precision.arithmetic.operand_quantizer import signed_bits
from bitwright.low_precision.layer_rules import named_layers, product_specs
from bitwright.quantize.policy import Policy
from bitwright.quantize.spec import Layer

_LAYERS = {nn.Conv2d: LowPrecisionConv2d, nn.Linear: LowPrecisionLinear}


@dataclass(frozen=True)
class LowPrecisionModel:
    """A network whose layers multiply in formats that can change.

    Attributes:
        model: the network.
        layers: path -> layer, in the order of registration.
        context: what they share.
    """

    model: nn.Module
    layers: Mapping[str, LowPrecisionLayer]
    context: Context

    def use(self, formats: Mapping[str, LayerFormats | None]) -> None:
        """Give layers their formats; one that is not named is float32."""
        for path, layer in self.layers.items():
            found = formats.get(path)
            layer.formats = None if found is None or found.is_float else found


def apply_arithmetic(model: nn.Module, context: Context) -> LowPrecisionModel:
    """Put layers into a plain network whose products can run in any format; float32 to begin with.

    The new layers share the parameters and their names with the old ones, so optimizers,
    checkpoints and hooks on parameters go on as before. A layer that appears at several places is
    replaced at all of them.

    Raises:
        ModelError: there is no convolution or linear layer.
    """
    replaced: dict[nn.Module, LowPrecisionLayer] = {}
    layers: dict[str, LowPrecisionLayer] = {}
    for path, parent, name, old in plain_layers(model):
        new = replaced.get(old)
        if new is None:
            new = _shallow(old, _LAYERS[type(old)])  # type: ignore[index]
            assert isinstance(new, LowPrecisionLayer)
            new.bind(context, len(replaced), path)
            replaced[old] = layers[path] = new
        setattr(parent, name, new)
    return LowPrecisionModel(model, layers, context)


def remove_arithmetic(model: nn.Module) -> None:
    """Give a network its plain layers back, each at all its places; the parameters stay."""
    kinds = {special: plain for plain, special in _LAYERS.items()}
    replaced: dict[nn.Module, nn.Module] = {}
    for path, old in list(model.named_modules(remove_duplicate=False)):
        if path and type(old) in kinds:
            prefix, _, name = path.rpartition(".")
            new = replaced.setdefault(old, _shallow(old, kinds[type(old)]))
            setattr(model.get_submodule(prefix), name, new)


def layer_formats(
    policy: Policy, layers: Mapping[str, LowPrecisionLayer]
) -> dict[str, LayerFormats]:
    """What a policy over operand roles says about every product of every layer."""
    found = product_specs(policy, layers_of_rules(layers))
    return {
        path: LayerFormats(**{product.value: ProductFormats(*specs[product]) for product in specs})
        for path, specs in found.items()
    }


def layers_of_rules(layers: Mapping[str, nn.Module]) -> list[Layer]:
    """Layers, by path in the order of registration, as the rules of a policy see them."""
    linear = {path: isinstance(layer, nn.Linear) for path, layer in layers.items()}
    return named_layers(linear, list(linear))


def check_sums(
    layers: Mapping[str, LowPrecisionLayer],
    formats: Mapping[str, LayerFormats],
    positions: Mapping[str, int],
    accumulator: str,
) -> None:
    """Refuse sums that an accumulator may not hold.

    Args:
        positions: by layer, how many products of an output position and an input a weight gradient
            adds: images times output pixels.

    Raises:
        RecipeError: names layer, product, the bound and the widest operands that fit.
    """
    for path, layer in layers.items():
        weight = layer.weight
        lengths = {
            Product.FORWARD: weight[0].numel(),
            Product.GRAD_INPUT: weight.numel() // weight.shape[1] // getattr(layer, "groups", 1),
            Product.GRAD_WEIGHT: positions[path],
        }
        for product, length in lengths.items():
            given = formats[path].of(product)
            if given.left is None or given.right is None:
                continue
            left, right = signed_bits(given.left), signed_bits(given.right)
            check_accumulator(path, product, length, left, right, accumulator)


def plain_layers(model: nn.Module) -> list[tuple[str, nn.Module, str, nn.Module]]:
    """(path, parent, name, layer) of every layer whose products can run in few bits, in the order
    of registration: the first one is as a rule where images enter.

    Raises:
        ModelError: there is none.
    """
    found = []
    for path, child in model.named_modules(remove_duplicate=False):
        if path and type(child) in _LAYERS:
            prefix, _, name = path.rpartition(".")
            found.append((path, model.get_submodule(prefix), name, child))
    if not found:
        raise ModelError(
            f"{type(model).__name__} has no nn.Conv2d or nn.Linear whose products could run in "
            "few bits",
            where="low_precision",
            hint="train the float network in low precision; one with quantizers has its own",
        )
    return found


def _shallow(module: nn.Module, kind: type[nn.Module]) -> nn.Module:
    """The same parameters, buffers, hooks and settings in a layer of another type."""
    new = kind.__new__(kind)
    own = ("context", "number", "path", "formats", "_last_step", "_calls")
    new.__dict__.update({k: v for k, v in module.__dict__.items() if k not in own})
    return new
