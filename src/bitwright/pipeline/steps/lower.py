# SPDX-License-Identifier: Apache-2.0
"""Step `lower`: the optimised graph, proven equal to the trained model; certificate, QONNX file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import GraphError, MismatchError
from bitwright.base.figures import Figure, Source
from bitwright.base.files import atomic_write
from bitwright.base.progress import Progress
from bitwright.data.preprocessing import (
    PIXELS,
    DataLevels,
    HostInput,
    NumberRule,
    Preprocessing,
    is_size,
)
from bitwright.formats import parse_format
from bitwright.ir import INTEGER, Graph, IntArray, Node, bits_for_interval, load_graph, save_graph
from bitwright.pipeline.context import StepContext
from bitwright.pipeline.steps.levels import INPUTS, require_defined, save_levels
from bitwright.pipeline.steps.quantize import quantized_model, read_integers
from bitwright.pipeline.steps.results import AccumulatorRow, LayerFacts, LowerResult
from bitwright.pipeline.steps.workspace import Workspace
from bitwright.quantize.integers.affine import LABEL, SCORES

if TYPE_CHECKING:
    from torch import Tensor

    from bitwright.lower import Certificate
    from bitwright.quantize import IntegerModel, QuantizedModel

GRAPH = "graph.bwg"
QONNX = "model.onnx"
CERTIFICATE = "certificate.json"
INPUT = "input.json"
"""How whoever feeds the hardware makes levels of what there is in the world."""
REFERENCE_IMAGES = 200
QONNX_IMAGES = 20
_CHECK_FRAMES = 4
_BATCH = 250
_IMAGE_AXES = 3


def lower(work: Workspace, context: StepContext) -> None:
    """Optimise, compare with ``==`` on every test image, certify and export."""
    from bitwright.lower import certify, check, optimise

    integers = read_integers(context.inputs["quantize"])
    model = quantized_model(work, context.inputs["quantize"]).eval()
    _require_same(model, integers, work.sample_shape)
    context.progress("lowering", 0, 0)
    graph = optimise(named_graph(work, integers), check=_CHECK_FRAMES)
    save_graph(graph, context.folder / GRAPH)
    inputs, found, ties = _compare(work, model, integers, graph, context.progress)
    context.progress("certifying every accumulator", 0, 0)
    certificate = certify(graph)
    check(certificate, graph)
    atomic_write(context.folder / CERTIFICATE, certificate.to_json())
    compared, refused = _export(graph, inputs, context)
    save_levels(context.folder, inputs, found)
    atomic_write(context.folder / INPUT, host_input(work, integers).model_dump_json(indent=1))
    metrics = figures_of(work, graph, found[SCORES], Source.MEASUREMENT)
    float_weights = sum(p.numel() for p in work.fresh_model().parameters())
    weight_bits, size_bits = _sizes(graph)
    LowerResult(
        digest=graph.digest,
        metrics=metrics,
        compared_images=len(inputs),
        compared_values=sum(levels.size for levels in found.values()),
        labels_that_tie=ties,
        reference_images=min(REFERENCE_IMAGES, len(inputs)),
        qonnx_images=compared,
        qonnx_refused=refused,
        size_bits=size_bits,
        weight_bits=weight_bits,
        float_bits=32 * float_weights,
        layers=layer_facts(graph, certificate),
        certificate=_rows(certificate),
    ).save(context.folder)


def host_input(work: Workspace, integers: IntegerModel) -> HostInput:
    """How a host makes levels of what there is in the world, as training does it, and what the
    labels are called.
    """
    kind, prepared = integers.graph.types[integers.graph.inputs[0]], work.data.preparation
    return HostInput(
        inputs=work.data.train.noun,
        shape=work.data.image_shape,
        format=integers.input_format.name,
        scale=kind.scale[0],
        rounding=integers.rounding.value,
        data=DataLevels(type=work.data.train.images.dtype.name, scale=work.data.scale),
        preparation=None if prepared is None else NumberRule(**prepared.to_json()),
        preprocessing=_preprocessing(work, integers),
        classes=work.data.classes,
    )


def _preprocessing(work: Workspace, integers: IntegerModel) -> Preprocessing | None:
    """Of image files: they have pixels from 0 to 255; a data set with a scale of its own gets the
    nearest raw value. None where the network takes something else, or longer images than a host
    makes.
    """
    import torch

    data, stream = work.data, work.recipe.data.stream
    levels_of_bytes = data.train.images.dtype == np.uint8 and data.preparation is None
    if not levels_of_bytes or len(data.image_shape) != _IMAGE_AXES:
        return None
    height, width, channels = data.image_shape
    if channels not in (1, 3) or not is_size(height, width):
        return None
    raw = np.rint(np.arange(PIXELS) * (1 / (PIXELS - 1) / data.scale)).astype(np.uint8)
    reals = raw.astype(np.float32) * np.float32(data.scale)
    images = (torch.full((channels, height, width), float(real)) for real in reals)
    return Preprocessing(
        size=(height, width),
        channels=channels,
        fit="stretch" if stream is None else "middle",
        short_side=None if stream is None else stream.short_side,
        levels=level_table(integers, images),
    )


def level_table(integers: IntegerModel, images: Iterable[Tensor]) -> tuple[tuple[int, ...], ...]:
    """Levels of the pixel values 0 to 255: one row where all channels agree, else one each.

    Args:
        images: for each pixel value an image (C, H, W) of it alone, as the model takes it.
    """
    import torch

    rows = [integers.input_levels(image[None])[0, :, 0, 0] for image in images]
    table = torch.stack(rows, dim=1).to(torch.int64).tolist()  # channels x pixel values
    same = all(row == table[0] for row in table)
    return tuple(tuple(row) for row in (table[:1] if same else table))


def graph_name(name: str) -> str:
    """A recipe's name as an identifier: it also names the top module."""
    text = "".join(c if c.isascii() and c.isalnum() else "_" for c in name).strip("_").lower()
    return text if text[:1].isalpha() else f"net_{text}"


