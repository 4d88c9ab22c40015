# SPDX-License-Identifier: Apache-2.0
"""What is exported beside a bitstream: the description, and the host in C with its header."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bitwright.base.files import atomic_write
from bitwright.base.names import c_text
from bitwright.data.preprocessing import HostInput, Preprocessing
from bitwright.host.description import FILE, Description
from bitwright.ir import Graph

_C = Path(__file__).parent / "c"
C_FILES = ("bitwright_board.h", "bitwright_board.c", "bitwright_main.c")
#: Files and values of compiled networks: for any host of an engine.
IMAGE_C_FILES = ("bitwright_image.h", "bitwright_image.c")
ENGINE_C_FILES = (
    *C_FILES[:2], "bitwright_engine.h", "bitwright_engine.c", "bitwright_engine_main.c",
    *IMAGE_C_FILES,
)  # fmt: skip
HEADER = "bitwright_design.h"
#: What `export_host` writes.
HOST_FILES = (FILE, HEADER, *C_FILES)


def complete(base: Description, graph: Graph | None, given: HostInput | None) -> Description:
    """Add shapes, formats and scales of the graph, and what the recipe says."""
    changes: dict[str, object] = {}
    if graph is not None:
        kind = graph.types[graph.inputs[0]]
        known = {
            "shape": kind.shape,
            "scale": kind.scale,
            "format": kind.format.name if kind.format else None,
        }
        changes["graph"] = graph.digest
        changes["input"] = base.input.model_copy(update=known)
        changes["outputs"] = tuple(
            output.model_copy(
                update={
                    "shape": graph.types[output.name].shape,
                    "scale": graph.types[output.name].scale,
                }
            )
            if output.name in graph.types
            else output
            for output in base.outputs
        )
    if given is not None:
        changes |= {"preprocessing": given.preprocessing, "classes": given.classes}
    return base.model_copy(update=changes)


def export_host(description: Description, folder: Path) -> dict[str, str]:
    """Write the description and the host in C into a folder; the files by role."""
    atomic_write(folder / FILE, description.to_json())
    atomic_write(folder / HEADER, c_header(description))
    copy_c_files(C_FILES, folder)
    return {"board_description": FILE, "c_host": C_FILES[1], "c_host_header": C_FILES[0],
            "c_design": HEADER}  # fmt: skip


def export_engine_host(description: Description, folder: Path) -> dict[str, str]:
    """Write the description of an engine's board and its host in C into a folder; the files by
    role. Networks are no part of it: each has an image and a header of its own
    (`bitwright.host.engine_files`).
    """
    atomic_write(folder / FILE, description.to_json())
    atomic_write(folder / HEADER, c_header(description))
    copy_c_files(ENGINE_C_FILES, folder)
    return {
        "board_description": FILE, "c_host": ENGINE_C_FILES[3], "c_host_header": ENGINE_C_FILES[2],
        "c_design": HEADER,
    }  # fmt: skip


def copy_c_files(names: Sequence[str], folder: Path) -> None:
    """Copy sources of the hosts in C into a folder."""
    for name in names:
        atomic_write(folder / name, (_C / name).read_bytes())


def c_header(description: Description) -> str:
    """C99 header with what the host in C must know of a design."""
    source, how = description.input, description.preprocessing
    names = {
        "NAME": f'"{c_text(description.name)}"',
        "DIGEST": f'"{description.digest}"',
        "CLOCK_KHZ": f"{round(description.clock_mhz * 1000)}u",
        "BAUD": f"{round(description.baud)}u",
        "BUFFER_BYTES": f"{description.buffer_bytes}u",
        "CHUNK": f"{description.chunk}u",
        "INTERVAL": f"{description.interval}u",
        "INPUT_BYTES": f"{source.frame_bytes}u",
        "INPUT_ELEMENTS": f"{source.port.beats * source.port.lanes}u",
        "INPUT_BEATS": f"{source.port.beats}u",
        "INPUT_BEAT_BYTES": f"{source.port.width // 8}u",
        "INPUT_LANES": f"{source.port.lanes}u",
        "INPUT_LANE_BITS": f"{source.port.lane_bits}u",
        "INPUT_BIPOLAR": f"{int(source.port.bipolar)}",
        "ANSWER_BYTES": f"{description.answer_bytes}u",
        "OUTPUTS": f"{len(description.outputs)}u",
    }
    if description.engine is not None:
        names |= {
            "ENGINE_WORD_BYTES": f"{description.engine.sizes.word_bytes}u",
            "ENGINE_FRAME_WORDS": f"{description.engine.frame_words}u",
            "ENGINE_MEMORY_WORDS": f"{description.engine.memory_words}u",
        }
    start = 0
    for index, output in enumerate(description.outputs):
        key = f"OUTPUT{index}"
        scale = output.scale[0] if len(output.scale) == 1 else 0.0
        names |= {
            f"{key}_NAME": f'"{c_text(output.name)}"',
            f"{key}_OFFSET": f"{start}u",
            f"{key}_ELEMENTS": f"{output.elements}u",
            f"{key}_ELEMENT_BYTES": f"{output.element_bytes}u",
            f"{key}_SIGNED": f"{int(output.signed)}",
            f"{key}_SCALE": float.hex(scale),
        }
        start += output.frame_bytes
    rows = [f"BITWRIGHT_OUTPUT{index}" for index in range(len(description.outputs))]
    names["OUTPUT_ELEMENTS"] = ", ".join(f"{row}_ELEMENTS" for row in rows)
    fields = ("OFFSET", "ELEMENT_BYTES", "SIGNED")
    names["OUTPUT_TABLE"] = ", ".join(
        "{" + ", ".join(f"{row}_{field}" for field in fields) + "}" for row in rows
    )
    lines = [
        "/* Generated by Bitwright: a design on a board, for bitwright_board.c. Do not edit. */",
        "#ifndef BITWRIGHT_DESIGN_H",
        "#define BITWRIGHT_DESIGN_H",
        *(f"#define BITWRIGHT_{key} {value}" for key, value in names.items()),
        f"#define BITWRIGHT_HAS_IMAGES {int(how is not None)}",
    ]
    if how is not None:
        height, width = how.size
        lines += [
            "/* Pixels are 0 to 255, rows from the top, channels of a pixel side by side (1: grey,",
            f"   3: red, green, blue). An image of another size is resized first: {how.filter},",
            "   support growing with the factor; " + _fit_words(how) + ". */",
            f"#define BITWRIGHT_HEIGHT {height}u",
            f"#define BITWRIGHT_WIDTH {width}u",
            f"#define BITWRIGHT_CHANNELS {how.channels}u",
            f"#define BITWRIGHT_TABLES {len(how.levels)}u",
            "static const int bitwright_levels[BITWRIGHT_TABLES][256] = {",
            *(f"  {{{', '.join(map(str, row))}}}," for row in how.levels),
            "};",
        ]
    classes = ", ".join(f'"{c_text(name)}"' for name in description.classes)
    lines += [
        f"#define BITWRIGHT_CLASSES {len(description.classes)}u",
        f"static const char *const bitwright_classes[] = {{{classes or '0'}}};",
        "#endif",
    ]
    return "\n".join(lines) + "\n"


def _fit_words(how: Preprocessing) -> str:
    if how.fit == "stretch":
        return "the whole image is stretched"
    return f"its short side becomes {how.short_side} pixels, and the middle is cut out"
