# SPDX-License-Identifier: Apache-2.0
"""The RTL of a programmed engine: a folder that depends on the configuration alone.

Programs are data in the memory behind its one AXI4 port, so nothing of a network is in it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bitwright.base.errors import TargetError
from bitwright.base.folders import whole_folder
from bitwright.base.version import __version__
from bitwright.engine.config import EngineConfig
from bitwright.engine.sdram import ULX3S, SdramChip
from bitwright.hw.weight_image import BASE, PORT
from bitwright.rtl import module_files, needed_modules

TOP = "engine"
BOARD_TOP = "engine_board"
#: Words of memory in a frame of the console; its answer, two words more, is one packet of the line.
CONSOLE_WORDS = 14
EVENTS = (
    "load begins", "load ends", "execute begins", "execute ends", "store begins", "store ends",
)  # fmt: skip
"""What the bits of the engine's ``events_o`` mean, lowest first."""


def parameters(
    config: EngineConfig, *, dsps: int | None = None, paired: bool = False
) -> dict[str, int | str]:
    """Parameters of the module ``engine``.

    Args:
        dsps: lanes of a dot product that are multipliers of the device; the others are look-up
            tables. None: all.
        paired: two pixels share a multiplier, which must have 25 x 18 bits (`PAIRING_FAMILIES` of
            `bitwright.engine.cost`).
    """
    return {
        "Pixels": config.pixels,
        "Lanes": config.lanes,
        "Dsps": config.lanes if dsps is None else dsps,
        "Nibbles": f"1'b{int(config.nibbles)}",
        "Paired": f"1'b{int(paired)}",
        "FeatureWords": config.feature_words,
        "WeightRows": config.weight_rows,
        "ParameterRows": config.parameter_rows,
        "PostLanes": config.post_lanes,
    }


def emit_engine(
    config: EngineConfig, out_dir: Path, *, dsps: int | None = None, paired: bool = False
) -> Path:
    """Write the RTL of an engine; the folder is whole or not there.

    Args:
        dsps, paired: as `parameters` has them.

    Returns:
        the path of ``design.json``.

    Raises:
        OSError: the folder cannot be written.
    """
    return _write(
        TOP,
        out_dir,
        config,
        parameters=parameters(config, dsps=dsps, paired=paired),
        memory_ports=[
            {"name": PORT, "base": BASE, "data_bits": 8 * config.lanes, "access": "read_write"}
        ],
        control={
            "start": "start_i",
            "done": "done_o",
            "code": "code_o",
            "error": "error_o",
            "cycles": "cycles_o",
            "events": "events_o",
        },
        events=EVENTS,
    )


def beyond_board(config: EngineConfig) -> str | None:
    """Why an engine cannot work with an SDRAM of 16 bits; None if it can."""
    if config.lanes == 8:
        return None
    return f"an SDRAM gives words of 64 bits, and the engine has words of {8 * config.lanes}"


def emit_engine_board(
    config: EngineConfig, out_dir: Path, *, dsps: int | None = None, chip: SdramChip = ULX3S
) -> Path:
    """Write the RTL of an engine with its memory's controller and the console for a host: a design
    with a stream of commands and one of answers, which the serial shell carries.

    Args:
        dsps: as `parameters` has it.
        chip: the memory.

    Returns:
        the path of ``design.json``.

    Raises:
        TargetError: the engine's words are not those of the memory.
        OSError: the folder cannot be written.
    """
    reason = beyond_board(config)
    if reason is not None:
        raise TargetError(
            reason, where=f"engine {config.name}", hint="choose an engine with 8 lanes"
        )
    memory = {"MemoryWords": chip.size // config.word_bytes, "Burst": CONSOLE_WORDS}
    stream = {"width": 64, "lane_bits": 8, "lanes": 8}
    return _write(
        BOARD_TOP,
        out_dir,
        config,
        parameters=parameters(config, dsps=dsps) | memory,
        inputs=[{"name": "s_axis_0", "tensor": "command", "beats": 1 + CONSOLE_WORDS, **stream}],
        outputs=[{"name": "m_axis_0", "tensor": "answer", "beats": 2 + CONSOLE_WORDS, **stream}],
        sdram=dataclasses.asdict(chip),
    )


def _write(top: str, out_dir: Path, config: EngineConfig, **more: Any) -> Path:
    sources = module_files()
    used = needed_modules({top})
    table: Mapping[str, Any] = {
        "kind": "engine",
        "top": top,
        "clock": "ap_clk",
        "reset": "ap_rst_n",
        "files": [f"lib/{name}.sv" for name in used],
        **more,
        "engine": json.loads(config.to_json()),
        "version": __version__,
    }
    with whole_folder(out_dir) as folder:
        (folder / "lib").mkdir()
        for name in used:
            (folder / "lib" / f"{name}.sv").write_bytes(sources[name].read_bytes())
        (folder / "design.json").write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
    return out_dir / "design.json"
