# SPDX-License-Identifier: Apache-2.0
"""A dialect is one table of operations: verifier, interpreter and documentation all read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from types import MappingProxyType

from bitwright.base.errors import GraphError
from bitwright.ir.node import Attr, IntArray, Node
from bitwright.ir.types import TensorType

TypeRule = Callable[[Node, tuple[TensorType, ...]], tuple[TensorType, ...]]
Reference = Callable[[Node, tuple[TensorType, ...], tuple[IntArray, ...]], tuple[IntArray, ...]]


@dataclass(frozen=True)
class AttrSpec:
    """One attribute of an operation.

    Attributes:
        default: of an attribute that may be left out.
        words: of a string with a few values, these.
        count: of a list, how many there are; None: as many as its rule takes.
    """

    kind: str
    meaning: str
    default: Attr | None = None
    words: tuple[str, ...] = ()
    count: int | None = None


@dataclass(frozen=True)
class ParamSpec:
    """One array of an operation: its shape in words and whether it may be absent."""

    shape: str
    meaning: str
    optional: bool = False


@dataclass(frozen=True)
class OpSpec:
    """One row of a dialect's table.

    Attributes:
        name: the operation's name.
        meaning: one line.
        arity: number of inputs; None for two or more.
        infer: type rule; raises GraphError with the reason a node is illegal.
        reference: numpy definition on ``(N, *shape)`` int64 levels.
    """

    name: str
    meaning: str
    arity: int | None
    infer: TypeRule
    reference: Reference
    attrs: Mapping[str, AttrSpec] = field(default_factory=dict)
    params: Mapping[str, ParamSpec] = field(default_factory=dict)
    n_outputs: int = 1


#: What Python and numpy raise for attributes and parameters that contradict each other.
_MALFORMED = (LookupError, ValueError, TypeError, ArithmeticError)


def _whole(value: object) -> bool:
    """An integer of 64 bits."""
    return isinstance(value, int) and -(1 << 63) <= value < 1 << 63


def _real(value: object) -> bool:
    return _whole(value) or (isinstance(value, float) and isfinite(value))


_KINDS: dict[str, Callable[[object], bool]] = {
    "int": lambda v: _whole(v) and not isinstance(v, bool),
    "str": lambda v: isinstance(v, str),
    "bool": lambda v: isinstance(v, bool),
    "ints": lambda v: isinstance(v, tuple) and all(map(_whole, v)),
    "floats": lambda v: isinstance(v, tuple) and all(map(_real, v)),
}


@dataclass(frozen=True)
class Dialect:
    """A named table of operations."""

    name: str
    ops: Mapping[str, OpSpec]

    def __post_init__(self) -> None:
        object.__setattr__(self, "ops", MappingProxyType(dict(self.ops)))

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dialect) and self.name == other.name

    def spec(self, node: Node) -> OpSpec:
        """The table row of a node.

        Raises:
            GraphError: the dialect has no such operation.
        """
        if node.op not in self.ops:
            raise GraphError(
                f"unknown operation {node.op!r} in dialect {self.name}; it has {sorted(self.ops)}",
                where=node.name,
            )
        return self.ops[node.op]

    def extend(self, spec: OpSpec) -> None:
        """Add an operation from outside the package, or replace the one of that name."""
        object.__setattr__(self, "ops", MappingProxyType({**self.ops, spec.name: spec}))

    def complete(self, node: Node) -> Node:
        """The node with the defaults of all attributes that were left out."""
        spec = self.spec(node)
        missing = {
            name: attr.default
            for name, attr in spec.attrs.items()
            if name not in node.attrs and attr.default is not None
        }
        return replace(node, attrs={**node.attrs, **missing}) if missing else node

    def infer(self, node: Node, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        """Check a node against its row and derive the types of its outputs.

        Raises:
            GraphError: wrong arity, attributes, parameters or input types.
        """
        spec = self.spec(node)
        fits = len(node.inputs) >= 2 if spec.arity is None else len(node.inputs) == spec.arity
        if not fits or len(node.outputs) != spec.n_outputs:
            takes = "two or more" if spec.arity is None else spec.arity
            raise GraphError(
                f"{node.op} takes {takes} inputs and gives {spec.n_outputs} outputs, got "
                f"{len(node.inputs)} and {len(node.outputs)}",
                where=node.name,
            )
        _check_attrs(spec, node)
        _check_params(spec, node)
        try:
            return spec.infer(node, inputs)
        except GraphError as error:
            if error.where is None:
                error.where = node.name
            raise
        except _MALFORMED as error:
            # Too few numbers in an attribute, a parameter of the wrong rank: rules do not ask.
            raise GraphError(
                f"attributes {dict(node.attrs)} and parameters of shapes "
                f"{ {name: value.shape for name, value in node.params.items()} } make no "
                f"{node.op}: {error}"[:400],
                where=node.name,
            ) from error

    def documentation(self) -> str:
        """The table as Markdown; ``docs/dialects.md`` is generated from it."""
        lines = [f"## Dialect `{self.name}`", "", "| op | attributes | parameters | meaning |"]
        lines.append("|---|---|---|---|")
        for spec in self.ops.values():
            attrs = "; ".join(f"`{n}` ({a.kind}): {a.meaning}" for n, a in spec.attrs.items())
            params = "; ".join(
                f"`{n}` {p.shape}{' (optional)' if p.optional else ''}: {p.meaning}"
                for n, p in spec.params.items()
            )
            lines.append(f"| `{spec.name}` | {attrs} | {params} | {spec.meaning} |")
        return "\n".join(lines) + "\n"


def _check_attrs(spec: OpSpec, node: Node) -> None:
    unknown = sorted(set(node.attrs) - set(spec.attrs))
    absent = sorted(set(spec.attrs) - set(node.attrs))
    if unknown or absent:
        raise GraphError(
            f"{node.op} has attributes {sorted(spec.attrs)}; unknown {unknown}, missing {absent}",
            where=node.name,
        )
    for name, attr in spec.attrs.items():
        if not _KINDS[attr.kind](node.attrs[name]):
            raise GraphError(
                f"attribute {name} of {node.op} must be {attr.kind}, got {node.attrs[name]!r}",
                where=node.name,
            )
        if attr.count is not None and len(node.attrs[name]) != attr.count:  # type: ignore[arg-type]
            raise GraphError(
                f"{name} of {node.op} has {attr.count} numbers, got {node.attrs[name]!r}",
                where=node.name,
            )
        if attr.words and node.attrs[name] not in attr.words:
            raise GraphError(
                f"{name} must be one of {', '.join(attr.words)}, got {node.attrs[name]!r}",
                where=node.name,
            )


def _check_params(spec: OpSpec, node: Node) -> None:
    unknown = sorted(set(node.params) - set(spec.params))
    absent = sorted(n for n, p in spec.params.items() if not p.optional and n not in node.params)
    if unknown or absent:
        raise GraphError(
            f"{node.op} has parameters {sorted(spec.params)}; unknown {unknown}, missing {absent}",
            where=node.name,
        )
