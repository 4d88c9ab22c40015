# SPDX-License-Identifier: Apache-2.0
"""What a comparison of all levels of a run has found: plain values, for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Stage(StrEnum):
    """A pair of levels that are compared, in order."""

    QUANTIZED = "quantized"
    INTEGERS = "integers"
    GRAPH = "graph"
    HARDWARE = "hardware"
    RTL = "rtl"


#: What each stage compares.
PAIRS = {
    Stage.QUANTIZED: ("float model", "quantized model in training"),
    Stage.INTEGERS: ("quantized model in training", "in evaluation"),
    Stage.GRAPH: ("quantized model in evaluation", "integer graph"),
    Stage.HARDWARE: ("integer graph", "hardware graph"),
    Stage.RTL: ("hardware graph", "RTL"),
}


@dataclass(frozen=True)
class First:
    """The first value that differs, in execution order and then in stream order.

    Attributes:
        layer: path of the user's layer, or "".
        node: the node or block that made the value.
        pixel: (row, column), or None in a vector.
        channel: index in the tensor.
        expected, got: both values; None for a beat that never came.
        count, total: values of this node that differ, of how many.
    """

    layer: str
    node: str
    pixel: tuple[int, int] | None
    channel: int
    expected: float
    got: float | None
    count: int
    total: int
    detail: str = ""

    def __str__(self) -> str:
        where = f"layer {self.layer or '(none)'}, node {self.node}, channel {self.channel}"
        if self.pixel is not None:
            where += f", pixel (row {self.pixel[0]}, column {self.pixel[1]})"
        got = "nothing" if self.got is None else _number(self.got)
        text = f"{where}: expected {_number(self.expected)}, got {got}"
        text += f" ({self.count} of {self.total} values of this node differ)"
        return f"{text}; {self.detail}" if self.detail else text


@dataclass(frozen=True)
class LayerRow:
    """How far two models with real values are apart behind one layer.

    Attributes:
        layer: path of the layer.
        largest: largest absolute difference, relative to ``scale``.
        scale: largest magnitude of the layer's expected values (one level between training
            and evaluation).
        differing: share of the values that differ at all.
    """

    layer: str
    largest: float
    scale: float
    differing: float


@dataclass(frozen=True)
class StageResult:
    """One pair of levels.

    Attributes:
        exact: every value must be equal.
        compared: values compared.
        first: first difference (``exact``), or first value beyond the bound.
        rows: a row a layer, where real values are compared.
        bound: what ``rows`` are held against.
        problem: why the comparison is not complete, or "".
    """

    stage: Stage
    exact: bool
    compared: int
    first: First | None
    rows: tuple[LayerRow, ...] = ()
    bound: float | None = None
    problem: str = ""

    @property
    def is_bad(self) -> bool:
        """An exact comparison has failed."""
        return (self.exact and self.first is not None) or bool(self.problem)

    def to_json(self) -> dict[str, Any]:
        expected, got = PAIRS[self.stage]
        return asdict(self) | {"stage": self.stage.value, "expected": expected, "got": got}


@dataclass(frozen=True)
class DiffReport:
    """All comparisons of one input.

    Attributes:
        source: which input.
        stages: in order; those asked for.
        said: what each level says of the input, in the words of the recipe's task.
        note: why there are fewer comparisons than were asked for; empty: there are not.
    """

    source: str
    stages: tuple[StageResult, ...] = field(default_factory=tuple)
    said: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    @property
    def bad(self) -> StageResult | None:
        """The first exact comparison that has failed."""
        return next((stage for stage in self.stages if stage.is_bad), None)

    def to_json(self) -> dict[str, Any]:
        return {
            "input": self.source,
            "equal": self.bad is None,
            "stages": [stage.to_json() for stage in self.stages],
            "said": dict(self.said),
            "note": self.note,
        }


def first_of(
    layer: str, node: str, expected: NDArray[Any], got: NDArray[Any], differs: NDArray[np.bool_]
) -> First | None:
    """The first difference of one tensor ``(H, W, C)`` or ``(C,)``, or None."""
    if not differs.any():
        return None
    at = tuple(int(i) for i in np.argwhere(differs)[0])
    return First(
        layer=layer,
        node=node,
        pixel=(at[0], at[1]) if len(at) == 3 else None,
        channel=at[-1],
        expected=expected[at].item(),
        got=got[at].item(),
        count=int(differs.sum()),
        total=int(differs.size),
    )


def equal_edges(
    stage: Stage, pairs: Iterable[tuple[str, str, NDArray[Any], NDArray[Any]]]
) -> StageResult:
    """Edges held against each other by ``==``: layer, node, expected and found values of each."""
    compared, first = 0, None
    for layer, node, want, have in pairs:
        compared += want.size
        first = first or first_of(layer, node, want, have, want != have)
    return StageResult(stage, True, compared, first)


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6g}"
