# SPDX-License-Identifier: Apache-2.0
"""QONNX, QCDQ and QDQ files -> the integer graph: one walk, then the passes of `optimise`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np

from bitwright.base.bounded import bounded_reader
from bitwright.base.errors import BitwrightError, FormatError, ModelError
from bitwright.formats import Format, parse_format
from bitwright.interop.onnx.reader import (
    op_elementwise,
    op_images,
    op_products,
    op_quantizers,
    outputs,
)
from bitwright.interop.onnx.reader.budget import Tensors, Work, written_out
from bitwright.interop.onnx.reader.build import INPUT, Importer, Row, identifier
from bitwright.interop.onnx.reader.element_types import check_computed, named_type, result_type
from bitwright.interop.onnx.reader.evaluate import Evaluator
from bitwright.interop.onnx.reader.folding import constant, fold, foldable, size_of_result, work_of
from bitwright.interop.onnx.reader.levels import Quantizer
from bitwright.interop.onnx.reader.model import OnnxModel, OnnxNode, TensorInfo, read_model
from bitwright.interop.onnx.reader.outputs import Output
from bitwright.interop.onnx.reader.signatures import check_attributes
from bitwright.interop.onnx.reader.softmax import OPS as SOFTMAXES
from bitwright.interop.onnx.reader.values import Array, Const, Value
from bitwright.ir import INTEGER, Graph, GraphBuilder, IntArray, Node, TensorType, rebuild
from bitwright.ir.footprint import check_frame
from bitwright.lower.passes import optimise

SCORES, LABEL = "scores", "label"
_RANKS = (2, 3, 4)
_CHECK = "check the file with onnx.checker"
#: What numpy raises for shapes and values that contradict each other.
MALFORMED = (ValueError, IndexError, KeyError, TypeError, ArithmeticError)
_DOMAINS = ("", "ai.onnx", "onnx.brevitas")
_FAMILIES = ("qonnx.", "finn.")

#: Work on a node: in Python, here and in the passes behind, and on each element of its tensors.
_NODE, _EACH = 400_000, 12

Handler = Callable[[Importer, OnnxNode], Value | Const]
HANDLERS: dict[str, Handler] = {
    **op_elementwise.HANDLERS,
    **op_quantizers.HANDLERS,
    **op_products.HANDLERS,
    **op_images.HANDLERS,
    **outputs.HANDLERS,
}

_NORM = "use BatchNormalization: its constants are known after training"
_QDQ = "export in the QDQ style (QuantizeLinear and DequantizeLinear)"
_STATIC = "control flow has no hardware; export a static graph"
_ADVICE = {
    "ConvTranspose": "use Upsample (nearest) and a Conv",
    **dict.fromkeys(("InstanceNormalization", "LayerNormalization", "GroupNormalization"), _NORM),
    **dict.fromkeys(("QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger"), _QDQ),
    "DynamicQuantizeLinear": "use static quantization: scales must be constants",
    "Im2Col": "import the file from before the lowering of convolutions to MatMul",
    **dict.fromkeys(("If", "Loop"), _STATIC),
    **dict.fromkeys(("LSTM", "GRU"), "recurrent networks are not supported"),
    "Slice": "only constants can be sliced; split channels before the network instead",
    "Split": "only constants can be split; use two convolutions",
}


def advice_on(op: str) -> str:
    """What to do about an operator without an integer form."""
    listed = "docs/passes.md of Bitwright's documentation lists what is supported"
    return _ADVICE.get(op, listed)


#: Of `Imported.reals_of_levels`: points of an interval, how often it is drawn closer, and the place
#: of 2**-10 among its sizes.
_GRID, _ROUNDS, _SMALL = 257, 4, 30


@dataclass(frozen=True, eq=False)
class Imported:
    """An imported file.

    Attributes:
        graph: the integer graph; input ``x``.
        outputs: in the order of ``graph.outputs``.
        rows: what became of every node.
        notes: roundings that are not exact, and what is left to the host.
        source: the value and quantizer that make levels of the file's real input; None if the
            input is integers.
        order: for each element of the file's input its place in a frame of the graph's.
        ties, steps: of so many steps of all activations, how many lie at another level of the
            accumulator when the file is evaluated in float32 instead of float64.
    """

    graph: Graph
    outputs: tuple[Output, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    source: tuple[Value, Quantizer] | None
    order: IntArray
    ties: int = 0
    steps: int = 0

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample as the file takes it."""
        return self.order.shape[1:]

    def levels(self, images: Array) -> IntArray:
        """Levels of the graph's input for samples ``(N, *input_shape)``.

        Operators in front of the first quantizer, and that quantizer, are evaluated in float32,
        as QONNX and ONNX Runtime do.

        Raises:
            ModelError: the shape is wrong.
        """
        array = np.asarray(images)
        if array.shape[1:] != self.input_shape:
            raise ModelError(
                f"expected samples of shape {self.input_shape}, got {array.shape[1:]}",
                where=f"input {INPUT}",
            )
        kind = self.graph.types[INPUT]
        flat = np.empty((len(array), kind.size), array.dtype)
        flat[:, self.order.ravel()] = array.reshape(len(array), -1)
        frames = flat.reshape(len(array), *kind.shape)
        if self.source is None:
            return frames.astype(np.int64)
        value, quantizer = self.source
        return quantizer.levels(value.reals(frames.astype(np.float32), np.float32), np.float32)

    def arranged(self, frames: Array) -> Array:
        """Frames (N, ..., channels) as the file takes them: (N, *input_shape)."""
        flat = frames.reshape(len(frames), -1)[:, self.order.ravel()]
        return flat.reshape(len(frames), *self.input_shape)

    def reals_of_levels(self) -> tuple[Array, Array]:
        """For each channel about the least and the largest real between which its level changes:
        what stands in front of the first quantizer, and its own range, decide.
        """
        if self.source is None:
            raise ValueError("the input is integers")
        value, quantizer = self.source
        rows = max(value.rows, quantizer.rows)
        sizes = 2.0 ** np.arange(-40, 41)
        grid = np.broadcast_to(np.concatenate([-sizes[::-1], [0.0], sizes])[:, None], (163, rows))
        for _ in range(_ROUNDS):
            reals = value.reals(grid.astype(np.float32), np.float32)
            levels = np.broadcast_to(quantizer.levels(reals, np.float32), grid.shape)
            changes = levels[1:] != levels[:-1]
            first = np.argmax(changes, axis=0)
            last = len(changes) - np.argmax(changes[::-1], axis=0)
            last = np.where(changes.any(axis=0), last, len(changes))
            at = np.arange(rows)
            low, high = grid[first, at], grid[last, at]
            grid = np.linspace(low, high, _GRID)
        # As much again for the level at each end; of two levels any reals on both sides will do.
        count = changes.sum(axis=0)
        beyond = np.where(
            count > 1,
            (high - low) / np.maximum(count - 1, 1),
            np.maximum(np.maximum(np.abs(low), np.abs(high)), sizes[_SMALL]),
        )
        return low - beyond, high + beyond


