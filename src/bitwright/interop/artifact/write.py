# SPDX-License-Identifier: Apache-2.0
"""Writes the integer artefact: a folder that needs nothing of Bitwright to be run and checked."""

from __future__ import annotations

import json
import subprocess
import zlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bitwright.base.errors import GraphError, MismatchError, RunError, ToolError
from bitwright.base.folders import whole_folder
from bitwright.base.memory import room_for
from bitwright.base.tools.python import python
from bitwright.interop.artifact.network_h import arena, network_h
from bitwright.interop.artifact.packing import Packed, pack
from bitwright.interop.artifact.replay import OPERATIONS
from bitwright.ir import Graph, IntArray, Node, random_feeds
from bitwright.ir.footprint import frames_within

SCHEMA = 1
SOURCES = ("replay.py", "replay.c", "replay.h")
_INT32 = 1 << 31
_TIMEOUT = 600.0

_ABOUT = {
    "numbers": "every tensor holds levels, whole numbers; real = scale * level, one scale for all "
    "channels or one each; an empty scale: the numbers are indices",
    "layout": "images are (height, width, channel), channel fastest; vectors are (channel,)",
    "weights": "convolutions (out, kernel height, kernel width, in per group), dense (out, in)",
    "params.bin": "value k of a parameter takes the bits k*bits .. (k+1)*bits - 1 after its byte "
    "offset, bit 0 the least significant of the first byte; unsigned, signed (two's complement), "
    "or bipolar (0: -1, 1: +1); values in C order of the shape",
    "golden.bin": "for each tensor at its byte offset: frames x shape, int32, little-endian",
    "operations": "replay.py and replay.c are the definition, layer by layer",
}


@dataclass(frozen=True)
class ArtifactReport:
    """What was written.

    Attributes:
        files: bytes on disk by name.
        parameters: values in params.bin.
        arena_bytes: RAM of one frame in replay.c.
        frames: golden frames.
        values: values that replay.py compared, all equal.
    """

    path: Path
    files: Mapping[str, int]
    parameters: int
    arena_bytes: int
    frames: int
    values: int


def export_artifact(
    graph: Graph,
    path: Path,
    *,
    feeds: Mapping[str, IntArray] | None = None,
    frames: int = 2,
    seed: int = 0,
    room: int | None = None,
) -> ArtifactReport:
    """Write the artefact of a graph, after ``replay.py`` has run it with equal results.

    Args:
        path: the folder; appears whole or not at all. An older artefact there is replaced.
        feeds: input levels of the golden frames; by default random ones.
        frames: how many random frames, if no feeds are given.
        room: bytes of levels that are held at a time, by default what the machine has; so many
            random frames are drawn as fit.

    Raises:
        GraphError: an operation has no form in it, a level needs more than 32 bits, or all levels
            of a frame take too much memory.
        RunError: the folder holds something else.
        MismatchError: the replay gives other values (a bug).
        ToolError: the replay cannot be run.
    """
    _check_place(path)
    _check_operations(graph)
    _check_widths(graph)
    most = room_for(chosen=True) if room is None else room
    frames = frames_within(graph, frames, most, "artifact", edges=True)
    with whole_folder(path) as folder:  # nobody else can exchange there what is run
        given = random_feeds(graph, frames, np.random.default_rng(seed)) if feeds is None else feeds
        levels = graph.run(given, edges=True)
        manifest = _write(graph, levels, folder)
        values = _replayed(folder, levels)
        sizes = {entry.name: entry.stat().st_size for entry in sorted(folder.iterdir())}
    count = sum(int(v.size) for node in graph for v in node.params.values())
    return ArtifactReport(
        path, sizes, count, 4 * int(manifest["arena_words"]), int(manifest["frames"]), values
    )


def _check_place(path: Path) -> None:
    ours = (path / "manifest.json").is_file() and (path / "replay.py").is_file()
    if path.exists() and not ours and (not path.is_dir() or any(path.iterdir())):
        raise RunError(
            "is there already and is no artefact", where=str(path), hint="name another folder"
        )


