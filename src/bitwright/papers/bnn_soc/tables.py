# SPDX-License-Identifier: Apache-2.0
"""The document's tables as ours: times, resources, training, lines, sizes (spec 4)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from bitwright.papers.bnn_soc.course import Look
from bitwright.papers.bnn_soc.lanes import toy_cases
from bitwright.papers.bnn_soc.lines import own_lines
from bitwright.papers.bnn_soc.soc import KERNELS, cells, published, usage
from bitwright.report.svg import line_chart
from bitwright.report.table import Column, Kind, Table

_WORDS = {
    "arm": "ARM alone",
    "soc": "ARM and FPGA",
    "hidden1": "hidden 1, 4096 x 784",
    "hidden2": "hidden 2, 4096 x 4096",
    "output": "output, 10 x 4096",
    "net1": "network, 1 hidden layer",
    "net2": "network, 2 hidden layers",
}


def time_table() -> Table:
    """Every printed time beside the calibrated model's."""
    columns = (
        Column("place", "place"),
        Column("kernel", "kernel"),
        Column("cell", "layer or network"),
        Column("printed", "printed", Kind.NUMBER, "ms", 3),
        Column("model", "model", Kind.NUMBER, "ms", 3),
        Column("off", "off", Kind.POINTS),
        Column("remark", "remark"),
    )
    rows = tuple(
        {
            "place": _WORDS[c.place],
            "kernel": c.kernel,
            "cell": _WORDS[c.cell],
            "printed": c.printed_ms,
            "model": c.model_ms,
            "off": c.relative,
            "remark": "inconsistent" if c.reason else "",
        }
        for c in cells()
    )
    notes = tuple(
        f"{_WORDS[c['place']]}, {c['kernel']}, {_WORDS[c['cell']]}: {c['reason']}."
        for c in published()["suspect"]
    )
    return Table("Time on the DE0-Nano-SoC", columns, rows, notes)


def resource_table() -> Table:
    """What each kernel takes of the Cyclone V, beside three designs of others."""
    columns = (
        Column("design", "design"),
        Column("aluts", "ALUTs", Kind.NUMBER),
        Column("registers", "registers", Kind.NUMBER),
        Column("dsp", "DSP", Kind.NUMBER),
        Column("m10k", "memories", Kind.NUMBER),
        Column("memory_bits", "memory bits", Kind.NUMBER),
        Column("logic", "logic", Kind.SHARE, digits=0),
    )
    keys = ("aluts", "registers", "dsp", "m10k", "memory_bits")
    rows: list[dict[str, str | float | None]] = []
    for kernel in KERNELS:
        found = usage(kernel)
        cells_of = {key: found.used[key] for key in keys}
        rows.append({"design": kernel, **cells_of, "logic": found.shares["alms"]})
    for other in published()["others"]:
        row = {key: other.get(key) for key in ("aluts", "registers", "dsp")}
        logic = other.get("logic_percent")
        share = None if logic is None else logic / 100
        row |= {"design": f"{other['name']}, {other['topology']}", "logic": share}
        rows.append(row | {"m10k": other.get("memory_blocks")})
    fits = all(usage(kernel).fits for kernel in KERNELS)
    return Table("Resources, as printed", columns, tuple(rows), (f"All kernels fit: {fits}.",))


def lines_table() -> Table:
    """Lines of code: the document's, and ours."""
    columns = (Column("what", "what"), Column("lines", "lines", Kind.NUMBER, digits=0))
    printed = [{"what": name, "lines": count} for name, count in published()["lines"].items()]
    own = [{"what": f"ours, {name}", "lines": n} for name, n in sorted(own_lines().items())]
    return Table("Lines of code", columns, (*printed, *own))


def training_table(minutes: Mapping[str, Sequence[float]]) -> Table:
    """Minutes of 60 000 cycles: the document's laptop, and ours.

    Args:
        minutes: by name, of networks with one and two hidden layers.
    """
    columns = (
        Column("what", "implementation"),
        Column("one", "1 hidden layer", Kind.NUMBER, "min"),
        Column("two", "2 hidden layers", Kind.NUMBER, "min"),
        Column("faster", "faster than Courbariaux, 2 hidden", Kind.RATE),
    )
    all_of = {**published()["training_minutes"], **{f"ours, {k}": v for k, v in minutes.items()}}
    baseline = published()["training_minutes"]["Courbariaux (Theano)"][1]
    rows = tuple(
        {"what": name, "one": one, "two": two, "faster": baseline / two}
        for name, (one, two) in all_of.items()
    )
    return Table("Training time", columns, rows)


def toys_table() -> Table:
    """SIMD against pipeline."""
    columns = (
        Column("case", "case"),
        Column("simd", "SIMD", Kind.NUMBER, "cycles"),
        Column("pipeline", "pipeline", Kind.NUMBER, "cycles"),
    )
    rows = tuple({"case": c, "simd": s, "pipeline": p} for c, s, p in toy_cases())
    return Table("SIMD against pipeline", columns, rows)


def rule_of_thumb(inputs: int, outputs: int) -> float:
    """Hidden units by ``sqrt(n_in n_out)`` (spec 2.1); a binarized network needs far more."""
    return math.sqrt(inputs * outputs)


def courses_table(title: str, courses: Mapping[str, Sequence[Look]]) -> Table:
    """The last look of each course."""
    columns = (
        Column("name", "trained with"),
        Column("cycles", "cycles", Kind.NUMBER, digits=0),
        Column("argmax", "largest sum right", Kind.SHARE),
        Column("strict", "all outputs right", Kind.SHARE),
        Column("seconds", "training", Kind.NUMBER, "s"),
    )
    rows = tuple(
        {
            "name": name,
            "cycles": looks[-1].cycles,
            "argmax": looks[-1].argmax,
            "strict": looks[-1].strict,
            "seconds": looks[-1].seconds,
        }
        for name, looks in courses.items()
    )
    return Table(title, columns, rows)


def curves_table(courses: Mapping[str, Sequence[Look]]) -> Table:
    """Every look: accuracy by cycles."""
    columns = (
        Column("name", "trained with"),
        Column("cycles", "cycles", Kind.NUMBER, digits=0),
        Column("argmax", "largest sum right", Kind.SHARE),
        Column("strict", "all outputs right", Kind.SHARE),
    )
    rows = tuple(
        {"name": name, "cycles": x.cycles, "argmax": x.argmax, "strict": x.strict}
        for name, looks in courses.items()
        for x in looks
    )
    return Table("Accuracy by cycles", columns, rows)


def curves(title: str, courses: Mapping[str, Sequence[Look]]) -> str:
    """The same as lines, SVG: percent by cycles, in one picture of up to four courses."""
    first = next(iter(courses.values()))
    series = {name: [100 * look.argmax for look in looks] for name, looks in courses.items()}
    xs = [float(look.cycles) for look in first]
    return str(line_chart(title, xs, series, "% of test images", x_label="cycles"))
