# SPDX-License-Identifier: Apache-2.0
"""Size of clustered parameters in closed form, as it is published: indices and tables."""

from __future__ import annotations

from bitwright.base.errors import FormatError
from bitwright.explore.sizes import FLOAT_BITS


def clustered_bits(
    parameters: int, clusters: int, sets: int = 1, centroid_bits: int = FLOAT_BITS
) -> int:
    """Stored bits of clustered parameters: ``I P + S K Q`` with ``I = ceil(log2 K)``.

    Args:
        parameters: P, all clustered parameters.
        clusters: K, entries of a table.
        sets: S, tables.
        centroid_bits: Q, bits of a table entry.

    Raises:
        FormatError: one of them is no positive number, or there are more clusters than parameters.
    """
    for name, value in (
        ("parameters", parameters),
        ("clusters", clusters),
        ("sets", sets),
        ("centroid bits", centroid_bits),
    ):
        if value < 1:
            raise FormatError(f"{value} {name}", hint="expected 1 or more")
    if clusters * sets > parameters:
        raise FormatError(
            f"{sets} tables of {clusters} entries for {parameters} parameters",
            hint="fewer clusters than values: lower K",
        )
    return index_bits(clusters) * parameters + sets * clusters * centroid_bits


def index_bits(clusters: int) -> int:
    """Bits of an index into a table of this many entries: ``ceil(log2 K)``."""
    return (clusters - 1).bit_length()


def clustered_rate(
    parameters: int, clusters: int, sets: int = 1, centroid_bits: int = FLOAT_BITS
) -> float:
    """Parameter rate of clustered parameters: ``32 P / (I P + S K Q)``; see `clustered_bits`."""
    stored = clustered_bits(parameters, clusters, sets, centroid_bits)
    return FLOAT_BITS * parameters / stored
