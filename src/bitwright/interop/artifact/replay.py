# SPDX-License-Identifier: Apache-2.0
"""Replays an integer artefact layer by layer and compares with its golden vectors: numpy alone.

``python replay.py [FOLDER]`` prints one line a layer; exit code 0: all equal, 1: a value differs,
2: a file is missing or damaged. The format is described in ``manifest.json`` under ``about``.
"""

import json
import sys
import zlib
from pathlib import Path

import numpy as np


def unpack(body, spec):
    """A parameter: ``count`` fields of ``bits`` bits, least significant bit first."""
    count, width = int(np.prod(spec["shape"])), spec["bits"]
    size = (count * width + 7) // 8
    raw = np.frombuffer(body, np.uint8, size, spec["offset"])
    bits = np.unpackbits(raw, bitorder="little")[: count * width].reshape(count, width)
    values = (bits.astype(np.int64) << np.arange(width, dtype=np.int64)).sum(axis=1)
    if spec["encoding"] == "bipolar":
        values = 2 * values - 1
    elif spec["encoding"] == "signed":
        values = np.where(bits[:, -1] == 1, values - (1 << width), values)
    return values.reshape(spec["shape"])


def windows(x, node, kernel, fill=0):
    """All windows of (N, H, W, C) as (N, OH, OW, KH, KW, C)."""
    top, left, bottom, right = node["padding"]
    x = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)), constant_values=fill)
    step_h, step_w = node.get("dilation", (1, 1))
    span = (step_h * (kernel[0] - 1) + 1, step_w * (kernel[1] - 1) + 1)
    view = np.lib.stride_tricks.sliding_window_view(x, span, axis=(1, 2))
    view = view[:, :: node["stride"][0], :: node["stride"][1], :, ::step_h, ::step_w]
    return np.moveaxis(view, 3, -1)


def conv(node, p, tensors, x):
    weight, groups = p["weight"], node["groups"]
    rows, height, width, columns = weight.shape
    view, parts, each = windows(x, node, (height, width)), [], rows // groups
    for group in range(groups):
        seen = view[..., group * columns : (group + 1) * columns]
        mine = weight[group * each : (group + 1) * each].reshape(each, -1)
        parts.append(seen.reshape(*seen.shape[:3], -1) @ mine.T)
    return np.concatenate(parts, axis=-1) + p.get("bias", 0)


def dense(node, p, tensors, x):
    return x @ p["weight"].T + p.get("bias", 0)


def threshold(node, p, tensors, x):
    x = np.where(p["flip"] == 1, -x, x) if "flip" in p else x
    count = sum((x >= column).astype(np.int64) for column in p["thresholds"].T)
    return node["base"] + node["step"] * count


def requant(node, p, tensors, x):
    shift, y = node["shift"], x * p["multiplier"] + p["offset"]
    if shift and node["rounding"] != "floor":
        half = 1 << (shift - 1)
        up = (y + half) >> shift
        tie = (y & ((1 << shift) - 1)) == half
        y = up - (tie & (up & 1 == 1)) if node["rounding"] == "half_even" else up
    else:
        y = y >> shift
    return np.clip(y, node["lo"], node["hi"])


def requant_float(node, p, tensors, x):
    """Rounded once, to an integer of `significant` significant bits."""
    y = x * p["multiplier"] + p["offset"]
    bits = np.vectorize(lambda value: int(abs(value)).bit_length(), otypes=[np.int64])(y)
    drop = np.maximum(bits - node["significant"] - node["shift"], 0)
    places = drop + node["shift"]
    unit = np.int64(1) << places
    low = y >> places
    rest = 2 * (y - low * unit)
    if node["rounding"] == "half_even":
        low = low + ((rest > unit) | ((rest == unit) & (low % 2 == 1)))
    elif node["rounding"] == "half_up":
        low = low + (rest >= unit)
    y = low << drop
    y = np.where(np.abs(y) < node["smallest"], 0, y)
    return np.clip(y, node["lo"], node["hi"])


