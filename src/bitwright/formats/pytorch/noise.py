# SPDX-License-Identifier: Apache-2.0
"""Uniform numbers that depend on a seed and a place only: the same on every device and in C.

Philox 4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"), a counter-based
generator. Element i of a stream takes lane ``i / 64 % 4`` of counter ``i / 256 * 64 + i % 64``, so
that 64 counters computed side by side fill 256 neighbouring elements.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bitwright.base.errors import FormatError

#: One unit of a 32-bit draw.
DRAW = 2.0**-32
MAX_SEED = 2**63 - 1
_SIDE, _LANES = 64, 4
_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def counter_noise(seed: int, count: int, device: torch.device | str = "cpu") -> Tensor:
    """(count,) float64, multiples of 2^-32 in [0, 1).

    Raises:
        FormatError: the seed is not in 0 .. 2^63 - 1.
    """
    check_seed(seed)
    groups = -(-count // (_SIDE * _LANES))
    counter = torch.arange(groups * _SIDE, dtype=torch.int64, device=device)
    words = _philox(counter, seed)
    lanes = torch.stack([word.view(groups, _SIDE) for word in words], dim=1)
    return lanes.reshape(-1).narrow(0, 0, count).to(torch.float64).mul_(DRAW)


def drawn_seed(generator: torch.Generator | None) -> int:
    """A seed from torch's generator: one draw, whatever the tensor's size."""
    device = "cpu" if generator is None else generator.device
    return int(torch.randint(MAX_SEED, (1,), generator=generator, device=device))


def check_seed(seed: int) -> None:
    """`FormatError` if it is not in 0 .. 2^63 - 1."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= MAX_SEED:
        raise FormatError(f"{seed!r} is no seed", hint="a whole number from 0 to 2^63 - 1")


def _philox(counter: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four 32-bit words, in int64, of every counter."""
    a, b = counter & _MASK, counter >> 32
    c, d = torch.zeros_like(a), torch.zeros_like(a)
    keys = [seed & _MASK, seed >> 32]
    for _ in range(_ROUNDS):
        # int64 wraps like uint64; the mask takes the sign off the upper half again.
        low, high = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = (
            (high >> 32 & _MASK) ^ b ^ keys[0],
            high & _MASK,
            (low >> 32 & _MASK) ^ d ^ keys[1],
            low & _MASK,
        )
        keys = [(key + step) & _MASK for key, step in zip(keys, _KEY_STEPS, strict=True)]
    return a, b, c, d
