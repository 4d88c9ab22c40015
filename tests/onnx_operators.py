# SPDX-License-Identifier: Apache-2.0
"""Single ONNX nodes of constants: random operands and attributes, and what others make of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper

from bitwright.interop.onnx.reader import read_model
from bitwright.interop.onnx.reader.folding import fold
from bitwright.interop.onnx.reader.signatures import check_attributes
from bitwright.interop.onnx.reader.values import Const

Array = np.ndarray
Rng = np.random.Generator

INTEGERS = [np.dtype(f"{s}int{b}") for s in ("", "u") for b in (8, 16, 32, 64)]
FLOATS = [np.dtype(n) for n in ("float16", "float32", "float64")]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class Case(NamedTuple):
    """One node."""

    op: str
    inputs: list[Array | None]
    attrs: dict[str, Any] = {}  # noqa: RUF012 - a default that nobody changes
    opset: int = 18

    def model(self) -> bytes:
        """A file that holds the node, its inputs as initializers."""
        names = ["" if a is None else f"c{k}" for k, a in enumerate(self.inputs)]
        attrs = {name: value for name, value in self.attrs.items() if value != []}
        node = helper.make_node(self.op, names, ["y"], **attrs)
        constants = [
            numpy_helper.from_array(a, n)
            for n, a in zip(names, self.inputs, strict=True)
            if a is not None
        ]
        graph = helper.make_graph([node], "g", [], [onnx.ValueInfoProto(name="y")], constants)
        made = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10
        )
        try:
            inferred = onnx.shape_inference.infer_shapes(made).graph.output[0].type.tensor_type
            kind = inferred.elem_type or onnx.TensorProto.FLOAT
        except Exception:
            kind = onnx.TensorProto.FLOAT
        made.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", kind, None))
        return bytes(made.SerializeToString())


def folded(case: Case) -> Array:
    """What the reader makes of it."""
    model = read_model(case.model())
    (node,) = model.nodes
    check_attributes(node)
    return fold(node, [None if a is None else Const(a) for a in case.inputs]).value


_NO_KERNEL = ("NOT_IMPLEMENTED", "not supported", "No corresponding Numpy type")


def evaluated(case: Case) -> Array:
    """What ONNX Runtime makes of it; where it has no kernel, ONNX's own reference.

    Raises:
        Exception: the file is none, or what it computes is undefined.
    """
    import onnxruntime
    from onnx.reference import ReferenceEvaluator

    body = case.model()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    kinds = {a.dtype for a in case.inputs if a is not None}
    if all(kind.kind in "biuf" and not kind.name.startswith("bf") for kind in kinds):
        try:
            session = onnxruntime.InferenceSession(body, options, ["CPUExecutionProvider"])
            return np.asarray(session.run(None, {})[0])
        except Exception as error:
            if not any(word in str(error) for word in _NO_KERNEL):
                raise
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(ReferenceEvaluator(body).run(None, {})[0])


# -- drawing --------------------------------------------------------------------------------------


def shape(rng: Rng, most: int = 3) -> tuple[int, ...]:
    return tuple(int(d) for d in rng.integers(1, 4, rng.integers(0, most + 1)))


def numbers(rng: Rng, dtype: np.dtype[Any], size: tuple[int, ...], reach: int = 0) -> Array:
    """Of the whole range of a type, or near zero; reals with fractions."""
    if dtype == np.bool_:
        return np.asarray(rng.integers(0, 2, size), np.bool_)
    if dtype.kind in "iu":
        ends = np.iinfo(dtype)
        lo, hi = (max(ends.min, -reach), min(ends.max, reach)) if reach else (ends.min, ends.max)
        return np.asarray(rng.integers(lo, hi, size, endpoint=True, dtype=dtype), dtype)
    return np.asarray(rng.integers(-64, 65, size) / 8, dtype)


def kinds_of(op: str, opset: int, place: int = 0) -> list[np.dtype[Any]]:
    """numpy's own types that an input may have."""
    formal = onnx.defs.get_schema(op, opset).inputs[place]
    known = [*INTEGERS, *FLOATS, np.dtype(np.bool_), BFLOAT16]
    name = onnx.TensorProto.DataType.Name
    return [
        k
        for k in known
        if f"tensor({name(helper.np_dtype_to_tensor_dtype(k)).lower()})" in formal.types
    ]


