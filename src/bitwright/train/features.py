# SPDX-License-Identifier: Apache-2.0
"""Layers of a student that learn from layers of a teacher, beside the scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, fx, nn

from bitwright.base.errors import ModelError
from bitwright.models.modes import evaluating
from bitwright.train.config import FeaturePair
from bitwright.train.loss import attention_loss, relative_error

_MAP_AXES = 4
_VECTOR_AXES = 2
_HINT = "use the paths of named_modules()"


class Watched:
    """The last outputs of some layers of a model, kept while it runs, until `close`.

    In a model that was traced (a quantized one) a block is no module that is called; its path
    stands for the layer that gives its output.
    """

    def __init__(self, model: nn.Module, paths: Sequence[str], where: str) -> None:
        """
        Raises:
            ModelError: a path is unknown, or a block of a traced model does not end in a layer.
        """
        self._where = where
        self._kept: dict[str, tuple[Tensor, int]] = {}
        found = [_layer(model, path, where) for path in paths]
        self._handles = [
            layer.register_forward_hook(self._keeper(path))
            for path, layer in zip(paths, found, strict=True)
        ]

    def _keeper(self, path: str) -> Callable[[nn.Module, Any, Any], None]:
        def keep(module: nn.Module, arguments: Any, output: Any) -> None:
            if not isinstance(output, Tensor):
                raise ModelError(f"layer {path!r} gives no single tensor", where=self._where)
            self._kept[path] = output, output._version

        return keep

    def __getitem__(self, path: str) -> Tensor:
        """The last output of a layer.

        Raises:
            ModelError: the layer did not run, or a later one wrote over its output.
        """
        if path not in self._kept:
            raise ModelError(f"layer {path!r} did not run", where=self._where, hint=_HINT)
        output, version = self._kept[path]
        if output._version != version:
            raise ModelError(
                f"the output of layer {path!r} is overwritten by the layer behind it",
                where=self._where,
                hint="name that layer (a ReLU in place, probably) instead",
            )
        return output

    def close(self) -> None:
        """Take the hooks off the model, and forget."""
        for handle in self._handles:
            handle.remove()
        self._kept.clear()


def check_paths(model: nn.Module, paths: Sequence[str], where: str) -> None:
    """Every path names a layer.

    Raises:
        ModelError: one does not; its hint names the path in a member where the model has members.
    """
    modules = dict(model.named_modules())
    for path in paths:
        if path not in modules:
            inner = f"members.0.{path}"
            hint = f"did you mean {inner!r}? {_HINT}" if inner in modules else _HINT
            raise ModelError(
                f"{type(model).__name__} has no layer {path!r}", where=where, hint=hint
            )


def _layer(model: nn.Module, path: str, where: str) -> nn.Module:
    check_paths(model, [path], where)
    modules = dict(model.named_modules())
    if isinstance(model, fx.GraphModule) and path:
        return modules[_called(model, path, where)]
    return modules[path]


def _called(model: fx.GraphModule, path: str, where: str) -> str:
    """The layer of a traced model that gives the output of a layer or block."""
    inside = [
        node
        for node in model.graph.nodes
        if node.target == path or path in dict(node.meta.get("nn_module_stack") or {})
    ]
    if not inside or inside[-1].op != "call_module":
        raise ModelError(
            f"{path!r} does not end in a layer of the traced model", where=where,
            hint="name a layer inside it",
        )  # fmt: skip
    return str(inside[-1].target)


class FeatureMatching(nn.Module):
    """Pairs of layers and what is learned to compare them.

    Its parameters (the regressors of hints) train along with the student and are thrown away.
    """

    def __init__(
        self,
        pairs: Sequence[FeaturePair],
        student: nn.Module,
        teacher: nn.Module,
        example: Tensor,
    ) -> None:
        """
        Args:
            student, teacher: both take ``example`` (N, C, H, W); hooks stay on them until `close`.

        Raises:
            ModelError: a path is unknown, or the outputs of a pair cannot be compared.
        """
        super().__init__()
        self.pairs = tuple(pairs)
        where = "distillation.features"
        with ExitStack() as undo:
            mine = Watched(student, [pair.student for pair in pairs], f"{where} (student)")
            undo.callback(mine.close)
            theirs = Watched(teacher, [pair.teacher for pair in pairs], f"{where} (teacher)")
            undo.callback(theirs.close)
            self._sides = mine, theirs  # no modules: a tuple is not registered
            for model in (student, teacher):
                with evaluating(model):
                    model(example)
            self.regressors = nn.ModuleList(
                _regressor(pair, mine[pair.student].shape, theirs[pair.teacher].shape)
                for pair in pairs
            )
            undo.pop_all()

    def loss(self, everywhere: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Weighted sum over the pairs, on the batch that both networks saw last.

        Args:
            everywhere: mean of a number over all processes that hold a part of the batch.
        """
        mine, theirs = self._sides
        parts = []
        for pair, regressor in zip(self.pairs, self.regressors, strict=True):
            found = mine[pair.student].float()
            target = theirs[pair.teacher].detach().float()
            if pair.kind == "attention":
                parts.append(pair.weight * attention_loss(found, target))
            else:
                power = target.square().mean()
                power = power if everywhere is None else everywhere(power)
                parts.append(pair.weight * relative_error(regressor(found), target, power))
        return torch.stack(parts).sum()

    def close(self) -> None:
        """Take the hooks off both networks."""
        for side in self._sides:
            side.close()


def _regressor(pair: FeaturePair, mine: torch.Size, theirs: torch.Size) -> nn.Module:
    where = f"distillation.features ({pair.student} from {pair.teacher})"
    shapes = f"the student's output is {tuple(mine[1:])}, the teacher's {tuple(theirs[1:])}"
    if pair.kind == "embedding":
        if mine != theirs:
            raise ModelError(
                f"an embedding needs equal shapes: {shapes}",
                where=where,
                hint="kind: hint learns to translate between different widths",
            )
        return nn.Identity()
    if len(mine) != len(theirs) or mine[2:] != theirs[2:]:
        raise ModelError(
            f"the sizes do not fit: {shapes}",
            where=where,
            hint="choose layers whose height and width are equal",
        )
    if pair.kind == "attention":
        if len(mine) != _MAP_AXES:
            raise ModelError(
                f"attention needs (channels, height, width): {shapes}", where=where, hint=None
            )
        return nn.Identity()
    if len(mine) == _VECTOR_AXES:
        return nn.Linear(mine[1], theirs[1])
    if len(mine) == _MAP_AXES:
        return nn.Conv2d(mine[1], theirs[1], kernel_size=1)
    raise ModelError(
        f"a hint needs (channels, height, width) or vectors: {shapes}", where=where, hint=None
    )
