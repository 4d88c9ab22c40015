# SPDX-License-Identifier: Apache-2.0
"""The folding of a design as a value, in FINN's JSON: node name -> PE, SIMD, ram_style, resType,
...

Cycles of a matrix unit: (MH/PE) * (MW/SIMD) * vectors; PE divides MH and SIMD divides MW.
``ReuseFactor`` is another way to say it: MH*MW/(PE*SIMD). A ``Defaults`` entry gives values for
nodes that do not name them, plain or in FINN's form ``[value, ["all" or operations]]``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType

from bitwright.base.errors import RecipeError
from bitwright.base.files import atomic_write, parse_json, regular_bytes
from bitwright.hw.blocks import Block, MatVec, divisors
from bitwright.hw.dialect import MEM_MODES, MULT_STYLES, RAM_STYLES

_KEYS = {
    "PE": "pe",
    "SIMD": "simd",
    "ram_style": "ram_style",
    "resType": "res_type",
    "DspPE": "dsp_pe",
    "mem_mode": "mem_mode",
    "depth": "depth",
    "pixels": "pixels",
    "parallel_window": "parallel_window",
    "ReuseFactor": "reuse_factor",
}
_WORDS: dict[str, tuple[str, ...]] = {
    "ram_style": RAM_STYLES,
    "res_type": MULT_STYLES,
    "mem_mode": MEM_MODES,
}
_HINT = f"keys are {', '.join(_KEYS)}; nodes are those of the hardware graph, and Defaults"


@dataclass(frozen=True)
class NodeFolding:
    """The choices for one node; None where the mapper is to choose.

    Attributes:
        pe, simd: elements a cycle, out and in.
        ram_style: memory of weights or rows: auto, distributed (LUT) or block.
        res_type: multipliers: auto, lut or dsp.
        dsp_pe: of a unit with res_type dsp, so many of its PE rows multiply in DSP blocks, the
            others in LUTs; all where it is not given (our addition to FINN's keys).
        mem_mode: where weights live: ``internal_embedded``, in the unit, or ``external``, read
            from a memory on the weight port (`hw.external`).
        depth: beats of the FIFO in front of the node, instead of the computed depth; of a join,
            one number for each input.
        pixels: pixels of a window's buffer (our addition to FINN's keys).
        parallel_window: of a window: 1 gives all pixels of a window in one beat, and takes all
            channels in one (SIMD is their number); 0 one pixel after the other.
        reuse_factor: MH*MW/(PE*SIMD), instead of PE and SIMD.
    """

    pe: int | None = None
    simd: int | None = None
    ram_style: str | None = None
    res_type: str | None = None
    dsp_pe: int | None = None
    mem_mode: str | None = None
    depth: int | tuple[int, ...] | None = None
    pixels: int | None = None
    parallel_window: int | None = None
    reuse_factor: int | None = None

    @staticmethod
    def from_attrs(attrs: Mapping[str, int | str]) -> NodeFolding:
        """The choices that these attributes of a hardware node are."""
        return replace(NodeFolding(), **attrs)  # type: ignore[arg-type]

    def over(self, other: NodeFolding) -> NodeFolding:
        """These choices, completed by those of `other`."""
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(other, **{name: value for name, value in own.items() if value is not None})


@dataclass(frozen=True)
class Folding:
    """Choices by node name, and defaults as (choices, operations they apply to)."""

    nodes: Mapping[str, NodeFolding] = field(default_factory=dict)
    defaults: tuple[tuple[NodeFolding, tuple[str, ...]], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", MappingProxyType(dict(self.nodes)))

    def of(self, name: str, op: str) -> NodeFolding:
        """The choices for a node: its own, then the defaults of its operation."""
        choice = self.nodes.get(name, NodeFolding())
        for default, ops in self.defaults:
            if "all" in ops or op in ops:
                choice = choice.over(default)
        return choice

    def check_names(self, known: Iterable[str]) -> None:
        """Make sure that every entry names a node.

        Raises:
            RecipeError: an entry does not.
        """
        names = set(known)
        stray = sorted(set(self.nodes) - names)
        if stray:
            raise RecipeError(
                f"the folding names {stray}, which are no nodes of the hardware graph",
                where="folding",
                hint=f"its nodes are {', '.join(sorted(names))}",
            )

    def to_json(self) -> dict[str, object]:
        """FINN's JSON."""
        table: dict[str, object] = {"Defaults": _defaults_json(self.defaults)}
        for name, choice in sorted(self.nodes.items()):
            table[name] = _choices_json(choice)
        return table

    def save(self, path: Path) -> None:
        atomic_write(path, json.dumps(self.to_json(), indent=2) + "\n")


