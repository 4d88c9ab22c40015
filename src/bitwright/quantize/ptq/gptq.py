# SPDX-License-Identifier: Apache-2.0
"""GPTQ: weights rounded one after the other, each error made up for by those to come.

The order and the update are GPTQ's (Frantar et al. 2023, after Optimal Brain Surgeon): the Hessian
of a layer's squared output error is the second moment of its inputs. Rounding is to the nearest
level of any format, so the method serves integers, powers of two, codebooks and small floats
alike.

Four additions: the inputs are those of the quantized network, and the target is first fitted to
them by least squares, so that a layer also makes up for what the layers before it did (as GPFQ
does, Zhang et al. 2023); where the bias is corrected afterwards, moments are taken about the mean;
several scales are tried, for each the whole feedback, the one with the smallest output error is
kept; and a row that plain rounding serves better is rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bitwright.base.errors import ModelError, RecipeError
from bitwright.quantize.ptq.lattice import Lattice, candidates, lattice_of, with_unit
from bitwright.quantize.ptq.matrices import Moments, as_matrix, moments
from bitwright.quantize.ptq.reconstruction import LayerView
from bitwright.quantize.spec import Granularity

Nearest = Callable[[Tensor, Tensor], Tensor]
_BLOCK = 64
#: Numbers of the rows, each with every scale, that are rounded at a time.
_PIECE = 1 << 24
_FLOOR = 1e-4
#: Added to the diagonal, as shares of its mean, until the Hessian has an inverse.
_RETRIES = (0.0, 1e-5, 1e-4, 1e-3, 1e-2)


@dataclass(frozen=True)
class Gptq:
    """GPTQ as a method of `post_training_quantize`.

    Attributes:
        damping: added to the diagonal of the Hessian, as a share of its mean.
        match: how much of the errors of earlier layers a layer tries to make up for: 0 nothing, 1
            the least-squares fit.
        search_scale: try several scales; False keeps the policy's rule.
        centered: moments about the mean; None: if the bias is corrected afterwards.
    """

    damping: float = 0.01
    match: float = 1.0
    search_scale: bool = True
    centered: bool | None = None

    name = "gptq"

    def __post_init__(self) -> None:
        if not 0 < self.damping <= 1:
            raise RecipeError(f"a damping of {self.damping}", where="gptq", hint="above 0, up to 1")
        if not 0 <= self.match <= 1:
            raise RecipeError(f"match {self.match}", where="gptq", hint="0 to 1")

    def treat(self, view: LayerView, biased: bool) -> None:
        """Choose the levels of one layer and fix them.

        Args:
            biased: the bias is corrected afterwards.
        """
        found = moments(view)
        if biased if self.centered is None else self.centered:
            found = found.centered()
        weight = as_matrix(view.layer, view.layer.weight.detach().to(torch.float64))
        target = _matched(weight, found, self.damping, self.match)
        lattice = lattice_of(view.layer)
        units = candidates(view.layer, lattice) if self.search_scale else [lattice.unit]
        best, values = self._best(view, lattice, units, target, found.hessian)
        best.fix_levels(view.layer, values.reshape(view.layer.weight.shape))

    def _best(
        self,
        view: LayerView,
        lattice: Lattice,
        units: list[Tensor],
        target: Tensor,
        hessian: Tensor,
    ) -> tuple[Lattice, Tensor]:
        """The scale, one a channel where there may be one, with which the output errs least, and
        the values, (G, R, K); some rows at a time, each of which is by itself.
        """
        groups, rows, width = target.shape
        steps = as_matrix(view.layer, lattice.steps.expand(view.layer.weight.shape))
        ratios = [(u / lattice.unit).expand(groups * rows).reshape(groups, rows, 1) for u in units]
        feedback = Feedback(_damped(hessian, self.damping))

        def tried(part: slice, some: list[Tensor]) -> tuple[Tensor, Tensor]:
            """(tried, G, R, K) values, and (tried, G, R) errors."""
            values, errors = _fed_or_rounded(
                target[:, part].repeat(1, len(some), 1),
                hessian,
                torch.cat([steps[:, part] * ratio[:, part] for ratio in some], dim=1),
                lattice.nearest,
                feedback,
            )
            values = values.reshape(groups, len(some), -1, width).transpose(0, 1)
            return values, errors.reshape(groups, len(some), -1).transpose(0, 1)

        by_row = lattice.spec.granularity is Granularity.PER_CHANNEL
        size = max(1, _PIECE // (groups * len(units) * width))
        parts = [slice(start, start + size) for start in range(0, rows, size)]
        found, missed = [], []
        for part in parts:
            values, errors = tried(part, ratios)
            missed.append(errors)
            if by_row:
                place = errors.argmin(dim=0)[None, :, :, None].expand(1, *values.shape[1:])
                found.append(values.gather(0, place)[0])
            elif len(parts) == 1:
                found.append(values[int(errors.sum(dim=(1, 2)).argmin())])
        chosen = torch.cat(missed, dim=2)
        if by_row:
            stacked = torch.stack([unit.expand(groups * rows) for unit in units])
            unit = stacked.gather(0, chosen.argmin(dim=0).reshape(1, -1))[0]
        else:
            best = int(chosen.sum(dim=(1, 2)).argmin())
            unit = units[best].expand(groups * rows)
            if not found:
                found = [tried(part, [ratios[best]])[0][0] for part in parts]
        if lattice.unit.numel() == 1:
            unit = unit[:1]
        return with_unit(lattice, unit), torch.cat(found, dim=1)


def fed_or_rounded(
    target: Tensor,
    hessian: Tensor,
    steps: Tensor,
    nearest: Nearest,
    damping: float = 0.01,
) -> tuple[Tensor, Tensor]:
    """Every row by error feedback, or rounded to nearest where that errs less.

    Feedback is greedy: with few weights a row, or coarse levels far apart, what it moves to the
    last weights may no longer fit there.

    Args:
        target: (G, R, K) float64.
        hessian: (G, K, K) symmetric; damped for the feedback, as it is for the errors.
        steps, nearest: see `error_feedback`.
        damping: added to the diagonal, as a share of its mean.

    Returns:
        (G, R, K) representable values, and (G, R) the squared error of the output with each.
    """
    return _fed_or_rounded(target, hessian, steps, nearest, Feedback(_damped(hessian, damping)))


def _fed_or_rounded(
    target: Tensor, hessian: Tensor, steps: Tensor, nearest: Nearest, feedback: Feedback
) -> tuple[Tensor, Tensor]:
    fed = feedback(target, steps, nearest)
    rounded = nearest(target, steps)
    errors, alone = _missed(fed - target, hessian), _missed(rounded - target, hessian)
    values = torch.where((alone < errors)[:, :, None], rounded, fed)
    return values, torch.minimum(alone, errors)


def _missed(miss: Tensor, hessian: Tensor) -> Tensor:
    """(G, R): ``m H m`` of each row."""
    return ((miss @ hessian) * miss).sum(dim=2)


def _matched(weight: Tensor, found: Moments, damping: float, share: float) -> Tensor:
    """The weights that, with the quantized network's inputs, come nearest to the float outputs.

    ``argmin_V E||W r - V x||^2 + lambda ||V - W||^2``, mixed with W itself by ``share``.
    """
    if share == 0:
        return weight
    eye = torch.eye(weight.shape[2], dtype=torch.float64)
    strength = _strength(found.hessian, damping)
    right = weight @ (found.cross + strength * eye)
    fitted = torch.linalg.solve(_damped(found.hessian, damping), right.transpose(1, 2))
    return weight + share * (fitted.transpose(1, 2) - weight)


def _strength(hessian: Tensor, damping: float) -> Tensor:
    """(G, 1, 1): the damping's share of each group's mean power, and a little of the layer's.

    The latter stands for inputs that are always zero.
    """
    mean = hessian.diagonal(dim1=1, dim2=2).mean(dim=1)
    overall = mean.mean().clamp(min=1e-12)
    return (damping * mean.clamp(min=0) + _FLOOR * overall)[:, None, None]


def _damped(hessian: Tensor, damping: float) -> Tensor:
    eye = torch.eye(hessian.shape[1], dtype=hessian.dtype)
    return hessian + _strength(hessian, damping) * eye


def error_feedback(
    weights: Tensor,
    hessian: Tensor,
    steps: Tensor,
    nearest: Nearest,
) -> Tensor:
    """Round weights column by column, spreading each error over the columns to come.

    Args:
        weights: (G, R, K) float64.
        hessian: (G, K, K) symmetric and positive definite.
        steps: (G, R, K), handed to ``nearest`` column by column.
        nearest: (values, steps) -> the nearest representable values.

    Returns:
        (G, R, K): representable values.

    Raises:
        ModelError: the Hessian is not positive definite, however much is added to its diagonal.
    """
    return Feedback(hessian)(weights, steps, nearest)


class Feedback:
    """What `error_feedback` makes of a Hessian, for any number of rows.

    Args:
        hessian: (G, K, K) symmetric and positive definite.

    Raises:
        ModelError: as `error_feedback`.
    """

    def __init__(self, hessian: Tensor) -> None:
        diagonal = hessian.diagonal(dim1=1, dim2=2)
        # Most important inputs first.
        self._places = diagonal.argsort(dim=1, descending=True, stable=True)
        square = self._places[:, :, None].expand_as(hessian)
        self._upper = _inverse_root(hessian.gather(1, square).gather(2, square.transpose(1, 2)))

    def __call__(self, weights: Tensor, steps: Tensor, nearest: Nearest) -> Tensor:
        """(G, R, K) representable values; arguments as those of `error_feedback`."""
        upper, wide = self._upper, self._places[:, None, :].expand_as(weights)
        left = weights.gather(2, wide)
        scale = steps.gather(2, wide)
        done = torch.empty_like(left)
        count = left.shape[2]
        for start in range(0, count, _BLOCK):
            stop = min(start + _BLOCK, count)
            errors = torch.empty_like(left[:, :, start:stop])
            for j in range(start, stop):
                done[:, :, j] = nearest(left[:, :, j], scale[:, :, j])
                error = (left[:, :, j] - done[:, :, j]) / upper[:, j, j, None]
                left[:, :, j + 1 : stop] -= error[:, :, None] * upper[:, None, j, j + 1 : stop]
                errors[:, :, j - start] = error
            left[:, :, stop:] -= errors @ upper[:, start:stop, stop:]
        return torch.empty_like(done).scatter_(2, wide, done)


def _inverse_root(hessian: Tensor) -> Tensor:
    """Upper triangular U with ``U^T U`` the inverse of the Hessian."""
    eye = torch.eye(hessian.shape[1], dtype=hessian.dtype)
    unit = hessian.diagonal(dim1=1, dim2=2).mean() * eye
    for more in _RETRIES:
        lower, failed = torch.linalg.cholesky_ex(hessian + more * unit)
        if not bool(failed.any()):
            inverse = torch.cholesky_inverse(lower)
            upper, failed = torch.linalg.cholesky_ex(inverse, upper=True)
            if not bool(failed.any()):
                return upper
    raise ModelError("the inputs' second moments are singular", where="gptq", hint="raise damping")
