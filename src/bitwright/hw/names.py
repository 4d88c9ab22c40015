# SPDX-License-Identifier: Apache-2.0
"""SystemVerilog identifiers from names of nodes and edges."""

from __future__ import annotations

from collections.abc import Iterable

from bitwright.base.names import NameCounter, plain_word
from bitwright.ir import Graph

# The reserved words that a network's author could plausibly use as a name.
_RESERVED = frozenset(
    """
    alias always and assert assign assume automatic before begin bind bins bit break buf byte
    case cell chandle checker class clocking config const constraint context continue cover
    cross deassign default define defparam design disable dist do edge else end endmodule enum
    event expect export extends extern final first_match for force foreach forever fork function
    generate genvar global highz if iff ifnone import include initial inout input inside
    instance int integer interconnect interface intersect join large let library local
    localparam logic longint macromodule matches medium modport module nand negedge nettype new
    nexttime nmos nor not null or output package packed parameter pmos posedge primitive
    priority program property protected pull pulldown pullup pulsestyle pure rand randc randcase
    real realtime ref reg reject release repeat restrict return scalared sequence shortint
    shortreal signed small soft solve specify static string strong struct super supply table
    tagged task then this throughout time timeprecision timescale timeunit tran tri trigger type
    typedef union unique unsigned until use uwire var vectored virtual void wait weak while
    wildcard wire with within wor xnor xor
    """.split()
)


def identifier(name: str) -> str:
    """A legal identifier that reads like the name."""
    text = plain_word(name)
    if not text or not (text[0].isalpha() or text[0] == "_"):
        text = f"n{text}"
    return f"{text}_" if text in _RESERVED else text


def identifiers(names: Iterable[str], taken: Iterable[str] = ()) -> dict[str, str]:
    """Distinct identifiers for distinct names, in order; none of `taken`."""
    used, counter = set(taken), NameCounter()
    result: dict[str, str] = {}
    for name in names:
        result[name] = counter.free(identifier(name), used)
        used.add(result[name])
    return result


def instance_names(graph: Graph) -> dict[str, str]:
    """Node -> instance in the RTL: ``i_`` and the node's name."""
    return {name: f"i_{text}" for name, text in identifiers(n.name for n in graph).items()}
