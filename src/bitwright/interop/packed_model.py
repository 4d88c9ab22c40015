# SPDX-License-Identifier: Apache-2.0
"""A packed file (`.bwq`) that says which model its weights belong to: it loads by itself."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from bitwright.base.bounded import bounded_reader
from bitwright.base.errors import DataError
from bitwright.base.files import held_size
from bitwright.base.memory import room_for
from bitwright.base.trust import check_names, data_file
from bitwright.interop.caffe.quantized import is_quantized, quantized
from bitwright.interop.model_files import LoadedModel, module_within, shape_of_input
from bitwright.interop.network import Network
from bitwright.interop.network_json import (
    BROKEN,
    array_key,
    convention_of,
    image_shape_of,
    network_from_json,
    network_to_json,
)
from bitwright.interop.packed import (
    PackedReport,
    count_entries,
    load_packed,
    read_about,
    save_packed,
)
from bitwright.models.catalog import ModelSpec
from bitwright.models.factory import build_model
from bitwright.models.memory import Held
from bitwright.quantize import Policy, apply
from bitwright.quantize.method_words import named_code
from bitwright.quantize.ptq.post_training import prepare_network

#: Numbers of a float model for each byte of its packed file, and besides: a code has a bit at
#: least; batch norms may have been folded into the layers before it was packed.
_EACH, _BESIDES = 16, 1 << 16


def _check_count(count: int, path: Path) -> None:
    """Refuse a model of more numbers than its file can hold.

    Raises:
        DataError: it has more.
    """
    size = held_size(path)
    if count > _EACH * size + _BESIDES:
        raise DataError(
            f"names a model of {count} numbers; {size} bytes hold no so many",
            where=str(path),
            hint="the file is damaged, or of another network",
        )


def _held(path: Path, room: int) -> Held:
    """What a packed file holds of the model that it names."""

    def check(made: nn.Module) -> None:
        _check_count(sum(value.numel() for value in made.state_dict().values()), path)

    return Held(count_entries(path), check, str(path), room)


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


@bounded_reader
def load_packed_model(path: Path, trust: Iterable[str] | None = ()) -> LoadedModel:
    """The quantized model of a file that `save_packed_model` wrote, in evaluation mode.

    Its ``network`` has the layers, where the file has them, but ones for numbers.

    Args:
        trust: modules or packages with which the file may build the model that it names; by
            default only the zoo's. None: all that a recipe might name, for a file of one's own.

    Raises:
        DataError: the file is missing, damaged, or does not say of which model it is.
        ModelError, RecipeError: its model cannot be built any more, or is built by code that is not
            trusted.
    """
    with data_file(path, trust):
        return _load(path, room_for(chosen=trust is None))


def _load(path: Path, room: int) -> LoadedModel:
    about = read_about(path)
    try:
        check_names(named_code(about["quant"]))
        shape = image_shape_of(about["input_shape"])
        classes = None if about["classes"] is None else int(about["classes"])
        convention = convention_of(about["input"])
        network: Network | None = None
        spec: ModelSpec | None = None
        if "layers" in about:
            _check_count(sum(math.prod(sides) for sides in about["shapes"].values()), path)
            one = np.float32(1)  # shown in every place: nothing is allocated
            arrays = {key: np.broadcast_to(one, sides) for key, sides in about["shapes"].items()}
            network = network_from_json(about["layers"], arrays, str(path))
            if shape_of_input(network) != shape:
                raise DataError(
                    f"its layers take images of (H, W, C) = {shape_of_input(network)}, "
                    f"'input_shape' says {shape}",
                    where=str(path),
                    hint="the file is damaged, or of another network",
                )
            placed = quantized(network)[0] if is_quantized(network) else network
            model = module_within(placed, room, str(path))
        else:
            spec = ModelSpec.model_validate(about["model"])
            model = build_model(spec, classes, shape, held=_held(path, room))
        loaded = LoadedModel(model, shape, convention, network, spec, about["quant"], classes)
    except BROKEN as error:
        raise DataError(
            f"does not say of which model it is: {type(error).__name__} {error}",
            where=str(path),
            hint="`load_packed` reads it into a model that is built already",
        ) from error
    made = converted(loaded)
    load_packed(path, made.model)
    return made