def _check_operations(graph: Graph) -> None:
    for node in graph:
        if node.op not in OPERATIONS:
            raise GraphError(
                f"{node.op} has no form in the artefact",
                where=node.name,
                hint=f"it replays {', '.join(OPERATIONS)}",
            )


def _check_widths(graph: Graph) -> None:
    for edge, kind in graph.types.items():
        if kind.lo < -_INT32 or kind.hi >= _INT32:
            raise GraphError(
                f"levels {kind.lo} .. {kind.hi} need more than 32 bits",
                where=edge,
                hint="use fewer bits or a smaller layer",
            )


def _params(graph: Graph, node: Node) -> dict[str, IntArray]:
    """The node's parameters; thresholds that cannot matter are brought next to the interval."""
    params = dict(node.params)
    if node.op == "threshold":
        kind = graph.types[node.inputs[0]]
        lo, hi = kind.lo, kind.hi
        if "flip" in params:
            lo, hi = min(lo, -hi), max(hi, -lo)
        params["thresholds"] = np.clip(params["thresholds"], lo, hi + 1)
    return params


def _write(graph: Graph, levels: Mapping[str, IntArray], folder: Path) -> dict[str, Any]:
    packed: dict[tuple[str, str], Packed] = {}
    body = bytearray()
    for node in graph:
        for name, values in _params(graph, node).items():
            part, packed[node.name, name] = pack(values, len(body))
            body += part
    golden: dict[str, int] = {}
    vectors = bytearray()
    for edge in (*graph.inputs, *(n.output for n in graph)):
        golden[edge] = len(vectors)
        vectors += np.ascontiguousarray(levels[edge]).astype("<i4").tobytes()
    frames = len(levels[graph.inputs[0]])
    files = {"params.bin": bytes(body), "golden.bin": bytes(vectors)}
    manifest = _manifest(graph, packed, golden, frames)
    manifest["bytes"] = {name: len(content) for name, content in files.items()}
    manifest["crc32"] = {name: zlib.crc32(content) for name, content in files.items()}
    files["manifest.json"] = (json.dumps(manifest, indent=1) + "\n").encode()
    files["network.h"] = network_h(graph, packed, golden, frames, bytes(body)).encode()
    for name in SOURCES:
        files[name] = (Path(__file__).parent / name).read_bytes()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return manifest


def _manifest(
    graph: Graph,
    packed: Mapping[tuple[str, str], Packed],
    golden: Mapping[str, int],
    frames: int,
) -> dict[str, Any]:
    tensors = [
        {
            "name": edge,
            "shape": kind.shape,
            "layout": "HWC" if len(kind.shape) == 3 else "C",
            "format": None if kind.format is None else kind.format.name,
            "lo": kind.lo,
            "hi": kind.hi,
            "bits": kind.wire_bits,
            "scale": kind.scale,
            "golden": golden[edge],
        }
        for edge in (*graph.inputs, *(n.output for n in graph))
        for kind in (graph.types[edge],)
    ]
    params: dict[str, dict[str, Any]] = defaultdict(dict)
    for (owner, name), where in packed.items():
        params[owner][name] = asdict(where)
    nodes = [
        {
            "name": node.name,
            "op": node.op,
            "layer": node.source,
            "inputs": node.inputs,
            "output": node.output,
            **dict(node.attrs),
            "params": params[node.name],
        }
        for node in graph
    ]
    return {
        "schema": SCHEMA,
        "about": _ABOUT,
        "name": graph.name,
        "digest": graph.digest,
        "frames": frames,
        "arena_words": arena(graph)[1],
        "inputs": graph.inputs,
        "outputs": graph.outputs,
        "tensors": tensors,
        "nodes": nodes,
    }


def _replayed(folder: Path, levels: Mapping[str, IntArray]) -> int:
    """Run the artefact's own replay.py; returns the number of values it compared."""
    command = python("-I", str(folder / "replay.py"), str(folder))
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolError(f"replay.py cannot be run: {error}") from error
    if result.returncode == 1:
        raise MismatchError(
            f"replay.py differs: {result.stdout.strip().splitlines()[-1]}", where="artefact"
        )
    if result.returncode:
        raise ToolError(f"replay.py failed: {result.stderr.strip()}", where="artefact")
    return sum(int(values.size) for values in levels.values())
