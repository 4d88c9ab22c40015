# SPDX-License-Identifier: Apache-2.0
"""Running steps and showing what came out."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitwright.cli.output import Output

if TYPE_CHECKING:
    from bitwright.pipeline.recipe import Recipe
    from bitwright.pipeline.run import Outcome
    from bitwright.report.record import SummaryRow


def run_steps(
    output: Output,
    recipe: Recipe,
    run_dir: Path,
    *,
    until: str = "",
    only: str = "",
    reuse: Path | None = None,
) -> None:
    """Run steps of a recipe, then print the table of what the run directory holds."""
    from bitwright.pipeline.api import Pipeline

    with output.progress() as progress:
        pipeline = Pipeline(recipe, run_dir, progress, reuse)
        summary = pipeline.step(only) if only else pipeline.build(until)
    steps = [asdict(o) | {"seconds": round(o.seconds, 3)} for o in pipeline.outcomes]
    if output.answered(summary.to_json() | {"steps": steps}):
        return
    for outcome in pipeline.outcomes:
        output.say(f"{outcome.name:<10} {_state(outcome)}")
    rows = [_cells(row) for row in summary.rows if row.figure is not None or row.note]
    columns = ("figure", "value", "source", "")
    output.table(f"{recipe.name} on {recipe.hardware.target}", columns, rows)
    if summary.proof:
        output.say(summary.proof)
    if summary.report is not None:
        output.say(f"report: {summary.report}")
    else:
        output.say(f"results: {summary.run_dir}")


def explanation(
    output: Output, rows: list[dict[str, str]], engine: dict[str, Any] | None = None
) -> None:
    """What every operand becomes, and how layers are mapped to the programmed engine, if any."""
    if output.answered(rows if engine is None else {"operands": rows, "engine": engine}):
        return
    columns = ("layer", "type", "operand", "format", "granularity", "scale", "reason")
    output.table("operands", columns, [[row[name] for name in columns] for row in rows])
    if engine is not None:
        _engine_mapping(output, engine)


def _engine_mapping(output: Output, found: dict[str, Any]) -> None:
    sizes, products = found["sizes"], found["products"]
    memories = (
        f"{sizes['feature_words'] * sizes['lanes'] >> 10} KiB of features, "
        f"{sizes['weight_rows'] * sizes['outputs'] * sizes['lanes'] >> 10} KiB of weights"
    )
    four = f" or {2 * products} of 4" if sizes["nibbles"] else ""
    output.say(f"engine {found['engine']}: {products} products of 8 bits{four} a cycle; {memories}")
    if found["refused"]:
        columns = ("node", "reason")
        output.table("no mapping on the engine", columns, [*found["refused"].items()])
        output.say("`bitwright split` leaves these to the host")
        return
    program = found["program"]
    times = {layer["name"]: layer for layer in program["layers"]}
    output.table(
        "layers on the engine",
        ("layer", "does", "lanes", "activation", "bits", "maps", *_TIMES),
        [
            (
                row["layer"],
                ", ".join(row["nodes"]),
                row["lanes"],
                row["activation"],
                row["result"],
                _maps(row),
                *(_times(times[row["layer"]]) if row["layer"] in times else ("",) * len(_TIMES)),
            )
            for row in found["layers"]
        ],
    )
    _program_totals(output, program)


def _maps(row: dict[str, Any]) -> str:
    """Where a layer's maps lie and how they are cut, in words."""
    words = [f"{row['strips']} strips of {row['rows']} rows"] if row["strips"] > 1 else []
    others = [name for name in row["chain"] if name != row["layer"]]
    if others:
        words.append(f"chained with {', '.join(others)}")
    if "memory" in row["sources"]:
        words.append("read from memory")
    if row["target"] == "memory":
        words.append("written to memory")
    return ", ".join(words) or "on chip"


def mapping(output: Output, result: dict[str, Any]) -> None:
    """A hardware graph by the models."""
    if output.answered(result):
        return
    if "engine" in result:
        program(output, result)
        return
    columns = ("block", "kind", "PE", "SIMD", "cycles", "LUT", "FF", "BRAM", "DSP")
    rows = [
        (
            block["name"],
            block["kind"],
            block["pe"] or "",
            block["simd"] or "",
            block["cycles"],
            *(round(block["predicted"][key]) for key in ("lut", "ff", "bram", "dsp")),
        )
        for block in result["blocks"]
    ]
    output.table(f"blocks on {result['target']} (model)", columns, rows)
    total, have = result["resources"], result["capacity"]
    used = ", ".join(
        f"{key.upper()} {total[key]:.0f} of {have[key]:.0f}" for key in ("lut", "ff", "bram", "dsp")
    )
    counted = (
        "LUTs packed, as the device fills"
        if result["lut_kind"] == "packed"
        else ("LUTs as synthesis counts")
    )
    output.say(f"{used} ({counted})")
    output.say(f"{result['interval']} cycles a frame; latency {result['latency']} cycles (model)")
    rates(output, result["rates"])


def program(output: Output, result: dict[str, Any]) -> None:
    """A program of the engine, layer by layer, by the model."""
    rows = [(layer["name"], *_times(layer)) for layer in result["layers"]]
    output.table(f"layers on the engine {result['engine']} (model)", ("layer", *_TIMES), rows)
    _program_totals(output, result)
    rates(output, result["rates"])


_TIMES = ("cycles", "waits", "for", "utilisation")


def _times(layer: dict[str, Any]) -> tuple[Any, ...]:
    """What a layer takes of the array."""
    return (
        layer["busy"],
        sum(layer["waits"].values()),
        ", ".join(name for name, cycles in layer["waits"].items() if cycles),
        f"{100 * layer['utilisation']:.1f} %" if layer["macs"] else "",
    )


def _program_totals(output: Output, result: dict[str, Any]) -> None:
    output.say(
        f"{result['cycles']} cycles a frame, {100 * result['utilisation']:.1f} % of the array's "
        f"multiply-accumulates; {result['instructions']} instructions (model)"
    )
    if result["resources"] is not None:
        used = (f"{key.upper()} {found:,.0f}" for key, found in result["resources"].items())
        output.say(f"the engine without its board: {', '.join(used)} (model)")


def rates(output: Output, rows: list[dict[str, Any]]) -> None:
    """Images a second, each with what it depends on."""
    from bitwright.base.figures import show
    from bitwright.report.record import SummaryRow

    for row in map(SummaryRow.model_validate, rows):
        output.say(f"{row.label}: {show(row.figure)} ({row.note})")


def _cells(row: SummaryRow) -> tuple[str, str, str, str]:
    from bitwright.base.figures import show

    source = "" if row.figure is None else str(row.figure.source)
    return row.label, show(row.figure), source, row.note


def _state(outcome: Outcome) -> str:
    if outcome.taken_from is not None:
        return f"taken over from {outcome.taken_from}"
    if outcome.was_done:
        return "done before"
    again = f", again: {outcome.reason}" if outcome.reason else ""
    return f"{outcome.seconds:.1f} s{again}"
