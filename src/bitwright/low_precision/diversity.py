# SPDX-License-Identifier: Apache-2.0
"""How much the gradients of several epochs differ, and the memory that holds them.

Gradient diversity (Yin et al. 2018) between epochs (MuPPET, Rajagopal et al. 2020; Vink 2023,
eq. 3.9)::

    D = mean over layers of  sum_k |g_k|^2 / |sum_k g_k|^2

of n gradients is 1/n where all are equal, 1 where they are orthogonal, and has no bound where they
cancel.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

#: By layer, the gradients of the window, oldest first -> the metric, or None if it has no value.
Metric = Callable[[Mapping[str, Sequence[Tensor]]], "Measured | float | None"]
_CHUNK = 1 << 16  # numbers that are float64 at a time: they stay in a cache


@dataclass(frozen=True)
class Measured:
    """A metric of one epoch.

    Attributes:
        value: finite and above zero; None if there is none.
        note: what was left out, and why; empty if nothing was.
    """

    value: float | None
    note: str = ""


def gradient_diversity(gradients: Mapping[str, Sequence[Tensor]]) -> Measured:
    """The mean over layers of sum |g|^2 / |sum g|^2, computed in float64.

    A layer whose gradients are all zero has no diversity, and one whose gradients cancel has an
    infinite one: both are left out of the mean and named.
    """
    found, zero, cancelled = [], [], []
    for path, window in gradients.items():
        norms, norm_of_sum = _norms(window)
        if norms == 0.0:
            zero.append(path)
        elif norm_of_sum == 0.0 or math.isinf(norms / norm_of_sum):
            cancelled.append(path)
        else:
            found.append(norms / norm_of_sum)
    reasons = []
    if zero:
        reasons.append(f"all gradients of {_named(zero)} are zero")
    if cancelled:
        reasons.append(f"the gradients of {_named(cancelled)} cancel")
    value = math.fsum(found) / len(found) if found else None
    return Measured(value, ", ".join(reasons))


def _norms(window: Sequence[Tensor]) -> tuple[float, float]:
    """sum_k |g_k|^2 and |sum_k g_k|^2."""
    flat = [each.reshape(-1) for each in window]
    norms = norm_of_sum = 0.0
    for start in range(0, flat[0].numel(), _CHUNK):
        parts = [each[start : start + _CHUNK].to(torch.float64, copy=True) for each in flat]
        norms += math.fsum(float(part.dot(part)) for part in parts)
        for part in parts[1:]:
            parts[0] += part
        norm_of_sum += float(parts[0].dot(parts[0]))
    return norms, norm_of_sum


def _named(paths: Sequence[str], most: int = 3) -> str:
    """A few names, and how many more there are."""
    more = len(paths) - most
    shown = ", ".join(paths[:most])
    return f"{shown} and {more} more layers" if more > 0 else shown


def measured(metric: Metric, gradients: Mapping[str, Sequence[Tensor]]) -> Measured:
    """What a metric gives, with a value that can be compared, or none and the reason."""
    given = metric(gradients)
    found = given if isinstance(given, Measured) else Measured(given)
    if found.value is None:
        return Measured(None, found.note or "the metric has no value")
    value = float(found.value)
    if not math.isfinite(value) or value <= 0:
        return Measured(None, f"the metric is {value:g}, not a finite number above zero")
    return Measured(value, found.note)


def not_finite(gradients: Mapping[str, Tensor]) -> str | None:
    """Names the layers whose gradient has a NaN or an infinity; None if there is none."""
    wrong = [path for path, each in gradients.items() if not bool(torch.isfinite(each).all())]
    return _named(wrong) if wrong else None


#: Beyond that of the smallest float32, with 16 bits.
_MOST_EXPONENT = 200


class GradientHistory:
    """The last gradients of every layer, packed: a quantized gradient has few bits, so that a
    window of four takes as much memory as one copy of the weights at 8 bits, and twice that at 16.

    They lie in the processor's memory, whatever device trains.

    Args:
        length: of the window.
        shapes: of the gradients, layer by layer, where they are known.
    """

    def __init__(self, length: int, shapes: Mapping[str, tuple[int, ...]] | None = None) -> None:
        self._shapes = shapes
        self._epochs: deque[dict[str, _Packed]] = deque(maxlen=length)

    def __len__(self) -> int:
        return len(self._epochs)

    @property
    def is_full(self) -> bool:
        return len(self._epochs) == self._epochs.maxlen

    def add(self, gradients: Mapping[str, Tensor]) -> None:
        """Store an epoch's gradients; the oldest are forgotten where there are too many."""
        self._epochs.append({path: _Packed.of(each) for path, each in gradients.items()})

    def clear(self) -> None:
        self._epochs.clear()

    def window(self) -> Mapping[str, Sequence[Tensor]]:
        """By layer, its gradients, oldest first: float32, unpacked as they are looked at."""
        return _Window(self._epochs)

    def state_dict(self) -> list[dict[str, dict[str, Any]]]:
        return [{path: each.state() for path, each in one.items()} for one in self._epochs]

    def load_state_dict(self, state: Sequence[Mapping[str, Mapping[str, Any]]]) -> None:
        """
        Raises:
            TypeError, ValueError: it holds something else than gradients of these layers.
        """
        epochs = [{path: _Packed(**each) for path, each in one.items()} for one in state]
        shapes = dict(self._shapes or {})
        for path, packed in ((path, each) for one in epochs for path, each in one.items()):
            packed.check()
            here = tuple(packed.levels.shape)
            known = shapes.setdefault(path, here) if self._shapes is None else shapes.get(path)
            if known != here:
                raise ValueError(f"a gradient of layer {path!r:.80} of shape {here}, not {known}")
        self._epochs.clear()
        self._epochs.extend(epochs)


