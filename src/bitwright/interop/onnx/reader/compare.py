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
from dataclasses import dataclass
from math import isinf
from pathlib import Path

import numpy as np

from bitwright.base.arrays import read_array
from bitwright.base.errors import MismatchError, ToolError
from bitwright.base.files import read_bytes
from bitwright.base.tools.confined import run_confined
from bitwright.interop.onnx.reader.importer import Imported, needed_nodes
from bitwright.interop.onnx.reader.model import MAX_FILE, read_model
from bitwright.interop.onnx.reader.values import Array

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
    """Two evaluations of one file.

    Attributes:
        images: how many.
        labels: how many have another largest score, by position of the first largest. Where the
            graph has no label, or the file a softmax, scores that tie within the tolerance may come
            in any order.
        scores: how many score values differ by more than the tolerance.
        largest: largest difference of a score, as a share of the largest score.
        expected, found: the labels, (N,).
        wrong: which of them differ so.
    """

    images: int
    labels: int
    scores: int
    largest: float
    expected: Array
    found: Array
    wrong: Array

    def require(self) -> None:
        """Raise unless every label is equal.

        Raises:
            MismatchError: names the first image that differs.
        """
        if self.labels:
            at = int(np.flatnonzero(self.wrong)[0])
            raise MismatchError(
                f"{self.labels} of {self.images} labels differ; first: image {at}, QONNX gives "
                f"{self.expected[at]}, the graph {self.found[at]}"
                + (" (a score is infinite or no number)" if isinf(self.largest) else ""),
                where="imported ONNX file",
            )


def original_scores(source: Path | bytes, images: Array, *, batch: int = BATCH) -> Array:
    """First output of the file for samples ``(N, ...)`` of its input, by QONNX's executor, in a
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
    body, where = runnable(source), "ONNX file" if isinstance(source, bytes) else str(source)
    script = Path(__file__).with_name("compare_child.py")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "model.onnx").write_bytes(body)
        np.save(folder / "images.npy", images)
        names = [folder / "model.onnx", folder / "images.npy", folder / "out.npy", str(batch)]
        wrong = run_confined(
            script, names, folder=folder, memory=_MEMORY + _EACH * len(body),
            seconds=_SECONDS + len(images) // _A_SECOND, library="ONNX Runtime", where=where,
        )  # fmt: skip
        if wrong is not None:
            raise ToolError(f"QONNX's executor cannot run it: {wrong}", where=where)
        return read_array(folder / "out.npy", "biuf")


def runnable(source: Path | bytes) -> bytes:
    """A file without what leads to none of its outputs, which nothing has looked at: QONNX runs
    every node, and imports the module that the domain of one names.

    Raises:
        ModelError, DataError: as `read_model`; or a node is of a domain that QONNX has not.
        ToolError: the package ``onnx`` is missing.
    """
    model = read_model(source)
    import onnx
    from onnx import numpy_helper

    needed = needed_nodes(model)
    for node in needed:
        if node.domain not in DOMAINS:
            raise node.error(
                f"is of the domain {node.domain!r:.80}, which QONNX has not",
                f"known are {', '.join(filter(None, DOMAINS))}",
            )
    body = source if isinstance(source, bytes) else read_bytes(source, most=MAX_FILE)
    proto = onnx.ModelProto.FromString(body)
    graph = proto.graph
    made = {name for node in needed for name in node.outputs if name}
    read = {name for node in needed for name in node.inputs} | {o.name for o in model.outputs}
    kept = [node for node in graph.node if made.intersection(node.output)]
    stored = [t for t in graph.initializer if t.name in read]
    values = [
        numpy_helper.from_array(model.constants[t.name].read(), t.name)
        if t.data_location == onnx.TensorProto.EXTERNAL
        else t
        for t in stored
    ]
    for node in kept:
        node.domain = "" if node.domain == "ai.onnx" else node.domain
    entries = [info for info in graph.input if info.name not in model.constants]
    for field, new in ((graph.node, kept), (graph.initializer, values), (graph.input, entries)):
        own = [type(item).FromString(item.SerializeToString()) for item in new]
        del field[:]
        field.extend(own)
    return bytes(proto.SerializeToString())


def graph_scores(imported: Imported, images: Array, *, batch: int = BATCH) -> Array:
    """The same output by the integer graph (the fast executor), so many images at a time."""
    from bitwright.ir.executor import Executor

    executor = Executor(imported.graph)
    edge = imported.outputs[0].edge
    parts = [
        imported.outputs[0].reals(executor.run({"x": imported.levels(part)})[edge])
        for part in (images[start : start + batch] for start in range(0, len(images), batch))
    ]
    return np.concatenate(parts)


def compare(
    imported: Imported,
    images: Array,
    expected: Array,
    *,
    tolerance: float = 1e-5,
    batch: int = BATCH,
) -> Comparison:
    """Compare the graph with scores from `original_scores` on the same images.

    Args:
        images: as `Imported.levels` takes them.
        batch: images at a time.
        tolerance: a score counts as equal within this share of the largest finite score: float32
            sums. What is infinite or no number is equal to nothing.
    """
    found = graph_scores(imported, images, batch=batch)
    count = len(images)
    flat = np.asarray(expected, np.float64).reshape(count, -1)
    other = np.asarray(found, np.float64).reshape(count, -1)
    finite = np.isfinite(flat) & np.isfinite(other)
    sizes = np.abs(flat, out=np.zeros_like(flat), where=finite)
    top = max(float(sizes.max(initial=0)), float(np.finfo(np.float32).tiny))
    apart = np.subtract(flat, other, out=np.full_like(flat, np.inf), where=finite)
    apart = np.abs(apart) / top
    labels = flat.argmax(axis=1), other.argmax(axis=1)
    wrong = labels[0] != labels[1]
    if imported.outputs[0].softmaxes or not any(output.is_label for output in imported.outputs):
        # Nothing ranks the scores, or in float32 a softmax has rounded them to equal ones: float32
        # alone decides which of these is the largest.
        largest, chosen = (np.take_along_axis(flat, k[:, None], axis=1)[:, 0] for k in labels)
        wrong &= (largest - chosen) / top > tolerance
    wrong |= ~finite.all(axis=1)
    return Comparison(
        count,
        int(wrong.sum()),
        int((apart > tolerance).sum()),
        float(apart.max(initial=0)),
        labels[0],
        labels[1],
        wrong,
    )
