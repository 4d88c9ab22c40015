# SPDX-License-Identifier: Apache-2.0
"""What may stand at a node: the attributes that the reader knows, and the standard's inputs, types.

What is not known here is refused: an attribute that is ignored gives other numbers than the file
means. The types are those of ONNX's own definitions, looked up by operator and operator set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from bitwright.interop.onnx.reader.model import OnnxNode
from bitwright.interop.onnx.reader.values import Array

_WINDOW = "auto_pad kernel_shape pads strides dilations"
_RANKED = "axis keepdims select_last_index"

#: Operator -> attributes that its reader takes into account. Those not listed have none.
_READ: dict[str, str] = {
    "ArgMax": _RANKED,
    "AveragePool": f"{_WINDOW} ceil_mode count_include_pad",
    "BatchNormalization": "epsilon training_mode",
    "Cast": "to saturate",
    "Clip": "min max",
    "Concat": "axis",
    "Constant": "value value_float value_floats value_int value_ints",
    "ConstantOfShape": "value",
    "Conv": f"{_WINDOW} group",
    "DepthToSpace": "blocksize mode",
    "DequantizeLinear": "axis",
    "Elu": "alpha",
    "Flatten": "axis",
    "Gather": "axis",
    "Gelu": "approximate",
    "Gemm": "alpha beta transA transB",
    "HardSigmoid": "alpha beta",
    "LeakyRelu": "alpha",
    "MaxPool": f"{_WINDOW} ceil_mode",
    "MaxPoolNHWC": f"{_WINDOW} ceil_mode",
    "Mod": "fmod",
    "MultiThreshold": "out_scale out_bias data_layout",
    "Pad": "mode pads value",
    "QuantAvgPool2d": "kernel stride ibits obits data_layout",
    "QuantizeLinear": "axis output_dtype",
    "Reshape": "allowzero",
    "Resize": "coordinate_transformation_mode mode nearest_mode",
    "Selu": "alpha gamma",
    "Shape": "start end",
    "Slice": "starts ends axes",
    "SpaceToDepth": "blocksize",
    "Squeeze": "axes",
    "Swish": "alpha",
    "TopK": "axis k largest",
    "Transpose": "perm",
    "Trunc": "rounding_mode signed narrow",
    "Unsqueeze": "axes",
    "Upsample": "mode scales",
    **dict.fromkeys(("Quant", "IntQuant"), "rounding_mode signed narrow"),
    **dict.fromkeys(
        ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"),
        "axes keepdims noop_with_empty_axes",
    ),
}

_ANY = None
_OLD = {"consumed_inputs": _ANY}
_OLD_BINARY = {**_OLD, "broadcast": _ANY}
_ON = (1,)
#: Operator -> attributes that change nothing that the reader makes, where they are so (any value,
#: or one of these).
_HARMLESS: dict[str, Mapping[str, tuple[object, ...] | None]] = {
    **dict.fromkeys(
        "Abs Ceil Clip Elu Exp Floor HardSigmoid LeakyRelu Log Max Min Neg PRelu Reciprocal Relu "
        "Selu Sigmoid Sqrt Sum Tanh".split(),
        _OLD,
    ),
    **dict.fromkeys("Add Sub Mul Div Pow Gemm Equal Greater Less".split(), _OLD_BINARY),
    # Old operator sets: 0 is training.
    "BatchNormalization": {**_OLD, "momentum": _ANY, "spatial": _ON, "is_test": _ON},
    "Cast": {"round_mode": _ANY},  # of the type float8e8m0 only, which is refused
    "DequantizeLinear": {"block_size": (0,), "output_dtype": (0, 1)},
    "Dropout": {**_OLD, "ratio": _ANY, "seed": _ANY, "is_test": _ON},
    "LogSoftmax": {"axis": _ANY},  # left to the host, as Softmax
    "Softmax": {"axis": _ANY},
    "MaxPool": {"storage_order": _ANY},  # of the indices, which are refused
    "MultiThreshold": {"out_dtype": _ANY},  # says what scale and bias do
    "QuantAvgPool2d": {"signed": _ANY},  # FINN's operator computes alike
    "QuantizeLinear": {"block_size": (0,), "precision": (0, 1), "saturate": _ANY},
    "Resize": {
        # Of other modes than nearest, or of what is refused.
        **dict.fromkeys(("cubic_coeff_a", "exclude_outside", "extrapolation_value"), _ANY),
        "antialias": (0,),
        "axes": ((0, 1, 2, 3),),
        "keep_aspect_ratio_policy": ("stretch",),
    },
    "TopK": {"sorted": _ON},
}


def check_attributes(node: OnnxNode) -> None:
    """Refuse attributes that the reader would ignore.

    Raises:
        ModelError: names the node, the attribute and its value.
    """
    known, harmless = _READ.get(node.op, "").split(), _HARMLESS.get(node.op, {})
    for name, value in node.attrs.items():
        # Names that begin with two underscores belong to tools, in the standard, too.
        if name in known or name.startswith("__"):
            continue
        if name not in harmless:
            raise node.error(
                f"has the attribute {name}, which is not supported",
                "export it without, or with another operator set",
            )
        allowed = harmless[name]
        if allowed is not None and value not in allowed:
            one_of = " or ".join(str(v) for v in allowed)
            raise node.error(
                f"attribute {name} is {value!r}; only {one_of} is supported",
                "export the model in eval mode, without this option",
            )


@cache
def schema_of(op: str, opset: int) -> Any:
    """ONNX's definition of an operator in an operator set; None if there is none."""
    from onnx import defs

    try:
        return defs.get_schema(op, min(opset, 1 << 20))
    except defs.SchemaError:
        return None


