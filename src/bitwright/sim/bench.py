# SPDX-License-Identifier: Apache-2.0
"""A bench for a single library module: the same harness, without a generated top level."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from bitwright.base.folders import make_folder
from bitwright.rtl import module_files, needed_modules
from bitwright.sim.beats import StreamSpec


def write_module_bench(
    folder: Path,
    module: str,
    parameters: Mapping[str, int | str],
    inputs: Mapping[str, StreamSpec],
    outputs: Mapping[str, StreamSpec],
    memories: Mapping[str, str] | None = None,
) -> Path:
    """Write a design folder whose top is a module of the library itself.

    Args:
        folder: created; gets ``design.json``, ``lib/`` and the memory images.
        module: name of the library module.
        parameters: overrides; file parameters are paths relative to the folder.
        inputs, outputs: stream prefix (``in`` for ``in_valid_i``, ``s_axis`` for
            ``s_axis_tvalid``) -> layout.
        memories: path -> content of memory images.

    Returns:
        The folder, for :meth:`bitwright.sim.Simulator.build`.
    """
    library = folder / "lib"
    make_folder(library)
    sources = module_files()
    files = [f"lib/{name}.sv" for name in needed_modules({module})]
    for name in files:
        shutil.copy(sources[Path(name).stem], folder / name)
    for name, text in (memories or {}).items():
        path = folder / name
        make_folder(path.parent)
        path.write_text(text)
    table = {
        "top": module,
        "clock": "clk_i",
        "reset": "rst_ni",
        "files": files,
        "memories": sorted(memories or {}),
        "parameters": dict(parameters),
        "inputs": [_entry(name, spec, "i", "o") for name, spec in inputs.items()],
        "outputs": [_entry(name, spec, "o", "i") for name, spec in outputs.items()],
        "frame_error": "frame_error_o" if module == "axis_in" else None,
    }
    (folder / "design.json").write_text(json.dumps(table, indent=1) + "\n")
    return folder


def _entry(name: str, spec: StreamSpec, forward: str, backward: str) -> dict[str, object]:
    entry: dict[str, object] = {
        "name": name,
        "tensor": name,
        "width": spec.width,
        "lane_bits": spec.lane_bits,
        "lanes": spec.lanes,
        "beats": spec.beats,
        "signed": spec.signed,
        "bipolar": spec.bipolar,
        "codes": None if spec.codes is None else spec.codes.name,
    }
    if "axis" not in name:
        entry["signals"] = {
            "data": f"{name}_data_{forward}",
            "valid": f"{name}_valid_{forward}",
            "ready": f"{name}_ready_{backward}",
        }
    return entry
