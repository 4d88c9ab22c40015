# SPDX-License-Identifier: Apache-2.0
"""`bitwright split`: what of a network an accelerator takes, and what the host does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bitwright.cli.options import Assign, Force, Json, TargetName
from bitwright.cli.output import Output

_Network = Annotated[
    Path,
    typer.Argument(
        metavar="RUN|GRAPH",
        help="A run directory behind its step lower, a folder of `import`, or a .bwg file.",
    ),
]
_Out = Annotated[Path, typer.Option("--out", help="Folder for the parts.")]
_Engine = Annotated[
    str | None, typer.Option("--engine", help="The programmed engine of this name, or JSON file.")
]
_Most = Annotated[
    int | None,
    typer.Option("--most", min=1, help="Parts to build; without, one, or any of an engine."),
]


def split(
    network: _Network,
    out: _Out,
    target: TargetName = None,
    engine: _Engine = None,
    most: _Most = None,
    assign: Assign = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Split a network: what the accelerator takes as design folders, the rest for the host."""
    from bitwright.base.claims import claimed
    from bitwright.pipeline.designs.folder import DesignSettings, changed
    from bitwright.pipeline.designs.split import (
        PARTS,
        frames_kept,
        part_folders,
        placement_for,
        write_split,
    )
    from bitwright.pipeline.export_network import read_graph
    from bitwright.pipeline.run_files import is_run

    output = Output(json)
    given = list(assign or [])
    if engine is not None:
        given = ["hardware.kind=engine", f"hardware.engine={engine}", *given]
    if target is not None:
        given = [f"hardware.target={target}", *given]
    settings = changed(DesignSettings(), given)
    with claimed(out / PARTS, force=force):
        graph, feeds = read_graph(network)
        found = placement_for(graph, settings.hardware, most)
        stranger = None if is_run(network) else str(network)
        with claimed(*part_folders(found, out).values(), force=force):
            paths = write_split(found, settings, out, feeds, stranger=stranger)
        there = len(next(iter(feeds.values()))) if feeds else 0
        kept = frames_kept(graph, feeds, stranger) if feeds else 0
    value = {
        **found.to_json(),
        "frames": kept,
        "paths": {name: str(path) for name, path in paths.items()},
    }
    if output.answered(value):
        return
    rows = [
        (name, part.place, str(len(part.graph.nodes)), ", ".join(part.graph.inputs),
         ", ".join(part.graph.outputs))
        for name, part in zip(paths, found.parts, strict=True)
    ]  # fmt: skip
    output.table(graph.name, ("part", "place", "nodes", "reads", "gives"), rows)
    for node, why in found.reasons.items():
        output.say(f"{node}: on the host, {why}")
    if kept < there:
        output.say(f"levels between the parts: of the first {kept} of {there} frames")
    output.say(f"wrote {out / PARTS} and {len(paths)} parts")
