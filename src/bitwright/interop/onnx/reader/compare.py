# SPDX-License-Identifier: Apache-2.0
"""The file itself, run by QONNX's executor, against the integer graph it became.

QONNX evaluates in float32. The import evaluates the same operators in float64, from exact
integers. They can differ only where a value lies within float32's rounding of a quantizer's
boundary; `compare` counts how often that happens. Only files that were imported are ever run:
nothing here is given an unchecked file.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bitwright.base.errors import MismatchError, ToolError
from bitwright.interop.onnx.reader.importer import Imported
from bitwright.interop.onnx.reader.values import Array
from bitwright.interop.onnx.runtime import onnx_runtime

_BATCH = 500


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
                f"{self.expected[at]}, the graph {self.found[at]}",
                where="imported ONNX file",
            )


def original_scores(source: Path | bytes, images: Array, *, batch: int = _BATCH) -> Array:
    """First output of the file for samples ``(N, ...)`` of its input, by QONNX's executor.

    The batch size in the file is replaced, so that thousands of images take seconds.

    Raises:
        ToolError: ``qonnx`` is missing or cannot run the file.
    """
    try:
        onnx_runtime()  # that QONNX runs nodes with
        import onnx
        from onnx.helper import tensor_dtype_to_np_dtype
        from qonnx.core.modelwrapper import ModelWrapper
        from qonnx.core.onnx_exec import execute_onnx
        from qonnx.transformation.infer_shapes import InferShapes
    except ImportError as error:
        raise ToolError(
            f"running the file needs a package that is missing: {error.name}",
            hint="pip install 'onnx<1.22' qonnx onnxruntime",
        ) from error
    body = source if isinstance(source, bytes) else source.read_bytes()

    def run(part: Array, *, as_written: bool) -> Array:
        """The first output; with the batch size of the file, or that of the part."""
        model = onnx.ModelProto.FromString(body)
        constants = {i.name for i in model.graph.initializer}
        entry = next(i for i in model.graph.input if i.name not in constants)
        rest = [i for i in model.graph.input if i.name in constants]
        for info in rest:
            model.graph.input.remove(info)
        if not as_written:
            for info in (entry, *model.graph.output):
                if info.type.tensor_type.shape.dim:  # a file need not say the shape of its output
                    info.type.tensor_type.shape.dim[0].dim_value = len(part)
            del model.graph.value_info[:]
        with warnings.catch_warnings():
            # It complains of every tensor whose size follows the new batch.
            warnings.simplefilter("ignore")
            wrapped = ModelWrapper(model).transform(InferShapes())
            kind = tensor_dtype_to_np_dtype(entry.type.tensor_type.elem_type)
            values = execute_onnx(wrapped, {entry.name: part.astype(kind)})
        return np.asarray(values[model.graph.output[0].name])

    parts = []
    for start, part in _chunks(images, batch):
        try:
            parts.append(run(part, as_written=False))
        except Exception as error:  # a Reshape to one image, say: as it is written, one by one
            try:
                parts += [run(image, as_written=True) for _, image in _chunks(part, 1)]
            except Exception:
                raise ToolError(
                    f"QONNX's executor cannot run it (images {start} ..): {error}",
                    where=str(source),
                ) from error
    return np.concatenate(parts)


def _chunks(images: Array, batch: int) -> Iterator[tuple[int, Array]]:
    for start in range(0, len(images), batch):
        yield start, images[start : start + batch]


def graph_scores(imported: Imported, images: Array) -> Array:
    """The same output by the integer graph (the fast executor)."""
    from bitwright.ir.executor import Executor

    executor = Executor(imported.graph)
    edge = imported.outputs[0].edge
    parts = [
        imported.outputs[0].reals(executor.run({"x": imported.levels(part)})[edge])
        for _, part in _chunks(images, _BATCH)
    ]
    return np.concatenate(parts)


def compare(
    imported: Imported, images: Array, expected: Array, *, tolerance: float = 1e-5
) -> Comparison:
    """Compare the graph with scores from `original_scores` on the same images.

    Args:
        images: as `Imported.levels` takes them.
        tolerance: a score counts as equal within this share of the largest score: float32 sums.
    """
    found = graph_scores(imported, images)
    count = len(images)
    flat = np.asarray(expected, np.float64).reshape(count, -1)
    other = np.asarray(found, np.float64).reshape(count, -1)
    top = max(float(np.abs(flat).max(initial=0)), float(np.finfo(np.float32).tiny))
    apart = np.abs(flat - other) / top
    labels = flat.argmax(axis=1), other.argmax(axis=1)
    wrong = labels[0] != labels[1]
    if imported.outputs[0].softmaxes or not any(output.is_label for output in imported.outputs):
        # Nothing ranks the scores, or in float32 a softmax has rounded them to equal ones: float32
        # alone decides which of these is the largest.
        largest, chosen = (np.take_along_axis(flat, k[:, None], axis=1)[:, 0] for k in labels)
        wrong &= (largest - chosen) / top > tolerance
    return Comparison(
        count,
        int(wrong.sum()),
        int((apart > tolerance).sum()),
        float(apart.max(initial=0)),
        labels[0],
        labels[1],
        wrong,
    )
