# SPDX-License-Identifier: Apache-2.0
"""Keras' ``model_config``: which layers there are, what each reads, and whether they are Keras'."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from bitwright.base.errors import ModelError
from bitwright.base.names import NameCounter
from bitwright.interop.keras.files import KerasNode
from bitwright.interop.network_json import BROKEN

Config = Mapping[str, Any]
#: Packages whose layers have the meaning that their names say, and kinds of types of numbers.
_MODULES = ("keras", "keras_core", "tensorflow", "tf_keras")
_POLICIES = ("DTypePolicy", "Policy", "PolicyV1", "FloatDTypePolicy")
_FLOATS = re.compile(r"(mixed_)?b?float(16|32|64)")


def nodes_of(config: Config) -> tuple[list[KerasNode], str | None]:
    """The layers of a functional or sequential model, and the name of its output.

    Raises:
        ModelError: it is of another kind, or a layer is used twice.
    """
    kind = config.get("class_name")
    inner = config.get("config")
    if kind not in ("Functional", "Model", "Sequential") or not isinstance(inner, dict):
        raise ModelError(f"a model of class {kind!r}; only Functional and Sequential")
    try:
        _check_class(config, "model")
        if kind == "Sequential":
            return _sequential(inner), None
        nodes = [_node(layer) for layer in inner["layers"]]
        ends = inner["output_layers"]
        ends = [ends] if ends and isinstance(ends[0], str) else ends
        if len(ends) != 1:
            raise ModelError(f"the model has {len(ends)} outputs; only one is supported")
        return nodes, str(ends[0][0])
    except BROKEN as error:
        raise ModelError(f"the configuration is broken: {type(error).__name__} {error}") from error


def _sequential(inner: Config) -> list[KerasNode]:
    nodes: list[KerasNode] = []
    names = {str(layer["config"]["name"]) for layer in inner["layers"]}
    for layer in inner["layers"]:
        options = layer["config"]
        name = str(options["name"])
        _check_own(layer, name)
        shape = options.get("batch_input_shape") or options.get("batch_shape")
        if not nodes and layer["class_name"] != "InputLayer":
            shape = shape or (inner.get("build_input_shape"))
            if not shape:
                raise ModelError("the model does not say how large its images are")
            first = NameCounter().free("input", names)
            nodes.append(KerasNode(first, "InputLayer", {"batch_shape": shape}, ()))
        front = (nodes[-1].name,) if nodes else ()
        nodes.append(KerasNode(name, str(layer["class_name"]), options, front))
    return nodes


def _node(layer: Config) -> KerasNode:
    calls = layer.get("inbound_nodes", [])
    if not isinstance(layer.get("config"), dict):
        raise ModelError("has no configuration", where=f"layer {layer.get('name')}")
    name = str(layer.get("name") or layer["config"]["name"])
    if len(calls) > 1:
        raise ModelError("is used more than once", where=f"layer {name}")
    for word, value in _options(calls):
        if value is None or value is False:
            continue
        raise ModelError(
            f"is called with {word}={value!r:.40}, which is not supported",
            where=f"layer {name}",
            hint="save the model that is used, not the one that is trained"
            if word == "training"
            else "call it with tensors alone, by position",
        )
    _check_own(layer, name)
    return KerasNode(name, str(layer["class_name"]), layer["config"], tuple(_tensors(calls)))


def _options(value: Any) -> Iterator[tuple[str, Any]]:
    """What a call says besides its tensors: Keras 3's ``kwargs`` and plain values among ``args``,
    or the last entry of Keras 2's lists.
    """
    if isinstance(value, dict):
        if isinstance(value.get("kwargs"), dict):
            yield from value["kwargs"].items()
        if isinstance(value.get("args"), list):
            yield from (("argument", v) for v in value["args"] if not isinstance(v, dict | list))
    elif isinstance(value, list | tuple):
        if len(value) == 4 and isinstance(value[0], str) and isinstance(value[3], dict):
            yield from value[3].items()
            return
        for inner in value:
            yield from _options(inner)


def _check_class(named: Config, what: str) -> None:
    """Refuse what only has the name of something of Keras: it may compute anything.

    Raises:
        ModelError: it is of another module, or of a package that is registered.
    """
    package, _, rest = str(named.get("registered_name") or "").partition(">")
    module = str(named.get("module") or "keras").partition(".")[0]
    if (rest and package.lower() != "keras") or module not in _MODULES:
        found = named.get("registered_name") if rest else named.get("module")
        raise ModelError(
            f"is of a class of its own, {found!r:.80}", where=what,
            hint="build the model in PyTorch, and import its weights (--model)",
        )  # fmt: skip


def _check_own(layer: Config, name: str) -> None:
    """Refuse a layer that only has the name of one of Keras, or numbers that are no floats.

    Raises:
        ModelError: it is one.
    """
    where, config = f"layer {name}", layer["config"]
    _check_class(layer, where)
    if isinstance(config.get("activation"), dict):
        _check_class(config["activation"], where)
    kind = config.get("dtype")
    if isinstance(kind, dict):
        word = str(kind.get("class_name"))
        kind = word if word not in _POLICIES else (kind.get("config") or {}).get("name")
    holds = layer.get("class_name") != "InputLayer"  # images may be of any kind
    if holds and kind is not None and not _FLOATS.fullmatch(str(kind)):
        raise ModelError(
            f"holds numbers of {kind!r:.60}, not floats", where=where,
            hint="save the model before it is quantized",
        )  # fmt: skip


def _tensors(value: Any) -> Iterator[str]:
    """Names of the layers whose outputs a call reads: Keras 3's tensors, or Keras 2's lists."""
    if isinstance(value, dict):
        if value.get("class_name") == "__keras_tensor__":
            yield str(value["config"]["keras_history"][0])
            return
        for inner in value.get("args", []) if "args" in value else value.values():
            yield from _tensors(inner)
    elif isinstance(value, list | tuple):
        if len(value) in (3, 4) and isinstance(value[0], str) and isinstance(value[1], int):
            yield value[0]
            return
        for inner in value:
            yield from _tensors(inner)
