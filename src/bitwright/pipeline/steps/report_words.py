# SPDX-License-Identifier: Apache-2.0
"""The sentences of the report: what each step gave, and what was proven equal to what."""

from __future__ import annotations

from bitwright.base.figures import Figure, show
from bitwright.pipeline.context import StepContext
from bitwright.pipeline.run_files import read_record
from bitwright.pipeline.steps.names import STEP_NAMES
from bitwright.pipeline.steps.results import LowerResult, PhaseRow, QuantizeResult, TrainResult
from bitwright.pipeline.steps.results_run import Results
from bitwright.report.record import MetricStage, Stage


def required(found: Results) -> tuple[TrainResult, QuantizeResult, LowerResult]:
    """The results that the step needs; the run sees to it that they are there."""
    if not (found.train and found.quantize and found.lower and (found.map or found.engine)):
        raise AssertionError("the step report ran before the steps that it needs")
    return found.train, found.quantize, found.lower


def stages(context: StepContext, found: Results) -> tuple[Stage, ...]:
    """The pipeline, step by step."""
    headlines = _headlines(found)
    made = []
    for name in STEP_NAMES[:-1]:
        folder = context.inputs.get(name)
        if name == "teach" and folder is None:
            continue  # most recipes have no such step
        record = None if folder is None else read_record(folder)
        made.append(
            Stage(
                name=name,
                headline=headlines.get(name, ""),
                seconds=None if record is None else round(record.seconds, 1),
            )
        )
    return tuple(made)


def phase_title(phase: PhaseRow, found: QuantizeResult) -> str:
    """What a phase of training in few bits is called."""
    title = "Training in few bits"
    return title if len(found.phases) == 1 else f"{title}, {phase.name.replace('_', '-')}"


def _headlines(found: Results) -> dict[str, str]:
    lines: dict[str, str] = {}
    if found.teach is not None:
        measured = found.teach.figure
        lines["teach"] = "a file of logits" if measured is None else _brief(measured)
    if found.train is not None:
        given = "" if found.train.shipped is None else ", pretrained"
        lines["train"] = f"{found.train.parameters:,} parameters{given}"
    if found.quantize is not None:
        lines["quantize"] = _brief(found.quantize.figure)
    if found.lower is not None:
        lines["lower"] = f"{found.lower.size_bits / 8192:.1f} KiB"
    if found.map is not None:
        lines["map"] = f"{found.map.interval:,} cycles"
    if found.engine is not None:
        lines["map"] = f"{found.engine.cycles:,} cycles"
    if found.simulate is not None:
        lines["simulate"] = f"{found.simulate.differences} differences"
    if found.implement is not None:
        fmax = found.implement.figures.get("fmax_mhz")
        lines["implement"] = "synthesised" if fmax is None else f"{fmax.value:.0f} MHz"
    return lines


def _brief(figure: Figure | None) -> str:
    return show(figure and Figure(figure.value, figure.unit, figure.source))


def quality(found: Results) -> tuple[MetricStage, ...]:
    """The task's metrics at every stage of the pipeline."""
    trained, quantized, lowered = required(found)
    count, calibrated = trained.data.test, {quantized.metric: quantized.calibrated}
    rows = [
        ("float", trained.metrics, count),
        ("calibrated", calibrated, count),
        ("quantized", quantized.metrics, count),
        ("integer graph", lowered.metrics, count),
    ]
    if found.simulate is not None:
        rows.append(("RTL", found.simulate.metrics, found.simulate.images))
    return tuple(
        MetricStage(
            stage=stage,
            figure=figures[trained.metric].of(found.noun),
            images=count,
            others={n: f.of(found.noun) for n, f in figures.items() if n != trained.metric},
        )
        for stage, figures, count in rows
    )


def ties(lowered: LowerResult) -> str:
    """What is to be said where float32 cannot tell the highest scores apart."""
    if not lowered.labels_that_tie:
        return ""
    return (
        f"; {lowered.labels_that_tie:,} labels are others, where the model's highest scores are "
        "equal in float32 and the integers are not"
    )


def proof(found: Results) -> tuple[str, ...]:
    """What was compared with ``==``, in sentences."""
    _, _, lowered = required(found)
    lines = [
        f"trained model = integer graph: {lowered.compared_values:,} scores and labels of "
        f"{lowered.compared_images:,} {found.noun.many}, every edge of "
        f"{lowered.reference_images} of them{ties(lowered)}",
        (
            f"no QONNX file, so not compared with one: {lowered.qonnx_refused}"
            if lowered.qonnx_refused
            else "integer graph = its QONNX file, run by QONNX's executor: "
            f"{lowered.qonnx_images} {found.noun.many}"
        ),
        f"no accumulator can overflow: {len(lowered.certificate)} certified, each worst case "
        "reached by an input that was executed",
    ]
    if found.map is not None and found.map.checked_cycles:
        lines.append(
            f"no deadlock, and the predicted rate: {found.map.checked_cycles:,} cycles of the "
            "hardware graph beat by beat, without data"
        )
    elif found.map is not None and found.map.unchecked:
        lines.append(f"the hardware graph alone was not checked: {found.map.unchecked}")
    if found.engine is not None:
        lines.append(
            f"emulated program = integer graph: {found.engine.compared_values:,} values of "
            f"{found.engine.images} {found.noun.many}; every pair of accesses of its "
            f"{found.engine.instructions:,} instructions is ordered by tokens"
        )
    proved = found.simulate
    if proved is not None:
        lines += [
            proved.words(found.noun.many),
            f"cycles {found.noun.each}: {proved.interval:,} simulated = "
            f"{proved.predicted_interval:,} predicted",
        ]
    return tuple(lines)
