# SPDX-License-Identifier: Apache-2.0
"""A network of which an accelerator takes only a part: a design folder for each part that it takes,
and the integer graphs of what the host does.

``parts.json`` says what runs where, in order, and why not on the accelerator. The design folders
are like any other: `bitwright simulate FOLDER/part-1-accelerator`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from bitwright.base.bounded import bounded_reader
from bitwright.base.errors import DataError, TargetError
from bitwright.base.files import MOST_TEXT, atomic_write, parse_json, read_text
from bitwright.base.folders import check_no_links, own_file
from bitwright.base.memory import room_for
from bitwright.base.progress import Progress, no_progress
from bitwright.engine.compiler.front import network_of
from bitwright.engine.config import EngineConfig
from bitwright.hw.template import template
from bitwright.ir import INTEGER, Graph, IntArray, load_graph, save_graph
from bitwright.ir.executor import Executor
from bitwright.ir.footprint import AT_A_TIME, frames_within, held_bytes
from bitwright.lower.placement import ACCELERATOR, HOST, Accept, Placement, place_graph
from bitwright.lower.split import Maker, Part, Run, split_graph
from bitwright.pipeline.designs.folder import GRAPH, Design, DesignSettings, open_design
from bitwright.pipeline.designs.steps import MAP, simulate_design
from bitwright.pipeline.recipe_hardware import HardwareSection
from bitwright.pipeline.steps.map import RTL
from bitwright.pipeline.steps.map_engine import engine_config
from bitwright.sim import Simulator

PARTS, WHOLE = "parts.json", "whole.bwg"


def placement_for(graph: Graph, wanted: HardwareSection, most: int | None = None) -> Placement:
    """What of a graph the accelerator of a recipe takes.

    Args:
        most: parts that are built; None: of a streaming design one, of an engine, which runs one
            program after the other, any number.

    Raises:
        TargetError: nothing is left for the accelerator; says what refused.
    """
    if wanted.kind == "engine":
        found = place_graph(graph, _on_engine(engine_config(wanted)), most)
    else:
        found = place_graph(graph, template, 1 if most is None else most)
    if not found.accelerated:
        reasons = [f"{node}: {why}" for node, why in found.reasons.items()]
        raise TargetError(
            f"nothing of this network runs on the accelerator: {[*reasons, 'it does nothing'][0]}",
            where=graph.name,
            hint="run it on the host: bitwright.ir.executor.Executor",
        )
    return found


def _on_engine(config: EngineConfig) -> Accept:
    return partial(network_of, config=config)


def part_folders(placement: Placement, folder: Path) -> dict[str, Path]:
    """Where `write_split` writes each part, by its name."""
    names = [f"part-{number}-{part.place}" for number, part in enumerate(placement.parts)]
    return {name: folder / name for name in names}


def write_split(
    placement: Placement,
    settings: DesignSettings,
    folder: Path,
    feeds: Mapping[str, IntArray] | None = None,
    *,
    stranger: str | None = None,
) -> dict[str, Path]:
    """Write the parts.

    Args:
        feeds: levels of the graph's inputs, of real data, from which those between the parts
            follow, of the first `frames_kept`; None: the designs are proven on random ones.
        stranger: the file or folder of somebody else that graph and feeds are from.

    Returns:
        The folder, or file, of each part, by its name.

    Raises:
        RunError: a link lies in the place of a part.
        GraphError: what one frame takes is more than a stranger's may.
    """
    graph = placement.graph
    values: dict[str, IntArray] = {}
    if feeds:
        size = frames_kept(graph, feeds, stranger)
        values = {edge: levels[:size] for edge, levels in feeds.items()}
    paths = part_folders(placement, folder)
    check_no_links(*paths.values())
    for name, part in zip(paths, placement.parts, strict=True):
        known = {edge: values[edge] for edge in part.graph.inputs if edge in values}
        if part in placement.accelerated:
            # A design folder keeps the levels of one input; of several it is proven on random ones.
            levels = known if len(known) == len(part.graph.inputs) == 1 else None
            Design(paths[name], part.graph, settings, levels).save()
        else:
            save_graph(part.graph, paths[name] / GRAPH)
        if feeds:
            values |= Executor(part.graph).run(known)
    save_graph(placement.graph, folder / WHOLE)
    atomic_write(folder / PARTS, json.dumps(placement.to_json(), indent=1) + "\n")
    return paths


def frames_kept(graph: Graph, feeds: Mapping[str, IntArray], stranger: str | None) -> int:
    """Of how many frames the levels between the parts are computed and kept: as many as
    `AT_A_TIME` bytes and `ir.footprint`'s bound of work allow, at least one.

    Raises:
        GraphError: what one frame takes is more than a stranger's may.
    """
    room = max(AT_A_TIME, held_bytes(graph, edges=True))
    if stranger is not None:
        room = min(room, room_for(chosen=False))
    return frames_within(graph, len(next(iter(feeds.values()))), room, stranger, edges=True)


@bounded_reader
def open_split(folder: Path) -> Placement:
    """What `write_split` has written: `Placement.runner` runs it.

    Raises:
        DataError: the folder is none, or its files do not belong together.
        RunError: one is a link out of it.
        GraphError: a graph in it is damaged.
    """
    where = str(folder / PARTS)
    try:
        found = parse_json(read_text(folder / PARTS, most=MOST_TEXT))
        places = [str(entry["place"]) for entry in found["parts"]]
        reasons = {str(node): str(why) for node, why in found["reasons"].items()}
        digest = found["digest"]
        if not {ACCELERATOR, HOST}.issuperset(places):  # they are parts of names
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError("is no description of parts", where=where, hint="split it again") from error
    graphs = [f"part-{number}-{place}/{GRAPH}" for number, place in enumerate(places)]
    for name in (WHOLE, *graphs):
        own_file(folder, name)
    whole = load_graph(folder / WHOLE, {"integer": INTEGER})
    if whole.digest != digest:
        raise DataError(
            "is of another network than the graph beside it", where=where, hint="split it again"
        )
    parts = tuple(
        Part(place, load_graph(folder / name, {"integer": INTEGER}))
        for place, name in zip(places, graphs, strict=True)
    )
    nodes = sorted(node.name for part in parts for node in part.graph)
    whose = {node.name: part.place for part in parts for node in part.graph}
    same = nodes == sorted(node.name for node in whole)
    wanted = split_graph(whole, whose) if same else parts
    are = [[(part.place, part.graph.digest) for part in several] for several in (parts, wanted)]
    if not same or are[0] != are[1]:
        raise DataError(
            "its parts are not those of the graph beside it", where=where, hint="split it again"
        )
    return Placement(whole, parts, reasons)


def simulated(folder: Path, progress: Progress = no_progress) -> Maker:
    """Computes the accelerator's parts of a folder of `write_split` in the simulated RTL of their
    designs (kind ``dataflow``), for `Placement.runner`.

    Raises:
        MismatchError, ToolError: when it is called, as `steps.simulate_design`.
    """
    designs = {
        load_graph(path / GRAPH, {"integer": INTEGER}).digest: path
        for path in folder.glob(f"part-*-{ACCELERATOR}")
    }

    def made(part: Graph) -> Run:
        design = open_design(designs[part.digest])
        simulate_design(design, progress)
        simulator = Simulator.build(design.folder / MAP / RTL)
        ports = simulator.design

        def run(values: Mapping[str, IntArray]) -> dict[str, IntArray]:
            frames = len(next(iter(values.values())))
            given = {p.name: values[e] for p, e in zip(ports.inputs, part.inputs, strict=True)}
            levels = simulator.run(simulator.pack(given), frames).levels
            return {
                edge: levels[port.name].reshape(frames, *part.types[edge].shape)
                for edge, port in zip(part.outputs, ports.outputs, strict=True)
            }

        return run

    return made
