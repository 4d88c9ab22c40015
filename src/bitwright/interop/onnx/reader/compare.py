# SPDX-License-Identifier: Apache-2.0
"""The file itself, run by QONNX's executor, against the integer graph it became.

QONNX evaluates in float32. The import evaluates the same operators in float64, from exact
integers. They can differ only where a value lies within float32's rounding of a quantizer's
boundary; `compare` counts how often that happens. Only files that were imported are ever run:
nothing here is given an unchecked file.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from math import isinf
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bitwright.base.arrays import read_array
from bitwright.base.bounded import bounded
from bitwright.base.errors import DataError, MismatchError, ToolError
from bitwright.base.files import held_size, read_bytes
from bitwright.base.memory import shown
from bitwright.base.tools.confined import run_confined
from bitwright.interop.onnx.reader.importer import Imported, needed_nodes
from bitwright.interop.onnx.reader.model import MAX_FILE, OnnxModel, read_model
from bitwright.interop.onnx.reader.outputs import Output
from bitwright.interop.onnx.reader.values import Array
from bitwright.ir import rebuild

#: Images at a time.
BATCH = 500
#: Domains of operators that the file may have when it is run: the standard, and QONNX's own.
DOMAINS = (
    "", "ai.onnx", "onnx.brevitas", "qonnx.custom_op.general", "qonnx.custom_op.channels_last",
)  # fmt: skip
#: Memory in any case, and for each byte of the file, of which QONNX makes models, node by node.
_MEMORY, _EACH = 4 << 30, 20
#: Seconds of the processor in any case, and images for each one more.
_SECONDS, _A_SECOND = 300, 10


@dataclass(frozen=True)
class Comparison:
    """Two evaluations of one file, of all its outputs.

    Attributes:
        images: how many.
        labels: how many have another largest score in an output, by position of the first largest
            (of a map in any of its pixels), or another label; those that tie are not counted.
        ties: how many have it only because scores tie that are equal in exact arithmetic, that
            nothing in the graph ranks, or that a softmax has rounded: all scores of the image are
            equal within the tolerance, and so are the two that are the largest. float32 decides
            between them.
        scores: how many score values differ by more than the tolerance.
        largest: largest difference of a score, as a share of the largest score of its output.
        output: name in the file of the output that differs on the first image that does; of the
            first output, if none does.
        expected, found: its labels, (N,).
        wrong: which images differ, ties apart.
    """

    images: int
    labels: int
    ties: int
    scores: int
    largest: float
    output: str
    expected: Array
    found: Array
    wrong: Array

    def require(self) -> None:
        """Raise unless every label is equal, or ties.

        Raises:
            MismatchError: names the first image that differs.
        """
        if self.labels:
            at = int(np.flatnonzero(self.wrong)[0])
            raise MismatchError(
                f"{self.labels} of {self.images} labels differ; first: image {at}, QONNX gives "
                f"{self.expected[at]}, the graph {self.found[at]} in output {self.output!r:.80}"
                + (" (a score is infinite or no number)" if isinf(self.largest) else ""),
                where="imported ONNX file",
            )


def original_outputs(source: Path | bytes, images: Array, *, batch: int = BATCH) -> list[Array]:
    """The outputs of the file for samples ``(N, ...)`` of its input, by QONNX's executor, in a
    process of its own.

    The batch size in the file is replaced, so that thousands of images take seconds.

    Args:
        batch: images at a time.

    Raises:
        ModelError, DataError: as `read_model`; or it has operators of a domain that QONNX has not.
        ToolError: ``qonnx`` is missing or cannot run the file.
    """
    for package in ("onnxruntime", "onnx", "qonnx"):
        if importlib.util.find_spec(package) is None:
            raise ToolError(
                f"running the file needs a package that is missing: {package}",
                hint="pip install 'onnx<1.22' qonnx onnxruntime",
            )
    places = [] if isinstance(source, bytes) else [source]
    body = bounded(lambda: runnable(source), *places)
    where = str(source) if places else "ONNX file"
    script = Path(__file__).with_name("compare_child.py")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "model.onnx").write_bytes(body)
        np.save(folder / "images.npy", images)
        made = folder / "outputs"
        made.mkdir()
        names = [folder / "model.onnx", folder / "images.npy", made, str(batch)]
        wrong = run_confined(
            script, names, folder=folder, memory=_MEMORY + _EACH * len(body),
            seconds=_SECONDS + len(images) // _A_SECOND, library="ONNX Runtime", where=where,
        )  # fmt: skip
        if wrong is not None:
            raise ToolError(f"QONNX's executor cannot run it: {wrong}", where=where)
        count = len(list(made.iterdir()))
        return [read_array(made / f"{number}.npy", "biuf") for number in range(count)]


def runnable(source: Path | bytes) -> bytes:
    """A file without what leads to none of its outputs, which nothing has looked at: QONNX runs
    every node, and imports the module that the domain of one names.

    Raises:
        ModelError, DataError: as `read_model`; or a node is of a domain that QONNX has not.
        ToolError: the package ``onnx`` is missing.
    """
    model = read_model(source)
    needed = needed_nodes(model)
    for node in needed:
        if node.domain not in DOMAINS:
            raise node.error(
                f"is of the domain {node.domain!r:.80}, which QONNX has not",
                f"known are {', '.join(filter(None, DOMAINS))}",
            )
    read = {name for node in needed for name in node.inputs} | {o.name for o in model.outputs}
    stored = [model.constants[name].data for name in read & model.constants.keys()]
    beside = [data for data in stored if data is not None]
    places = {data.path for data in beside}
    size, room = sum(data.length for data in beside), sum(map(held_size, places))
    if size > min(room, MAX_FILE):
        raise DataError(
            f"its tensors in other files are {shown(size)}, of files of {shown(room)}; one that "
            f"QONNX runs holds {shown(MAX_FILE)} at most, and each tensor for itself",
            where="ONNX file",
            hint="import it without a comparison",
        )
    made = {name for node in needed for name in node.outputs if name}
    return bounded(lambda: _whole(source, model, made, read), *places)


def _whole(source: Path | bytes, model: OnnxModel, made: set[str], read: set[str]) -> bytes:
    """The file with the nodes that make, and the constants that are, what is wanted; what lies in
    other files in it.
    """
    import onnx

    body = source if isinstance(source, bytes) else read_bytes(source, most=MAX_FILE)
    proto = onnx.ModelProto.FromString(body)
    graph = proto.graph
    for field, wanted in (
        (graph.node, lambda node: made.intersection(node.output)),
        (graph.initializer, lambda tensor: tensor.name in read),
        (graph.input, lambda entry: entry.name not in model.constants),
    ):
        for place in reversed(range(len(field))):
            if not wanted(field[place]):
                del field[place]
    for node in graph.node:
        node.domain = "" if node.domain == "ai.onnx" else node.domain
    for tensor in graph.initializer:
        model.constants[tensor.name].fill(tensor)
    return bytes(proto.SerializeToString())


def graph_outputs(
    imported: Imported, images: Array, count: int, *, batch: int = BATCH
) -> list[tuple[Array, Array | None]]:
    """The same outputs, the first ``count``, by the integer graph (the fast executor), so many
    images at a time; with each label the levels that it ranks, (N, C). Behind the outputs of the
    file a label may follow that was added.
    """
    from bitwright.ir.executor import Executor

    wanted = imported.outputs[:count]
    makers = [imported.graph.producer(output.edge) for output in wanted]
    ranked = [
        maker.inputs[0] if output.is_label and maker and maker.op == "top_k" else None
        for output, maker in zip(wanted, makers, strict=True)
    ]
    edges = dict.fromkeys([*imported.graph.outputs, *filter(None, ranked)])
    executor = Executor(rebuild(imported.graph, tuple(imported.graph), tuple(edges)))
    parts: list[tuple[list[Array], list[Array]]] = [([], []) for _ in wanted]
    for start in range(0, len(images), batch):
        found = executor.run({"x": imported.levels(images[start : start + batch])})
        for (values, levels), output, edge in zip(parts, wanted, ranked, strict=True):
            values.append(output.reals(found[output.edge]))
            if edge is not None:
                levels.append(found[edge].reshape(len(found[edge]), -1))
    return [
        (np.concatenate(values), np.concatenate(levels) if levels else None)
        for values, levels in parts
    ]


def compare(
    imported: Imported,
    images: Array,
    expected: Sequence[Array],
    *,
    tolerance: float = 1e-5,
    batch: int = BATCH,
) -> Comparison:
    """Compare the graph with what `original_outputs` gives for the same images.

    Args:
        images: as `Imported.levels` takes them.
        batch: images at a time.
        tolerance: a score counts as equal within this share of the largest finite score of its
            output: float32 sums. What is infinite or no number is equal to nothing.

    Raises:
        ToolError: what was given is not of these images.
    """
    count = len(images)
    values = graph_outputs(imported, images, len(expected), batch=batch)
    ranked = any(output.is_label for output in imported.outputs)
    for output, given, (value, _) in zip(imported.outputs, expected, values, strict=False):
        if np.size(given) != value.size:
            raise ToolError(
                f"QONNX's executor gives output {output.name!r:.80} the shape {np.shape(given)} "
                f"for {count} images, the graph {value.shape}",
                where="imported ONNX file",
                hint="import it without a comparison",
            )
    found = [
        _compared(output, np.asarray(given), value, levels, ranked, tolerance)
        for output, given, (value, levels) in zip(imported.outputs, expected, values, strict=False)
    ]
    wrong = np.any([one.wrong for one in found], axis=0)
    ties = np.any([one.ties for one in found], axis=0) & ~wrong
    at = int(wrong.argmax())
    told = next((number for number, one in enumerate(found) if one.wrong[at]), 0)
    return Comparison(
        images=count,
        labels=int(wrong.sum()),
        ties=int(ties.sum()),
        scores=sum(one.scores for one in found),
        largest=max(one.largest for one in found),
        output=imported.outputs[told].name,
        expected=found[told].expected,
        found=found[told].found,
        wrong=wrong,
    )


class _Compared(NamedTuple):
    """As `Comparison`, of one output."""

    wrong: Array
    ties: Array
    scores: int
    largest: float
    expected: Array
    found: Array


def _equal_at(levels: Array, one: Array, two: Array) -> Array:
    """Of labels (N, k): whether what they rank, (N, C), is equal at both, place by place."""
    inside = ((two >= 0) & (two < levels.shape[1]) & (two % 1 == 0)).all(axis=1)
    places = (np.where(inside[:, None], each, 0).astype(np.int64) for each in (one, two))
    first, second = (np.take_along_axis(levels, place, axis=1) for place in places)
    return inside & (first == second).all(axis=1)


def _compared(
    output: Output, expected: Array, values: Array, levels: Array | None, ranked: bool,
    tolerance: float,
) -> _Compared:  # fmt: skip
    count = len(values)
    many = values.ndim > 2 and values.shape[1] > 1  # a map; else all of an image are its classes
    shape = (count, values.shape[1], -1) if many else (count, values[:1].size, 1)
    flat, other = (np.asarray(array, np.float64).reshape(shape) for array in (expected, values))
    finite = np.isfinite(flat) & np.isfinite(other)
    lost = ~finite.reshape(count, -1).all(axis=1)
    if output.is_label:
        wrong = (flat != other).reshape(count, -1).any(axis=1)
        ties = np.zeros(count, bool)
        if levels is not None:
            labels = other.reshape(count, -1), flat.reshape(count, -1)
            ties = wrong & ~lost & _equal_at(levels, *labels)
        most = float("inf") if lost.any() else 0.0
        return _Compared((wrong & ~ties) | lost, ties, 0, most, flat[:, 0, 0], other[:, 0, 0])
    sizes = np.abs(flat, out=np.zeros_like(flat), where=finite)
    top = max(float(sizes.max(initial=0)), float(np.finfo(np.float32).tiny))
    apart = np.subtract(flat, other, out=np.full_like(flat, np.inf), where=finite)
    apart = np.abs(apart) / top
    labels = flat.argmax(axis=1), other.argmax(axis=1)  # (images, pixels)
    differ = labels[0] != labels[1]
    largest, chosen = (np.take_along_axis(flat, k[:, None], axis=1)[:, 0] for k in labels)
    one, two = (np.take_along_axis(other, k[:, None], axis=1)[:, 0] for k in labels)
    near = (largest - chosen) / top <= tolerance
    # The two are equal in exact arithmetic, or nothing ranks the scores, or in float32 a softmax
    # has rounded them to equal ones: float32 alone decides which of these is the largest.
    free = (one == two) | bool(output.softmaxes or not ranked)
    ties = differ & near & free & (apart <= tolerance).all(axis=(1, 2))[:, None]
    first = differ.argmax(axis=1)[:, None]  # the pixel that is told of
    told = [np.take_along_axis(k, first, axis=1)[:, 0] for k in labels]
    wrong = (differ & ~ties).any(axis=1) | lost
    differing, most = int((apart > tolerance).sum()), float(apart.max(initial=0))
    return _Compared(wrong, ties.any(axis=1), differing, most, *told)
