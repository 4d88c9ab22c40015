# SPDX-License-Identifier: Apache-2.0
"""Graphs as text and as files: print -> parse and save -> load give equal graphs.

Text, one node a line::

    graph digits integer
    input x : uint4[8,8,1] * 0x1p-4 in [0,15]
    conv1 = conv(x) {"groups": 1, ...} <weight=0f3a...> @features.0 : int[8,8,8] * 0x1p-6 in [-9,12]
    output scores label

A file is a zip of that text and one ``.npy`` per parameter, named by content hash.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bitwright.base.archives import check_members, opened_zip, read_member, unpacking
from bitwright.base.arrays import read_npy
from bitwright.base.errors import DataError, GraphError
from bitwright.base.files import atomic_write, parse_json
from bitwright.ir.dialect import Dialect
from bitwright.ir.graph import Graph, print_graph, verify
from bitwright.ir.node import Attr, IntArray, Node, array_digest
from bitwright.ir.types import TensorType, parse_type

_NODE = re.compile(
    r"^(?P<outputs>[\w., ]+) = (?P<name>[\w.]+):(?P<op>\w+)\((?P<inputs>[^)]*)\) "
    r"(?P<attrs>\{.*\}) <(?P<params>[^>]*)> @(?P<source>\S*) : (?P<types>.+)$"
)
_MOST_TEXT = 64 << 20
_EPOCH = (1980, 1, 1, 0, 0, 0)


def parse_graph(
    text: str, params: Mapping[str, IntArray], dialects: Mapping[str, Dialect]
) -> Graph:
    """Inverse of `print_graph`.

    Args:
        params: content hash -> array.
        dialects: name -> dialect.

    Raises:
        GraphError: the text is malformed or names an unknown dialect or parameter.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    head = lines[0].split() if lines else []
    if len(head) != 3 or head[0] != "graph" or head[2] not in dialects:
        raise GraphError(f"expected 'graph NAME DIALECT' with {sorted(dialects)}, got {head}")
    inputs: list[str] = []
    outputs: tuple[str, ...] = ()
    nodes: list[Node] = []
    types: dict[str, TensorType] = {}
    for number, line in enumerate(lines[1:], start=2):
        if line.startswith("input "):
            edge, _, type_text = line[6:].partition(" : ")
            inputs.append(edge)
            types[edge] = parse_type(type_text)
        elif line.startswith("output "):
            outputs = tuple(line[7:].split())
        else:
            node, node_types = _parse_node(line, number, params)
            nodes.append(node)
            types.update(zip(node.outputs, node_types, strict=True))
    graph = Graph(head[1], dialects[head[2]], tuple(inputs), outputs, tuple(nodes), types)
    verify(graph)
    return graph


def _parse_node(
    line: str, number: int, params: Mapping[str, IntArray]
) -> tuple[Node, list[TensorType]]:
    match = _NODE.match(line)
    if match is None:
        raise GraphError(f"cannot read {line!r}", where=f"line {number}")
    try:
        hashes = dict(item.split("=", 1) for item in match["params"].split())
        attrs = parse_json(match["attrs"])
    except ValueError as error:
        raise GraphError(f"cannot read {line!r}: {error}", where=f"line {number}") from error
    unknown = sorted(set(hashes.values()) - set(params))
    if unknown:
        raise GraphError(f"no parameter with hash {unknown}", where=f"line {number}")
    kinds = [parse_type(part) for part in match["types"].split(" ; ")]
    outputs = tuple(match["outputs"].split(", "))
    if len(kinds) != len(outputs):
        raise GraphError(
            f"has {len(outputs)} outputs and {len(kinds)} types", where=f"line {number}"
        )
    node = Node(
        name=match["name"],
        op=match["op"],
        inputs=tuple(edge for edge in match["inputs"].split(", ") if edge),
        outputs=outputs,
        attrs={name: _attr(value) for name, value in attrs.items()},
        params={name: params[digest] for name, digest in hashes.items()},
        source=match["source"],
    )
    return node, kinds


def _attr(value: object) -> Attr:
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, int | float | str | bool):
        return value
    raise GraphError(f"attributes are numbers, strings or lists of them, got {value!r}")


def save_graph(graph: Graph, path: Path) -> None:
    """Write a graph to one file, atomically and reproducibly (equal graphs, equal bytes)."""
    arrays = {node.digests[name]: value for node in graph for name, value in node.params.items()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        _add(archive, "graph.txt", print_graph(graph).encode())
        for digest, value in sorted(arrays.items()):
            body = io.BytesIO()
            np.save(body, value, allow_pickle=False)
            _add(archive, f"{digest}.npy", body.getvalue())
    atomic_write(path, buffer.getvalue())


def _add(archive: zipfile.ZipFile, name: str, body: bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name, _EPOCH), body, zipfile.ZIP_DEFLATED)


def load_graph(path: Path, dialects: Mapping[str, Dialect]) -> Graph:
    """Inverse of `save_graph`.

    Raises:
        DataError: the file is missing, truncated or corrupt (a parameter's hash differs).
    """
    where = str(path)
    with opened_zip(path, "graph file", "make it again") as archive:
        check_members(archive, where)
        with unpacking("graph file", where, "make it again"):
            text = read_member(archive, "graph.txt", where, _MOST_TEXT).decode()
            params = {
                name[:-4]: read_npy(read_member(archive, name, where), f"{where}:{name}")
                for name in archive.namelist()
                if name.endswith(".npy")
            }
    for digest, value in params.items():
        if array_digest(value) != digest:
            raise DataError(f"parameter {digest} does not have that hash", where=str(path))
    return parse_graph(text, params, dialects)