def lookup(node, p, tensors, x):
    table, place = p["table"], x - tensors[node["inputs"][0]]["lo"]
    return table[np.arange(len(table)), place] if len(table) > 1 else table[0][place]


def max_pool(node, p, tensors, x):
    lowest = tensors[node["inputs"][0]]["lo"]
    return windows(x, node, node["kernel"], lowest).max(axis=(3, 4))


def sum_pool(node, p, tensors, x):
    return windows(x, node, node["kernel"]).sum(axis=(3, 4))


def space_to_depth(node, p, tensors, x):
    n, height, width, channels = x.shape
    b = node["block"]
    y = x.reshape(n, height // b, b, width // b, b, channels).transpose(0, 1, 3, 2, 4, 5)
    return y.reshape(n, height // b, width // b, b * b * channels)


def upsample(node, p, tensors, x):
    return x.repeat(node["factor"][0], axis=1).repeat(node["factor"][1], axis=2)


def add(node, p, tensors, a, b):
    return node["multipliers"][0] * a + node["multipliers"][1] * b


def concat(node, p, tensors, *parts):
    return np.concatenate(parts, axis=-1)


def flatten(node, p, tensors, x):
    return x.reshape(len(x), -1)


def top_k(node, p, tensors, x):
    return np.argsort(-x, axis=1, kind="stable")[:, : node["k"]]


OPERATIONS = {
    function.__name__: function
    for function in (
        *(conv, dense, threshold, requant, requant_float, lookup, max_pool, sum_pool),
        *(space_to_depth, upsample, add, concat, flatten, top_k),
    )
}


class Artifact:
    """The files of a folder, read."""

    def __init__(self, folder):
        folder = Path(folder)
        self.manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        if self.manifest["schema"] != 1:
            raise ValueError(f"schema {self.manifest['schema']}, this replays schema 1")
        self.files = {n: (folder / n).read_bytes() for n in ("params.bin", "golden.bin")}
        for name, body in self.files.items():
            if len(body) != self.manifest["bytes"][name]:
                raise ValueError(
                    f"{name}: {len(body)} bytes, {self.manifest['bytes'][name]} expected"
                )
        self.tensors = {t["name"]: t for t in self.manifest["tensors"]}

    def golden(self, name):
        """The golden levels of a tensor, (frames, *shape)."""
        tensor, frames = self.tensors[name], self.manifest["frames"]
        count = frames * int(np.prod(tensor["shape"]))
        values = np.frombuffer(self.files["golden.bin"], "<i4", count, tensor["golden"])
        return values.reshape(frames, *tensor["shape"]).astype(np.int64)

    def run(self, node, *inputs):
        """One layer on levels (N, *shape)."""
        specs = node["params"].items()
        params = {name: unpack(self.files["params.bin"], spec) for name, spec in specs}
        return OPERATIONS[node["op"]](node, params, self.tensors, *inputs)


def replay(folder, say=print):
    """Replay every layer, each on the outputs computed before it; 0 if all are equal, else 1."""
    artifact = Artifact(folder)
    values = {name: artifact.golden(name) for name in artifact.manifest["inputs"]}
    for node in artifact.manifest["nodes"]:
        found = artifact.run(node, *(values[name] for name in node["inputs"]))
        expected = artifact.golden(node["output"])
        differing = np.argwhere(found != expected)
        if len(differing):
            at = tuple(int(i) for i in differing[0])
            say(f"{node['name']} ({node['op']}): {len(differing)} of {found.size} values differ; "
                f"first at {at}: expected {expected[at]}, got {found[at]}")  # fmt: skip
            return 1
        say(f"{node['name']} ({node['op']}): {found.size} values equal")
        values[node["output"]] = found
    for name, body in artifact.files.items():  # a changed bit that these frames do not show
        if zlib.crc32(body) != artifact.manifest["crc32"][name]:
            raise ValueError(f"{name}: a checksum differs, though every value is equal")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(replay(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent))
    except (OSError, ValueError, KeyError, TypeError, IndexError) as problem:
        print(f"cannot replay: {problem!r}", file=sys.stderr)
        sys.exit(2)
