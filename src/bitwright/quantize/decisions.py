# SPDX-License-Identifier: Apache-2.0
"""`Plan`: what the converter has decided about every node of a model."""

from __future__ import annotations

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
        """The nodes whose grids ``node`` carries: several behind concatenations."""
        source = self.source(node)
        if self.matches[source].kind is not Kind.CAT:
            return [source]
        return [leaf for part in self.matches[source].operands for leaf in self.leaves(part)]

    @property
    def output(self) -> fx.Node:
        """The node that the model returns."""
        (node,) = self.matches[self.graph.output_node()].operands
        return node

    def is_depthwise(self, node: fx.Node) -> bool:
        """Whether a node is a convolution with one group a channel."""
        layer = self.modules.get(self.matches[node].path)
        return isinstance(layer, nn.Conv2d) and layer.groups == layer.in_channels
