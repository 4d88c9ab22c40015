# SPDX-License-Identifier: Apache-2.0
"""A partition -> one design folder a device, and one that has all of them, for simulation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bitwright.base.errors import GraphError
from bitwright.base.files import atomic_write
from bitwright.base.folders import make_folder, whole_folder
from bitwright.base.version import __version__
from bitwright.hw.names import identifier
from bitwright.hw.partition import Partition
from bitwright.rtl.emit import emit
from bitwright.rtl.emit_top import FRAME_ERROR
from bitwright.rtl.text import axis_ports, instance_lines, listed, write_source

PARTITION = "partition.json"
CHAIN = "chain"


def emit_partition(partition: Partition, out_dir: Path, *, family: str, clock_hz: float) -> Path:
    """Write ``part0``, ``part1``, ... (design folders as `emit` writes them) and partition.json;
    the folder is whole or not there.

    If no part has a memory port there is also ``chain``: a design folder whose top wires the parts
    together by their links, to simulate the whole.

    Returns:
        the path of partition.json: parts, resources, links with bandwidth, interval.

    Raises:
        MismatchError: as `emit`.
        OSError: the folder cannot be written.
    """
    with whole_folder(out_dir) as place:
        table = _write(partition, place, family, clock_hz)
        atomic_write(place / PARTITION, json.dumps(table, indent=2) + "\n")
    return out_dir / PARTITION


def _write(partition: Partition, out_dir: Path, family: str, clock_hz: float) -> dict[str, object]:
    """Write all design folders; the contents of partition.json."""
    folders = [out_dir / f"part{number}" for number in range(len(partition.parts))]
    for folder, part in zip(folders, partition.parts, strict=True):
        emit(part, folder)
    tables = [_design(folder) for folder in folders]
    chained = not any(table["memory_ports"] for table in tables)
    if chained:
        emit_chain(partition, folders, out_dir / CHAIN)
    used = partition.resources(family)
    return {
        "network": partition.whole.name,
        "interval": partition.interval,
        "clock_mhz": clock_hz / 1e6,
        "frames_per_s": clock_hz / partition.interval,
        "source": "model",
        "parts": [
            {
                "folder": folder.name,
                "top": design["top"],
                "interval": design["predicted"]["interval"],
                "resources": cost.to_json(),
                "inputs": [port["tensor"] for port in design["inputs"]],
                "outputs": [port["tensor"] for port in design["outputs"]],
            }
            for folder, design, cost in zip(folders, tables, used, strict=True)
        ],
        "links": [link.to_json(partition.interval, clock_hz) for link in partition.links],
        "chain": CHAIN if chained else None,
        "version": __version__,
    }


def _design(folder: Path) -> dict[str, Any]:
    table: dict[str, Any] = json.loads((folder / "design.json").read_text(encoding="utf-8"))
    return table


def emit_chain(partition: Partition, folders: Sequence[Path], out_dir: Path) -> Path:
    """One design folder with all parts in it and a top that wires them as the devices would be.

    Returns:
        the path of its design.json.
    """
    with whole_folder(out_dir) as folder:
        designs = [_design(part) for part in folders]
        for part, design in zip(folders, designs, strict=True):
            for name in (*design["files"], *design["memories"]):
                _copy(part / name, folder / name)
        top = f"{identifier(partition.whole.name)}_chain"
        ends = _Ends(partition, designs)
        write_source(folder / f"{top}.sv", _chain_text(top, designs, ends))
        table = _chain_design(top, designs, ends, partition.interval)
        (folder / "design.json").write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
    return out_dir / "design.json"


def _copy(source: Path, target: Path) -> None:
    """Copy a file; two parts may have the same one, but not two of the same name.

    Raises:
        GraphError: they have.
    """
    data = source.read_bytes()
    if target.exists() and target.read_bytes() != data:
        raise GraphError("two parts have different files of this name", where=str(source))
    make_folder(target.parent)
    target.write_bytes(data)


class _Ends:
    """Signals of the chain: the prefix of every port of every part, and the ports of the top."""

    def __init__(self, partition: Partition, designs: Sequence[Mapping[str, Any]]) -> None:
        self.inputs: list[dict[str, Any]] = []
        self.outputs: list[dict[str, Any]] = []
        self.links: list[dict[str, Any]] = []
        self._prefix: dict[tuple[str, str], str] = {}  # (tensor, side) -> prefix
        made = {p["tensor"]: p for design in designs for p in design["outputs"]}
        read = {p["tensor"]: p for design in designs for p in design["inputs"]}
        for number, link in enumerate(partition.links):
            name = f"link_{number}"
            self._prefix[link.edge, "out"] = self._prefix[link.edge, "in"] = name
            self.links.append({**made[link.edge], "name": name})
        for number, edge in enumerate(partition.whole.inputs):
            self._prefix[edge, "in"] = f"s_axis_{number}"
            self.inputs.append({**read[edge], "name": f"s_axis_{number}"})
        for number, edge in enumerate(partition.whole.outputs):
            self._prefix[edge, "out"] = f"m_axis_{number}"
            self.outputs.append({**made[edge], "name": f"m_axis_{number}"})

    def pins(self, port: Mapping[str, Any], side: str) -> list[str]:
        prefix = self._prefix[port["tensor"], side]
        return [f".{port['name']}_t{s}({prefix}_t{s})" for s in ("data", "valid", "ready", "last")]


def _chain_text(top: str, designs: Sequence[Mapping[str, Any]], ends: _Ends) -> str:
    lines = [
        "// SPDX-License-Identifier: Apache-2.0",
        f"// Generated by Bitwright {__version__}: {len(designs)} parts, wired as on devices.",
        "// Do not edit.",
        "`default_nettype none",
        f"module {top} (",
    ]
    ports = ["input  logic ap_clk", "input  logic ap_rst_n"]
    for output, side in enumerate((ends.inputs, ends.outputs)):
        for port in side:
            ports += axis_ports(port["name"], port["width"], output=bool(output))
    flags = sum(len(design["inputs"]) for design in designs)
    lines += [*listed([*ports, f"output logic [{flags - 1}:0] {FRAME_ERROR}"], 2), ");"]
    for link in ends.links:
        name = link["name"]
        lines.append(f"  logic {name}_tvalid, {name}_tready, {name}_tlast;")
        lines.append(f"  logic [{link['width'] - 1}:0] {name}_tdata;")
    flag = 0
    for number, design in enumerate(designs):
        pins = [pin for port in design["inputs"] for pin in ends.pins(port, "in")]
        pins += [pin for port in design["outputs"] for pin in ends.pins(port, "out")]
        count = len(design["inputs"])
        pins.append(f".{FRAME_ERROR}({FRAME_ERROR}[{flag} +: {count}])")
        flag += count
        part = instance_lines(design["top"], f"i_part{number}", pins, clock=".ap_clk, .ap_rst_n")
        lines += ["", *part]
    return "\n".join([*lines, "endmodule", "`default_nettype wire", ""])


def _chain_design(
    top: str, designs: Sequence[Mapping[str, Any]], ends: _Ends, interval: int
) -> dict[str, object]:
    files = {name: None for design in designs for name in design["files"]}
    fifos = [
        {**fifo, "instance": f"i_part{number}.{fifo['instance']}"}
        for number, design in enumerate(designs)
        for fifo in design["fifos"]
    ]
    return {
        "top": top,
        "clock": "ap_clk",
        "reset": "ap_rst_n",
        "files": [f"{top}.sv", *files],
        "memories": [name for design in designs for name in design["memories"]],
        "inputs": ends.inputs,
        "outputs": ends.outputs,
        "frame_error": FRAME_ERROR,
        "fifos": fifos,
        "memory_ports": [],
        "version": __version__,
        "predicted": {"interval": interval},
    }
