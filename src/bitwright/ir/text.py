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
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bitwright.base.archives import check_members, opened_zip, read_member, unpacking
from bitwright.base.arrays import read_npy
from bitwright.base.bounded import bounded_reader
from bitwright.base.errors import DataError, GraphError
from bitwright.base.files import atomic_write, held_size, parse_json_start
from bitwright.ir.dialect import Dialect
from bitwright.ir.footprint import check_frame
from bitwright.ir.graph import Graph, print_graph, verify
from bitwright.ir.node import Attr, IntArray, Node, array_digest, frozen
from bitwright.ir.types import MAX_NODES, TensorType, parse_type

_HEAD = re.compile(r"(?P<outputs>[\w., ]+) = (?P<name>[\w.]+):(?P<op>\w+)\((?P<inputs>[^)]*)\)")
_OLD_DIGITS = 16
_MOST_TEXT = 64 << 20
#: Of all attributes and types together: a node has some ten.
_MOST_LISTS = 2_000_000
#: Signs of a line: a type with one scale for each of 100 000 channels has 3 million.
_MOST_LINE = 4 << 20
#: Numbers of parameters that all nodes read together, where they share them.
_MOST_NUMBERS = 1 << 26
_EXPANSION = 100
#: Bytes that parameters take as 64-bit numbers, whatever the size of their file: what is made of
#: them behind the reader takes some ten times as much.
_FREE = 256 << 20
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
    if text.count("{") + text.count("[") > _MOST_LISTS:
        raise GraphError(f"more than {_MOST_LISTS} lists and tables", where=head[1])
    if len(lines) > MAX_NODES:
        raise GraphError(f"{len(lines)} lines; at most {MAX_NODES} are read", where=head[1])
    inputs: list[str] = []
    outputs: tuple[str, ...] = ()
    nodes: list[Node] = []
    types: dict[str, TensorType] = {}
    for number, line in enumerate(lines[1:], start=2):
        if len(line) > _MOST_LINE:
            said = f"{len(line)} signs; at most {_MOST_LINE} are read"
            raise GraphError(said, where=f"line {number}")
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
    _check_readers(nodes, params, head[1])
    graph = Graph(head[1], dialects[head[2]], tuple(inputs), outputs, tuple(nodes), types)
    verify(graph)
    return graph


def _read_params(archive: zipfile.ZipFile, path: Path) -> dict[str, IntArray]:
    """The arrays of a graph file, in 64 bits, by the names of its members.

    Raises:
        DataError: they take too much memory: a number of the file may have one byte.
    """
    params: dict[str, IntArray] = {}
    room = max(_FREE, _EXPANSION * held_size(path))
    for name in archive.namelist():
        if name.endswith(".npy"):
            found = read_npy(read_member(archive, name, str(path)), f"{path}:{name}")
            room -= 8 * found.size
            if room < 0:
                raise DataError("its parameters take too much memory", where=str(path))
            params[name[:-4]] = frozen(found)
    return params


def _check_readers(nodes: Sequence[Node], params: Mapping[str, IntArray], where: str) -> None:
    """Refuse many nodes with the same large parameters: each looks at all of them, many times.

    Raises:
        GraphError: there are more than a network has that shares what it likes.
    """
    read = sum(value.size for node in nodes for value in node.params.values())
    most = max(_MOST_NUMBERS, 4 * sum(value.size for value in params.values()))
    if read > most:
        raise GraphError(
            f"its nodes read {read} numbers of parameters; at most {most} are read", where=where
        )


def _parse_node(
    line: str, number: int, params: Mapping[str, IntArray]
) -> tuple[Node, list[TensorType]]:
    try:
        match, attrs, words, source, type_text = _parts(line)
        hashes = dict(item.split("=", 1) for item in words.split())
    except ValueError as error:
        raise GraphError(f"cannot read {line!r}: {error}", where=f"line {number}") from error
    unknown = sorted(digest for digest in hashes.values() if digest not in params)
    if unknown:
        raise GraphError(f"no parameter with hash {unknown}", where=f"line {number}")
    kinds = [parse_type(part) for part in type_text.split(" ; ")]
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
        source=source,
    )
    return node, kinds


def _parts(line: str) -> tuple[re.Match[str], dict[str, object], str, str, str]:
    """``OUTPUTS = NAME:OP(INPUTS)``, attributes, parameters, source and types of a node's line.

    From the left to the right, each part found once: no sign is looked at again, whatever a line
    holds (a pattern over the whole line takes time with the square of its length, or worse).

    Raises:
        ValueError: it is no such line.
    """
    head, _, rest = line.partition(" {")
    match = _HEAD.fullmatch(head)
    if match is None:
        raise ValueError("expected 'OUTPUTS = NAME:OP(INPUTS) {ATTRIBUTES} <PARAMETERS> ..'")
    attrs, end = parse_json_start("{" + rest)
    begin, words = rest[end - 1 : end + 1], rest[end + 1 :]
    words, closed, tail = words.partition("> @")
    source, colon, types = tail.partition(" : ")
    if begin != " <" or not (closed and colon and types) or ">" in words or " " in source:
        raise ValueError("expected '<PARAMETERS> @SOURCE : TYPES' behind the attributes")
    return match, attrs, words, source, types


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


@bounded_reader
def load_graph(path: Path, dialects: Mapping[str, Dialect], *, chosen: bool = False) -> Graph:
    """Inverse of `save_graph`.

    Args:
        chosen: the file is one's own, and may ask for frames as large as the machine has room for;
            see `base.memory.room_for`.

    Raises:
        DataError: the file is missing, truncated or corrupt (a parameter's hash differs).
        GraphError: its text is no graph, or one frame takes too much memory or work.
    """
    where = str(path)
    with opened_zip(path, "graph file", "make it again") as archive:
        check_members(archive, where)
        with unpacking("graph file", where, "make it again"):
            text = read_member(archive, "graph.txt", where, _MOST_TEXT).decode()
            params = _read_params(archive, path)
    for digest, value in params.items():
        # Older files have the first 16 digits, which is enough for what they are for here, to see
        # damage; the graph's own digest is made of what was read.
        found = array_digest(value)
        if digest not in (found, found[:_OLD_DIGITS]):
            raise DataError(f"parameter {digest} does not have that hash", where=str(path))
    graph = parse_graph(text, params, dialects)
    check_frame(graph, where, chosen=chosen)
    return graph
