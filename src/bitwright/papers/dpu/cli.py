# SPDX-License-Identifier: Apache-2.0
"""`bitwright dpu`: its verbs and what they print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bitwright.cli.options import Force, Json
from bitwright.cli.output import Output

if TYPE_CHECKING:
    from bitwright.ir import Graph
    from bitwright.papers.dpu.architecture import Architecture
    from bitwright.report.table import Table

dpu = typer.Typer(
    name="dpu",
    help="The published DPUCZDX8G: what of a network it runs, its resources and its time.",
    no_args_is_help=True,
)
Network = Annotated[
    str,
    typer.Argument(
        metavar="RUN|GRAPH",
        help="A run directory behind its step quantize, a folder of `import`, or a .bwg file.",
    ),
]
Arch = Annotated[
    str, typer.Option("--arch", help="An architecture: a name of `dpu list`, or a TOML file.")
]
OnBoard = Annotated[
    str, typer.Option("--board", help="zcu102, ultra96, qfdb, or a target of `list targets`.")
]
Cores = Annotated[int | None, typer.Option("--cores", min=1, max=4, help="Instead of the file's.")]


@dpu.command("list")
def list_verb(json: Json = False) -> None:
    """Architecture files that come with the package, and what each takes."""
    from bitwright.papers.dpu.tables import architectures_table

    _show(Output(json), architectures_table())


@dpu.command("fit")
def fit_verb(
    arch: Annotated[str, typer.Argument(metavar="ARCH")],
    board: OnBoard = "zcu102",
    cores: Cores = None,
    json: Json = False,
) -> None:
    """Does a design fit a board? If not: by how much, and which is the largest that does."""
    from bitwright.papers.dpu.resources import find_board, require_fit
    from bitwright.papers.dpu.tables import fit_table

    _show(Output(json), fit_table(require_fit(_architecture(arch, cores), find_board(board))))


@dpu.command("compile")
def compile_verb(
    network: Network,
    arch: Arch = "zcu102",
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for compiled.json, compiled.svg and the parts."),
    ] = None,
    whole: Annotated[bool, typer.Option("--all", help="Show every fused node.")] = False,
    force: Force = False,
    json: Json = False,
) -> None:
    """Fuse a network's operations and split it into parts for the DPU and for the processor."""
    from bitwright.base.claims import claimed
    from bitwright.base.files import atomic_write
    from bitwright.papers.dpu.compiler import compile_graph
    from bitwright.papers.dpu.tables import draw, nodes_table, summary
    from bitwright.report.svg import standalone

    output = Output(json)
    compiled = compile_graph(_graph(network), _architecture(arch))
    if out is not None:
        places = [out / name for name in (*compiled.files(), "compiled.svg")]
        with claimed(*places, force=force):
            compiled.save(out)
            atomic_write(places[-1], standalone(draw(compiled)) + "\n")
    if output.answered(compiled.to_json()):
        return
    shown = compiled.nodes if whole else compiled.outside
    if shown:
        output.results(nodes_table(compiled, shown))
    output.say(f"{compiled.graph.name} on {compiled.architecture.name}: {summary(compiled)}")
    if out is not None:
        output.say(f"wrote {out / 'compiled.json'}, compiled.svg and {len(compiled.parts)} parts")


@dpu.command("time")
def time_verb(
    network: Network,
    arch: Arch = "zcu102",
    cores: Cores = None,
    threads: Annotated[int, typer.Option("--threads", min=1, max=64, help="Up to so many.")] = 8,
    json: Json = False,
) -> None:
    """Latency, throughput by threads, and cycles layer by layer, by the calibrated model."""
    from bitwright.papers.dpu.calibration import calibrated
    from bitwright.papers.dpu.compiler import compile_graph
    from bitwright.papers.dpu.cycles import works_of
    from bitwright.papers.dpu.tables import time_tables

    architecture = _architecture(arch, cores)
    works = works_of(compile_graph(_graph(network), architecture))
    found = time_tables(works, architecture, calibrated(), range(1, threads + 1))
    output = Output(json)
    if output.answered([table.to_json() for table in found]):
        return
    for table in found:
        output.results(table)


@dpu.command("search")
def search_verb(
    network: Network,
    board: OnBoard = "zcu102",
    clock_mhz: Annotated[float, typer.Option("--clock", min=1.0, max=1000.0)] = 300.0,
    softmax: Annotated[bool, typer.Option("--softmax", help="With its unit.")] = False,
    json: Json = False,
) -> None:
    """The fewest options that a network needs, and the cores that are fastest on a board."""
    from bitwright.papers.dpu.resources import find_board
    from bitwright.papers.dpu.search import search
    from bitwright.papers.dpu.tables import search_table

    graph = _graph(network)
    found = search(graph, find_board(board), clock_mhz=clock_mhz, softmax=softmax)
    _show(Output(json), search_table(found, f"{graph.name} on {board}"))


def _show(output: Output, table: Table) -> None:
    if not output.answered(table.to_json()):
        output.results(table)


def _architecture(name: str, cores: int | None = None) -> Architecture:
    from bitwright.papers.dpu.architecture import load_architecture

    found = load_architecture(name)
    return found if cores is None else found.changed(cores=cores)


def _graph(name: str) -> Graph:
    """The integer graph of a run, of a design folder, or of a file."""
    from bitwright.base.errors import DataError
    from bitwright.base.folders import own_file
    from bitwright.ir import INTEGER, load_graph
    from bitwright.pipeline.run_files import GRAPH, is_run
    from bitwright.pipeline.steps.names import step_folder
    from bitwright.pipeline.steps.quantize import INTEGERS

    path = Path(name).expanduser()
    places = (path / step_folder("quantize") / INTEGERS, path / GRAPH)
    file = next((place for place in places if place.is_file()), path)
    if not file.is_file():
        raise DataError(
            "holds no integer graph",
            where=name,
            hint="a run directory behind its step quantize, a folder of `import`, or a .bwg file",
        )
    if path.is_dir() and not is_run(path):
        own_file(path, str(file.relative_to(path)))
    return load_graph(file, {"integer": INTEGER}, chosen=True)


def add_commands(app: typer.Typer) -> None:
    """Add ``dpu`` to the command line."""
    app.add_typer(dpu)
