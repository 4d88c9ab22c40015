# SPDX-License-Identifier: Apache-2.0
"""`Plan`: what the converter has decided about every node of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import fx, nn

from bitwright.quantize.op_match import PASSING, Clip, Kind, OpMatch
from bitwright.quantize.spec import Layer, QuantSpec, Role


@dataclass(frozen=True)
class Operand:
    """The decision for one operand of one layer."""

    layer: Layer
    role: Role
    spec: QuantSpec | None
    reason: str


@dataclass(frozen=True)
class Problem:
    """Something that stands in the way.

    Attributes:
        match: where; None if it concerns the model as a whole.
        what: what is wrong.
        advice: what to do.
    """

    match: OpMatch | None
    what: str
    advice: str

    def __str__(self) -> str:
        place = "" if self.match is None else f"{self.match.place}: "
        return f"{place}{self.what}; {self.advice}"


@dataclass
class Plan:
    """All decisions about one model.

    Attributes:
        graph: the traced graph, its chains of views made simple.
        matches: one a node, in execution order.
        modules: the model's modules by path.
        weights: decision for each conv and linear node.
        biases: the same for their biases, where there is one.
        activations: decision for each node whose output is quantized (activations, the input, and
            other nodes that feed a layer, a sum, a concatenation or an average without an
            activation in between).
        clips: the interval kept by each of those.
        groups: nodes of ``activations`` that share one scale.
        readers: nodes that take quantized operands.
        joins: what becomes of sums, concatenations and averages; for `explain`.
    """

    graph: fx.Graph
    matches: dict[fx.Node, OpMatch]
    modules: dict[str, nn.Module]
    weights: dict[fx.Node, Operand] = field(default_factory=dict)
    biases: dict[fx.Node, Operand] = field(default_factory=dict)
    activations: dict[fx.Node, Operand] = field(default_factory=dict)
    clips: dict[fx.Node, Clip | None] = field(default_factory=dict)
    groups: list[list[fx.Node]] = field(default_factory=list)
    readers: set[fx.Node] = field(default_factory=set)
    joins: dict[fx.Node, Operand] = field(default_factory=dict)

    def source(self, node: fx.Node) -> fx.Node:
        """The node whose grid ``node`` carries: upstream through pools, flatten and dropout."""
        while node in self.matches and self.matches[node].kind in PASSING:
            node = self.matches[node].operands[0]
        return node

    def leaves(self, node: fx.Node) -> list[fx.Node]:
        """The nodes whose grids ``node`` carries, each once: several behind concatenations."""
        found: dict[
            fx.Node, bool
        ] = {}  # whether it is one; each is followed once, whatever reads it
        waiting = [node]
        while waiting:
            source = self.source(waiting.pop())
            if source in found:
                continue
            found[source] = self.matches[source].kind is not Kind.CAT
            if not found[source]:
                waiting += reversed(self.matches[source].operands)
        return [source for source, is_leaf in found.items() if is_leaf]

    def is_read_by(self, node: fx.Node, wanted: Callable[[fx.Node], bool]) -> bool:
        """Whether something for which ``wanted`` holds reads a node, or what passes through others
        behind it unchanged.
        """
        waiting = [*node.users]
        while waiting:
            user = waiting.pop()
            if wanted(user):
                return True
            if user in self.matches and self.matches[user].kind in PASSING:
                waiting += user.users
        return False

    @property
    def output(self) -> fx.Node:
        """The node that the model returns."""
        (node,) = self.matches[self.graph.output_node()].operands
        return node

    def is_depthwise(self, node: fx.Node) -> bool:
        """Whether a node is a convolution with one group a channel."""
        layer = self.modules.get(self.matches[node].path)
        return isinstance(layer, nn.Conv2d) and layer.groups == layer.in_channels
