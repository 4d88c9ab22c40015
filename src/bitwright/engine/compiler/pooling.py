# SPDX-License-Identifier: Apache-2.0
"""A max pool inside the product in front of it: one EXEC whose taps are the pool's.

Where a convolution has a single step (one tap, its channels in one word), the sums of a pool's
window are the steps of one EXEC that keeps the largest: the convolution's own results, which leave
slowly and would be read again, are never there. What rises commutes with the maximum, so the pool
of an activation is the activation of the pool; a channel whose activation falls is negated, with
its weights.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bitwright.engine.compiler.draft import Draft, pair_of
from bitwright.engine.compiler.values import Part
from bitwright.engine.isa import Reduce, WeightOrder
from bitwright.ir import IntArray, Node


def can_pool(draft: Draft, falls: IntArray) -> bool:
    """Whether a pool fits into the product.

    Args:
        falls: the channels that are to be negated.
    """
    return (
        draft.reduce == Reduce.ADD
        and draft.kernel == draft.stride == (1, 1)
        and draft.padding == (0, 0)
        and len(draft.sources) == 1
        and all(
            part.order == WeightOrder.SEQUENTIAL
            and part.weights.shape[1] == 1
            and part.origin == (0, 0)
            for part in draft.parts
        )
        and (not falls.any() or min(int(part.weights.min()) for part in draft.parts) >= -127)
    )


def rising(activation: Node, channels: int) -> tuple[Node, IntArray] | None:
    """The activation of negated sums where it falls, so that it rises in all channels, and which
    these are (1 or 0 of each); None for a table, which does neither.
    """
    params = dict(activation.params)
    if activation.op == "requant":
        falls = params["multiplier"] < 0
        params["multiplier"] = np.abs(params["multiplier"])
    elif activation.op == "threshold":
        falls = params.get("flip", np.zeros(1, np.int64)) == 1
        params["flip"] = np.zeros(1, np.int64)
    else:
        return None
    signs = np.broadcast_to(falls, (channels,)).astype(np.int64)
    return replace(activation, params=params), signs


def pooled(draft: Draft, falls: IntArray, pool: Node, size: tuple[int, int]) -> Draft:
    """The product with the pool in it.

    Args:
        draft: of which `can_pool` is true.
        falls: the channels that are negated.
        size: height and width of the pool's result.
    """
    lanes = np.ones(draft.lanes, np.int64)
    lanes[draft.places] = 1 - 2 * falls
    kernel = pair_of(pool, "kernel")
    return replace(
        draft,
        nodes=(*draft.nodes, pool.name),
        parts=tuple(_repeated(part, lanes, kernel[0] * kernel[1]) for part in draft.parts),
        bias=None if draft.bias is None else draft.bias * (1 - 2 * falls),
        size=size,
        kernel=kernel,
        stride=pair_of(pool, "stride"),
        dilation=(1, 1),  # the convolution may have had another one, with its one tap
        padding=pair_of(pool, "padding"),
        reduce=Reduce.MAX,
    )


def _repeated(part: Part, lanes: IntArray, steps: int) -> Part:
    """Rows of weights for every tap, negated where a lane's sign is -1."""
    groups, _, outputs, _ = part.weights.shape
    own = lanes[part.group * outputs : (part.group + groups) * outputs]
    signed = part.weights * own.reshape(groups, 1, outputs, 1).astype(np.int8)
    return replace(part, weights=np.repeat(signed.astype(np.int8), steps, axis=1))
