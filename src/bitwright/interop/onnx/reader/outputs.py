# SPDX-License-Identifier: Apache-2.0
"""The ends of the network: which class is largest, and what the scores mean."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bitwright.base.errors import ModelError
from bitwright.interop.onnx.reader.build import Importer
from bitwright.interop.onnx.reader.joins import rescaled
from bitwright.interop.onnx.reader.levels import whole_numbers
from bitwright.interop.onnx.reader.model import OnnxNode
from bitwright.interop.onnx.reader.softmax import OPS, Softmax, softmax_of
from bitwright.interop.onnx.reader.values import Array, Const, Floats, Step, Value
from bitwright.ir import Attr, IntArray

_WHOLE = 1e-9
_WIDE = 1 << 15
_STRICT = frozenset("mul div add norm sigmoid tanh softplus softsign exp erf".split())


@dataclass(frozen=True, eq=False)
class Output:
    """One output of the file: the edge it became, and how to read it.

    Attributes:
        name: the ONNX tensor.
        edge: of the integer graph.
        is_label: indices of the largest scores, not reals.
        value: how the edge's levels become the file's numbers.
        softmaxes: behind that, on the host.
    """

    name: str
    edge: str
    is_label: bool
    value: Value
    softmaxes: tuple[Softmax, ...] = ()

    def reals(self, levels: IntArray) -> Array:
        """The file's own output, in its shape: levels ``(N, *frame)`` -> reals (indices as they
        are). Elementwise operators behind the last quantizer, and a softmax of the scores, are
        evaluated here, on the host.
        """
        frame = np.asarray(levels)
        values = frame.astype(np.float64) if self.is_label else self.value.reals(frame)
        for softmax in self.softmaxes:
            values = softmax(values)
        if self.value.order is None:
            return np.moveaxis(values, -1, 1) if values.ndim > 2 else values
        flat = values.reshape(len(values), -1)
        return flat[:, self.value.order.ravel()].reshape(-1, *self.value.shape[1:])


def _splittable(value: Value) -> int:
    """How many steps at the end keep the order of the channels, treating all alike."""
    count = 0
    for step in reversed(value.steps):
        if step.rows > 1 or not _strict(step):
            break
        count += 1
    return count


def _strict(step: Step) -> bool:
    """Whether larger inputs give larger outputs, never equal ones (as a clip does)."""
    if step.op in ("leaky", "elu", "selu"):
        return bool((step.constants[0] > 0).all())
    return step.op in _STRICT and bool((step.direction() > 0).all())


def ranked(low: Importer, value: Value, node: OnnxNode) -> Value:
    """A vector whose levels are ordered as its reals are: one positive scale, no offsets.

    What the file adds per channel becomes the bias of the layer in front where it is whole there;
    else scores are rounded to 16 bits of one scale (said in the report).
    """
    value, place = low.vector(value, node)
    if place is not None:
        raise node.error(
            "takes classes in an order other than the channels'",
            "average over the image (GlobalAveragePool) before the classifier",
        )
    value = low.settled(value, node)
    tail = _splittable(value)
    front = value.steps[: len(value.steps) - tail]
    head = replace(value, steps=front)
    suffix = value.steps[len(front) :]
    form = head.affine()
    if form is None:
        head = _whole_levels(low, head, node)
        form = head.affine()
    if form is None:
        raise node.error(
            f"ranks classes after {front[-1].op}, whose order is not that of the levels",
            "put a quantizer behind it",
        )
    gain, offset = form
    if gain.size == 1 and gain[0] > 0:
        found = _biased(low, head, float(gain[0]), offset, node)
        if found is not None:
            return replace(found, steps=(*found.steps, *suffix))
    note = (
        "scores with a scale or offset a class are rounded to {bits} bits, unit {unit:.3g}; "
        "quantize the last layer per tensor to keep them exact"
    )
    head = rescaled(low, replace(head, steps=()), gain, offset, node, note)
    return replace(head, steps=suffix)


def _whole_levels(low: Importer, head: Value, node: OnnxNode) -> Value:
    """The value as a table of its levels, where that is exact (a Relu without a bias)."""
    try:
        return low.tabulated(head, node)
    except ModelError:
        return head


def _biased(
    low: Importer, head: Value, gain: float, offset: Floats, node: OnnxNode
) -> Value | None:
    """The value with its offsets as the bias of the layer that makes it, if they are whole."""
    unit = np.full(1, gain)
    if offset.size == 1:
        value = replace(head, unit=unit, steps=())
        return value.then("add", offset) if offset.any() else value
    levels = offset / gain
    bias = np.rint(levels)
    maker = low.made.get(head.edge)
    lo, hi = low.level_range(head)
    exact = bool((np.abs(levels - bias) <= _WHOLE * np.maximum(np.abs(levels), 1)).all())
    if maker is None or maker.op not in ("dense", "conv") or "bias" in maker.params:
        return None
    if not exact and max(abs(lo), abs(hi)) < _WIDE:
        return None
    if not exact:
        low.notes.append(
            f"{node.where}: the biases of the scores are rounded to whole levels of {gain:.3g}"
        )
    params = {**maker.params, "bias": whole_numbers(bias)}
    edge = low.cached(
        ("bias", head.edge, bias.tobytes()),
        lambda: low.add(maker.op, maker.inputs, node, maker.attrs, params),
    )
    return Value(edge, head.shape, head.order, unit)


def _vector_of(low: Importer, value: Value, node: OnnxNode) -> Value:
    """(1, C, 1, 1) and the like as (1, C)."""
    if len(value.shape) > 2 and max(value.shape) == int(np.prod(value.shape)):
        return low.viewed(value, low.order(value).reshape(1, -1))
    return value


def _along_all(value: Value, axis: int) -> bool:
    """Whether an axis has all the elements: (1, C), (1, C, 1, 1), (1, 1, 1, C)."""
    return bool(value.shape) and value.shape[axis] == int(np.prod(value.shape))


def top_k(low: Importer, node: OnnxNode, value: Value, k: int) -> Value:
    """Indices of the k largest elements of a vector."""
    value = ranked(low, _vector_of(low, value, node), node)
    attrs: dict[str, Attr] = {"k": k}
    edge = low.cached(
        ("top_k", value.edge, k), lambda: low.add("top_k", (value.edge,), node, attrs)
    )
    low.labels.add(edge)
    return Value(edge, (1, k), None, np.ones(1))


def _argmax(low: Importer, node: OnnxNode) -> Value:
    value = low.data(node, 0)
    axis = node.integer("axis", 0) % max(len(value.shape), 1)
    if not _along_all(value, axis) or node.integer("select_last_index", 0):
        raise node.error("ranks along another axis than the channels", "use axis=1")
    found = top_k(low, node, value, 1)
    shape = (1, 1) if node.integer("keepdims", 1) else (1,)
    return replace(found, shape=shape, order=np.zeros(shape, np.int64))


def _topk(low: Importer, node: OnnxNode) -> Value:
    value = low.data(node, 0)
    size = np.ravel(low.const(node, 1).value) if node.has(1) else [node.integer("k", 1)]
    axis = node.integer("axis", -1) % max(len(value.shape), 1)
    if not _along_all(value, axis) or not node.integer("largest", 1):
        raise node.error("ranks other than the largest channels", "use largest=1 along channels")
    if not 1 <= int(size[0]) <= value.shape[axis]:
        raise node.error(f"k = {int(size[0])} of {value.shape[axis]} channels")
    return top_k(low, node, value, int(size[0]))


def _softmax(low: Importer, node: OnnxNode) -> Value:
    low.notes.append(f"{node.where} is left to the host: it does not change the order of scores")
    value = low.settled(low.data(node, 0), node)
    before = low.softmaxes.get(node.inputs[0], ())
    low.softmaxes[node.outputs[0]] = (*before, softmax_of(node, low.order(value)))
    return value


HANDLERS = {
    "ArgMax": _argmax,
    "TopK": _topk,
    **dict.fromkeys(OPS, _softmax),
}


def finish(low: Importer, names: tuple[str, ...]) -> tuple[Output, ...]:
    """The outputs, and a class label behind the only vector of scores."""
    found: list[Output] = []
    for name in names:
        tensor = low.tensors[name]
        node = OnnxNode(name, "graph output", "", (), (name,))
        if isinstance(tensor, Const):
            raise node.error("does not depend on the network's input")
        if tensor.border_any:
            raise node.error("is a Pad", "only a Conv can follow a Pad")
        if tensor.edge in low.labels:
            if tensor.steps or tensor.pools or not np.array_equal(tensor.unit, np.ones(1)):
                raise node.error(
                    "computes with the label, which the hardware gives as it is",
                    "end the file with the ArgMax or TopK, and do the rest on the host",
                )
            found.append(Output(name, tensor.edge, True, tensor))
            continue
        value = low.settled(_vector_of(low, tensor, node), node)
        if len(value.shape) == 2:
            value = _scores(low, value, node)
        if value.edge not in low.made:
            raise node.error("is the network's input", "there is nothing to build")
        _say_what_is_left(low, name, value)
        found.append(Output(name, value.edge, False, value, low.softmaxes.get(name, ())))
    scores = [o for o in found if not o.is_label]
    if len(found) == 1 and scores and len(low.frame(scores[0].value)) == 1 and low.rankable:
        node = OnnxNode("label", "TopK", "", (), ())
        label = top_k(low, node, scores[0].value, 1)
        found.append(Output("label", label.edge, True, label))
    return tuple(found)


def _say_what_is_left(low: Importer, name: str, value: Value) -> None:
    """Of an output whose levels are no numbers of the file but for a scale and an offset."""
    left = [step.op for step in value.steps if step.affine() is None]
    if value.order is not None:
        places = value.order.ravel()
        if not np.array_equal(places, np.arange(places.size)):
            left.append("another order of the elements")
    if left:
        low.notes.append(
            f"output {name}: behind its levels the file goes on ({', '.join(left)}), which is left "
            "to the host"
        )


def _scores(low: Importer, value: Value, node: OnnxNode) -> Value:
    """Ranked scores if they can be; else as they are, without a label."""
    try:
        return ranked(low, value, node)
    except ModelError as error:
        low.rankable = False
        low.notes.append(f"no label: {error.message}")
        return value
