# SPDX-License-Identifier: Apache-2.0
"""A candidate network: one kind of bundle, repeated, with its channels and pools. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from bitwright.base.errors import ModelError
from bitwright.models.catalog import ModelInfo

INFO = ModelInfo(
    "bundle_net",
    "SkyNet's search: a detector of one kind of bundle; options: bundle, channels, pools",
    "bitwright.papers.skynet.search.bundle_net:bundle_net",
)
#: Layers of a bundle, each followed by batch norm and activation: ``dwK`` a depthwise and ``convK``
#: a full K x K convolution, ``pw`` a 1 x 1 one. The first layer that is not depthwise gives the
#: bundle its channels. The thesis has no list of its own; these are orders that others have used.
BUNDLES: dict[str, tuple[str, ...]] = {
    "dw3-pw": ("dw3", "pw"),  # SkyNet's
    "dw5-pw": ("dw5", "pw"),
    "pw-dw3": ("pw", "dw3"),
    "pw-dw3-pw": ("pw", "dw3", "pw"),
    "conv3": ("conv3",),
    "conv3-pw": ("conv3", "pw"),
}
#: Channels are multiples of this, at least one of them.
GRAIN = 4
MOST_CHANNELS = 1024
#: Side of the space to depth of the bypass.
REORDERED = 2


@dataclass(frozen=True)
class Candidate:
    """A position in the search.

    Attributes:
        bundle: one of `BUNDLES`.
        channels: behind each repetition (``fv1``).
        pools: behind which repetitions a 2 x 2 max pool stands (``fv2``).
        bypass: what goes into the last pool also goes around it, space to depth, to the last
            bundle.
        activation: ``relu`` or ``relu6``.
    """

    bundle: str
    channels: tuple[int, ...]
    pools: tuple[bool, ...]
    bypass: bool = False
    activation: str = "relu6"

    def __post_init__(self) -> None:
        where = f"bundle {self.bundle}"
        if self.bundle not in BUNDLES:
            raise ModelError(
                f"unknown bundle {self.bundle!r}",
                where="search",
                hint=f"known: {', '.join(BUNDLES)}",
            )
        if not self.channels or len(self.channels) != len(self.pools):
            raise ModelError(
                f"{len(self.channels)} channels and {len(self.pools)} places of pools; there is "
                "one of each for every repetition of the bundle",
                where=where,
            )
        if not all(type(c) is int and 0 < c <= MOST_CHANNELS for c in self.channels):
            raise ModelError(
                f"channels are {list(self.channels)}", where=where, hint=f"1 to {MOST_CHANNELS}"
            )
        if self.bypass and (not any(self.pools) or self.last_pool == len(self.pools) - 1):
            raise ModelError(
                "a bypass leads around the last pool to the last bundle: there must be a pool, and "
                "a bundle behind it",
                where=where,
            )

    @property
    def last_pool(self) -> int:
        """The repetition behind which the last pool stands."""
        return max(place for place, pool in enumerate(self.pools) if pool)

    @property
    def stride(self) -> int:
        """Pixels of the image by cell of the output."""
        return 1 << sum(self.pools)

    @property
    def name(self) -> str:
        """In a word: ``dw3-pw 8P 16 32P`` (P: a pool behind it)."""
        parts = (f"{c}{'P' * p}" for c, p in zip(self.channels, self.pools, strict=True))
        return " ".join([self.bundle, *parts, *(["bypass"] if self.bypass else [])])

    def to_options(self) -> dict[str, Any]:
        """Options of the model ``bundle_net``."""
        return {**asdict(self), "channels": list(self.channels), "pools": list(self.pools)}

    @classmethod
    def of_options(cls, options: Mapping[str, Any]) -> Candidate:
        fields = dict(options)
        return cls(
            **{**fields, "channels": tuple(fields["channels"]), "pools": tuple(fields["pools"])}
        )


def sketch(bundle: str, repeats: int, channels: int, pools: int, **more: Any) -> Candidate:
    """The network by which a bundle is judged: pools behind the first repetitions, each of which
    doubles the channels.

    Raises:
        ModelError: there are more pools than repetitions, or the bundle is unknown.
    """
    if pools > repeats:
        raise ModelError(f"{pools} pools behind {repeats} bundles", where="search")
    widths = tuple(channels << min(place, pools) for place in range(repeats))
    return Candidate(bundle, widths, tuple(place < pools for place in range(repeats)), **more)