@cache
def _type_name(dtype: np.dtype[Any]) -> str:
    from onnx import TensorProto, helper

    return f"tensor({TensorProto.DataType.Name(helper.np_dtype_to_tensor_dtype(dtype)).lower()})"


class Signature:
    """The standard's definition of a node, with the types that its inputs have.

    Raises:
        ModelError: the operator is not in the file's operator set, has too few or too many inputs,
            lacks an attribute, or has inputs of types that do not go together; names the node.
    """

    def __init__(self, node: OnnxNode, inputs: Sequence[Array | None]) -> None:
        self._node = node
        self._schema = schema_of(node.op, node.opset)
        self._bound: dict[str, str] = {}
        if self._schema is None:
            raise node.error(
                f"is no operator of operator set {node.opset}",
                "say in the file which operator set it uses, or check it with onnx.checker",
            )
        least, most = self._schema.min_input, self._schema.max_input
        if not least <= len(inputs) <= most:
            raise node.error(f"has {len(inputs)} inputs; {least} to {most} are expected")
        for name, attribute in self._schema.attributes.items():
            if attribute.required and name not in node.attrs:
                raise node.error(f"has no attribute {name}", "check the file with onnx.checker")
        for place, array in enumerate(inputs):
            formal = self._schema.inputs[min(place, len(self._schema.inputs) - 1)]
            if array is not None:
                self._bind(formal, array, f"input {place}")
            elif formal.option == formal.option.Single:
                raise node.error(f"has no input {place}")

    def check_result(self, result: Array) -> None:
        """Refuse a result of a type that the operator does not give for these inputs.

        Raises:
            ModelError: names the node.
        """
        self._bind(self._schema.outputs[0], result, "its result")

    def _bind(self, formal: Any, array: Array, what: str) -> None:
        found = _type_name(array.dtype)
        if found not in formal.types:
            raise self._node.error(
                f"{what} is {found}, which {self._node.op} of operator set {self._node.opset} does "
                "not take or give",
                "put a Cast in front of it",
            )
        # Operands of one type variable have one type; of "tensor(int64)" there is nothing to bind.
        other = self._bound.setdefault(formal.type_str, found) if formal.is_homogeneous else found
        if other != found:
            raise self._node.error(
                f"{what} is {found}, another of its inputs {other}; they must have one type",
                "put a Cast in front of one of them",
            )