def pick(rng: Rng, items: Any) -> Any:
    return items[int(rng.integers(len(items)))]


def spread(rng: Rng, dims: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts against another."""
    kept = dims[int(rng.integers(len(dims) + 1)) :]
    return tuple(1 if rng.random() < 0.3 else d for d in kept)


def elementwise(count: int, reach: int = 0) -> Callable[[Rng, str], Case]:
    def made(rng: Rng, op: str) -> Case:
        opset = pick(rng, (13, 18, 21))
        dtype, dims = pick(rng, kinds_of(op, opset)), shape(rng)
        return Case(
            op,
            [
                numbers(rng, dtype, dims if k == 0 else spread(rng, dims), reach)
                for k in range(count)
            ],
            opset=opset,
        )

    return made


def variadic(rng: Rng, op: str) -> Case:
    dtype, dims = pick(rng, kinds_of(op, 18)), shape(rng)
    return Case(op, [numbers(rng, dtype, spread(rng, dims)) for _ in range(rng.integers(1, 5))])


def clip(rng: Rng, op: str) -> Case:
    if rng.random() < 0.2:  # an old operator set: attributes
        low = float(rng.integers(-30, 31)) / 8
        ends = pick(rng, ({}, {"min": low}, {"max": low}, {"min": low, "max": low + 2}))
        return Case(op, [numbers(rng, np.dtype("float32"), shape(rng))], ends, 6)
    dtype = pick(rng, kinds_of(op, 18))
    more = [None if rng.random() < 0.3 else numbers(rng, dtype, ()) for _ in range(2)]
    return Case(op, [numbers(rng, dtype, shape(rng)), *more[: int(rng.integers(3))]])


def modulo(rng: Rng, op: str) -> Case:
    case = elementwise(2)(rng, op)
    attrs = pick(rng, ({}, {"fmod": 0}, {"fmod": 1}))
    wide = any(a is not None and a.dtype.itemsize == 8 for a in case.inputs)
    if attrs.get("fmod") and wide:  # ONNX Runtime goes through float64 there
        case = case._replace(inputs=[numbers(rng, np.dtype("int64"), (3,), 1 << 30)] * 2)
    return case._replace(attrs=attrs)


def power(rng: Rng, op: str) -> Case:
    dims = shape(rng)
    base, by = pick(rng, kinds_of(op, 18)), pick(rng, ("int32", "int64", "float32", "float64"))
    exponent = np.asarray(rng.integers(0, 4, spread(rng, dims)), by)
    return Case(op, [numbers(rng, base, dims, 12), exponent])


def where(rng: Rng, op: str) -> Case:
    dims, dtype = shape(rng), pick(rng, [*INTEGERS, *FLOATS])
    mask = numbers(rng, np.dtype(np.bool_), spread(rng, dims))
    return Case(op, [mask, numbers(rng, dtype, dims), numbers(rng, dtype, spread(rng, dims))])


def cast(rng: Rng, op: str) -> Case:
    source, target = (pick(rng, [*INTEGERS, *FLOATS, np.dtype(np.bool_)]) for _ in range(2))
    small = source.kind == "f" and target.kind == "u"
    x = numbers(rng, source, shape(rng))
    if rng.random() < 0.3 and source.kind in "iu":
        kind = pick(rng, (onnx.TensorProto.INT4, onnx.TensorProto.UINT4))
        return Case(op, [x], {"to": int(kind)}, 21)
    kind = helper.np_dtype_to_tensor_dtype(target)
    return Case(op, [np.abs(x) if small else x], {"to": int(kind)}, pick(rng, (13, 21)))


def cast_small(rng: Rng, op: str) -> Case:
    names = ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "BFLOAT16")
    kind = onnx.TensorProto.DataType.Value(pick(rng, names))
    x = (numbers(rng, np.dtype("float32"), shape(rng)) ** 3 * np.float32(40)).astype(np.float32)
    eight = kind != onnx.TensorProto.BFLOAT16
    return Case(op, [x], {"to": kind} | ({"saturate": int(rng.integers(2))} if eight else {}), 21)


def axes_of(rng: Rng, rank: int) -> list[int]:
    chosen = [a for a in range(rank) if rng.random() < 0.5]
    return [a - rank if rng.random() < 0.3 else a for a in chosen]


def reduction(rng: Rng, op: str) -> Case:
    opset = pick(rng, (11, 13, 18))
    dims = shape(rng)
    kinds = [k for k in kinds_of(op, opset) if k != BFLOAT16]  # the order of the sum is not fixed
    x = numbers(rng, pick(rng, kinds), dims, pick(rng, (3, 9)))
    attrs: dict[str, Any] = pick(rng, ({}, {"keepdims": 0}, {"keepdims": 1}))
    axes = axes_of(rng, len(dims))
    if opset < (13 if op == "ReduceSum" else 18):
        return Case(op, [x], attrs | ({"axes": axes} if axes else {}), opset)
    if rng.random() < 0.4:
        attrs = attrs | {"noop_with_empty_axes": int(rng.integers(2))}
    given = pick(rng, ([], [None], [np.asarray(axes, np.int64)]))
    return Case(op, [x, *given], attrs, opset)


def gather(rng: Rng, op: str) -> Case:
    dims = shape(rng) or (3,)
    axis = int(rng.integers(-len(dims), len(dims)))
    index = rng.integers(-dims[axis], dims[axis], shape(rng, 2))
    return Case(op, [numbers(rng, pick(rng, INTEGERS), dims), np.asarray(index)], {"axis": axis})


def slices(rng: Rng, op: str) -> Case:
    dims = shape(rng) or (3,)
    axes = axes_of(rng, len(dims)) or [0]
    far = (-(1 << 62), -9, -4, -2, -1, 0, 1, 2, 3, 9, 1 << 62)
    starts, ends = ([pick(rng, far) for _ in axes] for _ in range(2))
    x = numbers(rng, np.dtype("int32"), dims)
    if rng.random() < 0.2:
        return Case(op, [x], {"starts": starts, "ends": ends, "axes": axes}, 9)
    steps = [pick(rng, (1, 2, -1, -2)) for _ in axes]
    lists: list[list[int] | None] = [starts, ends, axes, steps]
    if len(axes) == len(dims) and rng.random() < 0.5:
        lists[2] = None
    lists = lists[: pick(rng, (3, 4))]
    return Case(op, [x, *(None if v is None else np.asarray(v, np.int64) for v in lists)])


def concat(rng: Rng, op: str) -> Case:
    dims = shape(rng) or (2,)
    axis, dtype = int(rng.integers(-len(dims), len(dims))), pick(rng, [*INTEGERS, *FLOATS])
    parts = []
    for _ in range(rng.integers(1, 4)):
        own = list(dims)
        own[axis] = int(rng.integers(0, 4))
        parts.append(numbers(rng, dtype, tuple(own)))
    return Case(op, list(parts), {"axis": axis})


def shaped(rng: Rng, op: str) -> Case:
    """Shape, Size, and operators whose second operand is a shape."""
    dims = shape(rng)
    x = numbers(rng, pick(rng, INTEGERS), dims)
    match op:
        case "Shape":
            pairs = {n: int(rng.integers(-4, 5)) for n in ("start", "end") if rng.random() < 0.5}
            return Case(op, [x], pairs)
        case "Expand":
            return Case(op, [x.reshape(dims), np.asarray([2, *dims], np.int64)])
        case "Tile":
            return Case(op, [x, np.asarray(rng.integers(0, 4, len(dims)), np.int64)])
        case "ConstantOfShape":
            value = {"value": numpy_helper.from_array(numbers(rng, pick(rng, INTEGERS), (1,)))}
            return Case(op, [np.asarray(dims, np.int64)], pick(rng, ({}, value)))
        case "Flatten":
            return Case(op, [x], {"axis": int(rng.integers(-len(dims), len(dims) + 1))})
        case "Transpose":
            perm = [int(p) for p in rng.permutation(len(dims))]
            return Case(op, [x], pick(rng, ({}, {"perm": perm})))
        case "Reshape":
            target = [d if rng.random() < 0.5 else 0 for d in dims]
            if target and rng.random() < 0.5:
                target[int(rng.integers(len(target)))] = -1
            attrs = pick(rng, ({}, {"allowzero": int(rng.integers(2))}))
            return Case(op, [x, np.asarray(target, np.int64)], attrs)
    return Case(op, [x])


def squeeze(rng: Rng, op: str) -> Case:
    dims = tuple(1 if rng.random() < 0.5 else d for d in shape(rng))
    x = numbers(rng, np.dtype("int8"), dims)
    if op == "Squeeze":
        axes = [a for a in axes_of(rng, len(dims)) if dims[a] == 1]
    else:
        axes = axes_of(rng, len(dims) + 2)[:2]
        axes = [a for a in axes if -len(dims) - len(axes) <= a < len(dims) + len(axes)]
    if op == "Squeeze" and not axes:
        return Case(op, [x])
    if rng.random() < 0.4:
        return Case(op, [x], {"axes": axes}, 11)
    return Case(op, [x, np.asarray(axes, np.int64)])


def ranges(rng: Rng, op: str) -> Case:
    dtype = pick(rng, [np.dtype(n) for n in ("int16", "int32", "int64", "float32", "float64")])
    start, stop = numbers(rng, dtype, (2,), 20)
    step = np.asarray(pick(rng, (1, 2, -1, -3, 0.125, 0.75) if dtype.kind == "f" else (1, 2, -3)))
    return Case(op, [np.asarray(start), np.asarray(stop), step.astype(dtype)])


def dropout(rng: Rng, op: str) -> Case:
    x = numbers(rng, pick(rng, FLOATS), shape(rng))
    more: list[Array | None] = pick(
        rng, ([], [np.asarray(0.5, np.float32)], [None, np.zeros((), np.bool_)])
    )
    return Case(op, [x, *more], pick(rng, ({}, {"seed": 3})))


DRAWS: dict[str, Callable[[Rng, str], Case]] = {
    **dict.fromkeys("Add Sub Mul Div Equal Less Greater".split(), elementwise(2)),
    **dict.fromkeys("Abs Neg Sign Floor Ceil Round Sqrt Reciprocal Exp Log Relu".split(),
                    elementwise(1)),
    **dict.fromkeys(("Not", "Identity", "Size"), elementwise(1)),
    **dict.fromkeys(("Min", "Max"), variadic),
    "Mod": modulo, "Pow": power, "Where": where, "Cast": cast, "Clip": clip, "Gather": gather,
    "Slice": slices, "Concat": concat, "Range": ranges, "Dropout": dropout,
    **dict.fromkeys(("Squeeze", "Unsqueeze"), squeeze),
    **dict.fromkeys("Shape Expand Tile ConstantOfShape Flatten Transpose Reshape".split(), shaped),
    **dict.fromkeys(
        ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"), reduction),
}  # fmt: skip
#: Whose last bit is not fixed.
ROUNDED = frozenset(("Exp", "Log", "Pow", "ReduceMean", "ReduceProd"))
