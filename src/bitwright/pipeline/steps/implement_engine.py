# SPDX-License-Identifier: Apache-2.0
"""Step `implement` of an engine: with its memory's controller and a console where the target has a
board for them, else alone. The circuit knows no network, so neither do the host's files beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bitwright.base.errors import ToolError
from bitwright.base.files import atomic_write
from bitwright.base.progress import Progress
from bitwright.engine.config import EngineConfig
from bitwright.engine.cost import fitting_dsps
from bitwright.engine.image import EngineImage, load_image
from bitwright.engine.sdram import ULX3S, SdramMemory
from bitwright.engine.timing import simulate
from bitwright.host.board_files import export_engine_host
from bitwright.host.description import FILE, read_description
from bitwright.pipeline.steps.map_engine import RTL
from bitwright.pipeline.steps.results_hardware import ENGINE_IMAGE
from bitwright.rtl.emit_engine import beyond_board, emit_engine_board

if TYPE_CHECKING:
    from bitwright.build.implement import ImplementOptions, ImplementResult
    from bitwright.build.target import Board, Target

RunTools = Callable[..., "ImplementResult"]


def implement_engine(
    mapped: Path,
    target: Target,
    folder: Path,
    options: ImplementOptions,
    run_tools: RunTools,
    progress: Progress,
) -> ImplementResult:
    """Make the engine that `map_engine` chose real.

    Args:
        mapped: what it wrote.
        folder: gets ``implement.json``, and on a board the bitstream and the host's files.
        run_tools: `bitwright.build.implement.implement`.

    Raises:
        TargetError: it does not fit, or the board has no memory for it.
        ToolError: a tool is missing or failed.
    """
    from bitwright.build.implement import RESULT

    image = load_image(mapped / ENGINE_IMAGE)
    board, reason = _board_of(image.config, target, options.board)
    if board is None:
        alone = replace(options, bitstream=False)
        result = run_tools(mapped / RTL, target, folder, alone, progress)
        notes = (*result.notes, *([reason] if reason else []))
        result = replace(result, notes=notes)
    else:
        rtl = board_rtl(image.config, target, folder / RTL)
        asked = options.clock_mhz or target.default_clock_mhz
        clock = min(asked, ULX3S.most_mhz)
        named = replace(options, board=options.board or target.board, clock_mhz=clock)
        result = run_tools(rtl, target, folder, named, progress)
        said = [*result.notes, *_on_board(image, result)]
        if clock < asked:
            said.append(f"the memory takes {clock:.1f} MHz at most; {asked:g} were asked for")
        result = replace(result, notes=tuple(said))
        if "board_description" in result.files:
            made = export_engine_host(read_description(folder / FILE), folder)
            result = replace(result, files={**result.files, **made})
    atomic_write(folder / RESULT, result.to_json())
    return result


def board_rtl(config: EngineConfig, target: Target, folder: Path) -> Path:
    """The engine with controller and console, with as many multipliers as the target has."""
    emit_engine_board(config, folder, dsps=fitting_dsps(config, target.capacity.dsp))
    return folder


def board_cycles(image: EngineImage, mhz: float) -> int:
    """Cycles of a frame with the board's SDRAM, as its counter says: the model is exact.

    Raises:
        ToolError: there is no compiler for the model.
        TargetError: the memory is not that fast.
    """
    size = image.config.word_bytes * image.words
    return int(simulate(image.program, image.config, SdramMemory(mhz=mhz), size).cycles[0])


def _board_of(config: EngineConfig, target: Target, wanted: str | None) -> tuple[Board | None, str]:
    """The board that the engine stands on; or None and why, where it could have been one."""
    from bitwright.build.target import load_board

    name = wanted or target.board
    if not target.places_and_routes or name is None:
        return None, ""
    board = load_board(name)
    if wanted is not None:  # what it lacks is an error, which the tools' step says
        return board, ""
    reason = beyond_board(config)
    if reason is None and not board.sdram:
        reason = f"the board {board.name} has no SDRAM that its file knows"
    return (board, "") if reason is None else (None, f"out of context: {reason}")


def _on_board(image: EngineImage, result: ImplementResult) -> tuple[str, ...]:
    """How fast the network is there."""
    mhz = result.bitstream_clock_mhz
    if mhz is None:
        return ()
    try:
        cycles = board_cycles(image, mhz)
    except ToolError:
        return ()
    return (
        f"{image.name} with the memory of the board: {cycles} cycles a frame, "
        f"{1e6 * mhz / cycles:.1f} frames a second at {mhz:g} MHz, by the exact model",
    )
