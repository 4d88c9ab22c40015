# SPDX-License-Identifier: Apache-2.0
"""What every generated source is written with: instances, stream ports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path


def listed(items: Sequence[str], indent: int = 4) -> list[str]:
    """A line each, all but the last with a comma."""
    commas = [","] * (len(items) - 1) + [""]
    return [" " * indent + item + comma for item, comma in zip(items, commas, strict=True)]


def instance_lines(
    module: str,
    name: str,
    pins: Sequence[str],
    values: Mapping[str, object] | None = None,
    clock: str = ".clk_i(ap_clk), .rst_ni(ap_rst_n)",
) -> list[str]:
    """An instance with its parameters, if it has any."""
    head = [f"  {module} {name} ("]
    if values:
        pairs = [f".{key}({value})" for key, value in values.items()]
        head = [f"  {module} #(", *listed(pairs), f"  ) {name} ("]
    return [*head, *listed([clock, *pins]), "  );"]


def axis_ports(name: str, width: int, *, output: bool) -> list[str]:
    """Declarations of an AXI stream of the top, without commas."""
    forward, backward = ("output", "input ") if output else ("input ", "output")
    return [
        f"{forward} logic [{width - 1}:0] {name}_tdata",
        f"{forward} logic {name}_tvalid",
        f"{backward} logic {name}_tready",
        f"{forward} logic {name}_tlast",
    ]


def write_source(path: Path, text: str) -> None:
    """Write a generated source. Only comments can hold what is not ASCII: there it is escaped."""
    path.write_bytes(text.encode("ascii", "backslashreplace"))
