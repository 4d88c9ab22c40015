# SPDX-License-Identifier: Apache-2.0
"""What the verbs of `bitwright dpu` show: tables and the drawing of a compiled network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from markupsafe import Markup

from bitwright.base.figures import Resources
from bitwright.papers.dpu.architecture import Architecture, list_architectures
from bitwright.papers.dpu.compiler import CPU, ENGINE, Compiled, PlacedNode
from bitwright.papers.dpu.cycles import Timing, images_a_second, latency_ms, layer_times
from bitwright.papers.dpu.resources import Fit, total_resources
from bitwright.papers.dpu.search import Candidate
from bitwright.papers.dpu.work import Work
from bitwright.report.flow import FlowBox, flow_chart
from bitwright.report.table import Column, Kind, Table, Value

_HALVES = 2
_PLACES = {ENGINE: "DPU", CPU: "processor"}
_COUNTS = (
    Column("lut", "LUT", Kind.NUMBER),
    Column("ff", "registers", Kind.NUMBER),
    Column("bram", "BRAM", Kind.NUMBER, about="blocks of 36 kbit"),
    Column("dsp", "DSP", Kind.NUMBER),
)


def _counts(found: Resources) -> dict[str, Value]:
    return found.to_json() | {"bram": found.bram / _HALVES}


def architectures_table() -> Table:
    """The architecture files of the package."""
    columns = (
        Column("name", "architecture"),
        Column("parallelism", "PP x ICP x OCP"),
        Column("operations", "operations a cycle", Kind.NUMBER),
        Column("cores", "cores", Kind.NUMBER),
        Column("gops", "peak", Kind.NUMBER, "GOPS"),
        *_COUNTS,
        Column("options", "options"),
    )
    return Table("", columns, tuple(map(_architecture, list_architectures())))


def _architecture(one: Architecture) -> dict[str, Value]:
    parallel = one.parallelism
    triple = (parallel.pixel, parallel.input_channel, parallel.output_channel)
    return {
        "name": one.name,
        "parallelism": " x ".join(map(str, triple)),
        "operations": parallel.operations,
        "cores": one.cores,
        "gops": one.gops,
        "options": ", ".join(_options(one)) or "none",
        **_counts(total_resources(one)),
    }


def _options(one: Architecture) -> Iterable[str]:
    options = one.options
    for name in ("channel_augmentation", "depthwise", "average_pool", "softmax"):
        if getattr(options, name):
            yield name
    yield from (name for name in options.relu if name not in ("relu", "relu6"))
    yield from ("high_ram",) if options.ram_usage == "high" else ()
    yield from ("low_dsp",) if options.dsp_usage == "low" else ()


def fit_table(found: Fit) -> Table:
    """What a design takes of one device of a board."""
    columns = (
        Column("kind", "of one device"),
        Column("need", "needed", Kind.NUMBER),
        Column("have", "there", Kind.NUMBER),
        Column("share", "share", Kind.SHARE),
    )
    need, have = _counts(found.need), _counts(found.have)
    words = {column.key: column.title for column in _COUNTS}
    rows = [
        {"kind": words[kind], "need": need[kind], "have": have[kind], "share": share}
        for kind, share in found.shares.items()
    ]
    one, board = found.architecture, found.board
    title = f"{one.cores} x {one.size} on {board.devices} x {board.target}"
    return Table(title, columns, tuple(rows), ("Model: tables 6.4 to 6.9 of Vailakis 2022.",))


def nodes_table(compiled: Compiled, nodes: Sequence[PlacedNode] | None = None) -> Table:
    """Fused nodes with place and reason; by default all of them."""
    columns = (
        Column("part", "part", Kind.NUMBER),
        Column("place", "runs on"),
        Column("layer", "layer"),
        Column("kind", "fused node"),
        Column("output", "output"),
        Column("macs", "MAC", Kind.NUMBER),
        Column("why", "why not on the DPU"),
    )
    rows = [
        {
            "part": item.part,
            "place": _PLACES[item.place],
            "layer": item.node.source,
            "kind": _kind(item),
            "output": " x ".join(map(str, item.node.output.shape)),
            "macs": item.node.macs,
            "why": "; ".join(item.reasons),
        }
        for item in (compiled.nodes if nodes is None else nodes)
    ]
    return Table(compiled.graph.name, columns, tuple(rows))


def _kind(item: PlacedNode) -> str:
    node = item.node
    height, width = node.window
    window = f" {height} x {width}" if (height, width) != (1, 1) else ""
    return f"{node.kind}{window}" + (f" + {node.activation}" if node.activation else "")


def summary(compiled: Compiled) -> str:
    """One sentence: how many subgraphs there are, and what the processor does."""
    engine, cpu = compiled.count(ENGINE), compiled.count(CPU)
    words = f"{engine} DPU subgraph{'s' * (engine != 1)}, {cpu} of the processor"
    if not compiled.outside:
        return f"{words}; it only finds the label"
    return f"{words}: {len(compiled.outside)} of {len(compiled.nodes)} fused nodes run there"


def draw(compiled: Compiled) -> Markup:
    """The network as boxes, framed by subgraph."""
    nodes = sorted(compiled.nodes, key=lambda item: item.part)
    place = {one.name: index for index, item in enumerate(nodes) for one in item.node.nodes}
    edges = set()
    for index, item in enumerate(nodes):
        for edge in item.node.first.inputs:
            maker = compiled.graph.producer(edge)
            if maker is not None:
                edges.add((place[maker.name], index))
    return flow_chart(compiled.graph.name, [_flow_box(item) for item in nodes], sorted(edges))


def _flow_box(item: PlacedNode) -> FlowBox:
    shape = " x ".join(map(str, item.node.output.shape))
    words = f"{item.node.source}: {_kind(item)}, {shape}"
    return FlowBox(
        title=item.node.source,
        under="; ".join(item.reasons) or f"{_kind(item)}, {shape}",
        words="; ".join((words, *item.reasons)),
        frame=f"{_PLACES[item.place]}, part {item.part}",
        other=item.place == CPU,
    )


def time_tables(
    works: Sequence[Work], architecture: Architecture, timing: Timing, threads: Sequence[int]
) -> tuple[Table, Table]:
    """Latency and throughput by threads; where the cycles of one image go."""
    rates = Table(
        f"{architecture.cores} x {architecture.size} at {architecture.clock_mhz:g} MHz",
        (
            Column("threads", "threads", Kind.NUMBER),
            Column("throughput", "throughput", Kind.NUMBER, "images/s", 1),
            Column("latency", "latency of one image", Kind.NUMBER, "ms", 3),
        ),
        tuple(
            {
                "threads": count,
                "throughput": images_a_second(works, architecture, timing, count),
                "latency": latency_ms(works, architecture, timing) if count == 1 else None,
            }
            for count in threads
        ),
        ("Model, calibrated on Vailakis 2022, tables 7.1 to 7.3.",),
    )
    layers = Table(
        "One image on one core",
        (
            Column("name", "fused node"),
            Column("kind", "kind"),
            Column("macs", "MAC", Kind.NUMBER),
            Column("array", "array", Kind.NUMBER, "cycles"),
            Column("memory", "memory", Kind.NUMBER, "cycles", 0),
            Column("total", "total", Kind.NUMBER, "cycles", 0),
            Column("utilization", "of the peak", Kind.SHARE),
        ),
        tuple(row.__dict__ for row in layer_times(works, architecture, timing)),
    )
    return rates, layers


def search_table(found: Sequence[Candidate], title: str) -> Table:
    """The best design of every size."""
    columns = (
        Column("design", "design"),
        Column("options", "options"),
        Column("throughput", "throughput", Kind.NUMBER, "images/s", 0),
        Column("latency", "latency", Kind.NUMBER, "ms", 3),
        *(Column(c.key, c.title, Kind.SHARE, "of a device", 1) for c in _COUNTS),
    )
    rows = [
        {
            "design": f"{c.fit.board.devices} x {c.architecture.cores} x {c.architecture.size}",
            "options": ", ".join(c.options) or "none",
            "throughput": c.throughput,
            "latency": c.latency_ms,
            **c.fit.shares,
        }
        for c in found
    ]
    notes = (
        "Throughput of all devices and latency by the calibrated model, whose own figures are up "
        "to 10 % off; resources by the tables.",
    )
    return Table(title, columns, tuple(rows), notes)
