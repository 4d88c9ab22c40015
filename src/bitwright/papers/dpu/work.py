# SPDX-License-Identifier: Apache-2.0
"""What the time of a fused node depends on: shapes and numbers of bytes, without its weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from bitwright.papers.dpu.nodes import FREE, FusedNode, Kind, image_of

Image = tuple[int, int, int]


@dataclass(frozen=True)
class Work:
    """One fused node that takes time.

    Attributes:
        inputs, output: height, width, channels; of several inputs the channels add up.
        window: height and width of the kernel.
        weights: bytes of weights and biases.
        macs: multiply-accumulates of one image.
    """

    name: str
    kind: Kind
    inputs: Image
    output: Image
    window: tuple[int, int]
    weights: int
    macs: int

    @property
    def features(self) -> int:
        """Bytes of the maps that it reads and writes."""
        (h, w, c), (oh, ow, oc) = self.inputs, self.output
        return h * w * c + oh * ow * oc

    @property
    def bytes(self) -> int:
        """All that it moves."""
        return self.weights + self.features

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def work_of(nodes: Iterable[FusedNode]) -> tuple[Work, ...]:
    """The work of fused nodes; joins and reshapes are a matter of addresses, they take no time."""
    return tuple(_work(node) for node in nodes if node.kind not in FREE)


def _work(node: FusedNode) -> Work:
    images = [image_of(kind) for kind in node.inputs]
    height, width, _ = images[0]
    channels = sum(c for _, _, c in images)
    return Work(
        name=node.name,
        kind=node.kind,
        inputs=(height, width, channels),
        output=image_of(node.output),
        window=node.window,
        weights=node.weights,
        macs=node.macs,
    )


def work_from_json(given: Mapping[str, Any]) -> Work:
    """The inverse of `Work.to_json`."""
    height, width, channels = given["inputs"]
    out_height, out_width, out_channels = given["output"]
    rows, columns = given["window"]
    return Work(
        name=str(given["name"]),
        kind=Kind(given["kind"]),
        inputs=(height, width, channels),
        output=(out_height, out_width, out_channels),
        window=(rows, columns),
        weights=int(given["weights"]),
        macs=int(given["macs"]),
    )
