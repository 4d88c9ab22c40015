# SPDX-License-Identifier: Apache-2.0
"""Step `map` of an engine: the program, proven safe and equal to the integer graph."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bitwright.base.errors import MismatchError, RecipeError
from bitwright.base.files import atomic_write, read_text
from bitwright.base.progress import Progress, no_progress
from bitwright.engine.checker import check_program
from bitwright.engine.compiler import compile_graph
from bitwright.engine.config import ENGINES, EngineConfig
from bitwright.engine.estimate import by_layer, timeline, utilisation
from bitwright.engine.footprint import check_running
from bitwright.engine.image import EngineImage
from bitwright.ir import Graph, IntArray, random_feeds
from bitwright.pipeline.recipe_hardware import HardwareSection
from bitwright.pipeline.steps.results_hardware import ENGINE_IMAGE, EngineLayer, EngineResult

CONFIG = "engine.json"
_CHECK_IMAGES = 2
_MOST_BYTES = 1 << 20  # of a configuration, which has some hundred


def engine_config(wanted: HardwareSection) -> EngineConfig:
    """The engine that a recipe names.

    Raises:
        RecipeError: there is none of that name.
        DataError: the file cannot be read.
        TargetError: it is no configuration.
    """
    if Path(wanted.engine).suffix == ".json":
        return EngineConfig.from_json(read_text(Path(wanted.engine), most=_MOST_BYTES))
    if wanted.engine not in ENGINES:
        raise RecipeError(
            f"unknown engine {wanted.engine!r}",
            where="hardware.engine",
            hint=f"known are {', '.join(ENGINES)}; or name a JSON file",
        )
    return ENGINES[wanted.engine]


def map_engine(
    graph: Graph,
    wanted: HardwareSection,
    frames: Mapping[str, IntArray],
    folder: Path,
    progress: Progress = no_progress,
    *,
    chosen: bool = True,
) -> EngineResult:
    """The program of an integer graph on the engine of a recipe.

    Args:
        frames: of each input of the graph, levels (N, ...); the first ones are compared, and as
            many random ones.
        chosen: the network is the user's own; a stranger's may not ask for any amount of work.
        folder: gets image, configuration, figures by layer and the result.

    Raises:
        ModelError: an operation has no mapping, or does not fit.
        ProgramError: a stranger's asks for too much.
        ProgramError, MismatchError: the program is not safe or gives other integers: a bug.
    """
    config = engine_config(wanted)
    progress("compiling for the engine", 0, 0)
    image = compile_graph(graph, config)
    if not chosen:
        check_running(image.program, config, image.words, "the network's program")
    progress("checking the order of all accesses", 0, 0)
    check_program(image.program, config, image.words)
    first = {edge: levels[:_CHECK_IMAGES] for edge, levels in frames.items()}
    random = random_feeds(graph, _CHECK_IMAGES, np.random.default_rng(0))
    images = values = 0
    for feeds in (first, random):
        progress("comparing the emulated program with the integer graph", images, 0)
        values += _compared(graph, image, feeds)
        images += len(next(iter(feeds.values())))
    data = image.to_bytes()
    atomic_write(folder / ENGINE_IMAGE, data)
    atomic_write(folder / CONFIG, config.to_json())
    result = describe_program(image, wanted.clock_mhz).model_copy(
        update={
            "wanted_fps": wanted.target_fps,
            "digest": hashlib.sha256(data).hexdigest(),
            "images": images,
            "compared_values": values,
        }
    )
    rows = [layer.model_dump(mode="json") for layer in result.layers]
    atomic_write(folder / "estimate_layers.json", json.dumps(rows, indent=1) + "\n")
    result.save(folder)
    return result


def describe_program(image: EngineImage, clock_mhz: float) -> EngineResult:
    """Cycles of a program by the model, layer by layer; nothing is compared."""
    found = timeline(image.program, image.config)
    macs = sum(image.macs.values())
    return EngineResult(
        engine=image.config.name,
        digest="",
        clock_mhz=clock_mhz,
        instructions=len(image.program),
        memory_bytes=image.words * image.config.word_bytes,
        cycles=found.cycles,
        macs=macs,
        utilisation=utilisation(found.cycles, macs, image.config),
        layers=tuple(
            EngineLayer(
                name=layer.layer,
                busy=round(layer.busy),
                waits={unit.name.lower(): round(n) for unit, n in layer.waiting.items()},
                macs=layer.macs,
                utilisation=layer.utilisation(image.config),
            )
            for layer in by_layer(found, image.layers, image.macs)
        ),
        images=0,
        compared_values=0,
        host=tuple(f"top_k of {step.source}, k = {step.k}" for step in image.host),
    )


def _compared(graph: Graph, image: EngineImage, feeds: Mapping[str, IntArray]) -> int:
    """How many values were compared.

    Raises:
        MismatchError: one differs.
    """
    expected, found = graph.run(feeds), image.run(feeds)
    for edge in graph.outputs:
        if not np.array_equal(expected[edge], found[edge]):
            raise MismatchError(
                "the emulated program gives other integers than the integer graph",
                where=f"edge {edge}",
            )
    return sum(int(levels.size) for levels in expected.values())
