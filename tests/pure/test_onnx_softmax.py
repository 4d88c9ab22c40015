# SPDX-License-Identifier: Apache-2.0
"""A softmax at the end of a file has no hardware: the host computes what the file gives."""

from __future__ import annotations

import pytest
from tests.onnx_models import File
from tests.pure.test_onnx_ops import agree, conv, weights

from bitwright.base.errors import ModelError
from bitwright.interop.onnx.reader import load


def _softmax_of_scores(net: File) -> None:
    net.quant(4, 0.25)
    net.op("MatMul", net.const(weights(6, 3)))
    net.op("Softmax", axis=1)


def _softmax_of_maps(net: File) -> None:
    net.quant(4, 0.25)
    conv(net, 3, 2, 1, 1)
    net.op("LogSoftmax", axis=1)
    net.op("Transpose", perm=(0, 2, 3, 1))


@pytest.mark.parametrize("opset", [11, 13])
def test_a_softmax_at_the_end_is_done_on_the_host(opset: int) -> None:
    net = File(1, 6, opset=opset)
    _softmax_of_scores(net)
    imported = agree(net.model(), (6,), tolerance=1e-6)
    assert [o.is_label for o in imported.outputs] == [False, True]
    if opset == 13:  # before, the axes from the first one on are one
        net = File(1, 2, 4, 5, opset=opset)
        _softmax_of_maps(net)
        agree(net.model(), (2, 4, 5), tolerance=1e-5)


def test_a_softmax_along_the_batch_is_refused() -> None:
    net = File(1, 6)
    _softmax_of_scores(net)
    net.nodes[-1].attribute[0].i = 0
    with pytest.raises(ModelError, match="goes along axis 0"):
        load(net.model())