def named_graph(work: Workspace, integers: IntegerModel) -> Graph:
    """The integer graph under the recipe's name; the place of the highest score is among its
    outputs only where the task ranks them.
    """
    graph: Graph = replace(integers.graph, name=graph_name(work.recipe.name))
    if work.task.ranked or LABEL not in graph.outputs:
        return graph
    nodes = tuple(node for node in graph if node.output != LABEL)
    types = {edge: kind for edge, kind in graph.types.items() if edge != LABEL}
    outputs = tuple(edge for edge in graph.outputs if edge != LABEL)
    kept: Graph = replace(graph, nodes=nodes, outputs=outputs, types=types)
    return kept


def real_outputs(graph: Graph, scores: IntArray, *, exact: bool = False) -> Tensor:
    """Levels of the scores (N, K) or (N, H, W, C) as the reals they stand for, in torch's order:
    (N, K) or (N, C, H, W) float32, as a model in evaluation gives them.

    Args:
        exact: float64 instead, which keeps integers apart that float32 does not: for what compares
            scores with one another, as the hardware does.
    """
    import torch

    from bitwright.quantize import IntegerModel

    levels = torch.from_numpy(np.ascontiguousarray(scores))
    moved = levels.permute(0, 3, 1, 2) if levels.dim() == 4 else levels
    reals = IntegerModel(graph).real(SCORES, moved)
    return reals if exact else reals.to(torch.float32)


def figures_of(
    work: Workspace, graph: Graph, scores: IntArray, source: Source
) -> dict[str, Figure]:
    """Every metric of the task on levels of the scores of the first test images."""
    from bitwright.train.images import label_tensor

    labels = label_tensor(work.data.test.labels[: len(scores)])
    outputs = real_outputs(graph, scores, exact=work.task.gives_scores)
    found = work.task.measure(outputs, labels)
    return {each.metric.name: each.figure(source) for each in found}


def read_graph(folder: Path) -> Graph:
    """The integer graph as the step left it."""
    return load_graph(folder / GRAPH, {"integer": INTEGER}, chosen=True)


def _require_same(
    model: QuantizedModel, integers: IntegerModel, sample_shape: tuple[int, ...]
) -> None:
    """The trained weights mean the graph that lies beside them.

    Raises:
        MismatchError: they mean another one: a file has been changed.
    """
    found = model.integers(sample_shape)
    if found is None or found.graph.digest != integers.graph.digest:
        raise MismatchError(
            "the trained weights and the integer graph are not of one network",
            where="step quantize",
            hint="run the step quantize again",
        )


def _compare(
    work: Workspace,
    model: QuantizedModel,
    integers: IntegerModel,
    graph: Graph,
    progress: Progress,
) -> tuple[IntArray, dict[str, IntArray], int]:
    """Trained model == optimised graph: every score and label of every test image; on the first
    images every edge, by the interpreter that is the definition.

    Returns:
        Levels of the inputs, and of each output by its edge; and how many labels differ because
        the model's scores are equal there, as float32, and the integers are not.
    """
    import torch

    from bitwright.ir.executor import Executor
    from bitwright.lower.compare import compare_edges

    reals = work.data.test.reals()
    progress("comparing with the trained model", 0, len(reals))
    compare_edges(graph, integers.edges(torch.from_numpy(reals[:REFERENCE_IMAGES]))).require()
    executor = Executor(graph)
    parts: list[dict[str, IntArray]] = []
    ties = 0
    for start in range(0, len(reals), _BATCH):
        batch = torch.from_numpy(reals[start : start + _BATCH])
        levels = _in_layout(integers.input_levels(batch))
        found = executor.run({graph.inputs[0]: levels})
        with torch.no_grad():
            expected = model(batch).numpy()
        given = real_outputs(graph, found[SCORES]).numpy()
        _require_equal(expected, given, start)
        if LABEL in found:
            ties += _require_labels(expected, found[LABEL], start)
        parts.append({INPUTS: levels} | {edge: found[edge] for edge in graph.outputs})
        progress("comparing with the trained model", start + len(batch), len(reals))
    every = {edge: np.concatenate([part[edge] for part in parts]) for edge in parts[0]}
    inputs = every.pop(INPUTS)
    require_defined(graph, {graph.inputs[0]: inputs[:REFERENCE_IMAGES]}, every)
    return inputs, every, ties


