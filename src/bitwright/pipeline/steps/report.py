# SPDX-License-Identifier: Apache-2.0
"""Step `report`: everything the run found, as one page, one JSON and one Markdown table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bitwright.base.figures import Resources
from bitwright.base.files import atomic_write, json_text
from bitwright.base.nouns import Noun
from bitwright.base.records import PathRow
from bitwright.base.version import __version__
from bitwright.build.target import load_target
from bitwright.ir import Graph, IntArray, print_graph
from bitwright.pipeline.context import StepContext
from bitwright.pipeline.steps.baseline import cpu_name, measure
from bitwright.pipeline.steps.energy import energy_of
from bitwright.pipeline.steps.levels import INPUTS, read_levels
from bitwright.pipeline.steps.lower import read_graph, real_outputs
from bitwright.pipeline.steps.map import read_hardware
from bitwright.pipeline.steps.rates import clock_of, interval_of
from bitwright.pipeline.steps.report_engine import engine_fields
from bitwright.pipeline.steps.report_images import (
    confusion,
    distribution,
    samples,
    stages_of,
)
from bitwright.pipeline.steps.report_words import phase_title, proof, quality, required, stages
from bitwright.pipeline.steps.results import Epoch, LayerFacts, LowerResult, TrainResult
from bitwright.pipeline.steps.results_run import Results
from bitwright.pipeline.steps.simulate import simulated_scores
from bitwright.pipeline.steps.summary import PAGE, RECORD, summary_rows
from bitwright.pipeline.steps.train import trained_model
from bitwright.pipeline.steps.versions import versions
from bitwright.pipeline.steps.workspace import Workspace
from bitwright.quantize.integers.affine import SCORES
from bitwright.report.page import markdown_summary, render_page
from bitwright.report.record import Baseline, Curve, Energy, LayerRow, Report

_BASELINE_IMAGES = 100
#: What a row of the page says of a layer just as the step `lower` has found it.
_SAME = set(LayerRow.model_fields) & set(LayerFacts.model_fields) - {"accumulator_bits"}


def report(work: Workspace, context: StepContext) -> None:
    """Write ``report.html``, ``report.json`` and ``summary.md``."""
    found = Results.load(context.inputs)
    made = make_report(work, context, found)
    context.progress("writing the page", 0, 0)
    atomic_write(context.folder / RECORD, made.model_dump_json(indent=1) + "\n")
    atomic_write(context.folder / PAGE, render_page(made))
    atomic_write(context.folder / "summary.md", markdown_summary(made))
    _finn_files(context, made)


def make_report(work: Workspace, context: StepContext, found: Results) -> Report:
    """The record of a run, from the results of its steps."""
    trained, quantized, lowered = required(found)
    levels = read_levels(context.inputs["lower"])
    energy = _energy(work, context, found)
    baselines = _baselines(work, context, levels[INPUTS])
    graph = read_graph(context.inputs["lower"])
    outputs = real_outputs(graph, levels[SCORES], exact=work.task.gives_scores)
    recipe = work.recipe
    return Report(
        name=recipe.name,
        description=recipe.description,
        bitwright=__version__,
        summary=summary_rows(found, energy, baselines),
        stages=stages(context, found),
        quality=quality(found),
        task=work.task.name,
        metric=found.metric,
        distribution=distribution(work, outputs),
        legend=work.task.legend,
        proof=proof(found),
        curves=(
            *_curves("Training in floating point", trained.history, found.noun),
            *(
                curve
                for phase in quantized.phases
                for curve in _curves(phase_title(phase, quantized), phase.history, found.noun)
            ),
        ),
        precision=trained.precision,
        operands=quantized.operands,
        layers=_layers(lowered, found),
        critical_path=_critical_path(found),
        interval=interval_of(found),
        clock_mhz=clock_of(found) or 0,
        inputs=found.noun.many,
        **_hardware(work, context, found),
        classes=trained.data.classes,
        confusion=confusion(work, outputs),
        samples=samples(
            work, outputs, recipe.report.sample_images, _sample_stages(work, context, graph)
        ),
        energy=energy,
        baselines=baselines,
        cpu=cpu_name(),
        facts=_facts(work, found),
        recipe=recipe.to_yaml(),
        graph=print_graph(graph),
    )


def _sample_stages(work: Workspace, context: StepContext, graph: Graph) -> dict[str, Any]:
    """What else is known of the images shown: the float network's outputs, and the RTL's."""
    folder = context.inputs.get("simulate")
    scores = None if folder is None else simulated_scores(folder)
    exact = work.task.gives_scores
    simulated = None if scores is None else real_outputs(graph, scores, exact=exact)
    return stages_of(work, trained_model(work, context.inputs["train"]), simulated)


def _curves(title: str, history: Sequence[Epoch], noun: Noun) -> tuple[Curve, ...]:
    if len(history) < 2:
        return ()
    epochs = tuple(entry.epoch for entry in history)
    loss = {
        "training": tuple(entry.train_loss for entry in history),
        **_measured_series(entry.validation_loss for entry in history),
    }
    values = {
        "training": tuple(entry.train_metric for entry in history),
        **_measured_series(entry.validation_metric for entry in history),
    }
    metric = history[0].metric.replace("_", " ")
    return (
        Curve(title=f"{title}: loss", y_label=f"mean over {noun.many}", epochs=epochs, series=loss),
        Curve(
            title=f"{title}: {metric}", y_label=f"over {noun.many}", epochs=epochs, series=values
        ),
    )


def _measured_series(values: Iterable[float | None]) -> dict[str, tuple[float, ...]]:
    """The curve of validation; none without validation images."""
    found = tuple(value for value in values if value is not None)
    return {"validation": found} if found else {}


def _hardware(work: Workspace, context: StepContext, found: Results) -> dict[str, Any]:
    """What the page says of the hardware, by its kind."""
    mapped = found.map
    if mapped is None:
        return engine_fields(context.inputs["map"], work.recipe.hardware.target)
    marks = {} if found.simulate is None else found.simulate.high_water
    return {
        "blocks": tuple(
            block.model_copy(update={"measured": _measured(block.instance, found)})
            for block in mapped.blocks
        ),
        "fifos": tuple(
            fifo.model_copy(update={"high_water": marks.get(fifo.instance)})
            for fifo in mapped.fifos
        ),
        "capacity": mapped.capacity,
        "target": mapped.target,
        "edges": mapped.edges,
        "lut_kind": mapped.lut_kind,
    }


def _layers(lowered: LowerResult, found: Results) -> tuple[LayerRow, ...]:
    """One row a layer; resources are those of all blocks that came from it, if any did."""
    claims = {claim.node: claim for claim in lowered.certificate}
    blocks = {block.name: block for block in found.map.blocks} if found.map else {}
    rows = []
    for layer in lowered.layers:
        block = blocks.get(layer.node)
        claim = claims[layer.node]
        costs: dict[str, Any] = (
            {}
            if block is None
            else {
                "pe": block.pe,
                "simd": block.simd,
                "cycles": block.cycles,
                "predicted": block.predicted,
                "measured": _measured(block.instance, found),
            }
        )
        rows.append(
            LayerRow(
                layer=layer.source or layer.node,
                **layer.model_dump(include=_SAME),
                accumulator_lo=claim.lo,
                accumulator_hi=claim.hi,
                accumulator_bits=claim.width,
                naive_bits=claim.naive_width,
                **costs,
            )
        )
    return tuple(rows)


def _measured(instance: str, found: Results) -> Resources | None:
    return None if found.implement is None else found.implement.instances.get(instance)


def _critical_path(found: Results) -> tuple[PathRow, ...]:
    """The path by blocks: cells one after another in the same block are one row."""
    made = found.implement
    if made is None or made.critical_path is None:
        return ()
    names = {block.instance: block.name for block in found.map.blocks} if found.map else {}
    return tuple(
        PathRow(
            block=names.get(part.instance, part.instance),
            levels=part.levels,
            logic_ns=part.logic_ns,
            routing_ns=part.routing_ns,
        )
        for part in made.critical_path.by_instance()
    )


def _energy(work: Workspace, context: StepContext, found: Results) -> Energy | None:
    clock = clock_of(found)
    if clock is None or found.map is None:
        return None
    made = energy_of(
        read_hardware(work, context.inputs["map"]),
        load_target(work.recipe.hardware.target),
        interval=interval_of(found),
        clock_mhz=clock,
    )
    parts = {"arithmetic": made.arithmetic, "memory": made.memory, "static": made.static}
    return Energy(
        total=made.figure(),
        parts={name: joules * 1e6 for name, joules in parts.items()},
        sources=made.sources,
    )


def _baselines(work: Workspace, context: StepContext, inputs: IntArray) -> tuple[Baseline, ...]:
    return measure(
        read_graph(context.inputs["lower"]),
        inputs[:_BASELINE_IMAGES],
        trained_model(work, context.inputs["train"]),
        work.data.test.take(np.arange(min(_BASELINE_IMAGES, len(work.data.test)))).reals(),
        threads=work.recipe.report.cpu_threads,
        progress=context.progress,
    )


def _facts(work: Workspace, found: Results) -> dict[str, str]:
    """All that is needed to repeat the run."""
    trained, _, lowered = required(found)
    data = trained.data
    facts = {
        "seed": str(work.recipe.seed),
        "data": f"{data.name}: {data.train} training, {data.validation} validation, "
        f"{data.test} held-out {found.noun.many}",
        "data SHA-256": data.digest,
        **({"inputs": data.inputs} if data.inputs else {}),
        **_training_facts(trained, found.noun),
        **work.task.facts(),
        "integer graph": lowered.digest,
        "processor": cpu_name(),
    }
    if found.map is not None and found.map.partition is not None:
        facts |= device_facts(found.map.partition, found.map.target, found.noun)
    if found.implement is not None:
        runs = found.implement.runs.items()
        facts |= {f"tool, {role}": f"{run.tool}, {run.seconds:.0f} s" for role, run in runs}
        if found.implement.notes:
            facts["notes"] = "; ".join(found.implement.notes)
    facts["versions"] = ", ".join(f"{name} {version}" for name, version in versions().items())
    return facts


def device_facts(table: dict[str, Any], target: str, noun: Noun) -> dict[str, str]:
    """What each of several devices takes, and what goes between them."""
    facts = {"devices": f"{len(table['parts'])} of {target}"}
    for number, part in enumerate(table["parts"]):
        used = ", ".join(f"{value:.0f} {key.upper()}" for key, value in part["resources"].items())
        facts[f"device {number}"] = f"{used} (model); {part['interval']:,} cycles {noun.each}"
    for link in table["links"]:
        way = f"link {link['source']} to {link['target']}, {link['edge']}"
        facts[way] = (
            f"{link['bytes_per_frame']} bytes {noun.each}, {link['mbits_per_s']:.1f} Mbit/s"
        )
    return facts


def _training_facts(trained: TrainResult, noun: Noun) -> dict[str, str]:
    """Where a float network that was not trained in this run comes from."""
    taken = trained.shipped
    if taken is None:
        return {}
    return {
        "float network": f"pretrained weights {taken.name} of this package, not trained in this "
        f"run; made by `{taken.command}`; {taken.accuracy:.2%} of the held-out {noun.many}",
        "weights SHA-256": taken.sha256,
    }


def _finn_files(context: StepContext, made: Report) -> None:
    """Figures under FINN's file names."""
    times = {stage.name: stage.seconds for stage in made.stages if stage.seconds is not None}
    counts = {
        "macs_by_type": _macs_by_type(made.layers),
        "total_macs": sum(layer.macs for layer in made.layers),
        "total_parameters": sum(layer.parameters for layer in made.layers),
    }
    for name, table in (("time_per_step.json", times), ("op_and_param_counts.json", counts)):
        atomic_write(context.folder / name, json_text(table, indent=2) + "\n")


def _macs_by_type(layers: Sequence[LayerRow]) -> dict[str, int]:
    """MACs by operand widths, and ``bops``: MACs times both widths."""
    table: dict[str, int] = {}
    for layer in layers:
        key = f"op_mac_{layer.input_bits}b_{layer.weight_format}"
        table[key] = table.get(key, 0) + layer.macs
    return table