@bounded_reader
def load(
    path: str | Path | bytes,
    *,
    name: str | None = None,
    input_type: str | Format | None = None,
    input_scale: float = 1.0,
    input_layout: str | None = None,
    optimised: bool = True,
) -> Imported:
    """Import an ONNX file: QONNX (old and new operator names), QCDQ or QDQ.

    Args:
        path: the file, or its bytes.
        name: of the graph; by default that of the file.
        input_type: the network's input is integers of this format (``uint8`` pixels), times
            ``input_scale``; its first quantizer then becomes hardware too.
        input_layout: NCHW or NHWC; by default whichever the graph can be read with.
        optimised: run the passes that make hardware cheaper.

    Raises:
        DataError: the file is damaged or is no ONNX.
        ModelError: names the node that cannot be converted, and what to change.
        GraphError: one frame takes too much memory or work (`ir.footprint.check_frame`).
    """
    source = path if isinstance(path, bytes) else Path(path)
    model = read_model(source)
    stem = name or (identifier(source.stem).lower() if isinstance(source, Path) else "network")
    first: BitwrightError | None = None
    work = Work.on(model.size)
    for layout in layouts_of(input_of(model), input_layout):
        try:
            return _import(model, stem, layout, input_type, input_scale, work, optimised)
        except BitwrightError as error:
            first = first or error
        except MALFORMED as error:
            message = f"the file is malformed: {error}"
            first = first or ModelError(message, where=f"graph {model.name}", hint=_CHECK)
    assert first is not None
    raise first


def layouts_of(info: TensorInfo, said: str | None) -> list[str]:
    """The layouts that an input may have; an image's is found by trying, if it is not said."""
    if said:
        return [said]
    return ["NCHW", "NHWC"] if len(info.shape) == 4 else ["NCHW"]


