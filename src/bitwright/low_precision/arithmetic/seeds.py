# SPDX-License-Identifier: Apache-2.0
"""Which random numbers round which tensor: a function of run, step, layer, operand and worker."""

from __future__ import annotations

from enum import IntEnum

from bitwright.formats.pytorch.noise import MAX_SEED

_MASK = 2**64 - 1


class Stream(IntEnum):
    """The tensors of a layer that are rounded, each with random numbers of its own."""

    INPUT = 0
    WEIGHT = 1
    ACTIVATION = 2
    GRAD_OUTPUT = 3
    GRAD_INPUT = 4
    GRAD_WEIGHT = 5


def tensor_seed(seed: int, step: int, layer: int, call: int, stream: Stream, worker: int) -> int:
    """Seed of `counter_noise` for one tensor, 0 .. 2^63 - 1.

    Args:
        step: number of the training step in the run.
        layer: number of the layer in the network.
        call: how often the layer has run before in this step; a shared layer runs several times.
        worker: rank of the process. All round their copies of the weights alike; what they see of
            the data is their own.
    """
    state = seed & _MASK
    for part in (step, layer, call, int(stream), 0 if stream is Stream.WEIGHT else worker + 1):
        state = _mixed(state ^ _mixed(part & _MASK))
    return state & MAX_SEED


def _mixed(value: int) -> int:
    """SplitMix64's output function of the next state (Steele et al. 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