def _in_layout(levels: Tensor) -> IntArray:
    """(N, C, H, W) -> (N, H, W, C), or (N, F) as it is; int64."""
    moved = levels.movedim(1, -1).contiguous().numpy()
    return np.asarray(moved.astype(np.int64))


def _require_equal(expected: NDArray[np.float32], found: NDArray[np.float32], start: int) -> None:
    differing = np.argwhere(expected != found)
    if len(differing):
        image, *place = (int(i) for i in differing[0])
        at = (image, *place)
        raise MismatchError(
            f"{len(differing)} scores differ; first: test image {start + image}, "
            f"output {', '.join(map(str, place))}: the trained model gives {expected[at]}, the "
            f"graph {found[at]}",
            where="integer graph against trained model",
        )


def _require_labels(scores: NDArray[np.float32], labels: IntArray, start: int) -> int:
    """The graph's labels are those of the model's scores (N, K).

    Returns:
        How many are others, of scores that are the highest as well.

    Raises:
        MismatchError: one is of a lower score.
    """
    given, wanted = labels.reshape(len(scores)), scores.argmax(axis=1)
    rows = np.arange(len(scores))
    lower = np.flatnonzero(scores[rows, given] != scores[rows, wanted])
    if len(lower):
        image = int(lower[0])
        raise MismatchError(
            f"{len(lower)} labels differ; first: test image {start + image}: the trained model's "
            f"is {wanted[image]}, the graph's {given[image]}",
            where="integer graph against trained model",
        )
    return int((given != wanted).sum())


def _export(graph: Graph, inputs: IntArray, context: StepContext) -> tuple[int, str]:
    """Write the QONNX file; gives the number of real images on which QONNX's executor agreed.

    Sums too large for the floats of ONNX (wide minifloats and powers of two reach them) are a limit
    of that file, not of the graph: there is no file then, and the reason comes back.
    """
    from bitwright.interop.onnx.export_qonnx import export_qonnx
    from bitwright.interop.onnx.writer.writer import check_exact

    try:
        check_exact(graph)
    except GraphError as error:
        return 0, str(error)
    context.progress("exporting QONNX and running it", 0, 0)
    feeds = {graph.inputs[0]: inputs[:QONNX_IMAGES]}
    export_qonnx(graph, context.folder / QONNX, feeds=feeds)
    return min(QONNX_IMAGES, len(inputs)), ""


def _rows(certificate: Certificate) -> tuple[AccumulatorRow, ...]:
    names = AccumulatorRow.model_fields
    return tuple(
        AccumulatorRow(**{name: getattr(claim, name) for name in names})
        for claim in certificate.claims
    )


def layer_facts(graph: Graph, certificate: Certificate) -> tuple[LayerFacts, ...]:
    """One row for each convolution and dense layer."""
    return tuple(
        _facts(graph, node, certificate.claim(node.name).width)
        for node in graph
        if node.op in ("conv", "dense")
    )


def _facts(graph: Graph, node: Node, width: int) -> LayerFacts:
    weight, source = node.params["weight"], graph.types[node.inputs[0]]
    output = graph.types[node.output]
    bias = node.params.get("bias")
    weight_format = node.string("weight_format")
    return LayerFacts(
        node=node.name,
        op=node.op,
        source=node.source,
        input_shape=source.shape,
        output_shape=output.shape,
        parameters=int(weight.size + (0 if bias is None else bias.size)),
        macs=prod(output.shape[:-1]) * int(weight.size),
        weight_format=weight_format.partition("{")[0],  # a codebook without its entries
        weight_bits=parse_format(weight_format).bits,
        input_bits=source.wire_bits,
        accumulator_bits=width,
    )


def _sizes(graph: Graph) -> tuple[int, int]:
    """Bits of the weights alone, tables of codebooks included, and of weights, biases, thresholds
    and multipliers together.
    """
    weights = total = 0
    tables: set[str] = set()
    for node in graph:
        for name, values in node.params.items():
            if name == "weight":
                chosen = parse_format(node.string("weight_format"))
                bits = values.size * chosen.bits
                if chosen.name not in tables:  # layers with one table share it
                    bits += int(getattr(chosen, "table_bits", 0))
                tables.add(chosen.name)
                weights += bits
            else:
                bits = values.size * bits_for_interval(int(values.min()), int(values.max()))
            total += bits
    return weights, total
