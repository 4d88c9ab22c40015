# SPDX-License-Identifier: Apache-2.0
"""Hardware blocks of the user's own: they stand beside those of the package once registered.

A block is a row of the hardware dialect (its type rule and reference function), a `Block` class
(timing, cost, instance), a function that says which nodes of an integer graph it takes, and the
SystemVerilog of its module. A recipe names it in ``hardware.blocks``; from Python it is given to
`register_block`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bitwright.base.errors import GraphError
from bitwright.base.plugins import load_value
from bitwright.hw.blocks import BLOCKS, Block
from bitwright.hw.dialect import HARDWARE
from bitwright.ir import Node, OpSpec, TensorType

Take = Callable[[Node, tuple[TensorType, ...]], Node | None]


@dataclass(frozen=True)
class OwnBlock:
    """A hardware block from outside the package.

    Attributes:
        spec: its row of the hardware dialect, of one input or two and one output. Its attributes
            hold ``pe`` (`hw.dialect.PE`): it is folded by channels, and at ``pe`` channels a beat.
        block: its class; the name of the operation is ``spec.name``. Without a fitted line in the
            cost model its `Block.more_cost` is what it costs.
        take: from a node of the integer graph and the types of its inputs to the node of this
            block, with the same inputs and outputs; None where the block does not do that: it must
            refuse codes and bits that its module does not read (`TensorType.is_coded`). Asked
            before the blocks of the package; of several, the one registered last is asked first.
        sources: SystemVerilog files, one module a file, of the file's name; they may use the
            modules of the library.
    """

    spec: OpSpec
    block: type[Block]
    take: Take
    sources: tuple[Path, ...] = ()


_OWN: dict[str, OwnBlock] = {}
_BUILT_IN = frozenset(BLOCKS)


def register_block(own: OwnBlock) -> None:
    """Let mapping, estimates and the emitter know a block; one of the same name is replaced.

    Raises:
        GraphError: the name is a block's of the package, it has more than two inputs or one
            output, ``pe`` is missing, or a file is not there.
    """
    name = own.spec.name
    if name in _BUILT_IN:
        raise GraphError(
            f"the name {name!r} is a block's of the package", where="register_block",
            hint="choose another name; `take` says which nodes your block does",
        )  # fmt: skip
    if "pe" not in own.spec.attrs:
        raise GraphError(
            "the block has no attribute pe", where=name, hint='attrs={"pe": PE}, from hw.dialect'
        )
    if own.spec.arity not in (1, 2) or own.spec.n_outputs != 1:
        raise GraphError(
            f"a block has one input or two and one output; this has arity={own.spec.arity}, "
            f"n_outputs={own.spec.n_outputs}",
            where=name,
            hint="split it into several blocks; a stream that is read twice gets a fork by itself",
        )
    for path in own.sources:
        if not path.is_file():
            raise GraphError(f"there is no file {path}", where=f"sources of block {name}")
    HARDWARE.extend(own.spec)
    BLOCKS[name] = own.block
    _OWN.pop(name, None)
    _OWN[name] = own


def register_named(names: Iterable[str]) -> None:
    """Register what ``package.module:name`` stand for.

    Raises:
        ModelError, RecipeError: as `named_blocks`.
        GraphError: as `register_block`.
    """
    for own in named_blocks(names):
        register_block(own)


def named_blocks(names: Iterable[str]) -> Iterator[OwnBlock]:
    """What ``package.module:name`` stand for: see `load_value`.

    Raises:
        ModelError: a module cannot be imported or has no such function.
        RecipeError: a name does not give an `OwnBlock`.
    """
    for name in names:
        yield load_value(name, "hardware.blocks", OwnBlock)


def taken(node: Node, types: tuple[TensorType, ...]) -> Node | None:
    """The node of the user's block that does this node of an integer graph; None: there is none.

    Raises:
        GraphError: the block's node has other inputs or outputs.
    """
    for own in reversed(_OWN.values()):
        found = own.take(node, types)
        if found is not None:
            if (found.inputs, found.outputs) != (node.inputs, node.outputs):
                raise GraphError(
                    f"`take` of block {own.spec.name} changed inputs or outputs: "
                    f"{found.inputs} -> {found.outputs}, not {node.inputs} -> {node.outputs}",
                    where=node.source or node.name,
                    hint="give node.inputs and node.outputs to the node of the block",
                )
            return found
    return None


def own_sources() -> dict[str, Path]:
    """Module name -> file, of all registered blocks."""
    return {path.stem: path for own in _OWN.values() for path in own.sources}