class _Window(Mapping[str, Sequence[Tensor]]):
    """Unpacks one layer at a time."""

    def __init__(self, epochs: deque[dict[str, _Packed]]) -> None:
        self._epochs = epochs

    def __getitem__(self, path: str) -> Sequence[Tensor]:
        return [one[path].real() for one in self._epochs]

    def __iter__(self) -> Iterator[str]:
        # A layer that had no gradient in some epoch has no window.
        return (path for path in self._epochs[-1] if all(path in one for one in self._epochs))

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass(frozen=True, eq=False)
class _Packed:
    """A tensor as ``levels * 2**-exponent``, without loss.

    Attributes:
        levels: int8 or int16; float32 where that would lose something.
        exponent: 0 for float32.
    """

    levels: Tensor
    exponent: int = 0

    @classmethod
    def of(cls, real: Tensor) -> _Packed:
        real = real.detach().to("cpu", torch.float32)
        largest = float(real.abs().max()) if real.numel() else 0.0
        # largest is in [2^(top-1), 2^top)
        top = math.frexp(largest)[1] if math.isfinite(largest) else 0
        for kind, bits in ((torch.int8, 8), (torch.int16, 16)):
            # The finest grid on which the largest magnitude may be the most negative level, or one
            # step coarser, where it is no power of two.
            for exponent in (bits - top, bits - 1 - top):
                packed = _fitted(real, kind, exponent)
                if packed is not None:
                    return packed
        return cls(real.clone())

    def real(self) -> Tensor:
        """float32."""
        if self.levels.dtype is torch.float32:
            return self.levels
        return _scaled(self.levels.float(), -self.exponent)

    def check(self) -> None:
        """
        Raises:
            TypeError: it is nothing that `of` makes.
        """
        kinds = (torch.int8, torch.int16, torch.float32)
        if not isinstance(self.levels, Tensor) or self.levels.dtype not in kinds:
            raise TypeError("a gradient is no tensor of int8, int16 or float32")
        if type(self.exponent) is not int or abs(self.exponent) > _MOST_EXPONENT:
            raise TypeError(f"a gradient has the exponent {self.exponent!r:.40}")

    def state(self) -> dict[str, Any]:
        return {"levels": self.levels, "exponent": self.exponent}


def _fitted(real: Tensor, kind: torch.dtype, exponent: int) -> _Packed | None:
    """A tensor in integers of a kind; None if they cannot hold it exactly."""
    ends = torch.iinfo(kind)
    packed = _Packed(_scaled(real, exponent).clamp(ends.min, ends.max).to(kind), exponent)
    return packed if torch.equal(packed.real(), real) else None


def _scaled(x: Tensor, exponent: int) -> Tensor:
    """x * 2^exponent in float32, in two steps, as 2^exponent alone may be no float32."""
    half = exponent // 2
    return x * math.ldexp(1.0, half) * math.ldexp(1.0, exponent - half)
