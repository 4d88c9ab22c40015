# SPDX-License-Identifier: Apache-2.0
"""What is exported beside a bitstream: the description, and the host in C with its header."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bitwright.base.described import Strict
from bitwright.base.errors import GraphError
from bitwright.base.files import atomic_write, read_text
from bitwright.host.description import FILE, Description, Preprocessing
from bitwright.ir import Graph

_MOST_BYTES = 1 << 24
_C = Path(__file__).parent / "c"
C_FILES = ("bitwright_board.h", "bitwright_board.c")
HEADER = "bitwright_design.h"


class DataLevels(Strict):
    """The numbers that a data set holds: ``real = level * scale``."""

    type: str
    scale: float


class HostInput(Strict):
    """What the recipe says of a network's input and labels, for hosts.

    Attributes:
        inputs: what one input is called: images, tables, signals.
        shape: of one, channels last.
        format, scale, rounding: of the network's levels: ``level = round(real / scale)``.
        data: what its reals were made of.
        preparation: how the levels of the data set were made of other numbers; None where they are
            as they came.
        preprocessing: of image files; None: the network takes none, or not of bytes.
        classes: names of the labels.
    """

    inputs: str
    shape: tuple[int, ...]
    format: str
    scale: float
    rounding: str
    data: DataLevels
    preparation: dict[str, Any] | None = None
    preprocessing: Preprocessing | None = None
    classes: tuple[str, ...] = ()


def read_input(path: Path) -> HostInput | None:
    """What a run noted; None if there is nothing.

    Raises:
        GraphError: the file is malformed.
    """
    if not path.is_file():
        return None
    try:
        return HostInput.model_validate_json(read_text(path, most=_MOST_BYTES))
    except ValidationError as error:
        raise GraphError(f"malformed: {error.errors()[0]['msg']}", where=str(path)) from error


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
    for name in C_FILES:
        shutil.copyfile(_C / name, folder / name)
    return {"board_description": FILE, "c_host": C_FILES[1], "c_host_header": C_FILES[0],
            "c_design": HEADER}  # fmt: skip


def c_header(description: Description) -> str:
    """C99 header with what the host in C must know of a design."""
    source, how = description.input, description.preprocessing
    names = {
        "NAME": f'"{description.name}"',
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
    start = 0
    for index, output in enumerate(description.outputs):
        key = f"OUTPUT{index}"
        scale = output.scale[0] if len(output.scale) == 1 else 0.0
        names |= {
            f"{key}_NAME": f'"{output.name}"',
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
    classes = ", ".join(f'"{_c_text(name)}"' for name in description.classes)
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


def _c_text(text: str) -> str:
    """As the inside of a C string: anything but plain signs as octal bytes."""
    return "".join(
        chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}"
        for b in text.encode("utf-8", "replace")
    )
