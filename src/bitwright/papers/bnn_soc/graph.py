# SPDX-License-Identifier: Apache-2.0
"""A binarized network as the package's integer graph: executor, hardware and RTL begin here."""

from __future__ import annotations

import numpy as np

from bitwright.base.errors import ModelError
from bitwright.formats import parse_format
from bitwright.ir import INTEGER, Graph, GraphBuilder, TensorType
from bitwright.papers.bnn_soc.model import Model

_BIPOLAR = "bipolar"


def binary_graph(model: Model, name: str = "bnn") -> Graph:
    """The layers of a binarized network on bipolar inputs; outputs are the raw sums.

    Raises:
        ModelError: a float network, a bias, or an activation whose sign is not that of the sum.
    """
    s = model.settings
    if not s.binary or s.bias or s.act_forward in ("sigmoid", "hard_sigmoid"):
        raise ModelError(
            "expected a binarized network without biases, with an odd activation",
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
