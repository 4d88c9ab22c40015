# SPDX-License-Identifier: Apache-2.0
"""A packed file (`.bwq`) that says which model its weights belong to: it loads by itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bitwright.base.errors import DataError
from bitwright.base.trust import check_names, data_file
from bitwright.interop.caffe.quantized import is_quantized, quantized
from bitwright.interop.model_files import LoadedModel
from bitwright.interop.network import Network
from bitwright.interop.network_json import (
    array_key,
    convention_of,
    network_from_json,
    network_to_json,
)
from bitwright.interop.network_to_torch import module_of
from bitwright.interop.packed import PackedReport, load_packed, read_about, save_packed
from bitwright.models.catalog import ModelSpec
from bitwright.models.factory import build_model
from bitwright.quantize import Policy, apply
from bitwright.quantize.ptq.post_training import prepare_network


def converted(loaded: LoadedModel) -> LoadedModel:
    """A float model whose file says its formats, as a quantized model in evaluation mode."""
    height, width, channels = loaded.input_shape
    policy, sample = Policy.from_dict(loaded.quant), (channels, height, width)
    # Methods may fold batch norms and give layers biases: the weights belong to that network.
    network, _ = prepare_network(loaded.model, policy.methods, torch.zeros((1, *sample)))
    return replace(loaded, model=apply(network, policy, "train", sample_shape=sample).eval())


def save_packed_model(path: Path, loaded: LoadedModel) -> PackedReport:
    """Write a converted model with all that it takes to build it again: its layers, or its name.

    Raises:
        ModelError: a weight is not finite.
        DataError: the file cannot be written (an old one is untouched), or nobody knows what the
            model is.
    """
    about: dict[str, Any] = {
        "input_shape": list(loaded.input_shape),
        "input": loaded.convention.to_json(),
        "classes": loaded.classes,
        "quant": dict(loaded.quant),
    }
    if loaded.network is not None:
        about["layers"] = network_to_json(loaded.network)
        about["shapes"] = {
            array_key(layer.name, name): list(values.shape)
            for layer in loaded.network.layers
            for name, values in layer.arrays.items()
        }
    elif loaded.spec is not None:
        about["model"] = loaded.spec.model_dump(mode="json", exclude={"weights"})
    else:
        raise DataError("neither layers nor a name of the model are known", where=str(path))
    return save_packed(path, loaded.model, about)


def load_packed_model(path: Path, trust: Iterable[str] = ()) -> LoadedModel:
    """The quantized model of a file that `save_packed_model` wrote, in evaluation mode.

    Its ``network`` has the layers, where the file has them, but ones for numbers.

    Args:
        trust: modules or packages with which the file may build the model that it names; by
            default only the zoo's.

    Raises:
        DataError: the file is missing, damaged, or does not say of which model it is.
        ModelError, RecipeError: its model cannot be built any more, or is built by code that is not
            trusted.
    """
    with data_file(path, trust):
        return _load(path)


def _load(path: Path) -> LoadedModel:
    about = read_about(path)
    try:
        check_names(about["quant"])
        height, width, channels = (int(side) for side in about["input_shape"])
        shape = (height, width, channels)
        classes = None if about["classes"] is None else int(about["classes"])
        convention = convention_of(about["input"])
        network: Network | None = None
        spec: ModelSpec | None = None
        if "layers" in about:
            arrays = {key: np.ones(sides, np.float32) for key, sides in about["shapes"].items()}
            network = network_from_json(about["layers"], arrays, str(path))
            model = module_of(quantized(network)[0] if is_quantized(network) else network)
        else:
            spec = ModelSpec.model_validate(about["model"])
            model = build_model(spec, classes, shape)
        loaded = LoadedModel(model, shape, convention, network, spec, about["quant"], classes)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"does not say of which model it is: {type(error).__name__} {error}",
            where=str(path),
            hint="`load_packed` reads it into a model that is built already",
        ) from error
    made = converted(loaded)
    load_packed(path, made.model)
    return made
