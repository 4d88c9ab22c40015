# SPDX-License-Identifier: Apache-2.0
"""Step `map` of an engine: the program, proven safe and equal to the integer graph, and the RTL."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bitwright.base.errors import MismatchError, RecipeError, TargetError, ToolError
from bitwright.base.figures import Resources
from bitwright.base.files import atomic_write, json_text, read_text
from bitwright.base.memory import is_chosen
from bitwright.base.progress import Progress, no_progress
from bitwright.base.records import EngineLayerRow, EngineWaitRow
from bitwright.build.target import Target, load_target
from bitwright.engine.checker import check_program
from bitwright.engine.compiler import compile_graph
from bitwright.engine.config import ENGINES, EngineConfig
from bitwright.engine.cost import PAIRING_FAMILIES, engine_resources, fitting_dsps
from bitwright.engine.estimate import Timeline, by_layer, timeline, utilisation
from bitwright.engine.footprint import MOST_CYCLES, check_running
from bitwright.engine.image import EngineImage
from bitwright.engine.profile import exact_timeline, waits
from bitwright.engine.timing import LIMIT, simulate
from bitwright.host.engine_files import NETWORK_HEADER, network_header
from bitwright.ir import Graph, IntArray, random_feeds
from bitwright.pipeline.recipe_hardware import HardwareSection
from bitwright.pipeline.steps.results_hardware import ENGINE_IMAGE, EngineResult
from bitwright.rtl.emit_engine import emit_engine
from bitwright.sim.memory import MemoryModel

CONFIG, RTL = "engine.json", "rtl"
_CHECK_IMAGES = 2
_MOST_BYTES = 1 << 20  # of a configuration, which has some hundred


def engine_config(wanted: HardwareSection) -> EngineConfig:
    """The engine that a recipe names.

    Raises:
        RecipeError: there is none of that name.
        DataError: the file cannot be read.
        TargetError: it is no configuration, or does not fit the target.
    """
    if Path(wanted.engine).suffix == ".json":
        config = EngineConfig.from_json(read_text(Path(wanted.engine), most=_MOST_BYTES))
    elif wanted.engine not in ENGINES:
        raise RecipeError(
            f"unknown engine {wanted.engine!r}",
            where="hardware.engine",
            hint=f"known are {', '.join(ENGINES)}; or name a JSON file",
        )
    else:
        config = ENGINES[wanted.engine]
    _require_fit(wanted.engine, config, load_target(wanted.target))
    return config


def _require_fit(name: str, config: EngineConfig, target: Target) -> None:
    """Before anything is trained or synthesised, where a family's resources are known."""
    lacking = _lacking(config, target)
    if lacking is None:
        return
    fits = [known for known, c in ENGINES.items() if _lacking(c, target) is None]
    raise TargetError(
        lacking,
        where=f"hardware.engine: {Path(name).name}",
        hint=(f"engines that fit: {', '.join(fits)}; or take" if fits else "take")
        + " a larger target (hardware.target=ecp5-85k), or a JSON file with smaller sizes",
    )


def _lacking(config: EngineConfig, target: Target) -> str | None:
    """What an engine takes of a target that has less of it; None: nothing."""
    taken = resources_of(config, target)
    if taken is None:
        return None
    has = target.capacity
    for what, need, there in (
        ("the engine's memories take {:.0f} block RAMs", taken.bram, has.bram),
        ("the engine's post lanes take {:.0f} multipliers", taken.dsp, has.dsp),
        ("the engine takes about {:.0f} LUTs", taken.lut, has.lut),
    ):
        if need > there:
            return f"{what.format(need)}, {target.name} has {there:g}"
    return None


def resources_of(config: EngineConfig, target: Target) -> Resources | None:
    """What an engine takes of a target, by the model; None: it is not known of its family."""
    if target.family != "ecp5":
        return None
    return engine_resources(config, fitting_dsps(config, target.capacity.dsp))


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
        folder: gets image, configuration, RTL, figures by layer and the result.

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
    atomic_write(folder / NETWORK_HEADER, network_header(image))
    target = load_target(wanted.target)
    paired = target.family in PAIRING_FAMILIES
    dsps = fitting_dsps(config, target.capacity.dsp, paired=paired)
    emit_engine(config, folder / RTL, dsps=dsps, paired=paired)
    result = describe_program(image, wanted, progress, chosen=chosen).model_copy(
        update={
            "wanted_fps": wanted.target_fps,
            "digest": hashlib.sha256(data).hexdigest(),
            "images": images,
            "compared_values": values,
        }
    )
    rows = [layer.model_dump(mode="json") for layer in result.layers]
    atomic_write(folder / "estimate_layers.json", json_text(rows, indent=1) + "\n")
    result.save(folder)
    return result


def memory_of(config: EngineConfig) -> MemoryModel:
    """The memory outside that a configuration assumes, as the test bench plays it."""
    share = config.constants.bytes_per_cycle / config.word_bytes
    return MemoryModel(beats_per_cycle=min(1.0, share))


def timed(
    image: EngineImage, progress: Progress = no_progress, *, chosen: bool = True
) -> tuple[Timeline, bool]:
    """When the units of a program work, and whether that is exact: the timing model of the RTL, or
    the compiler's estimate where there is no compiler for that model.

    Args:
        chosen: as of `map_engine`.

    Raises:
        ProgramError: it takes more cycles than are timed.
    """
    program, config = image.program, image.config
    most = LIMIT if is_chosen(chosen) else MOST_CYCLES
    size = image.words * config.word_bytes
    try:
        found = simulate(program, config, memory_of(config), size, limit=most, progress=progress)
    except ToolError:
        return timeline(program, config), False
    return exact_timeline(program, config, found), True


def describe_program(
    image: EngineImage,
    wanted: HardwareSection,
    progress: Progress = no_progress,
    *,
    chosen: bool = True,
) -> EngineResult:
    """Cycles of a program and resources of its engine by the models; nothing is compared.

    Args:
        chosen: as of `map_engine`.

    Raises:
        ProgramError: it takes more cycles than are timed.
    """
    (found, exact), macs = timed(image, progress, chosen=chosen), sum(image.macs.values())
    return EngineResult(
        engine=image.config.name,
        digest="",
        clock_mhz=wanted.clock_mhz,
        resources=resources_of(image.config, load_target(wanted.target)),
        instructions=len(image.program),
        memory_bytes=image.words * image.config.word_bytes,
        cycles=found.cycles,
        exact=exact,
        macs=macs,
        utilisation=utilisation(found.cycles, macs, image.config),
        layers=layer_rows(image, found),
        waits=wait_rows(image, found),
        images=0,
        compared_values=0,
        host=tuple(f"top_k of {step.source}, k = {step.k}" for step in image.host),
    )


def layer_rows(image: EngineImage, found: Timeline) -> tuple[EngineLayerRow, ...]:
    """What each layer takes of the array, in the order of the program."""
    return tuple(
        EngineLayerRow(
            name=layer.layer,
            busy=round(layer.busy),
            waits={unit.name.lower(): round(n) for unit, n in layer.waiting.items()},
            macs=layer.macs,
            utilisation=layer.utilisation(image.config),
        )
        for layer in by_layer(found, image.layers, image.macs)
    )


def wait_rows(image: EngineImage, found: Timeline) -> tuple[EngineWaitRow, ...]:
    """For what the array stands still, the longest first."""
    return tuple(
        EngineWaitRow(layer=row.layer, what=row.what, of=row.of, cycles=row.cycles)
        for row in waits(found, image.program, image.layers)
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