def _choices_json(choice: NodeFolding) -> dict[str, object]:
    pairs = ((key, getattr(choice, attr)) for key, attr in _KEYS.items())
    table = {key: value for key, value in pairs if value is not None}
    return {key: list(v) if isinstance(v, tuple) else v for key, v in table.items()}


def _defaults_json(
    defaults: tuple[tuple[NodeFolding, tuple[str, ...]], ...],
) -> dict[str, list[object]]:
    return {
        key: [value, list(ops)]
        for choice, ops in defaults
        for key, value in _choices_json(choice).items()
    }


def load_folding(path: Path) -> Folding:
    """Read a folding file.

    Raises:
        RecipeError: it cannot be read, or holds an unknown key or an impossible value.
    """
    try:
        table = parse_json(regular_bytes(path))
    except (OSError, ValueError) as error:
        raise RecipeError(
            f"cannot be read: {error}", where=str(path), hint="a folding is a JSON file"
        ) from error
    return parse_folding(table, where=str(path))


def parse_folding(table: object, *, where: str = "folding") -> Folding:
    """A folding from parsed JSON.

    Raises:
        RecipeError: an unknown key, a wrong type or an impossible value; names node and key.
    """
    if not isinstance(table, dict):
        raise RecipeError(f"expected an object, got {type(table).__name__}", where=where)
    nodes: dict[str, NodeFolding] = {}
    defaults: list[tuple[NodeFolding, tuple[str, ...]]] = []
    for name, entry in table.items():
        at = f"{where}, {name}"
        if not isinstance(entry, dict):
            raise RecipeError(f"expected an object, got {entry!r}", where=at, hint=_HINT)
        if name != "Defaults":
            nodes[name] = _parse_choices(entry, at)
            continue
        for key, given in entry.items():
            value, ops = _split_default(given, f"{at}.{key}")
            defaults.append((_parse_choices({key: value}, at), ops))
    return Folding(nodes, tuple(defaults))


def _split_default(given: object, where: str) -> tuple[object, tuple[str, ...]]:
    if not isinstance(given, list):
        return given, ("all",)
    if len(given) == 2 and isinstance(given[1], list) and all(isinstance(o, str) for o in given[1]):
        return given[0], tuple(given[1])
    raise RecipeError(f"expected a value or [value, [operations]], got {given!r}", where=where)


def _parse_choices(entry: Mapping[str, object], where: str) -> NodeFolding:
    choices: dict[str, object] = {}
    for key, value in entry.items():
        if key not in _KEYS:
            raise RecipeError(f"unknown key {key!r}", where=where, hint=_HINT)
        attr = _KEYS[key]
        if attr in _WORDS:
            if value not in _WORDS[attr]:
                raise RecipeError(
                    f"{key} must be one of {', '.join(_WORDS[attr])}, got {value!r}", where=where
                )
        elif attr == "parallel_window":
            if type(value) is not int or value not in (0, 1):
                raise RecipeError(f"{key} must be 0 or 1, got {value!r}", where=where)
        elif not (_positive(value) or (attr == "depth" and _positives(value))):
            raise RecipeError(f"{key} must be a positive integer, got {value!r}", where=where)
        choices[attr] = tuple(value) if isinstance(value, list) else value
    if "reuse_factor" in choices and ("pe" in choices or "simd" in choices):
        raise RecipeError("give either ReuseFactor or PE and SIMD, not both", where=where)
    return replace(NodeFolding(), **choices)  # type: ignore[arg-type]


def _positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _positives(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_positive, value))


def resolve_reuse(choice: NodeFolding, block: Block) -> NodeFolding:
    """PE and SIMD in place of a reuse factor: the legal pair with the largest SIMD.

    Raises:
        RecipeError: no legal pair has this reuse factor; names the nearest ones that exist.
    """
    if choice.reuse_factor is None:
        return choice
    if not isinstance(block, MatVec):
        return replace(choice, reuse_factor=None)
    rows, columns = block.matrix
    pairs = [(pe, simd) for pe in divisors(rows) for simd in divisors(columns)]
    fitting = [p for p in pairs if p[0] * p[1] * choice.reuse_factor == rows * columns]
    if not fitting:
        reuse = sorted({rows * columns // (pe * simd) for pe, simd in pairs})
        near = sorted(sorted(reuse, key=lambda r: abs(r - (choice.reuse_factor or 0)))[:4])
        raise RecipeError(
            f"no PE and SIMD give ReuseFactor {choice.reuse_factor} for {rows} x {columns} weights",
            where=f"folding, {block.name}",
            hint=f"near it are {', '.join(map(str, near))}",
        )
    pe, simd = max(fitting, key=lambda pair: pair[1])
    return replace(choice, pe=pe, simd=simd, reuse_factor=None)
