# SPDX-License-Identifier: Apache-2.0
"""Float model, quantized model in training and in evaluation, and the lowered graph, compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx, nn

from bitwright.ir import Graph, IntArray
from bitwright.lower.compare import comparable
from bitwright.pipeline.diff.results import LayerRow, Stage, StageResult, equal_edges, first_of
from bitwright.quantize import IntegerModel, QuantizedModel, apply
from bitwright.quantize.activation_quantizer import ActivationQuantizer
from bitwright.quantize.layers import QuantLayer
from bitwright.quantize.policy import Policy

_SHOWN = (QuantLayer, ActivationQuantizer, nn.Conv2d, nn.Linear)
_TINY = 1e-30
_TIE = 1e-3  # of a level: float32 noise around a grid point


class _Recorder(fx.Interpreter):  # type: ignore[misc]  # torch is Any to mypy
    """Runs a traced model and keeps what every module gives."""

    def __init__(self, model: fx.GraphModule) -> None:
        super().__init__(model)
        self.values: dict[str, Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n.op == "call_module" and isinstance(result, Tensor):
            self.values[str(n.target)] = result.detach().clone()
        return result


def recorded(model: fx.GraphModule, image: Tensor) -> dict[str, Tensor]:
    """Path of each module of a converted model -> what it gives for one image, in float64."""
    recorder = _Recorder(model.eval())
    with torch.no_grad():
        recorder.run(image)
    return {path: value.double() for path, value in recorder.values.items()}


def float_values(model: nn.Module, policy: Policy, image: Tensor) -> dict[str, Tensor]:
    """What the float model computes, by the paths of its quantized form.

    A model in phase ``calibrate`` computes in float, and has a place for each quantizer.
    """
    shape = tuple(image.shape[1:])
    converted: fx.GraphModule = apply(model.eval(), policy, "calibrate", sample_shape=shape)
    return recorded(converted, image)


def against_float(
    expected: Mapping[str, Tensor],
    found: Mapping[str, Tensor],
    model: fx.GraphModule,
    bound: float,
) -> StageResult:
    """How far the quantized model is from the float one, layer by layer.

    The difference is relative to the layer's largest float magnitude. The first value beyond
    ``bound`` is named; it is no fault: quantization changes values.
    """
    rows, first, compared = [], None, 0
    for path, value in found.items():
        if path not in expected or not isinstance(model.get_submodule(path), _SHOWN):
            continue
        want, have = _nhwc(expected[path]), _nhwc(value)
        scale = max(float(np.abs(want).max()), _TINY)
        apart = np.abs(want - have) / scale
        compared += want.size
        rows.append(LayerRow(path, float(apart.max()), scale, float((want != have).mean())))
        if first is None:
            first = first_of(path, path, want, have, apart > bound)
    return StageResult(Stage.QUANTIZED, False, compared, first, tuple(rows), bound)


def against_training(
    found: Mapping[str, Tensor],
    integers: IntegerModel,
    model: QuantizedModel,
    image: Tensor,
) -> StageResult:
    """Evaluation against what training computes, activation by activation.

    Training rounds in float32, evaluation is integers: where a value lies at the border of two
    levels they may fall to different sides, and everything behind may follow. So this is a table,
    not a proof; one level is the unit.
    """
    exact = integers.node_values(image)
    rows, first, compared = [], None, 0
    for node in model.graph.nodes:
        path = str(node.target)
        module = model.get_submodule(path) if node.op == "call_module" else None
        if not isinstance(module, ActivationQuantizer) or node.name not in exact:
            continue
        unit = module.unit
        want, have = _nhwc(found[path]) / unit, _nhwc(exact[node.name]) / unit
        apart = np.abs(want - have)
        compared += want.size
        rows.append(LayerRow(path, float(apart.max()), unit, float((apart > _TIE).mean())))
        if first is None:
            left, right = (np.rint(side).astype(np.int64) for side in (want, have))
            first = first_of(path, node.name, left, right, apart > _TIE)
    return StageResult(Stage.INTEGERS, False, compared, first, tuple(rows), _TIE)


def _nhwc(value: Tensor) -> NDArray[np.float64]:
    """One sample, channels last."""
    array: NDArray[np.float64] = value[0].cpu().numpy()
    return np.moveaxis(array, 0, -1) if array.ndim == 3 else array


def against_model(
    integers: IntegerModel, graph: Graph, image: Tensor
) -> tuple[StageResult, dict[str, IntArray]]:
    """Every edge that the lowered graph shares with the model's, by ``==``; and all it has."""
    expected = integers.edges(image)
    edges = graph.run({edge: expected[edge] for edge in graph.inputs}, edges=True)
    pairs = (
        (node.source, node.output, expected[node.output][0], edges[node.output][0])
        for node in graph
        if comparable(graph, node.output)
        and node.output in expected
        and expected[node.output].shape == edges[node.output].shape
    )
    return equal_edges(Stage.GRAPH, pairs), edges