def input_of(model: OnnxModel) -> TensorInfo:
    """The one input of a model.

    Raises:
        ModelError: there are several, or its shape is not fixed.
    """
    used = {name for node in model.nodes for name in node.inputs}
    inputs = [i for i in model.inputs if i.name in used]
    if len(inputs) != 1:
        raise ModelError(
            f"the network has {len(inputs)} inputs {[i.name for i in inputs]}; one is supported",
            where=f"graph {model.name}",
            hint="join them before the export, or turn parameters into initializers",
        )
    info = inputs[0]
    where = f"input {info.name}"
    if len(info.shape) not in _RANKS:
        raise ModelError(
            f"has rank {len(info.shape)}; 2 to 4 are supported",
            where=where,
            hint="expected (N, features) or (N, C, H, W)",
        )
    dynamic = [i for i, d in enumerate(info.shape) if i and d is None]
    if dynamic:
        raise ModelError(
            f"axes {dynamic} of shape {info.shape} are dynamic; only the batch may be",
            where=where,
            hint="hardware has one size: export with fixed sizes, or set them with "
            "onnx.tools.update_model_dims",
        )
    return info


def start(
    model: OnnxModel,
    name: str,
    layout: str,
    input_type: str | Format | None,
    scale: float,
    work: Work,
) -> tuple[Importer, IntArray]:
    """An import that has begun; and where the input's elements lie in a frame."""
    tensors = Tensors(model, needed_nodes(model))
    low, info = Importer(GraphBuilder(name, INTEGER), tensors, Evaluator(work)), input_of(model)
    shape = (1, *(int(d or 1) for d in info.shape[1:]))
    if layout == "NHWC":
        frame = shape[1:]
        order = np.arange(int(np.prod(frame)), dtype=np.int64).reshape(shape)
    elif len(shape) == 4:
        frame = (*shape[2:], shape[1])
        order = np.moveaxis(np.arange(int(np.prod(frame))).reshape(frame), -1, 0)[np.newaxis]
    else:
        frame = (int(np.prod(shape)),)
        order = np.arange(frame[0], dtype=np.int64).reshape(shape)
    kind = _declared(model, info) if input_type is None else parse_format(input_type)
    if kind is None:
        low.frames[""] = frame
        value = Value("", shape, order, np.ones(1))
    else:
        unit = scale * kind.lsb
        held = TensorType(frame, kind, (unit,), kind.min_level, kind.max_level)
        low.builder.input(INPUT, held)
        low.frames[INPUT] = frame
        value = Value(INPUT, shape, order, np.full(1, unit))
    low.tensors.keep(info.name, low.viewed(value, order))
    low.types[info.name] = named_type(info.dtype)
    low.batch = int(info.shape[0] or 1) if info.shape else 1
    return low, order


def _declared(model: OnnxModel, info: TensorInfo) -> Format | None:
    """The integers that the file says its input holds, or None for reals."""
    noted = model.datatypes.get(info.name, "FLOAT32")
    if not noted.startswith(("FLOAT", "SCALEDINT")):
        try:
            return parse_format(noted)
        except FormatError:
            pass
    if info.dtype is not None and info.dtype in ("int8", "uint8", "int16", "uint16"):
        return parse_format(info.dtype)
    return None


def _import(
    model: OnnxModel,
    name: str,
    layout: str,
    input_type: str | Format | None,
    scale: float,
    work: Work,
    optimised: bool,
) -> Imported:
    low, order = start(model, name, layout, input_type, scale, work)
    for node in needed_nodes(model):
        walk(low, node)
    found = outputs.finish(low, tuple(o.name for o in model.outputs))
    graph, found = _finish(low, found)
    check_frame(graph, f"graph {model.name}")
    if optimised:
        graph = optimise(graph)
    notes = tuple(dict.fromkeys(low.notes))
    rows = tuple(low.became)
    return Imported(
        graph, found, rows, notes, low.real_input, order, low.evaluator.ties, low.evaluator.steps
    )


def needed_nodes(model: OnnxModel) -> list[OnnxNode]:
    """Nodes that reach an output, in their order."""
    wanted = {o.name for o in model.outputs}
    found = []
    for node in reversed(model.nodes):
        if wanted & set(node.outputs):
            wanted |= set(node.inputs)
            found.append(node)
    return found[::-1]


def walk(low: Importer, node: OnnxNode) -> None:
    """Convert one node; its row of the report is appended.

    Raises:
        ModelError: it cannot be converted.
    """
    before = len(low.made)
    low.evaluator.work.spend(node, _NODE)
    try:
        result = _result(low, node)
    except FormatError as error:
        raise node.error(error.message, error.hint) from error
    except ModelError as error:
        if error.where is not None:
            raise
        raise node.error(error.message, error.hint) from error
    place = 1 if node.op == "TopK" else 0
    if len(node.outputs) <= place or not node.outputs[place]:
        raise node.error("has no output that can be used")
    kind = low.types[node.outputs[place]] = result_type(low, node, result)
    if isinstance(result, Value):
        check_computed(low, node, result, kind)
    low.tensors.keep(node.outputs[place], result, node)
    read = (low.tensors[name] for name in {*node.inputs} if name)
    low.evaluator.work.spend(node, _EACH * sum(map(written_out, (result, *read))))
    low.tensors.read(node)
    if node.op not in SOFTMAXES and node.inputs[:1] and node.inputs[0] in low.softmaxes:
        low.softmaxes[node.outputs[place]] = low.softmaxes[node.inputs[0]]
    made = [*islice(reversed(low.made.items()), len(low.made) - before)][::-1]
    if isinstance(result, Const):
        text = "constant"
    elif made:
        text = ", ".join(f"{how.op} {edge}" for edge, how in made)
    else:
        text = f"input {INPUT}" if result.edge == INPUT and node.op.endswith("Quant") else "folded"
    low.became.append(Row(node.name, node.op, text))


