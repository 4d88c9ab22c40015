# SPDX-License-Identifier: Apache-2.0
"""A packed file (`.bwq`) that says which model its weights belong to: it loads by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import fx

from bitwright.base.errors import DataError
from bitwright.interop.caffe.quantized import is_quantized, quantized
from bitwright.interop.model_files import LoadedModel
from bitwright.interop.network import Network
from bitwright.interop.network_json import array_key, network_from_json, network_to_json
from bitwright.interop.network_to_torch import module_of
from bitwright.interop.packed import PackedReport, load_packed, read_about, save_packed
from bitwright.models.catalog import ModelSpec
from bitwright.models.factory import build_model
from bitwright.quantize import Policy, apply

Shape = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class PackedModel:
    """A quantized model, in evaluation mode.

    Attributes:
        source: what it is, without weights: a model by name and options, or layers of a file.
        quant: its policy as a recipe's ``quant`` section.
        input_shape: (H, W, C) of an image.
        classes: of a classifier by name.
    """

    model: fx.GraphModule
    source: ModelSpec | Network
    quant: Mapping[str, Any]
    input_shape: Shape
    classes: int | None = None


def quantized_of(loaded: LoadedModel) -> PackedModel:
    """The quantized model of a file that says its formats."""
    height, width, channels = loaded.input_shape
    policy, sample = Policy.from_dict(loaded.quant), (channels, height, width)
    model = apply(loaded.model, policy, "train", sample_shape=sample).eval()
    assert loaded.network is not None  # formats are those of layers
    return PackedModel(model, loaded.network, loaded.quant, loaded.input_shape)


def save_packed_model(path: Path, packed: PackedModel) -> PackedReport:
    """Write a converted model with all that it takes to build it again.

    Raises:
        ModelError: a weight is not finite.
        DataError: the file cannot be written; an old one is untouched.
    """
    about: dict[str, Any] = {
        "input_shape": list(packed.input_shape),
        "classes": packed.classes,
        "quant": dict(packed.quant),
    }
    if isinstance(packed.source, ModelSpec):
        about["model"] = packed.source.model_dump(mode="json", exclude={"weights"})
    else:
        about["layers"] = network_to_json(packed.source)
        about["shapes"] = {
            array_key(layer.name, name): list(values.shape)
            for layer in packed.source.layers
            for name, values in layer.arrays.items()
        }
    return save_packed(path, packed.model, about)


def load_packed_model(path: Path) -> PackedModel:
    """The model of a file that `save_packed_model` wrote.

    Raises:
        DataError: the file is missing, damaged, or does not say of which model it is.
        ModelError, RecipeError: its model cannot be built any more.
    """
    about = read_about(path)
    try:
        height, width, channels = (int(side) for side in about["input_shape"])
        policy = Policy.from_dict(about["quant"])
        classes = None if about["classes"] is None else int(about["classes"])
        source: ModelSpec | Network
        if "layers" in about:
            shapes = about["shapes"].items()
            # The numbers come from the codes below; batch norms want a variance above zero.
            arrays = {key: np.ones(shape, np.float32) for key, shape in shapes}
            source = network_from_json(about["layers"], arrays, str(path))
            model = module_of(quantized(source)[0] if is_quantized(source) else source)
        else:
            source = ModelSpec.model_validate(about["model"])
            model = build_model(source, classes, (height, width, channels))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"does not say of which model it is: {type(error).__name__} {error}",
            where=str(path),
            hint="`load_packed` reads it into a model that is built already",
        ) from error
    converted = apply(model, policy, "train", sample_shape=(channels, height, width))
    load_packed(path, converted)
    shape = (height, width, channels)
    return PackedModel(converted.eval(), source, about["quant"], shape, classes)
