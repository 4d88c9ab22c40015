# SPDX-License-Identifier: Apache-2.0
"""AdaRound: for every weight learn whether it goes to the level above or below it.

Nagel et al. 2020, "Up or Down?": a soft choice per weight, a regulariser that pushes it to 0 or 1
as the temperature falls, and the squared error of the layer's output as the loss, behind the ReLU
if one follows. The neighbours are those of the format's own grid, so uneven formats are served
too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from bitwright.base.errors import RecipeError
from bitwright.quantize.ptq.lattice import Lattice, best_lattice, lattice_of
from bitwright.quantize.ptq.matrices import as_matrix, column_counts, paired_columns
from bitwright.quantize.ptq.reconstruction import LayerView

#: The stretched sigmoid of Louizos et al. 2018, which reaches 0 and 1 exactly.
_LOW, _HIGH = -0.1, 1.1
_COLUMNS = 1 << 15


@dataclass(frozen=True)
class AdaRound:
    """Learned rounding as a method of `post_training_quantize`.

    Attributes:
        iterations: updates a layer.
        columns: input patches an update.
        lr: of Adam.
        weight: of the regulariser.
        warmup: share of the iterations without it.
        beta: exponent of the regulariser, from first to last.
        search_scale: start from the scale with the smallest weighted rounding error.
        seed: of the choice of patches.
    """

    iterations: int = 1000
    columns: int = 512
    lr: float = 0.01
    weight: float = 0.01
    warmup: float = 0.2
    beta: tuple[float, float] = (20.0, 2.0)
    search_scale: bool = True
    seed: int = 0

    name = "adaround"

    def __post_init__(self) -> None:
        if self.iterations < 1 or self.columns < 1:
            raise RecipeError("needs at least one iteration and one column", where="adaround")

    def treat(self, view: LayerView, biased: bool) -> None:
        """Choose the levels of one layer and fix them; arguments as for `Gptq.treat`."""
        inputs, references = _columns(view)
        weight = as_matrix(view.layer, view.layer.weight.detach())
        targets = weight @ references
        lattice = self._lattice(view, inputs)
        choice = _Choice(view, lattice)
        with torch.enable_grad():
            self._learn(choice, view, inputs, targets)
        lattice.fix_levels(view.layer, choice.decided().reshape(view.layer.weight.shape))

    def _lattice(self, view: LayerView, inputs: Tensor) -> Lattice:
        """The policy's scale, or the tried one whose nearest rounding errs least, each input
        weighted by its power.
        """
        if not self.search_scale:
            return lattice_of(view.layer)
        power = inputs.to(torch.float64).square().mean(dim=2)[:, None, :]
        return best_lattice(view.layer, lambda miss: (miss.square() * power).sum(dim=2))

    def _learn(self, choice: _Choice, view: LayerView, inputs: Tensor, targets: Tensor) -> None:
        bias = _bias(view, targets.shape)
        optimizer = torch.optim.Adam([choice.wish], lr=self.lr)
        generator = torch.Generator().manual_seed(self.seed)
        start = int(self.warmup * self.iterations)
        for step in range(self.iterations):
            kept = torch.randint(inputs.shape[2], (self.columns,), generator=generator)
            outputs = choice.soft() @ inputs[:, :, kept] + bias
            wanted = targets[:, :, kept] + bias
            if view.rectified:
                outputs, wanted = outputs.relu(), wanted.relu()
            loss = (outputs - wanted).square().sum(dim=(0, 1)).mean()
            if step >= start:
                beta = _annealed(self.beta, (step - start) / max(1, self.iterations - start))
                loss = loss + self.weight * choice.undecided(beta)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


class _Choice:
    """For every weight the two levels around it, and the wish for the upper one."""

    def __init__(self, view: LayerView, lattice: Lattice) -> None:
        shape = view.layer.weight.shape
        steps = as_matrix(view.layer, lattice.steps.expand(shape))
        weight = as_matrix(view.layer, view.layer.weight.detach().to(torch.float64))
        levels = lattice.levels()
        ratio = weight / steps
        place = torch.searchsorted(levels, ratio.contiguous(), right=True) - 1
        place = place.clamp(0, max(0, len(levels) - 2))
        below, above = levels[place], levels[(place + 1).clamp(max=len(levels) - 1)]
        self._below, self._above = below * steps, above * steps
        share = ((ratio - below) / (above - below).clamp(min=1)).clamp(0.001, 0.999)
        stretched = (share - _LOW) / (_HIGH - _LOW)
        start = torch.log(stretched / (1 - stretched)).to(torch.float32)
        self.wish = start.clone().requires_grad_(True)
        self._low = self._below.to(torch.float32)
        self._gap = (self._above - self._below).to(torch.float32)

    def share(self) -> Tensor:
        return (torch.sigmoid(self.wish) * (_HIGH - _LOW) + _LOW).clamp(0, 1)

    def soft(self) -> Tensor:
        return self._low + self._gap * self.share()

    def undecided(self, beta: float) -> Tensor:
        """Zero when every share is 0 or 1."""
        return (1 - (2 * self.share() - 1).abs().pow(beta)).sum()

    def decided(self) -> Tensor:
        return torch.where(self.share().detach() >= 0.5, self._above, self._below)


def _columns(view: LayerView) -> tuple[Tensor, Tensor]:
    """A sample of paired columns, (G, K, samples) each."""
    counts = column_counts(view)
    chosen = torch.arange(sum(counts))
    if len(chosen) > _COLUMNS:
        generator = torch.Generator().manual_seed(1)
        chosen = torch.randperm(len(chosen), generator=generator)[:_COLUMNS]
    found: tuple[Tensor, Tensor] | None = None
    for start, pair in zip(accumulate(counts, initial=0), paired_columns(view), strict=False):
        here = (chosen >= start) & (chosen < start + pair[0].shape[2])
        if found is None:
            groups, width, _ = pair[0].shape
            first = pair[0].new_empty(groups, width, len(chosen))
            found = (first, torch.empty_like(first))
        for whole, part in zip(found, pair, strict=True):
            whole[:, :, here] = part[:, :, chosen[here] - start]
    assert found is not None  # the calibration set is never empty
    return found


def _bias(view: LayerView, shape: torch.Size) -> Tensor:
    bias = view.float_layer.bias
    return torch.zeros(1) if bias is None else bias.detach().reshape(shape[0], shape[1], 1)


def _annealed(limits: tuple[float, float], share: float) -> float:
    """From the first to the last exponent along half a cosine."""
    first, last = limits
    return last + (first - last) * 0.5 * (1 + math.cos(math.pi * share))