def _result(low: Importer, node: OnnxNode) -> Value | Const:
    known = [low.tensors.get(i) for i in node.inputs if i]
    missing = [i for i in node.inputs if i and i not in low.tensors]
    if missing:
        raise node.error(f"reads {missing[0]!r}, an output that has no integer form")
    if node.domain not in _DOMAINS and not node.domain.startswith(_FAMILIES):
        raise node.error(f"is of the unknown domain {node.domain!r}")
    if node.op == "Constant":
        check_attributes(node)
        return Const(constant(node))
    constants = [c for c in known if isinstance(c, Const)]
    if constants and len(constants) == len(known):
        size = size_of_result(node, constants)
        low.tensors.constants.require(node, size)
        low.evaluator.work.spend(node, work_of(node, size))
        if foldable(node):
            check_attributes(node)
            return fold(node, [low.constant_at(node, k) for k in range(len(node.inputs))])
    handler = HANDLERS.get(node.op)
    if handler is None:
        raise node.error("operator has no integer form", advice_on(node.op))
    check_attributes(node)
    try:
        return handler(low, _one_batch(low, node) if low.batch > 1 else node)
    except MALFORMED as error:
        # Shapes that contradict each other in ways no handler foresaw.
        raise node.error(f"is malformed: {error}", _CHECK) from error


def _one_batch(low: Importer, node: OnnxNode) -> OnnxNode:
    """A Reshape that spells out the batch size keeps its meaning for one sample: it reads a target
    of its own, as others may read the file's constant.

    Raises:
        ModelError: the node joins the samples of a batch.
    """
    joins = node.op == "Flatten" and node.integer("axis", 1) in (0, -len(low.data(node, 0).shape))
    if node.op == "Transpose":
        joins = node.ints("perm", (1,))[:1] != (0,)
    if node.op in ("ArgMax", "TopK", "Concat", "Softmax", "LogSoftmax"):
        axis = node.integer("axis", 0 if node.op == "ArgMax" else 1)
        joins = axis in (0, -len(low.data(node, 0).shape))
    if node.op == "Reshape" and node.has(1):
        target = low.tensors[node.inputs[1]]
        if isinstance(target, Const) and target.value.size:
            fixed = np.array(np.ravel(target.value))
            joins = fixed[0] not in (low.batch, 0, -1)
            if fixed[0] == low.batch:
                fixed[0] = 1
                own = f"{node.outputs[0]} of one sample"
                while own in low.tensors:
                    own += "'"
                low.tensors.keep(own, Const(fixed))
                node = replace(node, inputs=(node.inputs[0], own))
    if joins:
        raise node.error(
            f"joins the {low.batch} samples of a batch", "export the model with a batch of one"
        )
    return node


def _finish(low: Importer, found: tuple[Output, ...]) -> tuple[Graph, tuple[Output, ...]]:
    """The graph of what reaches the outputs, its ends named scores and label."""
    edges = tuple(dict.fromkeys(o.edge for o in found))
    raw = low.builder.finish(*edges)
    if not raw.inputs:
        raise ModelError("no node reads the network's input", where=f"graph {raw.name}")
    names = {o.edge: LABEL if o.is_label else SCORES for o in found}
    if len(set(names.values())) < len(names):
        names = {}
    # Other nodes that bear these names step aside.
    taken = {*names.values()} - {*names}
    names |= {edge: low.builder.unique(f"{edge}_layer") for edge in taken if edge in raw.types}
    wanted = set(edges)
    kept: list[Node] = []
    for node in reversed(raw.nodes):
        if wanted & set(node.outputs):
            wanted |= set(node.inputs)
            kept.append(node)

    def renamed(parts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names.get(p, p) for p in parts)

    nodes = tuple(
        replace(
            n,
            name=names.get(n.outputs[0], n.name),
            inputs=renamed(n.inputs),
            outputs=renamed(n.outputs),
        )
        for n in reversed(kept)
    )
    graph = rebuild(raw, nodes, renamed(edges))
    return graph, tuple(replace(o, edge=names.get(o.edge, o.edge)) for o in found)
