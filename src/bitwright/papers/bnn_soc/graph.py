# SPDX-License-Identifier: Apache-2.0
"""A binarized network as the package's integer graph: executor, hardware and RTL begin here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import MismatchError, ModelError
from bitwright.formats import parse_format
from bitwright.ir import INTEGER, Graph, GraphBuilder, TensorType
from bitwright.ir.executor import Executor
from bitwright.papers.bnn_soc.model import Model

if TYPE_CHECKING:
    from bitwright.pipeline.designs.folder import Design

_BIPOLAR = "bipolar"


def binary_graph(model: Model, name: str = "bnn") -> Graph:
    """The layers of a binarized network on bipolar inputs; outputs are the raw sums.

    Raises:
        ModelError: a float network, a bias, divided sums, or an activation whose sign is not that
            of the sum.
    """
    s = model.settings
    if (
        not s.binary
        or s.bias
        or s.scale_sum != "none"
        or s.act_forward
        in (
            "sigmoid",
            "hard_sigmoid",
        )
    ):
        raise ModelError(
            "expected a binarized network with plain sums, no biases and an odd activation",
            where="settings",
            hint="its sums must be integers, and their signs what the next layer reads",
        )
    builder = GraphBuilder(name, INTEGER)
    kind = parse_format(_BIPOLAR)
    x = builder.input("x", TensorType((s.sizes[0],), kind, (1.0,), -1, 1))
    for layer in range(s.layers):
        weight = model.signs(layer).astype(np.int64)
        x = builder.add("dense", (x,), attrs={"weight_format": _BIPOLAR}, params={"weight": weight})
        if layer + 1 < s.layers:
            rows = len(weight)
            x = builder.add(
                "threshold",
                (x,),
                attrs={"base": -1, "step": 2, "format": _BIPOLAR, "scale": (1.0,)},
                params={
                    "thresholds": np.zeros((rows, 1), dtype=np.int64),
                    "flip": np.zeros(rows, dtype=np.int64),
                },
            )
    return builder.finish(x)


def make_design(model: Model, folder: Path, images: NDArray[np.uint8], count: int) -> Design:
    """A design folder of a binarized network, for the verbs map, simulate and implement.

    Args:
        folder: becomes one.
        images: of which the first ``count`` prove the hardware.

    Raises:
        ModelError: see `binary_graph`.
        MismatchError: the graph gives other sums than the model.
    """
    from bitwright.lower import optimise
    from bitwright.pipeline.designs.folder import Design, DesignSettings

    graph = optimise(binary_graph(model))
    flat = images[:count].reshape(min(count, len(images)), -1)
    (edge,), (output,) = graph.inputs, graph.outputs
    levels = {edge: model.settings.input_values()[flat].astype(np.int64)}
    if not np.array_equal(Executor(graph).run(levels)[output], model.sums(flat)):
        raise MismatchError("the graph gives other sums than the model", where=str(folder))
    design = Design(folder, graph, DesignSettings(), levels)
    design.save()
    return design
