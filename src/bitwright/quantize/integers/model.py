# SPDX-License-Identifier: Apache-2.0
"""`IntegerModel`: an integer graph as a torch module, real inputs to real scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from bitwright.base.errors import ModelError
from bitwright.formats import Format, Rounding
from bitwright.formats.pytorch.rounding import encode_levels
from bitwright.ir import Graph, IntArray
from bitwright.ir.executor import Executor
from bitwright.quantize.integers.affine import SCORES, AffineValue
from bitwright.quantize.integers.torch_executor import TorchExecutor, in_graph_layout

#: Smallest array types first.
_SIGNALS = 3  # axes of a batch
_ARRAYS = (torch.uint8, torch.int8, torch.int16, torch.int32)


class IntegerModel(nn.Module):
    """A network of exact integers between real inputs and real scores; it has no parameters.

    On a CPU the compiled executor runs it, elsewhere torch; both give the integers of `Graph.run`.

    Args:
        graph: with one input; its outputs are ``scores`` and, of a classifier, ``label``.
        rounding: from real inputs to levels; format and scale are those of the input's type.
        values: what the nodes of the model that it was made from are; for `node_values`.

    Attributes:
        graph: the `bitwright.ir.Graph`: the definition.
    """

    def __init__(
        self,
        graph: Graph,
        rounding: Rounding = Rounding.HALF_EVEN,
        values: Mapping[fx.Node, AffineValue] | None = None,
    ) -> None:
        super().__init__()
        self.graph, self.rounding = graph, rounding
        self.values = {node.name: value for node, value in (values or {}).items()}
        self._torch = TorchExecutor(graph)
        self._executors: dict[int, Executor] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> IntegerModel:
        made = IntegerModel(self.graph, self.rounding)  # a graph never changes
        made.values = self.values
        return made.train(self.training)

    @property
    def input_format(self) -> Format:
        """The format of the input's levels."""
        found = self.graph.types[self.graph.inputs[0]].format
        if found is None:
            raise ModelError("the graph's input has no format", where=self.graph.name)
        return found

    @property
    def score_scale(self) -> float:
        """Real value of one level of the scores.

        Raises:
            ModelError: the scores are an image with one scale a channel.
        """
        scale = self.graph.types[SCORES].scale
        if len(scale) > 1:
            raise ModelError("the scores have a scale per channel, not one")
        return float(scale[0])

    @torch.no_grad()
    def input_levels(self, x: Tensor) -> Tensor:
        """Real inputs (N, C, H, W), (N, C, L) or (N, C) -> levels, float64; of a signal those of
        the image of one row that it is.

        Raises:
            ModelError: another shape.
        """
        kind = self.graph.types[self.graph.inputs[0]]
        expected = (kind.shape[-1], *kind.shape[:-1])
        if x.dim() == _SIGNALS and kind.shape[:-2] == (1,):
            x = x.unsqueeze(2)
        if tuple(x.shape[1:]) != expected:
            raise ModelError(
                f"expected samples of shape {expected}, got {tuple(x.shape[1:])}",
                where=self.graph.name,
            )
        number_format = self.input_format
        scale = kind.scale[0] / number_format.lsb
        return encode_levels(x, number_format, scale, rounding=self.rounding)

    def levels(self, x: Tensor) -> Tensor:
        """The scores of real inputs as integers, int64: (N, classes) or (N, C, H, W)."""
        levels = self.input_levels(x)
        if levels.device.type != "cpu":
            return self._torch.run(levels)[SCORES].to(torch.int64)
        threads = torch.get_num_threads()
        if threads not in self._executors:
            self._executors[threads] = Executor(self.graph, threads)
        found = self._executors[threads](self._array(levels))
        scores = torch.from_numpy(found[SCORES])
        return scores.permute(0, 3, 1, 2) if scores.dim() == 4 else scores

    def _array(self, levels: Tensor) -> IntArray:
        """Levels as the executor takes them: channels last, in the smallest type."""
        kind = self.graph.types[self.graph.inputs[0]]
        fits = (
            t for t in _ARRAYS if torch.iinfo(t).min <= kind.lo and kind.hi <= torch.iinfo(t).max
        )
        whole = levels.to(next(fits, torch.int64))
        whole = whole.permute(0, 2, 3, 1) if whole.dim() == 4 else whole
        return np.ascontiguousarray(whole.numpy())

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(x).to(torch.float32)

    def scores(self, x: Tensor) -> Tensor:
        """The scores of real inputs, float64."""
        found = self.real(SCORES, self.levels(x))
        return found.squeeze(2) if x.dim() == _SIGNALS and found.dim() > _SIGNALS else found

    def real(self, edge: str, levels: Tensor) -> Tensor:
        """Levels of an edge, channels on axis 1, as the reals they stand for, float64."""
        scale = self.graph.types[edge].scale
        wide = levels.to(torch.float64)
        if len(scale) == 1:
            return wide * scale[0]
        rows = torch.tensor(scale, dtype=torch.float64, device=levels.device)
        return wide * rows.view(1, -1, *(1,) * (levels.dim() - 2))

    def edges(self, x: Tensor) -> dict[str, IntArray]:
        """The levels of every edge for real inputs, in the graph's layout."""
        return in_graph_layout(self._torch.run(self.input_levels(x)))

    @torch.no_grad()
    def node_values(self, x: Tensor) -> dict[str, Tensor]:
        """The exact value of every node of the converted model that is an edge of the graph: its
        integers as the reals they stand for, float64, in torch's order of channels.

        Args:
            x: real inputs.

        Returns:
            By the node's name. Nodes that are no edge (a batch norm, what waits behind it) are
            missing: their values follow from the others.
        """
        edges = self._torch.run(self.input_levels(x))
        found = {}
        for name, value in self.values.items():
            if not value.settled or not value.edge:
                continue
            levels = edges[value.edge].to(torch.float64)
            if value.order is not None:
                inverse = torch.from_numpy(np.argsort(value.order)).to(levels.device)
                levels = levels.index_select(1, inverse)
            levels = levels.reshape(len(levels), *value.shape)
            found[name] = levels * _rows(value.gain, levels) + _rows(value.offset, levels)
        return found

    def extra_repr(self) -> str:
        return f"{self.graph.name}, {len(self.graph.nodes)} operations"


def _rows(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]], like: Tensor) -> Tensor:
    """(C,) or (1,) shaped to broadcast over channels on axis 1."""
    rows = torch.from_numpy(np.array(values)).to(like.device)
    return rows.view(1, -1, *(1,) * (like.dim() - 2))
