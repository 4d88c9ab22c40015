# SPDX-License-Identifier: Apache-2.0
"""``network.h``: the manifest as tables for ``replay.c``, with a place in one arena per tensor."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from zlib import crc32

from bitwright.interop.artifact.packing import Packed
from bitwright.ir import Graph, Node

_ROUNDINGS = {"half_even": 0, "half_up": 1, "floor": 2}
_PARAMS = {
    "conv": ("weight", "bias"),
    "dense": ("weight", "bias"),
    "threshold": ("thresholds", "flip"),
    "requant": ("multiplier", "offset"),
    "requant_float": ("multiplier", "offset"),
    "lookup": ("table", ""),
}


def arena(graph: Graph) -> tuple[dict[str, int], int]:
    """First word of every tensor, and the size: first fit, a place is free after the last reader.

    Outputs of the graph stay to the end.
    """
    order = [*graph.inputs, *(node.output for node in graph)]
    born = {edge: index for index, edge in enumerate(order)}
    last = dict(born)
    for index, node in enumerate(graph, start=len(graph.inputs)):
        for edge in node.inputs:
            last[edge] = index
    for edge in graph.outputs:
        last[edge] = len(order)
    for edge in graph.inputs:  # all of them are there from the beginning
        born[edge] = 0
    places: dict[str, int] = {}
    total = 0
    for edge in order:
        size = graph.types[edge].size
        living = sorted(
            (places[other], places[other] + graph.types[other].size)
            for other in places
            if last[other] >= born[edge] and born[other] <= last[edge]
        )
        start = 0
        for begin, end in living:
            if start + size <= begin:
                break
            start = max(start, end)
        places[edge] = start
        total = max(total, start + size)
    return places, total


def _attributes(node: Node, graph: Graph) -> list[int]:
    """The numbers of ``bw_node.a``; replay.c says what they mean."""
    match node.op:
        case "conv":
            height, width = node.params["weight"].shape[1:3]
            numbers = [*node.ints("stride"), *node.ints("padding"), *node.ints("dilation")]
            return [*numbers, node.integer("groups"), height * 65536 + width]
        case "threshold":
            return [node.integer("base"), node.integer("step")]
        case "requant":
            rounding = _ROUNDINGS[node.string("rounding")]
            return [node.integer("shift"), rounding, node.integer("lo"), node.integer("hi")]
        case "requant_float":
            rounding = _ROUNDINGS[node.string("rounding")]
            ends = [node.integer("lo"), node.integer("hi")]
            kept = [node.integer("significant"), node.integer("smallest")]
            return [node.integer("shift"), rounding, *ends, *kept]
        case "max_pool" | "sum_pool":
            return [*node.ints("kernel"), *node.ints("stride"), *node.ints("padding")]
        case "space_to_depth":
            return [node.integer("block")]
        case "upsample":
            return [*node.ints("factor")]
        case "add":
            return [*node.ints("multipliers")]
        case "top_k":
            return [node.integer("k")]
        case _:
            return [0]


def _rows(packed: Packed) -> tuple[int, int]:
    return packed.shape[0], prod(packed.shape[1:])


def network_h(
    graph: Graph,
    params: Mapping[tuple[str, str], Packed],
    golden: Mapping[str, int],
    frames: int,
    param_body: bytes,
) -> str:
    """The header's text.

    Args:
        params: (node, parameter) -> its place in ``params.bin``.
        golden: edge -> its byte in ``golden.bin``.
        param_body: all of ``params.bin``.
    """
    places, words = arena(graph)
    golden_bytes = 4 * frames * sum(graph.types[edge].size for edge in golden)
    edges = [*graph.inputs, *(node.output for node in graph)]
    index = {edge: k for k, edge in enumerate(edges)}
    keys = {key: k for k, key in enumerate(params)}
    tensors: list[str] = []
    nodes: list[str] = []
    inputs: list[str] = []
    for edge in edges:
        kind = graph.types[edge]
        size = kind.shape if len(kind.shape) == 3 else (1, 1, *kind.shape)
        numbers = ", ".join(map(str, (*size, kind.lo, places[edge], golden[edge])))
        tensors.append(f'  {{"{edge}", {numbers}}},')
    for node in graph:
        held = [keys.get((node.name, p), -1) for p in _PARAMS.get(node.op, ("", ""))]
        numbers = ", ".join(map(str, _attributes(node, graph)))
        nodes.append(
            f'  {{"{node.name}", BW_{node.op.upper()}, {len(inputs)}, {len(node.inputs)}, '
            f"{index[node.output]}, {{{held[0]}, {held[1]}}}, {{{numbers}}}}},"
        )
        inputs += [str(index[edge]) for edge in node.inputs]
    packed = [
        f"  {{{p.offset}, {p.bits}, BW_{p.encoding.upper()}, {_rows(p)[0]}, {_rows(p)[1]}}}, "
        f"/* {node} {name} */"
        for (node, name), p in params.items()
    ] or ["  {0, 1, BW_UNSIGNED, 1, 1},"]
    lines = [
        f"/* Generated by Bitwright from graph {graph.digest}; do not edit. */",
        f"#define BW_FRAMES {frames}",
        f"#define BW_ARENA {words} /* words of 32 bits: all that a frame needs */",
        f"#define BW_PARAM_BYTES {len(param_body)}",
        f"#define BW_PARAM_CRC32 0x{crc32(param_body):08x}u",
        f"#define BW_GOLDEN_BYTES {golden_bytes}L",
        f"#define BW_INPUTS {len(graph.inputs)}",
        f"#define BW_NODES {len(graph.nodes)}",
        "",
        "/* name, height, width, channels, lo, arena, golden */",
        "static const bw_tensor bw_tensors[] = {",
        *tensors,
        "};",
        "/* offset, bits, encoding, rows, columns */",
        "static const bw_param bw_params[] = {",
        *packed,
        "};",
        f"static const int32_t bw_inputs[] = {{{', '.join(inputs)}}};",
        "/* name, operation, first input, inputs, output, parameters, attributes */",
        "static const bw_node bw_nodes[] = {",
        *nodes,
        "};",
    ]
    return "\n".join(lines) + "\n"
