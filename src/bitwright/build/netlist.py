# SPDX-License-Identifier: Apache-2.0
"""JSON netlists of Yosys as they are read and changed: what is none is an error of the tool."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from bitwright.base.errors import ToolError
from bitwright.base.files import atomic_write, parse_json, regular_bytes

#: Bytes of a netlist; that of a design that fills the largest device has some hundred million.
_MOST_BYTES = 4 << 30


@contextmanager
def readable(netlist: Path) -> Iterator[None]:
    """Turn what is raised for a netlist that lacks something, or is none, into a `ToolError`."""
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ToolError(f"the netlist cannot be read: {error!r}", where=str(netlist)) from error


def read_modules(netlist: Path) -> dict[str, Any]:
    """The modules of a netlist.

    Raises:
        ToolError: it cannot be read.
    """
    with readable(netlist):
        modules: dict[str, Any] = parse_json(regular_bytes(netlist, _MOST_BYTES), _MOST_BYTES)[
            "modules"
        ]
        return modules


def _table(netlist: Path) -> Any:
    return parse_json(regular_bytes(netlist, _MOST_BYTES), _MOST_BYTES)


def edit_modules(netlist: Path, edit: Callable[[dict[str, Any]], int]) -> int:
    """Change each module that has cells, in the file.

    Args:
        edit: gives 0 where it has changed nothing.

    Returns:
        the sum of what it gave.

    Raises:
        ToolError: the netlist cannot be read.
    """
    with readable(netlist):
        table = _table(netlist)
        done = sum(edit(module) for module in table["modules"].values() if module.get("cells"))
        if done:
            atomic_write(netlist, json.dumps(table))
        return done


def free_nets(module: Mapping[str, Any]) -> Iterator[int]:
    """Numbers of nets that a module has no net of, one after another."""
    nets = [
        item["bits"] for part in ("ports", "netnames") for item in module.get(part, {}).values()
    ]
    for cell in module["cells"].values():
        nets += cell["connections"].values()
    return count(1 + max((bit for bits in nets for bit in bits if isinstance(bit, int)), default=1))
